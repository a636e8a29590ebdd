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

// argmin (load + 1) / weight over `members`, by cross-multiplied integers; ties go to the first member in
// the rotation that starts at a place drawn from the flow's hash.
inline ServerId argmin_expected_delay(std::span<const ServerId> members, const uint32_t* load,
                                      const WeightQ16* weight, uint64_t word) {
  const ServerId* const begin = members.data();
  const ServerId* const end = begin + members.size();
  const ServerId* at = begin + below(word, static_cast<uint32_t>(members.size()));
  const ServerId* best = at;
  uint64_t best_load = uint64_t{load[*at]} + 1, best_weight = weight[*at];
  for (size_t left = members.size() - 1; left > 0; --left) {
    ++at;
    at = at == end ? begin : at;
    const uint64_t next_load = uint64_t{load[*at]} + 1, next_weight = weight[*at];
    // Moves, no jump: which member wins cannot be predicted.
    const bool better = next_load * best_weight < best_load * next_weight;
    best = better ? at : best;
    best_load = better ? next_load : best_load;
    best_weight = better ? next_weight : best_weight;
  }
  return *best;
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
