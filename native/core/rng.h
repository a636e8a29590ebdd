// Counter-based randomness: a draw is a pure function of (seed, stream, key), so no run order can change it.
#pragma once

#include <cstdint>

namespace steelyard::core {

// The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection on 64-bit words with full avalanche. Of
// lanes of words, each for itself.
template <typename Words>
constexpr Words mix64_lanes(Words x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}
constexpr uint64_t mix64(uint64_t x) { return mix64_lanes(x); }

inline constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;

// The key of one stream of a seed; streams of one seed and seeds of one stream are unrelated.
constexpr uint64_t stream_key(uint64_t seed, uint64_t stream) {
  return mix64(mix64(seed + kGolden) ^ (stream * kGolden));
}

// The draw number `key` of a stream.
constexpr uint64_t draw(uint64_t stream, uint64_t key) { return mix64(stream + (key + 1) * kGolden); }

// Uniform integer in [0, n) from a word (multiply-shift; bias below n / 2^64).
constexpr uint32_t below(uint64_t word, uint32_t n) {
  return static_cast<uint32_t>((static_cast<unsigned __int128>(word) * n) >> 64);
}

// Uniform in the open interval (0, 1), 2^52 equidistant values (of 2^53 the greatest would round to 1).
constexpr double unit_open(uint64_t word) { return (static_cast<double>(word >> 12) + 0.5) * 0x1p-52; }

}  // namespace steelyard::core
