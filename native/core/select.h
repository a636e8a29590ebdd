// Choosing: integer argmin over servers, alias sampling, Maglev. Bit-exact on every host.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "native/core/rng.h"
#include "native/core/types.h"
#include "native/core/weights.h"

namespace steelyard::core {

// A member of least (load + 1) / weight among those looked at, by cross-multiplied integers; the first of
// equals.
struct LeastDelay {
  LeastDelay(ServerId server, const uint32_t* load, const WeightQ16* weight)
      : server(server), load(uint64_t{load[server]} + 1), weight(weight[server]) {}
  // Moves, no jump: which member wins cannot be predicted.
  void consider(const LeastDelay& next) {
    const bool better = next.load * weight < load * next.weight;
    server = better ? next.server : server;
    load = better ? next.load : load;
    weight = better ? next.weight : weight;
  }
  ServerId server;
  uint64_t load, weight;
};

// Of n >= 1 members in a row. Many are searched in four stretches at once, since each comparison waits for
// the one before it; the order is total, so that this finds the same member.
inline LeastDelay least_delay(const ServerId* member, size_t n, const uint32_t* load,
                              const WeightQ16* weight) {
  const auto of = [&](size_t i) { return LeastDelay(member[i], load, weight); };
  LeastDelay first = of(0);
  if (n < 12) {
    for (size_t i = 1; i < n; ++i) first.consider(of(i));
    return first;
  }
  const size_t stretch = n / 4;
  LeastDelay second = of(stretch), third = of(2 * stretch), fourth = of(3 * stretch);
  for (size_t i = 1; i < stretch; ++i) {
    first.consider(of(i));
    second.consider(of(stretch + i));
    third.consider(of(2 * stretch + i));
    fourth.consider(of(3 * stretch + i));
  }
  for (size_t i = 4 * stretch; i < n; ++i) fourth.consider(of(i));
  first.consider(second);
  third.consider(fourth);
  first.consider(third);
  return first;
}

// argmin (load + 1) / weight over `members`; ties go to the first member in the rotation that starts at a
// place drawn from the flow's hash.
inline ServerId argmin_expected_delay(std::span<const ServerId> members, const uint32_t* load,
                                      const WeightQ16* weight, uint64_t word) {
  const size_t n = members.size();
  const size_t start = below(word, static_cast<uint32_t>(n));
  LeastDelay least = least_delay(members.data() + start, n - start, load, weight);
  if (start > 0) least.consider(least_delay(members.data(), start, load, weight));
  return least.server;
}

// The better of two different members drawn by `word` (one member: that one).
ServerId better_of_two(std::span<const ServerId> members, const uint32_t* load, const WeightQ16* weight,
                       uint64_t word);

// Two different positions below n drawn from one word; n >= 2.
struct Pair {
  uint32_t first, second;
};
inline Pair two_below(uint64_t word, uint32_t n) {
  const uint32_t first = below(word, n);
  const uint32_t second = below(mix64(word ^ kGolden), n - 1);
  return {first, second < first ? second : second + 1};
}

// Walker's alias method in integers (Vose 1991): O(1) draws in proportion to weights.
class AliasTable {
 public:
  void build(std::span<const ServerId> members, const WeightQ16* weight);
  ServerId sample(uint64_t word) const;
  bool empty() const { return alias_.empty(); }

 private:
  std::vector<ServerId> own_;
  std::vector<ServerId> alias_;
  std::vector<uint64_t> threshold_;  // take `own_` when the 32-bit draw is below it; up to 2^32
};

// Maglev's lookup table (Eisenbud et al., NSDI'16, Sec. 3.4).
class MaglevTable {
 public:
  static constexpr uint32_t kSize = 65537;
  // `names[j]`: by what server j is known whatever its index, so that tables of different pools agree; empty:
  // the index itself.
  void build(std::span<const ServerId> members, std::span<const uint64_t> names = {});
  ServerId lookup(uint64_t word) const { return (*table_)[word % kSize]; }

 private:
  std::shared_ptr<const std::vector<int16_t>> table_;
};

}  // namespace steelyard::core
