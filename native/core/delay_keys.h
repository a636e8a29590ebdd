// The least (load + 1) / weight of a pool. Each member's quotient is kept as a key that follows every change,
// so that a choice compares eight keys at once and neither multiplies nor divides.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "native/core/types.h"
#include "native/core/weights.h"

namespace steelyard::core {

// Keys are in the order of the members; after them infinity up to a multiple of eight.
//
// A key is a quotient of integers in double, rounded once (IEEE 754): equal quotients have equal keys, and
// unequal ones are never the wrong way round. a / b < c / d differ by at least 1 / (b c) of the former and 1
// / (a d) of the latter. If one of these is 2^-52 or more, their keys differ too, and that is so when a or c
// is at most 2^20, as weights are below 2^32: what ties with a member of load below kExactLoad is its equal.
class DelayKeys {
 public:
  static constexpr uint32_t kExactLoad = 1u << 20;  // weights are below 2^32
  static constexpr int kFewest = 16;  // among fewer servers argmin_expected_delay takes no longer

  explicit DelayKeys(int num_servers = 0)
      : rows_(rows_for(static_cast<uint32_t>(num_servers)) + 1), place_(num_servers) {}

  void build(std::span<const ServerId> members, const uint32_t* load, const WeightQ16* weight) {
    used_ = rows_for(static_cast<uint32_t>(members.size()));
    for (uint32_t row = 0; row < used_; ++row) rows_[row] = Row{};
    for (uint32_t& place : place_) place = used_ * kPerRow;  // of those outside the pool: never looked at
    uint32_t next = 0;
    for (const ServerId server : members) {
      place_[server] = next++;
      update(server, load[server], weight[server]);
    }
  }
  void update(ServerId server, uint32_t load, WeightQ16 weight) {
    const uint32_t place = place_[server];
    rows_[place / kPerRow].key[place % kPerRow] =
        static_cast<double>(uint64_t{load} + 1) / static_cast<double>(weight);
  }
  // The place among the members of the first least key in the rotation that starts at `start`. There must be
  // members.
  uint32_t first_least(uint32_t start) const {
    const double least = least_key();
    uint32_t from = start & ~63u;
    uint64_t places = places_of(least, from);
    const uint64_t after = places & (~uint64_t{0} << (start & 63));
    if (used_ <= kRowsPerWord) return static_cast<uint32_t>(std::countr_zero(after != 0 ? after : places));
    for (places = after; places == 0; places = places_of(least, from)) {
      from = from + 64 < used_ * kPerRow ? from + 64 : 0;
    }
    return from + static_cast<uint32_t>(std::countr_zero(places));
  }

 private:
#ifdef __AVX__
  static constexpr uint32_t kLanes = 4;
#else
  static constexpr uint32_t kLanes = 2;  // wider than the machine's, GCC takes vectors apart number by number
#endif
  static constexpr uint32_t kPerRow = 8;
  static constexpr uint32_t kRowsPerWord = 64 / kPerRow;
  static constexpr double kNone = std::numeric_limits<double>::infinity();
  using Lanes = double __attribute__((vector_size(8 * kLanes)));
  using Signs = int64_t __attribute__((vector_size(8 * kLanes)));
  struct alignas(64) Row {
    double key[kPerRow] = {kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone};
    Lanes lanes(uint32_t from) const {
      Lanes read;
      std::memcpy(&read, key + from, sizeof read);
      return read;
    }
  };
  static uint32_t rows_for(uint32_t members) { return (members + kPerRow - 1) / kPerRow; }
  static Lanes less(const Lanes& a, const Lanes& b) { return a < b ? a : b; }

  double least_key() const {
    std::array<Lanes, kPerRow / kLanes> low;
    for (uint32_t i = 0; i < low.size(); ++i) low[i] = rows_[0].lanes(i * kLanes);
    for (uint32_t row = 1; row < used_; ++row) {
      for (uint32_t i = 0; i < low.size(); ++i) low[i] = less(rows_[row].lanes(i * kLanes), low[i]);
    }
    for (uint32_t i = 1; i < low.size(); ++i) low[0] = less(low[i], low[0]);
    double least = low[0][0];
    for (uint32_t k = 1; k < kLanes; ++k) least = low[0][k] < least ? low[0][k] : least;
    return least;
  }
  // Bit k is set where place from + k has this key, for up to 64 places.
  uint64_t places_of(double key, uint32_t from) const {
    const Lanes wanted = Lanes{} + key;
    const uint32_t first = from / kPerRow;
    const uint32_t end = used_ - first < kRowsPerWord ? used_ : first + kRowsPerWord;
    Signs bit = {}, found = {};
    for (uint32_t k = 0; k < kLanes; ++k) bit[k] = int64_t{1} << k;
    for (uint32_t row = first; row < end; ++row) {
      for (uint32_t i = 0; i < kPerRow; i += kLanes, bit <<= kLanes)
        found |= (rows_[row].lanes(i) == wanted) & bit;
    }
    int64_t places = 0;
    for (uint32_t k = 0; k < kLanes; ++k) places |= found[k];
    return static_cast<uint64_t>(places);
  }

  std::vector<Row> rows_;        // the one after the members' is for those outside the pool
  std::vector<uint32_t> place_;  // of a server among the members
  uint32_t used_ = 0;
};

}  // namespace steelyard::core
