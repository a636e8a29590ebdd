// The one door through which weights reach the decision: actions become Q16.16 fixed point here.
#pragma once

#include <cstdint>

#include "native/core/lanes.h"

namespace steelyard::core {

using WeightQ16 = uint32_t;
inline constexpr WeightQ16 kUnitWeight = 1u << 16;
inline constexpr float kLog2WeightRange = 2.0f;  // an action in [-1, 1] is a weight in [1/4, 4]
inline constexpr float kMaxWeight = 65535.0f;

// Action in [-1, 1] to weight: 2^(2 a); values outside are clamped.
inline float weight_of_action(float action) {
  const float a = action < -1.0f ? -1.0f : (action > 1.0f ? 1.0f : action);
  return exp2_scalar(a * kLog2WeightRange);
}

// Weight to fixed point, rounded to nearest; at least 2^-16, at most 65535.
inline WeightQ16 weight_to_q16(float weight) {
  const float scaled = (weight < kMaxWeight ? weight : kMaxWeight) * 65536.0f + 0.5f;
  return scaled >= 1.0f ? static_cast<WeightQ16>(scaled) : 1u;
}

}  // namespace steelyard::core
