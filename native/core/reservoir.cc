#include "native/core/reservoir.h"

#include <algorithm>

#include "native/core/lanes.h"
#include "native/core/rng.h"

namespace steelyard::core {
namespace {

constexpr int kLanes = 8;
constexpr float kLog2Discount = -0.15200309344504997f;  // log2(0.9)
constexpr TimeNs kMaxAge = TimeNs{1} << 40;             // 1100 s: 0.9^age is below 1e-50 by then
constexpr int kAgeShift = 10;                           // ages in units of 1024 ns fit 31 bits
constexpr float kAgeUnit = 1024e-9f;

using i64x4 = int64_t __attribute__((vector_size(32)));

// Ages of four samples, limited, in units of 2^kAgeShift ns. Machines lack the arithmetic shift; of a
// negative age the 32 bits that are used below are the same.
i32x8 age_units(const TimeNs* times, TimeNs now) {
  i64x4 age;
  std::memcpy(&age, times, sizeof age);
  age = now - age;
  const i64x4 limit = i64x4{} + kMaxAge;
  age = age < limit ? age : limit;
  return reinterpret_cast<i32x8>(reinterpret_cast<u64x4>(age) >> kAgeShift);
}

// 0.9^age of eight samples.
f32x8 discounts(const TimeNs* times, TimeNs now) {
  const i32x8 units = __builtin_shufflevector(age_units(times, now), age_units(times + kLanes / 2, now), 0, 2,
                                              4, 6, 8, 10, 12, 14);
  const f32x8 exponent = __builtin_convertvector(units, f32x8) * kAgeUnit * kLog2Discount;
  const f32x8 floor = f32x8{} - 126.0f;
  return exp2_lanes(exponent > floor ? exponent : floor);
}

f32x8 load(const float* p) {
  f32x8 x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

// Calls body(place, mask) for each block of eight of n samples; lanes that hold no sample have mask 0,
// others 1.
template <typename Body>
void for_each_block(int n, Body body) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, f32x8{} + 1.0f);
  if (i == n) return;
  f32x8 mask;
  for (int lane = 0; lane < kLanes; ++lane) mask[lane] = lane < n - i ? 1.0f : 0.0f;
  body(i, mask);
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
  base_ += added_ + 1;
  added_ = 0;
}

void Reservoir::assign(std::span<const TimeNs> times, std::span<const float> values) {
  std::copy(times.begin(), times.end(), times_.begin());
  std::copy(values.begin(), values.end(), values_.begin());
  filled_ = static_cast<int>(values.size());
  dirty_ = filled_ > 0;
  base_ += added_ + 1;
  added_ = values.size();
}

void Reservoir::reduce_moments() {
  const float n = static_cast<float>(filled_);
  f32x8 sum{};
  for_each_block(filled_, [&](int i, const f32x8& mask) { sum += load(&values_[i]) * mask; });
  reduced_.mean = horizontal_sum(sum) / n;
  f32x8 squares{};
  for_each_block(filled_, [&](int i, const f32x8& mask) {
    const f32x8 delta = (load(&values_[i]) - reduced_.mean) * mask;
    squares += delta * delta;
  });
  reduced_.std = __builtin_sqrtf(horizontal_sum(squares) / n);
  reduced_.p90 = percentile90(values_.data(), filled_);
}

Reduced Reservoir::reduce(TimeNs now) {
  if (filled_ == 0) return {};
  if (!dirty_ && now == reduced_at_) return reduced_;
  if (dirty_) reduce_moments();
  f32x8 weight_sum{};
  f32x8 value_sum{};
  for_each_block(filled_, [&](int i, const f32x8& mask) {
    const f32x8 weight = discounts(&times_[i], now) * mask;
    weight_sum += weight;
    value_sum += weight * load(&values_[i]);
  });
  const float weighted = horizontal_sum(value_sum);
  reduced_.discounted_mean = weighted / static_cast<float>(filled_);
  reduced_.weighted_discounted_mean = weighted / horizontal_sum(weight_sum);
  reduced_at_ = now;
  dirty_ = false;
  return reduced_;
}

}  // namespace steelyard::core
