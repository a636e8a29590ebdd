#include "native/core/policy_blob.h"

#include "native/core/blob_io.h"
#include "native/core/schema.h"

namespace steelyard::core {
namespace {

constexpr size_t kHeaderBytes = 56;
constexpr size_t kLayerBytes = 16;
constexpr ForeignMagic kRack = {"SLYDRCK1", "a policy of a rack's servers, not of load balancers"};

bool is_matrix(const std::string& field) { return field.starts_with("weight"); }

PolicyHeader read_header(uint32_t central_agents, BlobReader* reader) {
  PolicyHeader header;
  header.central_agents = central_agents;
  header.schema_hash = reader->number<uint64_t>();
  header.num_servers = reader->number<uint32_t>();
  header.num_actors = reader->number<uint32_t>();
  header.num_layers = reader->number<uint32_t>();
  header.input = reader->number<uint32_t>();
  header.output = reader->number<uint32_t>();
  header.clip = reader->number<float>();
  return header;
}

std::string read_layers(BlobReader* reader, std::vector<LayerSpec>* layers) {
  for (size_t l = 0; l < layers->size(); ++l) {
    const std::string name = "layers[" + std::to_string(l) + "]";
    LayerSpec& layer = (*layers)[l];
    const auto kind = reader->number<uint32_t>();
    const auto activation = reader->number<uint32_t>();
    layer.in = reader->number<uint32_t>();
    layer.out = reader->number<uint32_t>();
    std::string error = check_range(name + ".kind", kind, 0, static_cast<uint32_t>(LayerKind::kGru));
    if (!error.empty()) return error;
    error = check_range(name + ".activation", activation, 0, static_cast<uint32_t>(Activation::kSigmoid));
    if (!error.empty()) return error;
    layer.kind = static_cast<LayerKind>(kind);
    layer.activation = static_cast<Activation>(activation);
  }
  return "";
}

// Bytes of a file with these dimensions. With at most 2^26 inputs, 2^14 outputs and 2^4 layers of an actor,
// and 2^10 actors of at most 2^16 inputs, nothing here reaches 2^54.
uint64_t file_size(const PolicyHeader& header, const ActorSpec& shape, bool bfloat16) {
  uint64_t bytes = 0;
  visit_arrays(shape, observed_size(header),
               [&](const char* field, size_t, const std::vector<float>&, uint64_t count) {
                 bytes += count * (bfloat16 && is_matrix(field) ? sizeof(uint16_t) : sizeof(float));
                 return true;
               });
  return kHeaderBytes + kLayerBytes * header.num_layers + header.num_actors * bytes + kChecksumBytes;
}

// Header and layer table, checked against each other and against the file's size.
std::string read_shape(uint32_t central_agents, bool bfloat16, BlobReader* reader, size_t size,
                       PolicyHeader* header, ActorSpec* shape) {
  *header = read_header(central_agents, reader);
  std::string error = check_header(*header);
  if (!error.empty()) return error;
  if (size < kHeaderBytes + kLayerBytes * header->num_layers + kChecksumBytes) {
    return "truncated policy file: its layer table is cut";
  }
  shape->layers.resize(header->num_layers);
  error = read_layers(reader, &shape->layers);
  if (!error.empty()) return error;
  error = check_layers(*header, shape->layers);
  if (!error.empty()) return error;
  const uint64_t expected = file_size(*header, *shape, bfloat16);
  if (expected == size) return "";
  return "corrupt policy file: its dimensions ask for " + std::to_string(expected) + " bytes and it has " +
         std::to_string(size);
}

}  // namespace

bool encode_policy_blob(const PolicySpec& policy, std::vector<uint8_t>* blob, std::string* error) {
  *error = check_policy(policy);
  if (!error->empty()) return false;
  blob->clear();
  BlobWriter writer(blob);
  const PolicyHeader header = header_of(policy);
  writer.bytes(kPolicyMagic, kMagicBytes);
  writer.number(uint32_t{policy.bfloat16 ? 2u : 1u});
  writer.number(header.central_agents);
  writer.number(file_size(header, policy.actors[0], policy.bfloat16));
  writer.number(header.schema_hash);
  for (const uint32_t value :
       {header.num_servers, header.num_actors, header.num_layers, header.input, header.output}) {
    writer.number(value);
  }
  writer.number(header.clip);
  for (const LayerSpec& layer : policy.actors[0].layers) {
    writer.number(static_cast<uint32_t>(layer.kind));
    writer.number(static_cast<uint32_t>(layer.activation));
    writer.number(layer.in);
    writer.number(layer.out);
  }
  for (const ActorSpec& actor : policy.actors) {
    visit_arrays(actor, 0, [&](const char* field, size_t, const std::vector<float>& values, uint64_t) {
      policy.bfloat16&& is_matrix(field) ? writer.bfloats(values) : writer.floats(values);
      return true;
    });
  }
  writer.number(fnv1a(blob->data(), blob->size()));
  return true;
}

bool decode_policy_blob(const uint8_t* data, size_t size, PolicySpec* policy, std::string* error) {
  *error = check_envelope(data, size, kPolicyMagic, kPolicyVersion, kHeaderBytes, kRack);
  if (!error->empty()) return false;
  const bool bfloat16 = BlobReader(data + kMagicBytes).number<uint32_t>() == 2;
  BlobReader reader(data + kEnvelopeBytes);
  PolicyHeader header;
  ActorSpec shape;
  const auto central_agents = BlobReader(data + kOwnWordAt).number<uint32_t>();
  *error = read_shape(central_agents, bfloat16, &reader, size, &header, &shape);
  if (!error->empty()) return false;
  *policy = {header.schema_hash,
             header.central_agents,
             header.num_servers,
             static_cast<PolicyInput>(header.input),
             static_cast<PolicyOutput>(header.output),
             header.clip,
             {},
             bfloat16};
  policy->actors.assign(header.num_actors, shape);
  for (ActorSpec& actor : policy->actors) {
    visit_arrays(actor, observed_size(header),
                 [&](const char* field, size_t, std::vector<float>& values, uint64_t count) {
                   bfloat16&& is_matrix(field) ? reader.bfloats(&values, count)
                                               : reader.floats(&values, count);
                   return true;
                 });
  }
  *error = check_policy(*policy);
  return error->empty();
}

}  // namespace steelyard::core
