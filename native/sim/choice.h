// Choices on rows of floats, eight at a time: a minimum, and one of a set by chance. Rows end with infinity
// at a multiple of eight.
#pragma once

#ifdef __BMI2__
#include <immintrin.h>
#endif

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
  const uint32_t stop = std::min(end, from + 32);
  uint32_t bits = core::bits_of_lanes(truth(from));
  for (uint32_t at = from + 8; at < stop; at += 8) bits |= core::bits_of_lanes(truth(at)) << (at - from);
  return bits;
}

// The place of bit number `skip` of those that are set; there must be so many.
inline int place_of(uint32_t bits, uint32_t skip) {
#ifdef __BMI2__
  return std::countr_zero(_pdep_u32(1u << skip, bits));  // without a jump, since `skip` is random
#else
  for (uint32_t k = 0; k < skip; ++k) bits &= bits - 1;
  return std::countr_zero(bits);
#endif
}

// A place whose bit is set, as one_of.
inline int one_of_bits(uint32_t bits, int preferred, bool first, uint64_t word) {
  if (preferred >= 0 && (bits >> preferred & 1) != 0) return preferred;
  if (bits == 0) return -1;
  return place_of(bits, first ? 0 : core::below(word, static_cast<uint32_t>(std::popcount(bits))));
}

// A place below `end` where truth holds: `preferred` if it is one (-1: none is), else the first, or one by
// chance. -1 when there is none.
template <typename F>
[[gnu::always_inline]] inline int one_of(uint32_t end, int preferred, bool first, uint64_t word, F truth) {
  if (end <= 32) return one_of_bits(bits_of(0, end, truth), preferred, first, word);
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

// The bits of the places of the least key among 8 * Blocks.
template <uint32_t Blocks, typename F>
[[gnu::always_inline]] inline uint32_t bits_of_least(F keys) {
  f32x8 key[Blocks];
  f32x8 low = key[0] = keys(0);
#pragma GCC unroll 4
  for (uint32_t b = 1; b < Blocks; ++b) {
    key[b] = keys(8 * b);
    low = key[b] < low ? key[b] : low;
  }
  const float least = least_lane(low);
  uint32_t bits = 0;
#pragma GCC unroll 4
  for (uint32_t b = 0; b < Blocks; ++b) bits |= core::bits_of_lanes(key[b] == least) << (8 * b);
  return bits;
}

// A place of the least key below `end`, as one_of; `keys(at)` are eight of them.
template <typename F>
[[gnu::always_inline]] inline int least_of(uint32_t end, int preferred, bool first, uint64_t word, F keys) {
  switch (end) {
    case 8:
      return one_of_bits(bits_of_least<1>(keys), preferred, first, word);
    case 16:
      return one_of_bits(bits_of_least<2>(keys), preferred, first, word);
    case 24:
      return one_of_bits(bits_of_least<3>(keys), preferred, first, word);
    case 32:
      return one_of_bits(bits_of_least<4>(keys), preferred, first, word);
    default:
      break;
  }
  f32x8 low = keys(0);
  for (uint32_t at = 8; at < end; at += 8) {
    const f32x8 next = keys(at);
    low = next < low ? next : low;
  }
  const float least = least_lane(low);
  return one_of(end, preferred, first, word, [&](uint32_t at) { return keys(at) == least; });
}

}  // namespace steelyard::sim
