#include "native/core/linear_critic.h"

#include <utility>

#include "native/core/activations.h"

namespace steelyard::core {
namespace {

// Features i to i + 7: loads, then 1, then 0.
inline f32x8 linear_block(int32_t num_servers, const float* loads, int32_t i) {
  const i32x8 at = i32x8{0, 1, 2, 3, 4, 5, 6, 7} + i;
  return at == num_servers ? fill8(1.0F) : (at < num_servers ? load8(loads + i) : f32x8{});
}

// Each vector written once and whole, so that it can be read at once.
void linear_features(uint32_t num_servers, const float* loads, float* features) {
  const auto n = static_cast<int32_t>(num_servers);
  for (int32_t i = 0; i <= n; i += 8) store8(features + i, linear_block(n, loads, i));
}

// V of the loads in one pass, its sums in the order of dot; blocks of eight features.
template <uint32_t Blocks>
float linear_value(uint32_t num_servers, const float* loads, const float* parameters, float* features) {
  constexpr uint32_t kFours = Blocks / 4 * 4;
  f32x8 sums[4] = {};
#pragma GCC unroll 8
  for (uint32_t b = 0; b < Blocks; ++b) {
    const f32x8 f = linear_block(static_cast<int32_t>(num_servers), loads, static_cast<int32_t>(8 * b));
    store8(features + 8 * b, f);
    sums[b < kFours ? b % 4 : 0] += load8(parameters + 8 * b) * f;
  }
  return horizontal_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace

void critic_features(CriticFeatures kind, uint32_t num_servers, const float* loads, float* features) {
  if (kind == CriticFeatures::kLinear) return linear_features(num_servers, loads, features);
  // Whole vectors are written; what is written beyond a part is overwritten by the next one.
  float* at = features;
  const auto put = [&](uint32_t count, auto&& value) {
    for (uint32_t i = 0; i < count; i += 8) store8(at + i, value(i));
    at += count;
  };
  put(num_servers, [&](uint32_t i) { return load8(loads + i); });
  for (uint32_t row = 0; row < num_servers; ++row) {
    put(num_servers - row, [&](uint32_t i) { return load8(loads + row + i) * loads[row]; });
  }
  if (kind == CriticFeatures::kQuartic) {
    const auto cube = [&](uint32_t i) { return load8(loads + i) * load8(loads + i) * load8(loads + i); };
    put(num_servers, cube);
    put(num_servers, [&](uint32_t i) { return cube(i) * load8(loads + i); });
  }
  store8(at, f32x8{1.0F});
}

float dot(const float* a, const float* b, size_t size) {
  f32x8 sums[4] = {};
  size_t i = 0;
  for (; i + 32 <= size; i += 32) {
#pragma GCC unroll 4
    for (size_t k = 0; k < 4; ++k) sums[k] += load8(a + i + 8 * k) * load8(b + i + 8 * k);
  }
  for (; i < size; i += 8) sums[0] += load8(a + i) * load8(b + i);
  return horizontal_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

LinearCritic::LinearCritic(CriticFeatures kind, uint32_t num_servers)
    : kind_(kind),
      num_servers_(num_servers),
      size_(critic_size(kind, num_servers)),
      padded_((size_ + 7) / 8 * 8),
      parameters_(padded_),
      gradient_(padded_),
      trace_(padded_),
      features_(2 * critic_buffer(kind, num_servers)),
      next_(critic_buffer(kind, num_servers)) {}

float LinearCritic::value_of(const float* loads) {
  float* next = features_.data() + next_;
  switch (kind_ == CriticFeatures::kLinear ? padded_ / 8 : 0) {  // of racks that are common
    case 1:
      return linear_value<1>(num_servers_, loads, parameters_.data(), next);
    case 2:
      return linear_value<2>(num_servers_, loads, parameters_.data(), next);
    case 3:
      return linear_value<3>(num_servers_, loads, parameters_.data(), next);
    case 5:
      return linear_value<5>(num_servers_, loads, parameters_.data(), next);
    default:
      break;
  }
  critic_features(kind_, num_servers_, loads, next);
  return dot(parameters_.data(), next, padded_);
}

void LinearCritic::start(const float* loads) {
  trace_.clear();
  value_ = value_of(loads);
  std::swap(present_, next_);
}

float LinearCritic::observe(const float* loads, float reward, const TemporalDifference& td, float share) {
  const float next_value = value_of(loads);
  const float error = reward - average_reward_ + td.discount * next_value - value_;
  if (td.average_step != 0) average_reward_ += td.average_step * error;
  const float decay = td.discount * td.trace;
  const float factor = -error * share;
  float* gradient = gradient_.data();
  float* traces = trace_.data();
  const float* features = features_.data() + present_;
  for (size_t i = 0; i < padded_; i += 8) {
    f32x8 trace = load8(features + i);
    if (decay > 0) {
      trace += load8(traces + i) * decay;
      store8(traces + i, trace);
    }
    store8(gradient + i, load8(gradient + i) + trace * factor);
  }
  value_ = next_value;
  std::swap(present_, next_);
  return error;
}

void LinearCritic::revalue() { value_ = dot(parameters_.data(), features_.data() + present_, padded_); }

void average_parameters(const float* const* vectors, size_t count, size_t size, float* mean) {
  const float share = 1.0F / static_cast<float>(count);
  for (size_t i = 0; i < size; ++i) {
    float sum = 0.0F;
    for (size_t k = 0; k < count; ++k) sum += vectors[k][i];
    mean[i] = sum * share;
  }
}

}  // namespace steelyard::core
