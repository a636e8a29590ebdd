// Eight float lanes on any machine: GCC vector extensions, so that sums have one fixed order everywhere.
#pragma once

#include <cstdint>
#include <cstring>

namespace steelyard::core {

using f32x4 = float __attribute__((vector_size(16)));
using f32x8 = float __attribute__((vector_size(32)));
using i32x4 = int32_t __attribute__((vector_size(16)));
using i32x8 = int32_t __attribute__((vector_size(32)));
using i64x4 = int64_t __attribute__((vector_size(32)));
using u64x4 = uint64_t __attribute__((vector_size(32)));
using f64x4 = double __attribute__((vector_size(32)));

// Bit k is set where lane k is -1; lanes are 0 or -1, as comparisons give them.
inline uint32_t bits_of_lanes(i32x8 lanes) {
#ifdef __AVX__
  using floats = float __attribute__((vector_size(32), may_alias));
  return static_cast<uint32_t>(__builtin_ia32_movmskps256(reinterpret_cast<floats&>(lanes)));
#else
  lanes &= i32x8{1, 2, 4, 8, 16, 32, 64, 128};
  lanes |= __builtin_shufflevector(lanes, lanes, 4, 5, 6, 7, 0, 1, 2, 3);
  lanes |= __builtin_shufflevector(lanes, lanes, 2, 3, 0, 1, 6, 7, 4, 5);
  return static_cast<uint32_t>(lanes[0] | lanes[1]);
#endif
}
inline uint32_t bits_of_lanes(i64x4 lanes) {
#ifdef __AVX__
  using doubles = double __attribute__((vector_size(32), may_alias));
  return static_cast<uint32_t>(__builtin_ia32_movmskpd256(reinterpret_cast<doubles&>(lanes)));
#else
  lanes &= i64x4{1, 2, 4, 8};
  return static_cast<uint32_t>((lanes[0] | lanes[1]) | (lanes[2] | lanes[3]));
#endif
}

// Sum of the lanes, in a fixed order.
inline float horizontal_sum(const f32x8& x) {
  const f32x4 quarters =
      __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
  const f32x4 halves = quarters + __builtin_shufflevector(quarters, quarters, 2, 3, 0, 1);
  return halves[0] + halves[1];
}

// 2^x for x in [-126, 126], relative error below 3e-7: 2^f by its Taylor series of degree 6 on [-0.5, 0.5].
inline f32x8 exp2_lanes(f32x8 x) {
  const f32x8 magic = f32x8{} + 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const f32x8 rounded = (x + magic) - magic;
  const f32x8 f = x - rounded;
  f32x8 p = f * 1.5403530e-4f + 1.3333558e-3f;
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.0f;
  const i32x8 exponent = (__builtin_convertvector(rounded, i32x8) + 127) << 23;
  f32x8 scale;
  std::memcpy(&scale, &exponent, sizeof scale);
  return p * scale;
}

inline float exp2_scalar(float x) { return exp2_lanes(f32x8{} + x)[0]; }

}  // namespace steelyard::core
