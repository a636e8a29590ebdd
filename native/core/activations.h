// exp, sigmoid and tanh from + - * / and bit operations, 8 floats at a time. No libm: a math library differs
// from machine to machine, these give the same bits wherever IEEE-754 single precision rounds to nearest and
// nothing is contracted. agents/activations.py is the torch twin, operation by operation.
//
// Errors over all float32 inputs against the exact function: exp 1 ulp on [-87, 88], sigmoid 3 ulp, tanh 2
// ulp (held by native/tests/activations_test.cc). NaN goes through.
#pragma once

#include "native/core/lanes.h"

// Without AVX the compiler splits a vector in two and warns that a call by value changed its convention; all
// functions here are internal to their translation unit or inlined, so nothing depends on it.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace steelyard::core {

inline f32x8 load8(const float* from) {
  f32x8 value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

inline f32x4 load4(const float* from) {
  f32x4 value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

inline void store8(float* to, f32x8 value) { __builtin_memcpy(to, &value, sizeof value); }

inline f32x8 fill8(float x) { return f32x8{x, x, x, x, x, x, x, x}; }

// Adding 1.5 * 2^23 leaves the nearest integer in the low mantissa bits.
inline constexpr float kRoundingShift = 0x1.8p23F;
inline constexpr float kLog2E = 0x1.715476p0F;
// ln 2 in two parts; the first has 9 bits, so that its product with an exponent is exact.
inline constexpr float kLn2High = 0x1.63p-1F;
inline constexpr float kLn2Low = -0x1.bd0106p-13F;
inline constexpr float kExpLowest = -87.0F;
inline constexpr float kExpHighest = 88.0F;
// Minimax fit of (e^r - 1 - r) / r^2 on |r| <= ln(2) / 2, error relative to e^r 3e-9.
inline constexpr float kExp[5] = {0x1.fffffcp-2F, 0x1.555490p-3F, 0x1.5558f6p-5F, 0x1.123a28p-7F,
                                  0x1.6a220cp-10F};
// Minimax fit of (tanh(x) - x) / x^3 in x^2 on |x| <= 0.625, error relative to tanh 4e-9.
inline constexpr float kTanhSmall = 0.625F;
inline constexpr float kTanh[5] = {-0x1.555532p-2F, 0x1.110726p-3F, -0x1.b83c5ap-5F, 0x1.52269cp-6F,
                                   -0x1.75e1cep-8F};
// Beyond it tanh is 1 in float32.
inline constexpr float kTanhHighest = 10.0F;

// A NaN is kept. The instructions are the comparisons written out: their second operand unless the first one
// is greater, or less.
inline f32x8 clamp8(f32x8 x, float low, float high) {
#ifdef __AVX__
  return __builtin_ia32_minps256(fill8(high), __builtin_ia32_maxps256(fill8(low), x));
#else
  x = x < low ? fill8(low) : x;
  return x > high ? fill8(high) : x;
#endif
}

inline f32x8 horner8(f32x8 x, const float (&c)[5]) {
  return (((c[4] * x + c[3]) * x + c[2]) * x + c[1]) * x + c[0];
}

// e^x with x limited to [-87, 88], where the result is a normal number.
inline f32x8 exp8(f32x8 x) {
  x = clamp8(x, kExpLowest, kExpHighest);
  const f32x8 shifted = x * kLog2E + kRoundingShift;
  const f32x8 n = shifted - kRoundingShift;
  const f32x8 r = (x - n * kLn2High) - n * kLn2Low;
  const f32x8 fraction = (horner8(r, kExp) * (r * r) + r) + 1.0F;
  i32x8 bits;
  __builtin_memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 127) << 23;  // 2^n: n is in the low bits, the rest is shifted out
  f32x8 scale;
  __builtin_memcpy(&scale, &bits, sizeof scale);
  return fraction * scale;
}

inline f32x8 sigmoid8(f32x8 x) { return 1.0F / (1.0F + exp8(clamp8(-x, kExpLowest, -kExpLowest))); }

inline f32x8 tanh8(f32x8 x) {
  const f32x8 size = x < 0.0F ? -x : x;
  const f32x8 square = x * x;
  const f32x8 small = horner8(square, kTanh) * square * x + x;
  const f32x8 large = 1.0F - 2.0F / (exp8(2.0F * clamp8(size, 0.0F, kTanhHighest)) + 1.0F);
  return size < kTanhSmall ? small : (x < 0.0F ? -large : large);
}

inline f32x8 relu8(f32x8 x) { return x < 0.0F ? f32x8{} : x; }

}  // namespace steelyard::core
