#include "native/core/reservoir.h"

#include "native/core/lanes.h"
#include "native/core/rng.h"

namespace steelyard::core {
namespace {

constexpr int kLanes = 8;
constexpr float kLog2Discount = -0.15200309344504997f;  // log2(0.9)
constexpr TimeNs kMaxAge = TimeNs{1} << 40;             // 1100 s: 0.9^age is below 1e-50 by then
constexpr int kAgeShift = 10;                           // ages in units of 1024 ns fit 31 bits
constexpr float kAgeUnit = 1024e-9f;

using i64x8 = int64_t __attribute__((vector_size(64)));

// 0.9^age of eight samples.
f32x8 discounts(const TimeNs* times, TimeNs now) {
  i64x8 age;
  for (int i = 0; i < kLanes; ++i) age[i] = now - times[i];
  const i64x8 limit = i64x8{} + kMaxAge;
  age = age < limit ? age : limit;
  const f32x8 age_s = __builtin_convertvector(__builtin_convertvector(age >> kAgeShift, i32x8), f32x8) * kAgeUnit;
  const f32x8 exponent = age_s * kLog2Discount;
  const f32x8 floor = f32x8{} - 126.0f;
  return exp2_lanes(exponent > floor ? exponent : floor);
}

// Lanes of the last block that hold no sample are multiplied by zero.
f32x8 block_mask(int remaining) {
  f32x8 mask;
  for (int i = 0; i < kLanes; ++i) mask[i] = i < remaining ? 1.0f : 0.0f;
  return mask;
}

f32x8 load(const float* p) {
  f32x8 x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

// The 90th percentile with linear interpolation between order statistics (NumPy's default). Only the
// largest tenth is ever sorted: `top` holds the k largest values seen, ascending.
float percentile90(const float* values, int n) {
  constexpr int kMaxTop = Reservoir::kMaxSize / 10 + 2;
  const int scaled = 9 * (n - 1);
  const int low = scaled / 10;
  const float fraction = static_cast<float>(scaled % 10) / 10.0f;
  const int k = n - low;
  float top[kMaxTop];
  int held = 0;
  for (int i = 0; i < n; ++i) {
    const float v = values[i];
    int at = 0;
    if (held < k) {
      at = held++;
      for (; at > 0 && top[at - 1] > v; --at) top[at] = top[at - 1];
    } else {
      if (v <= top[0]) continue;
      for (; at + 1 < k && top[at + 1] < v; ++at) top[at] = top[at + 1];
    }
    top[at] = v;
  }
  return k > 1 ? top[0] + fraction * (top[1] - top[0]) : top[0];
}

}  // namespace

void Reduced::write(float* out) const {
  out[0] = mean;
  out[1] = p90;
  out[2] = std;
  out[3] = discounted_mean;
  out[4] = weighted_discounted_mean;
}

void Reservoir::add(TimeNs now, float value) {
  uint32_t slot = below(draw(stream_, added_++), static_cast<uint32_t>(size_));
  if (slot >= static_cast<uint32_t>(filled_)) slot = static_cast<uint32_t>(filled_++);
  times_[slot] = now;
  values_[slot] = value;
  dirty_ = true;
}

void Reservoir::restart(uint64_t stream) {
  stream_ = stream;
  filled_ = 0;
  dirty_ = false;
  added_ = 0;
}

void Reservoir::reduce_moments() {
  const float n = static_cast<float>(filled_);
  f32x8 sum{};
  for (int i = 0; i < filled_; i += kLanes) sum += load(&values_[i]) * block_mask(filled_ - i);
  mean_ = horizontal_sum(sum) / n;
  f32x8 squares{};
  for (int i = 0; i < filled_; i += kLanes) {
    const f32x8 delta = (load(&values_[i]) - mean_) * block_mask(filled_ - i);
    squares += delta * delta;
  }
  std_ = __builtin_sqrtf(horizontal_sum(squares) / n);
  p90_ = percentile90(values_.data(), filled_);
  dirty_ = false;
}

Reduced Reservoir::reduce(TimeNs now) {
  if (filled_ == 0) return {};
  if (dirty_) reduce_moments();
  f32x8 weight_sum{};
  f32x8 value_sum{};
  for (int i = 0; i < filled_; i += kLanes) {
    const f32x8 weight = discounts(&times_[i], now) * block_mask(filled_ - i);
    weight_sum += weight;
    value_sum += weight * load(&values_[i]);
  }
  const float weighted = horizontal_sum(value_sum);
  return {mean_, p90_, std_, weighted / static_cast<float>(filled_), weighted / horizontal_sum(weight_sum)};
}

}  // namespace steelyard::core
