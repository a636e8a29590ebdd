// The one inference kernel. A policy is data: dimensions and packed float32 weights (PolicyView). The same
// kernel reads them whether they were loaded from a blob (policy_blob.h) or are constexpr arrays of a
// generated source file (deploy/compiler.py), so both give the same bits.
//
// This header and policy.cc need nothing of the project but schema.h, activations.h and lanes.h, so that an
// exported policy can be compiled anywhere.
#pragma once

#include <cstddef>
#include <cstdint>

#include "native/core/schema.h"

namespace steelyard::core {

enum class PolicyInput : uint32_t {
  kFlat = 0,       // the whole normalised observation feeds the first layer
  kPerServer = 1,  // one row per server through shared weights, see kRowInputs
};

enum class PolicyOutput : uint32_t {
  kTanh = 0,       // a = tanh(y)
  kClip = 1,       // a = min(1, max(-1, y))
  kDiscrete3 = 2,  // three logits per server; the first largest selects weight 1, 1.5 or 2
};

enum class LayerKind : uint32_t {
  kDense = 0,  // y = activation(W x + b)
  kGru = 1,    // torch.nn.GRU's cell: gates in the order r, z, n; both biases kept
};

enum class Activation : uint32_t { kNone = 0, kRelu = 1, kTanh = 2, kSigmoid = 3 };

// A row of per_server mode, 29 inputs: [11 features, previous action] of the server, the 5 global features,
// then the mean over all servers of those 12; all of them normalised (see schema.h for the features).
inline constexpr uint32_t kOwnInputs = kServerFeatures + 1;
inline constexpr uint32_t kRowInputs = 2 * kOwnInputs + kGlobalFeatures;
inline constexpr uint32_t kNumChoices = 3;
// log2(w) / 2 for the weights w = 1, 1.5, 2 of the discrete action.
inline constexpr float kChoiceAction[kNumChoices] = {0.0F, 0x1.2b8034p-2F, 0.5F};

// Outputs are computed 8 at a time, weights are stored in panels of up to 4 such blocks.
inline constexpr uint32_t kLanes = 8;
inline constexpr uint32_t kPanelBlocks = 4;

constexpr uint32_t round_up_lanes(uint32_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// One layer. `weights` is packed by pack_matrix: (gates * round_up_lanes(out)) outputs by `in` inputs, where
// gates is 1 for dense and 3 for gru; `bias` has one float per padded output, 0 in the padding.
// `hidden_*` (gru only) act on the layer's own previous output.
struct LayerView {
  LayerKind kind;
  Activation activation;
  uint32_t in;
  uint32_t out;
  const float* weights;
  const float* bias;
  const float* hidden_weights;
  const float* hidden_bias;
};

// One actor.
struct PolicyView {
  uint32_t num_agents;  // balancers that it decides for at once: 1, or all of a central policy
  uint32_t num_servers;
  PolicyInput input;
  PolicyOutput output;
  uint32_t num_layers;
  float clip;            // normalised observations are limited to [-clip, clip]
  const float* mean;     // (num_agents * observation_size(num_servers),)
  const float* inv_std;  // (num_agents * observation_size(num_servers),)
  const LayerView* layers;
};

// All actors of a policy file. Agent i uses actor i, or actor 0 when there is only one. A central policy has
// one actor, which reads the observations of all balancers end to end and writes their actions end to end.
struct PolicySet {
  uint64_t schema_hash;
  uint32_t central_agents;  // balancers that a central policy serves; 0: every balancer is its own agent
  uint32_t num_servers;
  uint32_t num_actors;
  const PolicyView* actors;
};

// Floats of recurrent state of one agent (all zero at the start of an episode) and of scratch memory.
size_t policy_state_size(const PolicyView& policy);
size_t policy_scratch_size(const PolicyView& policy);

// Floats of one observation and of one action: those of num_agents balancers end to end.
size_t policy_obs_size(const PolicyView& policy);
size_t policy_action_size(const PolicyView& policy);

// One decision. obs: (policy_obs_size,) float32; state: (policy_state_size,), read and written; scratch:
// (policy_scratch_size,); action: (policy_action_size,) in [-1, 1]. No alignment is asked of any of them.
// Returns false, with state and action untouched, when the observation, the new state or the output of the
// last layer holds a NaN or an infinity: the host then falls back to its own rule.
[[nodiscard]] bool policy_infer(const PolicyView& policy, const float* obs, float* state, float* scratch,
                                float* action);

// The kernel's activation, in place, on any number of values.
void policy_activate(Activation activation, float* values, size_t count);

// Floats that pack_matrix writes for `gates` stacked matrices of `out` rows and `in` columns.
size_t packed_matrix_size(uint32_t gates, uint32_t out, uint32_t in);
// Packs weights (gates * out, in), row-major, into the kernel's order: panels of up to 4 blocks of 8 outputs,
// within a panel input by input. Every gate is padded to whole blocks with zeros.
void pack_matrix(const float* weights, uint32_t gates, uint32_t out, uint32_t in, float* packed);
// The same padding for a bias of (gates * out,); writes gates * round_up_lanes(out) floats.
void pack_bias(const float* bias, uint32_t gates, uint32_t out, float* packed);

}  // namespace steelyard::core
