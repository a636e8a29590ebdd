// Reservoirs of (timestamp, value) and their reduction to five scalars (seed 002 Alg. 3 and Sec. 3.3; seed
// 004 ch. 3).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "native/core/schema.h"
#include "native/core/types.h"

namespace steelyard::core {

// mean, 90th percentile, standard deviation, (1/n) sum 0.9^age v, sum 0.9^age v / sum 0.9^age; age in
// seconds.
struct Reduced {
  float mean = 0, p90 = 0, std = 0, discounted_mean = 0, weighted_discounted_mean = 0;
  void write(float* out) const;
};

// Sampling with no rejection: every sample lands on a uniformly drawn slot. Filled slots are kept as a
// dense prefix, which is the same process (empty slots are exchangeable) without a scan over holes.
class Reservoir {
 public:
  static constexpr int kMaxSize = 128;

  // `stream` keys the slot draws (core::draw), `size` in [1, kMaxSize].
  explicit Reservoir(uint64_t stream = 0, int size = kMaxSize) : stream_(stream), size_(size) {}

  void add(TimeNs now, float value);
  // All zero when nothing has been added: "no measurement" and "zero seconds" differ in n_flow_on.
  Reduced reduce(TimeNs now);
  // Forgets all samples; the slots of the next ones are drawn from `stream`.
  void restart(uint64_t stream);
  // Takes the samples of another reservoir, in the order of its slots, so that it reduces to the same bits.
  // Both of the same length, at most kMaxSize.
  void assign(std::span<const TimeNs> times, std::span<const float> values);

  int filled() const { return filled_; }
  uint64_t added() const { return added_; }
  // Differs whenever the samples do; never goes back.
  uint64_t version() const { return base_ + added_; }
  TimeNs time_at(int slot) const { return times_[slot]; }
  float value_at(int slot) const { return values_[slot]; }

 private:
  void reduce_moments();

  uint64_t stream_;
  int size_;
  int filled_ = 0;
  bool dirty_ = false;  // samples changed since `reduced_` was computed
  uint64_t added_ = 0;
  uint64_t base_ = 0;  // of version()
  TimeNs reduced_at_ = 0;
  Reduced reduced_;
  alignas(32) std::array<TimeNs, kMaxSize> times_{};
  alignas(32) std::array<float, kMaxSize> values_{};
};

}  // namespace steelyard::core
