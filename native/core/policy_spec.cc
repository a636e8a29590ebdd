#include "native/core/policy_spec.h"

#include <cstdio>
#include <cstring>
#include <new>

#include "native/core/blob_io.h"
#include "native/core/schema.h"

namespace steelyard::core {
namespace {

constexpr size_t kAlignment = 64;  // a cache line
constexpr size_t kAlignedFloats = kAlignment / sizeof(float);

bool finite(float x) { return x - x == 0.0F; }

std::string hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string number(float value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value));
  return text;
}

std::string indexed(const char* name, size_t index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

uint32_t gates_of(const LayerSpec& layer) { return layer.kind == LayerKind::kGru ? 3 : 1; }

bool reads_rows(const PolicyHeader& header) {
  return header.input == static_cast<uint32_t>(PolicyInput::kPerServer);
}

uint32_t input_width(const PolicyHeader& header) {
  return reads_rows(header) ? kRowInputs : static_cast<uint32_t>(observed_size(header));
}

uint32_t output_width(const PolicyHeader& header) {
  const uint32_t each = header.output == static_cast<uint32_t>(PolicyOutput::kDiscrete3) ? kNumChoices : 1;
  return reads_rows(header) ? each : each * agents_per_actor(header) * header.num_servers;
}

bool same_architecture(const ActorSpec& a, const ActorSpec& b) {
  if (a.layers.size() != b.layers.size()) return false;
  for (size_t l = 0; l < a.layers.size(); ++l) {
    const LayerSpec& x = a.layers[l];
    const LayerSpec& y = b.layers[l];
    if (x.kind != y.kind || x.activation != y.activation || x.in != y.in || x.out != y.out) return false;
  }
  return true;
}

std::string check_array(const std::string& name, const std::vector<float>& values, uint64_t count,
                        bool positive) {
  if (values.size() != count) {
    return name + " has " + std::to_string(values.size()) + " values; expected " + std::to_string(count);
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (finite(values[i]) && (!positive || values[i] > 0)) continue;
    return indexed(name.c_str(), i) + " is " + number(values[i]) + "; must be finite" +
           (positive ? " and > 0" : "");
  }
  return "";
}

// The matrices of an actor's layers with their names.
template <typename Actor, typename F>
bool visit_matrices(Actor& actor, F visit) {
  return visit_arrays(actor, 0, [&](const std::string& field, size_t layer, auto& values, uint64_t) {
    return !field.starts_with("weight") || visit(indexed("layers", layer) + "." + field, values);
  });
}

std::string check_bfloat16(const ActorSpec& actor) {
  std::string error;
  visit_matrices(actor, [&](const std::string& name, const std::vector<float>& values) {
    for (size_t i = 0; i < values.size() && error.empty(); ++i) {
      if (!is_bfloat16(values[i]))
        error = indexed(name.c_str(), i) + " is " + number(values[i]) + "; not a bfloat16 number";
    }
    return error.empty();
  });
  return error;
}

std::string check_central(const PolicyHeader& header) {
  std::string error = check_range("central_agents", header.central_agents, 0, kMaxPolicyActors);
  if (!error.empty() || header.central_agents == 0) return error;
  if (header.num_actors != 1) {
    return "num_actors is " + std::to_string(header.num_actors) + "; a central policy has 1";
  }
  return reads_rows(header) ? "input is per_server; a central policy reads flat" : "";
}

std::string check_actor(const ActorSpec& actor, uint64_t obs_size) {
  std::string error;
  visit_arrays(actor, obs_size,
               [&](const std::string& field, size_t layer, const std::vector<float>& values, uint64_t count) {
                 const bool of_actor = field == "mean" || field == "inv_std";
                 const std::string name = of_actor ? field : indexed("layers", layer) + "." + field;
                 error = check_array(name, values, count, field == "inv_std");
                 return error.empty();
               });
  return error;
}

}  // namespace

PolicyHeader header_of(const PolicySpec& policy) {
  const size_t layers = policy.actors.empty() ? 0 : policy.actors[0].layers.size();
  return {policy.schema_hash,
          policy.central_agents,
          policy.num_servers,
          static_cast<uint32_t>(policy.actors.size()),
          static_cast<uint32_t>(layers),
          static_cast<uint32_t>(policy.input),
          static_cast<uint32_t>(policy.output),
          policy.clip};
}

uint32_t agents_per_actor(const PolicyHeader& header) {
  return header.central_agents == 0 ? 1 : header.central_agents;
}

uint64_t observed_size(const PolicyHeader& header) {
  const auto each = static_cast<uint64_t>(observation_size(static_cast<int>(header.num_servers)));
  return agents_per_actor(header) * each;
}

std::string check_range(const std::string& name, uint64_t value, uint64_t lowest, uint64_t highest) {
  if (value >= lowest && value <= highest) return "";
  return name + " is " + std::to_string(value) + "; must be in " + std::to_string(lowest) + ".." +
         std::to_string(highest);
}

std::string check_header(const PolicyHeader& header) {
  const struct {
    const char* name;
    uint64_t value, lowest, highest;
  } ranges[] = {
      {"num_servers", header.num_servers, 1, kMaxPolicyServers},
      {"num_actors", header.num_actors, 1, kMaxPolicyActors},
      {"num_layers", header.num_layers, 1, kMaxPolicyLayers},
      {"input", header.input, 0, static_cast<uint32_t>(PolicyInput::kPerServer)},
      {"output", header.output, 0, static_cast<uint32_t>(PolicyOutput::kDiscrete3)},
  };
  for (const auto& range : ranges) {
    std::string error = check_range(range.name, range.value, range.lowest, range.highest);
    if (!error.empty()) return error;
  }
  if (!finite(header.clip) || header.clip <= 0) {
    return "clip is " + number(header.clip) + "; must be finite and > 0";
  }
  const std::string error = check_central(header);
  if (!error.empty()) return error;
  const uint64_t expected = observation_schema_hash(static_cast<int>(header.num_servers));
  if (header.schema_hash == expected) return "";
  return "observation schema is " + hex(header.schema_hash) + "; this build has " + hex(expected) + " for " +
         std::to_string(header.num_servers) + " servers";
}

std::string check_layers(const PolicyHeader& header, const std::vector<LayerSpec>& layers) {
  uint32_t width = input_width(header);
  const uint32_t outputs = output_width(header);
  for (size_t l = 0; l < layers.size(); ++l) {
    const LayerSpec& layer = layers[l];
    const std::string name = indexed("layers", l);
    std::string error = check_range(name + ".out", layer.out, 1, kMaxPolicyWidth);
    if (!error.empty()) return error;
    if (layer.in != width) {
      return name + " has " + std::to_string(layer.in) + " inputs; expected " + std::to_string(width) +
             (l == 0 ? " (the observation)" : " (the layer before)");
    }
    if (l + 1 == layers.size() && layer.out != outputs) {
      return name + " has " + std::to_string(layer.out) + " outputs; the last layer must have " +
             std::to_string(outputs);
    }
    if (layer.kind == LayerKind::kGru && layer.activation != Activation::kNone) {
      return name + ".activation must be none: a gru has its own";
    }
    width = layer.out;
  }
  return "";
}

std::string check_policy(const PolicySpec& policy) {
  const PolicyHeader header = header_of(policy);
  std::string error = check_header(header);
  for (size_t a = 0; error.empty() && a < policy.actors.size(); ++a) {
    const ActorSpec& actor = policy.actors[a];
    if (!same_architecture(policy.actors[0], actor)) {
      return indexed("actors", a) + " has other layers than actors[0]; all actors share one architecture";
    }
    error = check_layers(header, actor.layers);
    if (error.empty()) error = check_actor(actor, observed_size(header));
    if (error.empty() && policy.bfloat16) error = check_bfloat16(actor);
    if (!error.empty()) error.insert(0, indexed("actors", a) + ".");
  }
  return error;
}

bool round_weights(PolicySpec* policy, std::string* error) {
  error->clear();
  for (ActorSpec& actor : policy->actors) {
    visit_matrices(actor, [&](const std::string& name, std::vector<float>& values) {
      for (float& value : values) {
        const float rounded = nearest_bfloat16(value);
        if (finite(value) && !finite(rounded)) {
          *error = name + " holds " + number(value) + ", which is beyond the range of bfloat16";
          return false;
        }
        value = rounded;
      }
      return true;
    });
    if (!error->empty()) return false;
  }
  policy->bfloat16 = true;
  return true;
}

void PackedPolicy::Release::operator()(float* memory) const {
  ::operator delete(memory, std::align_val_t{kAlignment});
}

float* PackedPolicy::take(size_t count) {
  float* part = arena_.get() + used_;
  used_ += (count + kAlignedFloats - 1) / kAlignedFloats * kAlignedFloats;
  return part;
}

const float* PackedPolicy::store(const std::vector<float>& values) {
  float* to = take(values.size());
  if (!values.empty()) std::memcpy(to, values.data(), values.size() * sizeof(float));
  return to;
}

LayerView PackedPolicy::pack(const LayerSpec& layer) {
  const uint32_t gates = gates_of(layer);
  const auto matrix = [&](const std::vector<float>& values, uint32_t in) {
    float* packed = take(packed_matrix_size(gates, layer.out, in));
    pack_matrix(values.data(), gates, layer.out, in, packed);
    return packed;
  };
  const auto bias = [&](const std::vector<float>& values) {
    float* packed = take(size_t{gates} * round_up_lanes(layer.out));
    pack_bias(values.data(), gates, layer.out, packed);
    return packed;
  };
  const float* weights = matrix(layer.weight, layer.in);
  const float* offsets = bias(layer.bias);
  const bool gru = layer.kind == LayerKind::kGru;
  const float* hidden_weights = gru ? matrix(layer.hidden_weight, layer.out) : nullptr;
  const float* hidden_offsets = gru ? bias(layer.hidden_bias) : nullptr;
  return {layer.kind, layer.activation, layer.in,       layer.out,
          weights,    offsets,          hidden_weights, hidden_offsets};
}

PackedPolicy::PackedPolicy(const PolicySpec& policy) {
  size_t floats = 0;
  const auto add = [&floats](size_t count) { floats += count + kAlignedFloats; };
  for (const ActorSpec& actor : policy.actors) {
    add(actor.mean.size());
    add(actor.inv_std.size());
    for (const LayerSpec& layer : actor.layers) {
      const bool gru = layer.kind == LayerKind::kGru;
      add(packed_matrix_size(gates_of(layer), layer.out, layer.in));
      add(gru ? packed_matrix_size(gates_of(layer), layer.out, layer.out) : 0);
      for (int biases = gru ? 2 : 1; biases > 0; --biases)
        add(size_t{gates_of(layer)} * round_up_lanes(layer.out));
    }
  }
  arena_.reset(static_cast<float*>(::operator new(floats * sizeof(float), std::align_val_t{kAlignment})));
  const PolicyHeader header = header_of(policy);
  layers_.reserve(size_t{header.num_actors} * header.num_layers);  // the actors point into it
  for (const ActorSpec& actor : policy.actors) {
    const LayerView* first = layers_.data() + layers_.size();
    for (const LayerSpec& layer : actor.layers) layers_.push_back(pack(layer));
    actors_.push_back({agents_per_actor(header), policy.num_servers, policy.input, policy.output,
                       header.num_layers, policy.clip, store(actor.mean), store(actor.inv_std), first});
  }
  set_ = {policy.schema_hash, policy.central_agents, policy.num_servers, header.num_actors, actors_.data()};
}

}  // namespace steelyard::core
