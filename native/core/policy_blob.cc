#include "native/core/policy_blob.h"

#include <cstring>

#include "native/core/schema.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "policy files are little-endian, so is the reader");

namespace steelyard::core {
namespace {

constexpr size_t kMagicBytes = 8;
constexpr size_t kCentralAt = 12;
constexpr size_t kEnvelopeBytes = 24;  // magic, version, central agents, size
constexpr size_t kHeaderBytes = 56;
constexpr size_t kLayerBytes = 16;
constexpr size_t kChecksumBytes = 8;

uint64_t fnv1a(const uint8_t* data, size_t size) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ data[i]) * 0x100000001b3ULL;
  return hash;
}

class Writer {
 public:
  explicit Writer(std::vector<uint8_t>* bytes) : bytes_(bytes) {}
  void bytes(const void* data, size_t size) {
    const auto* from = static_cast<const uint8_t*>(data);
    bytes_->insert(bytes_->end(), from, from + size);
  }
  template <typename T>
  void number(T value) {
    bytes(&value, sizeof value);
  }

 private:
  std::vector<uint8_t>* bytes_;
};

// Reads from a range that is known to be long enough.
class Reader {
 public:
  explicit Reader(const uint8_t* data) : at_(data) {}
  void bytes(void* to, size_t size) {
    if (size > 0) std::memcpy(to, at_, size);
    at_ += size;
  }
  template <typename T>
  T number() {
    T value;
    bytes(&value, sizeof value);
    return value;
  }

 private:
  const uint8_t* at_;
};

// What stands before any number is believed: magic, version, size, checksum.
std::string check_envelope(const uint8_t* data, size_t size) {
  if (size < kMagicBytes || std::memcmp(data, kPolicyMagic, kMagicBytes) != 0) {
    return "not a policy file: it does not start with " + std::string(kPolicyMagic);
  }
  if (size < kHeaderBytes + kChecksumBytes) {
    return "truncated policy file: its " + std::to_string(size) + " bytes are less than a header";
  }
  Reader reader(data + kMagicBytes);
  const auto version = reader.number<uint32_t>();
  if (version != kPolicyVersion) {
    return "policy file version is " + std::to_string(version) + "; this build reads version " +
           std::to_string(kPolicyVersion);
  }
  reader.number<uint32_t>();  // central agents
  const auto stated = reader.number<uint64_t>();
  if (stated != size) {
    return std::string(stated > size ? "truncated" : "corrupt") + " policy file: it states " +
           std::to_string(stated) + " bytes and has " + std::to_string(size);
  }
  if (Reader(data + size - kChecksumBytes).number<uint64_t>() != fnv1a(data, size - kChecksumBytes)) {
    return "corrupt policy file: its checksum does not match";
  }
  return "";
}

PolicyHeader read_header(uint32_t central_agents, Reader* reader) {
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

std::string read_layers(Reader* reader, std::vector<LayerSpec>* layers) {
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
uint64_t file_size(const PolicyHeader& header, const ActorSpec& shape) {
  uint64_t floats = 0;
  visit_arrays(shape, observed_size(header),
               [&](const char*, size_t, const std::vector<float>&, uint64_t count) {
                 floats += count;
                 return true;
               });
  return kHeaderBytes + kLayerBytes * header.num_layers + header.num_actors * floats * sizeof(float) +
         kChecksumBytes;
}

// Header and layer table, checked against each other and against the file's size.
std::string read_shape(uint32_t central_agents, Reader* reader, size_t size, PolicyHeader* header,
                       ActorSpec* shape) {
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
  const uint64_t expected = file_size(*header, *shape);
  if (expected == size) return "";
  return "corrupt policy file: its dimensions ask for " + std::to_string(expected) + " bytes and it has " +
         std::to_string(size);
}

}  // namespace

bool encode_policy_blob(const PolicySpec& policy, std::vector<uint8_t>* blob, std::string* error) {
  *error = check_policy(policy);
  if (!error->empty()) return false;
  blob->clear();
  Writer writer(blob);
  const PolicyHeader header = header_of(policy);
  writer.bytes(kPolicyMagic, kMagicBytes);
  writer.number(kPolicyVersion);
  writer.number(header.central_agents);
  writer.number(file_size(header, policy.actors[0]));
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
    visit_arrays(actor, 0, [&](const char*, size_t, const std::vector<float>& values, uint64_t) {
      writer.bytes(values.data(), values.size() * sizeof(float));
      return true;
    });
  }
  writer.number(fnv1a(blob->data(), blob->size()));
  return true;
}

bool decode_policy_blob(const uint8_t* data, size_t size, PolicySpec* policy, std::string* error) {
  *error = check_envelope(data, size);
  if (!error->empty()) return false;
  Reader reader(data + kEnvelopeBytes);
  PolicyHeader header;
  ActorSpec shape;
  const auto central_agents = Reader(data + kCentralAt).number<uint32_t>();
  *error = read_shape(central_agents, &reader, size, &header, &shape);
  if (!error->empty()) return false;
  *policy = {header.schema_hash,
             header.central_agents,
             header.num_servers,
             static_cast<PolicyInput>(header.input),
             static_cast<PolicyOutput>(header.output),
             header.clip,
             {}};
  policy->actors.assign(header.num_actors, shape);
  for (ActorSpec& actor : policy->actors) {
    visit_arrays(actor, observed_size(header),
                 [&](const char*, size_t, std::vector<float>& values, uint64_t count) {
                   values.resize(count);
                   reader.bytes(values.data(), count * sizeof(float));
                   return true;
                 });
  }
  *error = check_policy(*policy);
  return error->empty();
}

}  // namespace steelyard::core
