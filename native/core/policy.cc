#include "native/core/policy.h"

#include <cstring>

#include "native/core/activations.h"

namespace steelyard::core {
namespace {

constexpr uint32_t kPanelLanes = kLanes * kPanelBlocks;
constexpr uint32_t kGruGates = 3;

// Blocks * 8 outputs of one panel. Every output is bias + (even + odd), where even and odd sum the products
// of the even and the odd inputs in rising order: the same in every panel, so its place changes no bit. Two
// chains hide the latency of the addition. `weights` may have any alignment.
template <uint32_t Blocks>
void multiply_panel(const float* weights, uint32_t in, const float* bias, const float* x, float* y) {
  constexpr size_t kStride = Blocks * kLanes;
  f32x8 even[Blocks] = {};
  f32x8 odd[Blocks] = {};
  const auto accumulate = [](f32x8(&sums)[Blocks], const float* column, float input) {
#pragma GCC unroll 4
    for (uint32_t b = 0; b < Blocks; ++b) sums[b] += load8(column + b * kLanes) * input;
  };
  uint32_t i = 0;
  for (; i + 2 <= in; i += 2) {
    accumulate(even, weights, x[i]);
    accumulate(odd, weights + kStride, x[i + 1]);
    weights += 2 * kStride;
  }
  if (i < in) accumulate(even, weights, x[i]);
#pragma GCC unroll 4
  for (uint32_t b = 0; b < Blocks; ++b) {
    store8(y + b * kLanes, load8(bias + b * kLanes) + (even[b] + odd[b]));
  }
}

// y = bias + W x with W packed, (outputs, in); outputs is a multiple of 8.
void multiply(const float* weights, const float* bias, uint32_t outputs, uint32_t in, const float* x,
              float* y) {
  for (uint32_t out = 0; out < outputs; out += kPanelLanes) {
    const uint32_t lanes = outputs - out < kPanelLanes ? outputs - out : kPanelLanes;
    switch (lanes / kLanes) {
      case 4:
        multiply_panel<4>(weights, in, bias + out, x, y + out);
        break;
      case 3:
        multiply_panel<3>(weights, in, bias + out, x, y + out);
        break;
      case 2:
        multiply_panel<2>(weights, in, bias + out, x, y + out);
        break;
      default:
        multiply_panel<1>(weights, in, bias + out, x, y + out);
        break;
    }
    weights += static_cast<size_t>(lanes) * in;
  }
}

template <f32x8 (*F)(f32x8)>
void map8(float* values, size_t count) {
  for (size_t i = 0; i < count; i += kLanes) store8(values + i, F(load8(values + i)));
}

void activate(Activation activation, float* values, size_t count) {
  switch (activation) {
    case Activation::kNone:
      return;
    case Activation::kRelu:
      return map8<relu8>(values, count);
    case Activation::kTanh:
      return map8<tanh8>(values, count);
    case Activation::kSigmoid:
      return map8<sigmoid8>(values, count);
  }
}

// torch.nn.GRU (Cho et al. 2014, with the reset gate after the product): r = sigmoid(i_r + h_r),
// z = sigmoid(i_z + h_z), n = tanh(i_n + r h_n), h' = n + z (h - n). from_input, from_hidden: (3, width).
void gru_gates(const float* from_input, const float* from_hidden, const float* hidden, size_t width,
               float* next) {
  for (size_t i = 0; i < width; i += kLanes) {
    const float* gi = from_input + i;
    const float* gh = from_hidden + i;
    const f32x8 r = sigmoid8(load8(gi) + load8(gh));
    const f32x8 z = sigmoid8(load8(gi + width) + load8(gh + width));
    const f32x8 n = tanh8(load8(gi + 2 * width) + r * load8(gh + 2 * width));
    store8(next + i, n + z * (load8(hidden + i) - n));
  }
}

// NaN and infinity are the values whose exponent bits are all ones.
bool all_finite(const float* values, size_t count) {
  constexpr uint32_t kExponent = 0x7f800000U;
  uint32_t bad = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, values + i, sizeof bits);
    bad |= (bits & kExponent) == kExponent;
  }
  return bad == 0;
}

struct Sizes {
  size_t rows = 1;   // rows that go through the layers together
  size_t width = 0;  // widest padded layer output (or input row)
  size_t gates = 0;  // widest gate vector of a GRU
  size_t state = 0;  // recurrent floats of all rows
};

Sizes sizes_of(const PolicyView& policy) {
  Sizes sizes;
  if (policy.input == PolicyInput::kPerServer) {
    sizes.rows = policy.num_servers;
    sizes.width = kRowInputs;
  }
  for (uint32_t l = 0; l < policy.num_layers; ++l) {
    const LayerView& layer = policy.layers[l];
    const size_t padded = round_up_lanes(layer.out);
    if (padded > sizes.width) sizes.width = padded;
    if (layer.kind == LayerKind::kGru) {
      if (kGruGates * padded > sizes.gates) sizes.gates = kGruGates * padded;
      sizes.state += sizes.rows * padded;
    }
  }
  return sizes;
}

// Where the intermediate results of one inference lie in the scratch memory.
struct Scratch {
  float* obs;          // (policy_obs_size,) normalised
  float* layer[2];     // (rows, width) each, used in turn
  float* from_input;   // (gates,)
  float* from_hidden;  // (gates,)
  float* state;        // (state,) the state after this step
};

Scratch split(const PolicyView& policy, const Sizes& sizes, float* scratch) {
  Scratch parts;
  const auto take = [&scratch](size_t count) {
    float* part = scratch;
    scratch += count;
    return part;
  };
  parts.obs = take(policy_obs_size(policy));
  parts.layer[0] = take(sizes.rows * sizes.width);
  parts.layer[1] = take(sizes.rows * sizes.width);
  parts.from_input = take(sizes.gates);
  parts.from_hidden = take(sizes.gates);
  parts.state = take(sizes.state);
  return parts;
}

void normalise(const PolicyView& policy, const float* obs, float* normalised) {
  const size_t count = policy_obs_size(policy);
  for (size_t i = 0; i < count; ++i) {
    const float x = (obs[i] - policy.mean[i]) * policy.inv_std[i];
    const float raised = x < -policy.clip ? -policy.clip : x;
    normalised[i] = raised > policy.clip ? policy.clip : raised;
  }
}

// obs (observation_size,) of one balancer -> rows (num_servers, kRowInputs).
void make_rows(const PolicyView& policy, const float* obs, float* rows) {
  const uint32_t servers = policy.num_servers;
  const float* arrivals = obs + static_cast<size_t>(servers) * kServerFeatures;
  const float* previous = arrivals + kGlobalFeatures;
  float mean[kOwnInputs] = {};
  for (uint32_t j = 0; j < servers; ++j) {
    float* row = rows + static_cast<size_t>(j) * kRowInputs;
    std::memcpy(row, obs + static_cast<size_t>(j) * kServerFeatures, kServerFeatures * sizeof(float));
    row[kServerFeatures] = previous[j];
    std::memcpy(row + kOwnInputs, arrivals, kGlobalFeatures * sizeof(float));
    for (uint32_t k = 0; k < kOwnInputs; ++k) mean[k] += row[k];
  }
  for (float& value : mean) value /= static_cast<float>(servers);
  for (uint32_t j = 0; j < servers; ++j) {
    float* row = rows + static_cast<size_t>(j) * kRowInputs;
    std::memcpy(row + kOwnInputs + kGlobalFeatures, mean, sizeof mean);
  }
}

// The vectors between two layers, one per row.
struct Vectors {
  float* values;
  size_t stride;
};

// One GRU step of all rows: hidden -> next, both (rows, width).
void run_gru(const LayerView& layer, size_t rows, const Vectors& x, const float* hidden, const Scratch& parts,
             float* next) {
  const uint32_t width = round_up_lanes(layer.out);
  const uint32_t gates = kGruGates * width;
  for (size_t row = 0; row < rows; ++row) {
    multiply(layer.weights, layer.bias, gates, layer.in, x.values + row * x.stride, parts.from_input);
    multiply(layer.hidden_weights, layer.hidden_bias, gates, layer.out, hidden, parts.from_hidden);
    gru_gates(parts.from_input, parts.from_hidden, hidden, width, next);
    hidden += width;
    next += width;
  }
}

void run_dense(const LayerView& layer, size_t rows, const Vectors& x, float* y) {
  const uint32_t width = round_up_lanes(layer.out);
  for (size_t row = 0; row < rows; ++row) {
    multiply(layer.weights, layer.bias, width, layer.in, x.values + row * x.stride, y + row * width);
  }
  activate(layer.activation, y, rows * width);
}

// All layers, one after the other for all rows, so that a layer's weights stay in the cache. The result lies
// in parts.layer, never in parts.state; state is only read.
Vectors run_layers(const PolicyView& policy, const Sizes& sizes, const Scratch& parts, const float* state) {
  Vectors x = {parts.obs, policy_obs_size(policy)};
  int turn = 0;
  if (policy.input == PolicyInput::kPerServer) {
    make_rows(policy, parts.obs, parts.layer[turn]);
    x = {parts.layer[turn], kRowInputs};
    turn = 1 - turn;
  }
  size_t state_at = 0;
  for (uint32_t l = 0; l < policy.num_layers; ++l) {
    const LayerView& layer = policy.layers[l];
    const size_t width = round_up_lanes(layer.out);
    float* y = parts.layer[turn];
    if (layer.kind == LayerKind::kGru) {
      float* next = parts.state + state_at;
      run_gru(layer, sizes.rows, x, state + state_at, parts, next);
      std::memcpy(y, next, sizes.rows * width * sizeof(float));
      state_at += sizes.rows * width;
    } else {
      run_dense(layer, sizes.rows, x, y);
    }
    x = {y, width};
    turn = 1 - turn;
  }
  return x;
}

bool outputs_finite(const PolicyView& policy, const Vectors& y, size_t rows) {
  const uint32_t outputs = policy.layers[policy.num_layers - 1].out;
  for (size_t row = 0; row < rows; ++row) {
    if (!all_finite(y.values + row * y.stride, outputs)) return false;
  }
  return true;
}

float choose(const float* logits) {
  uint32_t best = 0;
  for (uint32_t k = 1; k < kNumChoices; ++k) {
    if (logits[k] > logits[best]) best = k;
  }
  return kChoiceAction[best];
}

void write_action(const PolicyView& policy, const Vectors& y, float* action) {
  const bool rows = policy.input == PolicyInput::kPerServer;
  const bool discrete = policy.output == PolicyOutput::kDiscrete3;
  const size_t step =
      rows ? y.stride : (discrete ? kNumChoices : 1);  // from one server's outputs to the next's
  for (size_t j = 0; j < policy_action_size(policy); ++j) {
    const float* outputs = y.values + j * step;
    const float limited = outputs[0] < -1.0F ? -1.0F : (outputs[0] > 1.0F ? 1.0F : outputs[0]);
    action[j] = discrete ? choose(outputs) : limited;
  }
}

}  // namespace

size_t policy_obs_size(const PolicyView& policy) {
  return policy.num_agents * static_cast<size_t>(observation_size(static_cast<int>(policy.num_servers)));
}

size_t policy_action_size(const PolicyView& policy) { return size_t{policy.num_agents} * policy.num_servers; }

size_t policy_state_size(const PolicyView& policy) { return sizes_of(policy).state; }

size_t policy_scratch_size(const PolicyView& policy) {
  const Sizes sizes = sizes_of(policy);
  return policy_obs_size(policy) + 2 * (sizes.rows * sizes.width + sizes.gates) + sizes.state;
}

bool policy_infer(const PolicyView& policy, const float* obs, float* state, float* scratch, float* action) {
  if (!all_finite(obs, policy_obs_size(policy))) return false;
  const Sizes sizes = sizes_of(policy);
  const Scratch parts = split(policy, sizes, scratch);
  normalise(policy, obs, parts.obs);
  const Vectors y = run_layers(policy, sizes, parts, state);
  if (!all_finite(parts.state, sizes.state) || !outputs_finite(policy, y, sizes.rows)) return false;
  if (policy.output == PolicyOutput::kTanh) map8<tanh8>(y.values, sizes.rows * y.stride);
  write_action(policy, y, action);
  if (sizes.state > 0) std::memcpy(state, parts.state, sizes.state * sizeof(float));
  return true;
}

void policy_activate(Activation activation, float* values, size_t count) {
  const size_t whole = count / kLanes * kLanes;
  activate(activation, values, whole);
  float last[kLanes] = {};
  std::memcpy(last, values + whole, (count - whole) * sizeof(float));
  activate(activation, last, kLanes);
  std::memcpy(values + whole, last, (count - whole) * sizeof(float));
}

size_t packed_matrix_size(uint32_t gates, uint32_t out, uint32_t in) {
  return static_cast<size_t>(gates) * round_up_lanes(out) * in;
}

void pack_matrix(const float* weights, uint32_t gates, uint32_t out, uint32_t in, float* packed) {
  const uint32_t padded = round_up_lanes(out);
  const uint32_t outputs = gates * padded;
  for (uint32_t first = 0; first < outputs; first += kPanelLanes) {
    const uint32_t lanes = outputs - first < kPanelLanes ? outputs - first : kPanelLanes;
    for (uint32_t i = 0; i < in; ++i) {
      for (uint32_t lane = 0; lane < lanes; ++lane) {
        const uint32_t gate = (first + lane) / padded;
        const uint32_t o = (first + lane) % padded;
        *packed++ = o < out ? weights[(static_cast<size_t>(gate) * out + o) * in + i] : 0.0F;
      }
    }
  }
}

void pack_bias(const float* bias, uint32_t gates, uint32_t out, float* packed) {
  for (uint32_t gate = 0; gate < gates; ++gate) {
    for (uint32_t o = 0; o < round_up_lanes(out); ++o) {
      *packed++ = o < out ? bias[static_cast<size_t>(gate) * out + o] : 0.0F;
    }
  }
}

}  // namespace steelyard::core
