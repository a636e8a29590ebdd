// Unit exponentials -log(u), four at a time. From + - * / and bits alone: the same on every machine, which
// the logarithms of the C libraries are not.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numbers>

#include "native/core/lanes.h"
#include "native/core/rng.h"

namespace steelyard::sim {

using core::f64x4;
using core::u64x4;

// -log(u) with u = unit_open(word), each within 2e-15 of itself.
inline f64x4 unit_exponentials(u64x4 words) {
  constexpr uint64_t kOne = std::bit_cast<uint64_t>(1.0);
  // Below 1, so that u = z 2^-k with z in [sqrt(1/2), sqrt(2)); 64 keeps the exponents above 0.
  constexpr uint64_t kLeast = std::bit_cast<uint64_t>(std::numbers::sqrt2 / 2) - (uint64_t{64} << 52);
  constexpr double kWhole = 0x1p52;
  const f64x4 u = std::bit_cast<f64x4>((words >> 12) | kOne) - (1 - 0x1p-53);
  const u64x4 bits = std::bit_cast<u64x4>(u);
  const u64x4 exponent = (bits - kLeast) >> 52;
  const f64x4 z = std::bit_cast<f64x4>(bits - (exponent << 52) + (uint64_t{64} << 52));
  const f64x4 k = (kWhole + 64) - std::bit_cast<f64x4>(exponent | std::bit_cast<uint64_t>(kWhole));
  // log z = 2 artanh s = 2 (s + s^3 / 3 + ...) with |s| < 0.172: the first term left out is below 2^-55 of s.
  const f64x4 s = (z - 1) / (z + 1);
  const f64x4 t = s * s;
  f64x4 sum = t * (1.0 / 21) + 1.0 / 19;
  for (int odd = 17; odd > 0; odd -= 2) sum = sum * t + 1.0 / odd;
  return k * std::numbers::ln2 - 2 * s * sum;
}

inline double unit_exponential(uint64_t word) { return unit_exponentials(u64x4{word, word, word, word})[0]; }

// The unit exponentials of a stream, drawn in blocks: nearly every key asked for is close above the last one.
class ExponentialStream {
 public:
  explicit ExponentialStream(uint64_t stream = 0) : stream_(stream) {}

  // The unit exponential of draw number `key`.
  double at(uint64_t key) {
    if (key - start_ < kBlock) [[likely]]
      return values_[key - start_];
    if (start_ != kNone && key < start_) return unit_exponential(core::draw(stream_, key));
    refill(key);
    return values_[0];
  }

 private:
  static constexpr size_t kBlock = 64;
  static constexpr uint64_t kNone = UINT64_MAX - kBlock;

  [[gnu::noinline]] void refill(uint64_t key) {
    start_ = key;
    u64x4 counters = u64x4{0, 1, 2, 3} * core::kGolden + (stream_ + (key + 1) * core::kGolden);
    u64x4 words[kBlock / 4];  // core::draw of each; then logarithms: each alone overlaps more of its own
#pragma GCC unroll 4
    for (u64x4& four : words) {
      four = core::mix64_lanes(counters);
      counters += 4 * core::kGolden;
    }
#pragma GCC unroll 4
    for (size_t v = 0; v < kBlock / 4; ++v) {
      const f64x4 drawn = unit_exponentials(words[v]);
      __builtin_memcpy(&values_[4 * v], &drawn, sizeof drawn);
    }
  }

  uint64_t stream_;
  uint64_t start_ = kNone;
  std::array<double, kBlock> values_{};
};

}  // namespace steelyard::sim
