#include "native/core/rack_policy.h"

#include <cstdio>
#include <stdexcept>
#include <type_traits>

#include "native/core/blob_io.h"
#include "native/core/malcolm_fields.h"

namespace steelyard::core {
namespace {

bool finite(float x) { return x - x == 0.0F; }

std::string number(float value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value));
  return text;
}

// Acting needs no critic and no trace, so a server that acts alone has the smallest.
MalcolmConfig acting(MalcolmConfig config) {
  config.features = CriticFeatures::kLinear;
  config.actor_trace = 0;
  return config;
}

// Which of a policy's floats are weights; the others are biases.
struct Weights {
  size_t count, period;  // the first of every so many
  Weights(const MalcolmConfig& config, uint32_t num_servers)
      : count(size_t{num_servers} * rack_actor_inputs(config, num_servers)), period(count + num_servers) {}
  bool has(size_t i) const { return i % period < count; }
};

std::string at(size_t i) { return "actors[" + std::to_string(i) + "]"; }

}  // namespace

std::string rack_schema_text(uint32_t num_servers, uint32_t num_inputs) {
  return "steelyard-rack-v1;servers=" + std::to_string(num_servers) +
         ";inputs=" + std::to_string(num_inputs) +
         ";message=load_s(tasks*mean_service_s/workers),migrations,steals,task_s,workers"
         ";actors=[migration,stealing](weight(servers,inputs),bias);word=64bit;dtype=float32";
}

uint64_t rack_schema_hash(uint32_t num_servers, uint32_t num_inputs) {
  const std::string text = rack_schema_text(num_servers, num_inputs);
  return fnv1a(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

uint32_t rack_actor_inputs(const MalcolmConfig& config, uint32_t num_servers) {
  return MalcolmServer(acting(config), num_servers, 0, 1).actors().num_inputs();
}

size_t rack_actor_floats(const MalcolmConfig& config, uint32_t num_servers) {
  return size_t{kNumActors} * num_servers * (rack_actor_inputs(config, num_servers) + size_t{1});
}

std::string set_rack_field(MalcolmConfig* config, const std::string& name, uint64_t bits) {
  bool known = false, taken = false;
  visit_malcolm_fields(*config, [&](const char* field_name, auto& field) {
    if (name != field_name) return;
    known = true;
    taken = set_field_bits(&field, bits);
  });
  if (taken) return "";
  return known ? name + " has the bits " + std::to_string(bits) + ", which are no value of it"
               : "config has the unknown field '" + name.substr(0, 32) + "'; made by another version";
}

std::string check_rack_config(const MalcolmConfig& config, uint32_t num_servers) {
  std::string error;
  visit_malcolm_fields(config, [&](const char* name, const auto& field) {
    if constexpr (std::is_same_v<std::decay_t<decltype(field)>, float>) {
      if (error.empty() && !finite(field)) error = std::string(name) + " is not finite";
    }
  });
  if (!error.empty()) return error;
  try {
    config.check(num_servers, 0, 1);
  } catch (const std::invalid_argument& refused) {
    return refused.what();
  }
  return "";
}

std::string check_rack_policy(const RackPolicySpec& policy) {
  std::string error = check_rack_config(policy.config, policy.num_servers);
  if (!error.empty()) return error;
  const size_t each = rack_actor_floats(policy.config, policy.num_servers);
  if (policy.actors.size() != each * policy.num_servers) {
    return "actors has " + std::to_string(policy.actors.size()) + " values; expected " +
           std::to_string(each * policy.num_servers);
  }
  const Weights weights(policy.config, policy.num_servers);
  for (size_t i = 0; i < policy.actors.size(); ++i) {
    const float value = policy.actors[i];
    if (!finite(value)) return at(i) + " is " + number(value) + "; must be finite";
    if (policy.bfloat16 && weights.has(i) && !is_bfloat16(value))
      return at(i) + " is " + number(value) + "; not a bfloat16 number";
  }
  return "";
}

bool round_weights(RackPolicySpec* policy, std::string* error) {
  *error = check_rack_policy(*policy);
  if (!error->empty()) return false;
  const Weights weights(policy->config, policy->num_servers);
  for (size_t i = 0; i < policy->actors.size(); ++i) {
    if (!weights.has(i)) continue;
    const float rounded = nearest_bfloat16(policy->actors[i]);
    if (!finite(rounded)) {
      *error = at(i) + " is " + number(policy->actors[i]) + ", which is beyond the range of bfloat16";
      return false;
    }
    policy->actors[i] = rounded;
  }
  policy->bfloat16 = true;
  return true;
}

std::unique_ptr<MalcolmServer> make_rack_server(const RackPolicyView& policy, uint32_t server,
                                                uint32_t workers, uint32_t num_types, std::string* error) {
  MalcolmConfig config;
  for (uint32_t f = 0; f < policy.num_fields && error->empty(); ++f)
    *error = set_rack_field(&config, policy.fields[f].name, policy.fields[f].bits);
  if (!error->empty()) return nullptr;
  config.num_types = num_types;
  try {
    config.check(policy.num_servers, server, workers);
  } catch (const std::invalid_argument& refused) {
    *error = refused.what();
    return nullptr;
  }
  auto made = std::make_unique<MalcolmServer>(acting(config), policy.num_servers, server, workers);
  const size_t floats = rack_actor_floats(config, policy.num_servers);
  const float* own = policy.actors + server * floats;
  std::vector<float> parameters(own, own + floats);
  parameters.resize(made->num_parameters(), 0.0F);  // theta is not asked
  made->import_parameters(parameters.data());
  made->set_frozen(true);
  return made;
}

}  // namespace steelyard::core
