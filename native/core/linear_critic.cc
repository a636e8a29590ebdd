#include "native/core/linear_critic.h"

#include <cstring>
#include <utility>

#include "native/core/activations.h"

namespace steelyard::core {
namespace {

// Which loads the last block of linear features keeps, and what it has beside them: the bits of 1, after the
// loads.
struct LastBlock {
  explicit LastBlock(uint32_t num_servers) {
    const i32x8 lane = {0, 1, 2, 3, 4, 5, 6, 7};
    const auto left = static_cast<int32_t>(num_servers % 8);
    kept = lane < left;
    one = (lane == left) & 0x3f800000;
  }
  explicit LastBlock(const int32_t* from) {
    std::memcpy(&kept, from, sizeof kept);
    std::memcpy(&one, from + 8, sizeof one);
  }
  f32x8 of(const float* loads) const {
    i32x8 bits;
    std::memcpy(&bits, loads, sizeof bits);
    bits = (bits & kept) | one;
    f32x8 features;
    std::memcpy(&features, &bits, sizeof features);
    return features;
  }
  i32x8 kept, one;
};

// Each vector written once and whole, so that it can be read at once.
void linear_features(uint32_t num_servers, const float* loads, float* features) {
  const uint32_t last = num_servers / 8 * 8;
  for (uint32_t i = 0; i < last; i += 8) store8(features + i, load8(loads + i));
  store8(features + last, LastBlock(num_servers).of(loads + last));
}

// V of the loads in one pass, its sums in the order of dot; blocks of eight features.
template <uint32_t Blocks>
inline float linear_value(const float* loads, const LastBlock& last, const float* parameters,
                          float* features) {
  constexpr uint32_t kFours = Blocks / 4 * 4;
  f32x8 sums[4];
#pragma GCC unroll 8
  for (uint32_t b = 0; b < Blocks; ++b) {
    const f32x8 f = b + 1 < Blocks ? load8(loads + 8 * b) : last.of(loads + 8 * b);
    store8(features + 8 * b, f);
    const f32x8 part = load8(parameters + 8 * b) * f;
    const uint32_t sum = b < kFours ? b % 4 : 0;
    sums[sum] = b == sum ? part : sums[sum] + part;
  }
  return horizontal_sum(Blocks < 4 ? sums[0] : (sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// f.operator()<Blocks>() with the blocks of eight linear features in racks that are common; 0: of any others.
template <class F>
auto with_blocks(CriticFeatures kind, size_t padded, F&& f) {
  switch (kind == CriticFeatures::kLinear ? padded / 8 : 0) {
    case 1:
      return f.template operator()<1>();
    case 2:
      return f.template operator()<2>();
    case 3:
      return f.template operator()<3>();
    case 5:
      return f.template operator()<5>();
    default:
      return f.template operator()<0>();
  }
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
      next_(critic_buffer(kind, num_servers)),
      last_(16),
      observe_(
          with_blocks(kind, padded_, []<uint32_t Blocks>() { return &LinearCritic::observe_in<Blocks>; })) {
  const LastBlock last(num_servers);
  std::memcpy(last_.data(), &last.kept, sizeof last.kept);
  std::memcpy(last_.data() + 8, &last.one, sizeof last.one);
}

template <uint32_t Blocks>
float LinearCritic::value_in(const float* loads) {
  float* next = features_.data() + next_;
  if constexpr (Blocks > 0)
    return linear_value<Blocks>(loads, LastBlock(last_.data()), parameters_.data(), next);
  critic_features(kind_, num_servers_, loads, next);
  return dot(parameters_.data(), next, padded_);
}

// trace <- decay trace + f(x); gradient <- gradient + factor trace.
template <uint32_t Blocks>
void LinearCritic::cache(float decay, float factor) {
  const float* features = features_.data() + present_;
  float* gradient = gradient_.data();
  float* traces = trace_.data();
  const auto move = [=](size_t i) {
    f32x8 trace = load8(features + i);
    if (decay > 0) [[unlikely]] {
      trace += load8(traces + i) * decay;
      store8(traces + i, trace);
    }
    store8(gradient + i, load8(gradient + i) + trace * factor);
  };
  if constexpr (Blocks > 0) {
#pragma GCC unroll 8
    for (size_t i = 0; i < 8 * Blocks; i += 8) move(i);
  } else {
    for (size_t i = 0; i < padded_; i += 8) move(i);
  }
}

float LinearCritic::value_of(const float* loads) {
  return with_blocks(kind_, padded_, [&]<uint32_t Blocks>() { return value_in<Blocks>(loads); });
}

void LinearCritic::start(const float* loads) {
  trace_.clear();
  value_ = value_of(loads);
  std::swap(present_, next_);
}

template <uint32_t Blocks>
float LinearCritic::observe_in(LinearCritic& critic, const float* loads, float reward,
                               const TemporalDifference& td, float share) {
  return critic.transition<Blocks>(loads, reward, td, share);
}

template <uint32_t Blocks>
float LinearCritic::transition(const float* loads, float reward, const TemporalDifference& td, float share) {
  const float next_value = value_in<Blocks>(loads);
  const float error = reward - average_reward_ + td.discount * next_value - value_;
  if (td.average_step != 0) average_reward_ += td.average_step * error;
  cache<Blocks>(td.discount * td.trace, -error * share);
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
