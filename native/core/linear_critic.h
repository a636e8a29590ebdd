// The critic of one server of the rack game: V(x) = theta . f(x) over features f of the loads x, learned by
// temporal differences with traces, discounted (seed 000, Sec. 5.2.3, Alg. 1) or by average reward (Sutton,
// Barto 2018, Sec. 10.3 and 13.6). Gradients are cached window by window and handed to AdamW.
#pragma once

#include <cstddef>
#include <cstdint>

#include "native/core/aligned.h"

namespace steelyard::core {

enum class CriticFeatures : uint32_t {
  kLinear = 0,     // x, 1
  kQuadratic = 1,  // x, x_i x_j for i <= j row by row, 1
  kQuartic = 2,    // x, x_i x_j for i <= j, x^3, x^4, 1
};

// Features of N loads, without padding: N + 1, (N + 1)(N + 2) / 2, and 2 N more.
constexpr uint32_t critic_size(CriticFeatures kind, uint32_t num_servers) {
  const uint32_t linear = num_servers + 1;
  if (kind == CriticFeatures::kLinear) return linear;
  const uint32_t quadratic = linear * (num_servers + 2) / 2;
  return kind == CriticFeatures::kQuadratic ? quadratic : quadratic + 2 * num_servers;
}

// Floats that a buffer of features needs: the feature map writes whole vectors.
constexpr size_t critic_buffer(CriticFeatures kind, uint32_t num_servers) {
  return (critic_size(kind, num_servers) + 7) / 8 * 8 + 8;
}

// loads: (N,), followed by at least 8 readable floats; features: critic_buffer floats, zero beyond the
// features.
void critic_features(CriticFeatures kind, uint32_t num_servers, const float* loads, float* features);

// Sum of the products, in a fixed order; size a multiple of 8.
float dot(const float* a, const float* b, size_t size);

struct TemporalDifference {
  float discount = 1;      // gamma; 1 with an average reward
  float trace = 0;         // lambda
  float average_step = 0;  // of the average reward; 0: discounted, there is none
};

class LinearCritic {
 public:
  LinearCritic() = default;
  // All parameters are 0.
  LinearCritic(CriticFeatures kind, uint32_t num_servers);

  CriticFeatures kind() const { return kind_; }
  uint32_t size() const { return size_; }         // features
  size_t padded_size() const { return padded_; }  // floats of parameters and gradient, zero in the padding
  float* parameters() { return parameters_.data(); }
  const float* parameters() const { return parameters_.data(); }
  float* gradient() { return gradient_.data(); }
  const float* trace() const { return trace_.data(); }  // stays 0 with lambda = 0
  float average_reward() const { return average_reward_; }
  float value() const { return value_; }

  // V of any loads, (N,) followed by at least 8 readable floats, as below.
  float value_of(const float* loads);
  // The first state of a run: there is no transition into it, and no trace.
  void start(const float* loads);
  // A transition to `loads` that paid `reward`: returns the TD error, moves the average reward and the trace,
  // and adds -share error trace to the gradient (a descent direction).
  //   error = reward - average + gamma V(x') - V(x);  trace <- gamma lambda trace + f(x)
  float observe(const float* loads, float reward, const TemporalDifference& td, float share) {
    return observe_(*this, loads, reward, td, share);
  }
  // What is learned, and the gradient under way, as f(address, bytes): to be written away or read back. The
  // trace ends with the run that it is of.
  template <class F>
  void visit_state(F&& f) {
    f(parameters_.data(), parameters_.size() * sizeof(float));
    f(gradient_.data(), gradient_.size() * sizeof(float));
    f(&average_reward_, sizeof average_reward_);
  }
  // The parameters were changed: V of the present state anew.
  void revalue();

 private:
  // One body per number of blocks of eight linear features, chosen once; 0: any features.
  using Observe = float (*)(LinearCritic& critic, const float* loads, float reward,
                            const TemporalDifference& td, float share);
  template <uint32_t Blocks>
  static float observe_in(LinearCritic& critic, const float* loads, float reward,
                          const TemporalDifference& td, float share);
  template <uint32_t Blocks>
  float transition(const float* loads, float reward, const TemporalDifference& td, float share);
  template <uint32_t Blocks>
  [[gnu::always_inline]] inline float value_in(const float* loads);
  template <uint32_t Blocks>
  void cache(float decay, float factor);

  CriticFeatures kind_ = CriticFeatures::kLinear;
  uint32_t num_servers_ = 0, size_ = 0;
  size_t padded_ = 0;
  AlignedFloats parameters_, gradient_, trace_;
  AlignedFloats features_;  // of the present state and of the next one, taking turns
  size_t present_ = 0, next_ = 0;
  AlignedInts last_;  // what the last block of linear features keeps, and has beside it
  Observe observe_ = nullptr;
  float value_ = 0;
  float average_reward_ = 0;
};

// Consensus (Alg. 1): mean over `count` parameter vectors of `size` floats, summed in their order; `mean` may
// be one of them.
void average_parameters(const float* const* vectors, size_t count, size_t size, float* mean);
// Bytes that a consensus of `count` servers sends: each its parameters to every other.
constexpr uint64_t consensus_bytes(size_t count, size_t size) {
  return uint64_t{count} * (count - 1) * size * sizeof(float);
}

}  // namespace steelyard::core
