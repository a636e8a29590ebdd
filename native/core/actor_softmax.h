// Both softmaxes of a server of the rack game, drawn up side by side. A vector holds four logits of the one
// actor and the same four of the other, so that sums over an actor stay within half a vector, one division
// serves both, and a rack of four servers is one vector. Sums are in the order of horizontal_sum.
#pragma once

#include <cstddef>
#include <cstdint>

#include "native/core/activations.h"

namespace steelyard::core {

inline constexpr float kHighestTotal = 1e30F;
inline constexpr float kLowestLogit = -0x1p126F;
inline constexpr float kDraws = 0x1p30F;            // draws are integers below it
inline constexpr int32_t kUnreachable = INT32_MAX;  // a threshold above every draw

// Where server i of an actor, 0 or 1, is in an array of such vectors.
constexpr size_t place_in_pairs(uint32_t actor, uint32_t i) {
  return size_t{i / 4} * 8 + size_t{actor} * 4 + i % 4;
}

// Both actors' arrays, (2, lanes) each, but (lanes / 4) vectors of both where `pairs` says so.
struct Distributions {
  const float* logits;
  const int32_t* allowed_pairs;
  const int32_t* beyond_pairs;
  float* probability;
  int32_t* threshold;
};

inline i32x8 load8(const int32_t* from) {
  i32x8 value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

// Lanes 0 to 3 all x, 4 to 7 all y.
inline f32x8 fill_pair(float x, float y) { return f32x8{x, x, x, x, y, y, y, y}; }

template <uint32_t Lanes>
f32x8 load_pair(const float* both, uint32_t quarter) {
  return __builtin_shufflevector(load4(both + 4 * quarter), load4(both + Lanes + 4 * quarter), 0, 1, 2, 3, 4,
                                 5, 6, 7);
}

// Of one or two vectors of both actors, from lane 8 * block on.
template <uint32_t Lanes, class Vector, class T>
void store_pairs(const Vector* pairs, T* both, uint32_t block) {
  if constexpr (Lanes == 4) {
    __builtin_memcpy(both, pairs, sizeof *pairs);
  } else {
    const Vector one = __builtin_shufflevector(pairs[0], pairs[1], 0, 1, 2, 3, 8, 9, 10, 11);
    const Vector other = __builtin_shufflevector(pairs[0], pairs[1], 4, 5, 6, 7, 12, 13, 14, 15);
    __builtin_memcpy(both + 8 * block, &one, sizeof one);
    __builtin_memcpy(both + Lanes + 8 * block, &other, sizeof other);
  }
}

inline f32x8 only(const f32x8& values, i32x8 allowed) {
  i32x8 bits;
  __builtin_memcpy(&bits, &values, sizeof bits);
  bits &= allowed;
  f32x8 kept;
  __builtin_memcpy(&kept, &bits, sizeof kept);
  return kept;
}

// e^(logit - shift) of what is allowed, and the actors' totals in all their lanes.
template <uint32_t Lanes>
inline f32x8 exponentials(const Distributions& d, f32x8 shift, f32x8* e) {
  constexpr uint32_t kQuarters = Lanes / 4;
  f32x8 sums[2];
#pragma GCC unroll 16
  for (uint32_t q = 0; q < kQuarters; ++q) {
    e[q] = only(exp8(load_pair<Lanes>(d.logits, q) - shift), load8(d.allowed_pairs + 8 * q));
    sums[q % 2] = q < 2 ? e[q] : sums[q % 2] + e[q];
  }
  f32x8 total = kQuarters > 1 ? sums[0] + sums[1] : sums[0];
  total += __builtin_shufflevector(total, total, 2, 3, 0, 1, 6, 7, 4, 5);
  return total + __builtin_shufflevector(total, total, 1, 0, 3, 2, 5, 4, 7, 6);
}

// Running sums within each half.
inline i32x8 prefix_sums(i32x8 x) {
  x += __builtin_shufflevector(x, x, 0, 0, 1, 2, 4, 4, 5, 6) & i32x8{0, -1, -1, -1, 0, -1, -1, -1};
  return x + (__builtin_shufflevector(x, x, 0, 0, 0, 1, 4, 4, 4, 5) & i32x8{0, 0, -1, -1, 0, 0, -1, -1});
}

// Thresholds are 2^30 times the running sum of what is truncated to 2^-30; a power of two is multiplied at
// no error, wherever in a product it stands.
template <uint32_t Lanes>
inline void write_distributions(const Distributions& d, const f32x8* e, f32x8 total) {
  constexpr uint32_t kQuarters = Lanes / 4;
  const f32x8 scale = kDraws / total;
  const f32x8 unit_scale = scale * (1 / kDraws);
  f32x8 p[2];
  i32x8 reached[2], before = {};
#pragma GCC unroll 16
  for (uint32_t q = 0; q < kQuarters; ++q) {
    p[q % 2] = e[q] * unit_scale;
    const i32x8 sums = prefix_sums(__builtin_convertvector(e[q] * scale, i32x8)) + before;
    reached[q % 2] = sums | load8(d.beyond_pairs + 8 * q);
    before = __builtin_shufflevector(sums, sums, 3, 3, 3, 3, 7, 7, 7, 7);
    if (q % 2 == 0 && kQuarters > 1) continue;
    store_pairs<Lanes>(p, d.probability, q / 2);
    store_pairs<Lanes>(reached, d.threshold, q / 2);
  }
}

// All probability on `self`; one actor's arrays.
inline void keep(uint32_t lanes, uint32_t self, float* probability, int32_t* threshold) {
  for (uint32_t i = 0; i < lanes; ++i) {
    probability[i] = i == self ? 1.0F : 0.0F;
    threshold[i] = i < self ? 0 : kUnreachable;
  }
}

template <uint32_t Lanes>
f32x8 highest_allowed(const Distributions& d) {
  f32x8 top = fill8(kLowestLogit);
  for (uint32_t q = 0; q < Lanes / 4; ++q) {
    const f32x8 f = load_pair<Lanes>(d.logits, q);
    const f32x8 known = load8(d.allowed_pairs + 8 * q) != 0 ? f : fill8(kLowestLogit);
    top = known > top ? known : top;
  }
  f32x8 other = __builtin_shufflevector(top, top, 2, 3, 0, 1, 6, 7, 4, 5);
  top = other > top ? other : top;
  other = __builtin_shufflevector(top, top, 1, 0, 3, 2, 5, 4, 7, 6);
  return other > top ? other : top;
}

// Draws up both distributions; false, and nothing is written, where an actor's logits lie too far above its
// logit of `self`. That is at hand at once, nearly always good enough as a shift, and cancels out.
template <uint32_t Lanes>
inline bool softmax(const Distributions& d, uint32_t self) {
  f32x8 e[Lanes / 4];
  const f32x8 total = exponentials<Lanes>(d, fill_pair(d.logits[self], d.logits[Lanes + self]), e);
  if (bits_of_lanes(total <= kHighestTotal) != 0xff) return false;
  write_distributions<Lanes>(d, e, total);
  return true;
}

// The same where it answers false: such an actor takes its greatest logit as shift, and what is not finite
// even so keeps.
template <uint32_t Lanes>
void softmax_of_far_logits(const Distributions& d, uint32_t self) {
  f32x8 e[Lanes / 4];
  const f32x8 own = fill_pair(d.logits[self], d.logits[Lanes + self]);
  const i32x8 near = exponentials<Lanes>(d, own, e) <= kHighestTotal;
  const f32x8 total = exponentials<Lanes>(d, near != 0 ? own : highest_allowed<Lanes>(d), e);
  const i32x8 finite = (total >= 1.0F) & (total <= kHighestTotal);  // the greatest adds e^0
  for (f32x8& part : e) part = only(part, finite);
  write_distributions<Lanes>(d, e, finite != 0 ? total : fill8(1.0F));
  for (uint32_t actor = 0; actor < 2; ++actor) {
    if (finite[4 * actor] == 0) keep(Lanes, self, d.probability + actor * Lanes, d.threshold + actor * Lanes);
  }
}

}  // namespace steelyard::core
