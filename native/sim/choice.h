// Choices on rows of floats, eight at a time: a minimum, and one of a set by chance. Rows end with infinity
// at a multiple of eight.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "native/core/lanes.h"
#include "native/core/rng.h"
#include "native/core/types.h"

namespace steelyard::sim {

using core::f32x8;
using core::i32x8;

inline f32x8 load_lanes(const float* x) {
  f32x8 lanes;
  std::memcpy(&lanes, x, sizeof lanes);
  return lanes;
}

inline float least_lane(f32x8 v) {
  const f32x8 halves = __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
  v = halves < v ? halves : v;
  const f32x8 quarters = __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
  v = quarters < v ? quarters : v;
  return v[0] < v[1] ? v[0] : v[1];
}

// Bit k is set where truth(from + k) holds, for up to 32 places before `end`. `truth(at)` are eight lanes, 0
// or -1.
template <typename F>
[[gnu::always_inline]] inline uint32_t bits_of(uint32_t from, uint32_t end, F truth) {
  i32x8 place = {1, 2, 4, 8, 16, 32, 64, 128};
  i32x8 bits = truth(from) & place;
  const uint32_t stop = std::min(end, from + 32);
  for (uint32_t at = from + 8; at < stop; at += 8) {
    place <<= 8;
    bits |= truth(at) & place;
  }
  bits |= __builtin_shufflevector(bits, bits, 4, 5, 6, 7, 0, 1, 2, 3);
  bits |= __builtin_shufflevector(bits, bits, 2, 3, 0, 1, 6, 7, 4, 5);
  return static_cast<uint32_t>(bits[0] | bits[1]);
}

// The place of bit number `skip` of those that are set; there must be so many.
inline int place_of(uint32_t bits, uint32_t skip) {
  for (uint32_t k = 0; k < 3; ++k) bits = k < skip ? bits & (bits - 1) : bits;  // moves, no jumps
  for (uint32_t k = 3; k < skip; ++k) bits &= bits - 1;
  return std::countr_zero(bits);
}

// A place below `end` where truth holds: `preferred` if it is one (-1: none is), else the first, or one by
// chance. -1 when there is none.
template <typename F>
[[gnu::always_inline]] inline int one_of(uint32_t end, int preferred, bool first, uint64_t word, F truth) {
  if (end <= 32) {
    const uint32_t bits = bits_of(0, end, truth);
    if (preferred >= 0 && (bits >> preferred & 1) != 0) return preferred;
    if (bits == 0) return -1;
    return place_of(bits, first ? 0 : core::below(word, static_cast<uint32_t>(std::popcount(bits))));
  }
  uint32_t words[core::kMaxServers / 32];
  uint32_t count = 0;
  for (uint32_t from = 0; from < end; from += 32) {
    words[from / 32] = bits_of(from, end, truth);
    count += static_cast<uint32_t>(std::popcount(words[from / 32]));
  }
  if (preferred >= 0 && (words[preferred / 32] >> (preferred % 32) & 1) != 0) return preferred;
  if (count == 0) return -1;
  uint32_t skip = first ? 0 : core::below(word, count);
  for (uint32_t w = 0;; ++w) {
    const uint32_t here = static_cast<uint32_t>(std::popcount(words[w]));
    if (skip < here) return static_cast<int>(32 * w) + place_of(words[w], skip);
    skip -= here;
  }
}

// A place of the least key below `end`, as one_of; `keys(at)` are eight of them.
template <typename F>
[[gnu::always_inline]] inline int least_of(uint32_t end, int preferred, bool first, uint64_t word, F keys) {
  f32x8 low = keys(0);
  for (uint32_t at = 8; at < end; at += 8) {
    const f32x8 next = keys(at);
    low = next < low ? next : low;
  }
  const f32x8 best = f32x8{} + least_lane(low);
  return one_of(end, preferred, first, word, [&](uint32_t at) { return keys(at) == best; });
}

}  // namespace steelyard::sim
