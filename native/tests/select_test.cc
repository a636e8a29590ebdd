// Choosing: the integer argmin against fractions, pairs, alias sampling, Maglev, weights and randomness.
#include "native/core/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "native/tests/worlds.h"

namespace steelyard::core {
namespace {

using testing::fits;
using testing::word;

std::vector<ServerId> range(int n) {
  std::vector<ServerId> members(n);
  std::iota(members.begin(), members.end(), 0);
  return members;
}

TEST(Argmin, IsTheLeastFraction) {
  for (uint64_t trial = 0; trial < 3000; ++trial) {
    const int n = 1 + static_cast<int>(word(trial) % 9);
    std::vector<ServerId> members;
    std::vector<uint32_t> load(n);
    std::vector<WeightQ16> weight(n);
    for (int j = 0; j < n; ++j) {
      load[j] = static_cast<uint32_t>(word(trial * 100 + j) % 6);
      weight[j] = kUnitWeight * static_cast<uint32_t>(1 + word(trial * 100 + 50 + j) % 4);
      if (j == 0 || word(trial * 100 + 70 + j) % 4 != 0) members.push_back(j);
    }
    const ServerId best =
        argmin_expected_delay(members, load.data(), weight.data(), word(trial + (1u << 20)));
    ASSERT_NE(std::find(members.begin(), members.end(), best), members.end());
    for (const ServerId j : members) {
      ASSERT_LE((load[best] + 1.0L) / weight[best], (load[j] + 1.0L) / weight[j]);
    }
  }
}

TEST(Argmin, DoesNotOverflowAtTheEndsOfTheRange) {
  const std::vector<WeightQ16> weight = {1, weight_to_q16(kMaxWeight), 1};
  const std::vector<uint32_t> load = {1, UINT32_MAX, UINT32_MAX};
  EXPECT_EQ(argmin_expected_delay(range(3), load.data(), weight.data(), 0), 1);
  EXPECT_EQ(better_of_two(range(2), load.data(), weight.data(), word(1)), 1);
}

TEST(Argmin, TiesOfAllAreSpreadEvenly) {
  const std::vector<uint32_t> load(6, 3);
  const std::vector<WeightQ16> weight(6, kUnitWeight);
  std::vector<uint64_t> counts(6);
  for (uint64_t k = 0; k < 60000; ++k)
    ++counts[argmin_expected_delay(range(6), load.data(), weight.data(), word(k))];
  EXPECT_TRUE(fits(counts, std::vector<double>(6, 1)));
}

TEST(Argmin, EveryOneOfSomeTiedMembersIsChosenByItsFlows) {
  const std::vector<uint32_t> load = {5, 1, 5, 1, 1};
  const std::vector<WeightQ16> weight(5, kUnitWeight);
  std::set<ServerId> chosen;
  for (uint64_t k = 0; k < 1000; ++k) {
    const ServerId server = argmin_expected_delay(range(5), load.data(), weight.data(), word(k));
    EXPECT_EQ(server, argmin_expected_delay(range(5), load.data(), weight.data(), word(k)));
    chosen.insert(server);
  }
  EXPECT_EQ(chosen, (std::set<ServerId>{1, 3, 4}));
}

TEST(Pairs, AreDifferentAndUniform) {
  for (const uint32_t n : {2u, 3u, 7u}) {
    std::vector<uint64_t> counts(n * n);
    for (uint64_t k = 0; k < 20000 * n; ++k) {
      const Pair pair = two_below(word(k), n);
      ASSERT_LT(pair.first, n);
      ASSERT_LT(pair.second, n);
      ASSERT_NE(pair.first, pair.second);
      ++counts[pair.first * n + pair.second];
    }
    std::vector<uint64_t> ordered;
    for (uint32_t i = 0; i < n * n; ++i) {
      if (i / n != i % n) ordered.push_back(counts[i]);
    }
    EXPECT_TRUE(fits(ordered, std::vector<double>(ordered.size(), 1)));
  }
}

TEST(BetterOfTwo, TakesTheBetterCandidate) {
  const std::vector<uint32_t> load = {9, 1, 4, 0};
  const std::vector<WeightQ16> weight = {kUnitWeight * 20, kUnitWeight, kUnitWeight * 2, kUnitWeight};
  std::vector<uint64_t> counts(4);  // scores 0.5, 2, 2.5, 1: places 1, 3, 4, 2 of four
  for (uint64_t k = 0; k < 60000; ++k) ++counts[better_of_two(range(4), load.data(), weight.data(), word(k))];
  EXPECT_EQ(counts[2], 0U);
  counts.erase(counts.begin() + 2);
  EXPECT_TRUE(fits(counts, {3, 1, 2}));  // of six pairs
  EXPECT_EQ(better_of_two(std::vector<ServerId>{2}, load.data(), weight.data(), word(1)), 2);
}

TEST(Alias, DrawsInProportionToWeights) {
  const std::vector<std::vector<double>> cases = {
      {1}, {1, 1}, {4, 1, 2.5, 1, 0.3}, {1000, 1, 1, 1}, {0.001, 1, 1}, std::vector<double>(97, 1)};
  for (const std::vector<double>& weights : cases) {
    const int n = static_cast<int>(weights.size());
    std::vector<WeightQ16> weight;
    std::vector<double> exact;
    for (const double w : weights) {
      weight.push_back(weight_to_q16(static_cast<float>(w)));
      exact.push_back(weight.back());
    }
    AliasTable table;
    table.build(range(n), weight.data());
    std::vector<uint64_t> counts(n);
    for (uint64_t k = 0; k < 100000; ++k) ++counts[table.sample(word(k))];
    EXPECT_TRUE(fits(counts, exact)) << n << " servers";
  }
}

TEST(Alias, KnowsItsMembersOnly) {
  const std::vector<WeightQ16> weight = {5, 1u << 20, 7, 9, 1u << 22};
  AliasTable table;
  table.build(std::vector<ServerId>{4, 2, 0}, weight.data());
  for (uint64_t k = 0; k < 10000; ++k) EXPECT_NE(table.sample(word(k)) % 2, 1);
}

std::vector<ServerId> owners(const std::vector<ServerId>& members) {
  MaglevTable table;
  table.build(members);
  std::vector<ServerId> all;
  for (uint32_t place = 0; place < MaglevTable::kSize; ++place) all.push_back(table.lookup(place));
  return all;
}

// Share of the places not owned by `gone` that changed hands between two tables.
double disruption(const std::vector<ServerId>& before, const std::vector<ServerId>& after, ServerId gone) {
  double kept = 0, moved = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i] == gone) continue;
    kept += 1;
    moved += before[i] != after[i] ? 1 : 0;
  }
  return moved / kept;
}

TEST(Maglev, IsBalancedWithinOnePercent) {
  for (const int n : {1, 2, 8, 64, 500}) {
    std::vector<uint64_t> counts(n);
    for (const ServerId owner : owners(range(n))) ++counts[owner];
    const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
    EXPECT_LE(*most - *least, 1U);  // turns are taken in order, so that shares differ by one place
    EXPECT_LE(static_cast<double>(*most), 1.01 * static_cast<double>(*least) + 1);
  }
}

TEST(Maglev, ALeavingServerHardlyDisturbsTheOthers) {
  for (const int n : {8, 64, 500}) {
    std::vector<ServerId> members = range(n);
    const std::vector<ServerId> before = owners(members);
    const ServerId gone = n / 3;
    std::erase(members, gone);
    const std::vector<ServerId> after = owners(members);
    EXPECT_LT(disruption(before, after, gone), 0.03) << n;
    EXPECT_EQ(std::count(after.begin(), after.end(), gone), 0);
    members.insert(members.begin() + gone, gone);
    EXPECT_EQ(owners(members), before);
  }
}

TEST(Weights, OfActions) {
  EXPECT_EQ(weight_of_action(0.0f), 1.0f);
  EXPECT_EQ(weight_of_action(1.0f), 4.0f);
  EXPECT_EQ(weight_of_action(-1.0f), 0.25f);
  EXPECT_EQ(weight_of_action(0.5f), 2.0f);
  EXPECT_EQ(weight_of_action(7.0f), 4.0f);
  EXPECT_EQ(weight_of_action(-7.0f), 0.25f);
  EXPECT_NEAR(weight_of_action(0.29248125f), 1.5f, 1e-6);  // the middle one of the discrete weights
  for (float a = -1; a < 1; a += 0.001f) EXPECT_LT(weight_of_action(a), weight_of_action(a + 0.001f));
}

TEST(Weights, InFixedPoint) {
  EXPECT_EQ(weight_to_q16(1.0f), kUnitWeight);
  EXPECT_EQ(weight_to_q16(0.25f), kUnitWeight / 4);
  EXPECT_EQ(weight_to_q16(0.0f), 1u);
  EXPECT_EQ(weight_to_q16(-5.0f), 1u);
  EXPECT_EQ(weight_to_q16(1e-9f), 1u);
  EXPECT_EQ(weight_to_q16(1e30f), 65535u << 16);
  EXPECT_EQ(weight_to_q16(std::numeric_limits<float>::infinity()), 65535u << 16);
  for (double w = 0.001; w < 60000; w *= 1.37) {
    EXPECT_NEAR(weight_to_q16(static_cast<float>(w)) / 65536.0, w, 0.5 / 65536 + w * 1e-7);
  }
}

TEST(Random, UniformsAreOpenAndEquidistant) {
  EXPECT_GT(unit_open(0), 0.0);
  EXPECT_LT(unit_open(~uint64_t{0}), 1.0);
  EXPECT_EQ(unit_open(0) + unit_open(~uint64_t{0}), 1.0);
  EXPECT_EQ(unit_open(uint64_t{1} << 63) - 0.5, unit_open(0));
  EXPECT_EQ(below(0, 10), 0u);
  EXPECT_EQ(below(~uint64_t{0}, 10), 9u);
  EXPECT_EQ(below(~uint64_t{0}, 1), 0u);
}

TEST(Random, StreamsAndSeedsAreUnrelated) {
  std::set<uint64_t> keys;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    for (uint64_t stream = 0; stream < 100; ++stream) keys.insert(stream_key(seed, stream));
  }
  EXPECT_EQ(keys.size(), 30000U);
  testing::Sample product;  // of neighbouring seeds, streams and keys
  for (uint64_t k = 0; k < 20000; ++k) {
    const double x = unit_open(draw(stream_key(k, 1), 0)) - 0.5;
    product.add(x * (unit_open(draw(stream_key(k + 1, 1), 0)) - 0.5));
    product.add(x * (unit_open(draw(stream_key(k, 2), 0)) - 0.5));
    product.add(x * (unit_open(draw(stream_key(k, 1), 1)) - 0.5));
  }
  EXPECT_TRUE(product.agrees_with(0));
}

}  // namespace
}  // namespace steelyard::core
