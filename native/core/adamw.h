// AdamW (Loshchilov, Hutter 2019, Alg. 2), one flat array at a time; every element by itself, so that the
// width of the machine's vectors changes no bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "native/core/aligned.h"

namespace steelyard::core {

struct AdamWConfig {
  float learning_rate = 1e-3F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-6F;
  float weight_decay = 1e-4F;
};

class AdamW {
 public:
  AdamW() = default;
  explicit AdamW(size_t size) : mean_(size), square_(size) {}

  // One step down the gradient, both of the size given at construction; clears the gradient.
  void update(const AdamWConfig& config, float* parameters, float* gradient);
  size_t size() const { return mean_.size(); }
  uint64_t steps() const { return steps_; }

  // Every piece of the state as f(address, bytes): to be written away or read back.
  template <class F>
  void visit_state(F&& f) {
    f(mean_.data(), mean_.size() * sizeof(float));
    f(square_.data(), square_.size() * sizeof(float));
    f(&mean_left_, sizeof mean_left_);
    f(&square_left_, sizeof square_left_);
    f(&steps_, sizeof steps_);
  }

 private:
  AlignedFloats mean_, square_;                 // moving averages of the gradient and of its square
  double mean_left_ = 1.0, square_left_ = 1.0;  // beta1^steps, beta2^steps
  uint64_t steps_ = 0;
};

}  // namespace steelyard::core
