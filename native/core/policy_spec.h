// A policy as it is trained and stored, row-major, and the way from there to the kernel's packed view.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/core/policy.h"
#include "native/core/types.h"

namespace steelyard::core {

inline constexpr uint32_t kMaxPolicyLayers = 16;
inline constexpr uint32_t kMaxPolicyWidth = 16384;
inline constexpr uint32_t kMaxPolicyServers = kMaxServers;
inline constexpr uint32_t kMaxPolicyActors = kMaxLoadBalancers;

struct LayerSpec {
  LayerKind kind = LayerKind::kDense;
  Activation activation = Activation::kNone;
  uint32_t in = 0;
  uint32_t out = 0;
  std::vector<float> weight;         // dense: (out, in); gru: weight_ih (3 out, in)
  std::vector<float> bias;           // dense: (out,);    gru: bias_ih (3 out,)
  std::vector<float> hidden_weight;  // gru: weight_hh (3 out, out)
  std::vector<float> hidden_bias;    // gru: bias_hh (3 out,)
};

struct ActorSpec {
  std::vector<float> mean;     // (observed_size,)
  std::vector<float> inv_std;  // (observed_size,), > 0
  std::vector<LayerSpec> layers;
};

struct PolicySpec {
  uint64_t schema_hash = 0;
  uint32_t central_agents = 0;  // balancers that a central policy serves; 0: every balancer is its own agent
  uint32_t num_servers = 0;
  PolicyInput input = PolicyInput::kFlat;
  PolicyOutput output = PolicyOutput::kTanh;
  float clip = 0;
  std::vector<ActorSpec> actors;
  bool bfloat16 = false;  // the matrices of the layers are bfloat16 numbers, and stored as such
};

// Rounds the matrices of all layers to bfloat16, and notes it; biases and normalisation stay as they are.
// False, with a one-line *error, when a weight is beyond the range of bfloat16.
bool round_weights(PolicySpec* policy, std::string* error);

// The numbers that every actor of a policy shares.
struct PolicyHeader {
  uint64_t schema_hash = 0;
  uint32_t central_agents = 0;
  uint32_t num_servers = 0;
  uint32_t num_actors = 0;
  uint32_t num_layers = 0;
  uint32_t input = 0;   // PolicyInput
  uint32_t output = 0;  // PolicyOutput
  float clip = 0;
};

PolicyHeader header_of(const PolicySpec& policy);
// Balancers that one actor decides for at once, and the floats that it reads for them.
uint32_t agents_per_actor(const PolicyHeader& header);
uint64_t observed_size(const PolicyHeader& header);

// Each check returns an empty string, or one line that names the field, its value and what is expected.
std::string check_range(const std::string& name, uint64_t value, uint64_t lowest, uint64_t highest);
std::string check_header(const PolicyHeader& header);
// The widths of the layers against each other, the observation and the action.
std::string check_layers(const PolicyHeader& header, const std::vector<LayerSpec>& layers);
// Everything: afterwards the policy can be packed and run.
std::string check_policy(const PolicySpec& policy);

// Every array of an actor with its name and its number of floats, in the order of the file: the one list that
// encoding, decoding and checking go through. visit(field, layer, vector<float>&, count) -> bool; false
// stops.
template <typename Actor, typename F>
bool visit_arrays(Actor& actor, uint64_t obs_size, F visit) {
  if (!visit("mean", size_t{0}, actor.mean, obs_size)) return false;
  if (!visit("inv_std", size_t{0}, actor.inv_std, obs_size)) return false;
  for (size_t l = 0; l < actor.layers.size(); ++l) {
    auto& layer = actor.layers[l];
    const uint64_t in = layer.in;
    const uint64_t out = layer.out;
    if (layer.kind == LayerKind::kDense) {
      if (!visit("weight", l, layer.weight, out * in) || !visit("bias", l, layer.bias, out)) return false;
      continue;
    }
    if (!visit("weight_ih", l, layer.weight, 3 * out * in)) return false;
    if (!visit("weight_hh", l, layer.hidden_weight, 3 * out * out)) return false;
    if (!visit("bias_ih", l, layer.bias, 3 * out)) return false;
    if (!visit("bias_hh", l, layer.hidden_bias, 3 * out)) return false;
  }
  return true;
}

// The kernel's view of a checked PolicySpec. Owns the packed weights; keeps no reference to the spec.
class PackedPolicy {
 public:
  explicit PackedPolicy(const PolicySpec& policy);
  PackedPolicy(const PackedPolicy&) = delete;
  PackedPolicy& operator=(const PackedPolicy&) = delete;
  const PolicySet& set() const { return set_; }

 private:
  float* take(size_t count);
  const float* store(const std::vector<float>& values);
  LayerView pack(const LayerSpec& layer);

  struct Release {
    void operator()(float* memory) const;
  };
  std::unique_ptr<float, Release> arena_;
  size_t used_ = 0;
  std::vector<LayerView> layers_;
  std::vector<PolicyView> actors_;
  PolicySet set_{};
};

}  // namespace steelyard::core
