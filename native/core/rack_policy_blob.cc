#include "native/core/rack_policy_blob.h"

#include <cstdio>
#include <cstring>

#include "native/core/blob_io.h"
#include "native/core/malcolm_fields.h"

namespace steelyard::core {
namespace {

constexpr size_t kHeaderBytes = 40;
constexpr size_t kFieldBytes = kRackFieldNameBytes + sizeof(uint64_t);
constexpr ForeignMagic kCluster = {"SLYDPOL1", "a policy of load balancers, not of a rack's servers"};

std::string hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%016llx", static_cast<unsigned long long>(value));
  return text;
}

// Floats of one of a server's actors: weights, then biases.
struct Parts {
  size_t weights, biases;
};
Parts parts_of(const RackPolicySpec& policy) {
  const size_t n = policy.num_servers;
  return {n * rack_actor_inputs(policy.config, policy.num_servers), n};
}

uint64_t file_size(const RackPolicySpec& policy, size_t num_fields) {
  const Parts parts = parts_of(policy);
  const uint64_t actors = uint64_t{kNumActors} * policy.num_servers;
  const uint64_t of_weight = policy.bfloat16 ? sizeof(uint16_t) : sizeof(float);
  return kHeaderBytes + kFieldBytes * num_fields +
         actors * (parts.weights * of_weight + parts.biases * sizeof(float)) + kChecksumBytes;
}

std::string read_fields(uint32_t count, BlobReader* reader, MalcolmConfig* config) {
  for (uint32_t f = 0; f < count; ++f) {
    char name[kRackFieldNameBytes + 1] = {};
    reader->bytes(name, kRackFieldNameBytes);
    const auto bits = reader->number<uint64_t>();
    for (const char* c = name; *c != 0; ++c) {
      if (*c < ' ' || *c > '~') return "config field " + std::to_string(f) + " has no name in letters";
    }
    std::string error = set_rack_field(config, name, bits);
    if (!error.empty()) return error;
  }
  return "";
}

// Header and configuration, checked against each other and against the file's size.
std::string read_head(BlobReader* reader, size_t size, RackPolicySpec* policy) {
  const auto schema = reader->number<uint64_t>();
  policy->num_servers = reader->number<uint32_t>();
  const auto num_fields = reader->number<uint32_t>();
  if (policy->num_servers < 2 || policy->num_servers > kMaxRackServers)
    return "num_servers is " + std::to_string(policy->num_servers) + "; must be in 2..64";
  if (num_fields > kMaxRackFields)
    return "num_fields is " + std::to_string(num_fields) + "; must be in 0..256";
  if (size < kHeaderBytes + kFieldBytes * num_fields + kChecksumBytes)
    return "truncated policy file: its configuration is cut";
  std::string error = read_fields(num_fields, reader, &policy->config);
  if (error.empty()) error = check_rack_config(policy->config, policy->num_servers);
  if (!error.empty()) return error;
  const uint64_t schema_here =
      rack_schema_hash(policy->num_servers, rack_actor_inputs(policy->config, policy->num_servers));
  if (schema != schema_here)
    return "rack schema is " + hex(schema) + "; this build has " + hex(schema_here) + " for " +
           std::to_string(policy->num_servers) + " servers";
  const uint64_t expected = file_size(*policy, num_fields);
  if (expected == size) return "";
  return "corrupt policy file: its dimensions ask for " + std::to_string(expected) + " bytes and it has " +
         std::to_string(size);
}

}  // namespace

std::vector<RackField> rack_fields(const MalcolmConfig& config) {
  std::vector<RackField> fields;
  visit_malcolm_fields(
      config, [&](const char* name, const auto& field) { fields.push_back({name, field_bits(field)}); });
  return fields;
}

bool encode_rack_policy(const RackPolicySpec& policy, std::vector<uint8_t>* blob, std::string* error) {
  *error = check_rack_policy(policy);
  if (!error->empty()) return false;
  blob->clear();
  BlobWriter writer(blob);
  const std::vector<RackField> fields = rack_fields(policy.config);
  writer.bytes(kRackPolicyMagic, kMagicBytes);
  writer.number(kRackPolicyVersion);
  writer.number(uint32_t{policy.bfloat16});
  writer.number(file_size(policy, fields.size()));
  writer.number(rack_schema_hash(policy.num_servers, rack_actor_inputs(policy.config, policy.num_servers)));
  writer.number(policy.num_servers);
  writer.number(static_cast<uint32_t>(fields.size()));
  for (const RackField& field : fields) {
    char name[kRackFieldNameBytes] = {};
    std::memcpy(name, field.name, std::strlen(field.name));
    writer.bytes(name, sizeof name);
    writer.number(field.bits);
  }
  const Parts parts = parts_of(policy);
  for (auto at = policy.actors.begin(); at != policy.actors.end();) {
    const auto biases = at + static_cast<std::ptrdiff_t>(parts.weights);
    const std::vector<float> weights(at, biases);
    policy.bfloat16 ? writer.bfloats(weights) : writer.floats(weights);
    at = biases + static_cast<std::ptrdiff_t>(parts.biases);
    writer.floats(std::vector<float>(biases, at));
  }
  writer.number(fnv1a(blob->data(), blob->size()));
  return true;
}

bool decode_rack_policy(const uint8_t* data, size_t size, RackPolicySpec* policy, std::string* error) {
  *error = check_envelope(data, size, kRackPolicyMagic, kRackPolicyVersion, kHeaderBytes, kCluster);
  if (!error->empty()) return false;
  *policy = {};
  const auto weights_are = BlobReader(data + kOwnWordAt).number<uint32_t>();
  if (weights_are > 1) {
    *error = "weights is " + std::to_string(weights_are) + "; must be 0 (float32) or 1 (bfloat16)";
    return false;
  }
  policy->bfloat16 = weights_are == 1;
  BlobReader reader(data + kEnvelopeBytes);
  *error = read_head(&reader, size, policy);
  if (!error->empty()) return false;
  const Parts parts = parts_of(*policy);
  std::vector<float> values;
  for (uint32_t actor = 0; actor < kNumActors * policy->num_servers; ++actor) {
    policy->bfloat16 ? reader.bfloats(&values, parts.weights) : reader.floats(&values, parts.weights);
    policy->actors.insert(policy->actors.end(), values.begin(), values.end());
    reader.floats(&values, parts.biases);
    policy->actors.insert(policy->actors.end(), values.begin(), values.end());
  }
  *error = check_rack_policy(*policy);
  return error->empty();
}

}  // namespace steelyard::core
