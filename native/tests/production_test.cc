// The rules that production runs, by hand: each formula on one balancer, and what its messages carry.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "native/core/load_balancer.h"
#include "native/tests/worlds.h"

namespace steelyard::core {
namespace {

using testing::fits;
using testing::rule;
using testing::seconds;
using testing::word;

constexpr int64_t kAllCold = std::numeric_limits<int64_t>::max();

LoadBalancer balancer(int servers, const RuleConfig& by, int balancers = 1) {
  LoadBalancer made({.num_servers = servers, .num_load_balancers = balancers, .features = false}, by);
  made.restart(1);
  return made;
}

TEST(PeakEwma, JumpsUpAndDecays) {
  PeakEwma ewma(1, 10);
  EXPECT_EQ(ewma.cost(0, 0, seconds(1)), 0.0F);  // nothing known, nothing under way: it gets a first flow
  EXPECT_EQ(ewma.cost(0, 3, seconds(1)), PeakEwma::kPenaltyS + 3);
  ewma.observe(0, 2.0F, seconds(2));
  EXPECT_FLOAT_EQ(ewma.cost(0, 0, seconds(2)), 2.0F);
  EXPECT_FLOAT_EQ(ewma.cost(0, 4, seconds(2)), 10.0F);
  ewma.observe(0, 8.0F, seconds(3));  // up at once
  EXPECT_FLOAT_EQ(ewma.cost(0, 0, seconds(3)), 8.0F);
  ewma.observe(0, 1.0F, seconds(8));  // down by the time since: w = exp(-5 / 10)
  const double w = std::exp(-0.5);
  EXPECT_NEAR(ewma.cost(0, 0, seconds(8)), 8 * w + (1 - w), 1e-5);
  EXPECT_NEAR(ewma.cost(0, 1, seconds(18)), 2 * (8 * w + (1 - w)) * std::exp(-1.0), 1e-5);
}

TEST(PeakEwma, LookingOftenOrOnceDecaysAlike) {
  PeakEwma often(1, 10), once(1, 10);
  for (PeakEwma* ewma : {&often, &once}) ewma->observe(0, 5.0F, 0);
  for (int k = 1; k < 1000; ++k) often.cost(0, 0, seconds(0.02 * k));
  EXPECT_NEAR(often.cost(0, 0, seconds(20)), once.cost(0, 0, seconds(20)), 1e-4);
}

TEST(PeakEwma, ABalancerMeasuresFromOpenToFin) {
  LoadBalancer lb = balancer(2, rule("peak_ewma"));
  lb.open(word(1), 0, seconds(0));
  lb.open(word(2), 1, seconds(0));
  lb.close(word(1), true, seconds(3));
  lb.close(word(2), true, seconds(1));
  for (uint64_t k = 10; k < 40; ++k)
    EXPECT_EQ(lb.choose(word(k), seconds(3), nullptr), 1);             // 1 s against 3 s
  for (uint64_t k = 50; k < 54; ++k) lb.open(word(k), 1, seconds(3));  // 1 s e^-.2 x 5 against 3 s x 1
  for (uint64_t k = 10; k < 40; ++k) EXPECT_EQ(lb.choose(word(k), seconds(3), nullptr), 0);
}

TEST(PeakEwma, ARefusalIsNoFastFlow) {
  LoadBalancer lb = balancer(2, rule("peak_ewma"));
  for (const uint64_t key : {1U, 2U}) lb.open(word(key), static_cast<ServerId>(key - 1), seconds(0));
  lb.close(word(1), false, seconds(0.001));
  lb.close(word(2), true, seconds(2));
  lb.open(word(3), 0, seconds(2));  // still without a sample, and with a flow: the penalty
  for (uint64_t k = 10; k < 40; ++k) EXPECT_EQ(lb.choose(word(k), seconds(2), nullptr), 1);
}

TEST(LeastRequest, IsLsq2WhereWeightsAreEqual) {
  LoadBalancer envoy = balancer(5, rule("least_request", {2, 2, 2, 2, 2})), lsq2 = balancer(5, rule("lsq2"));
  for (uint64_t k = 0; k < 500; ++k) {
    const ServerId chosen = envoy.choose(word(k), 0, nullptr);
    ASSERT_EQ(chosen, lsq2.choose(word(k), 0, nullptr));
    envoy.open(word(k), chosen, 0);
    lsq2.open(word(k), chosen, 0);
    if (k % 3 == 0) continue;
    envoy.close(word(k), true, 0);
    lsq2.close(word(k), true, 0);
  }
}

// Turns come in proportion to weight / (active + 1), as exactly as a schedule can give them.
TEST(LeastRequest, ServesInProportionToWeightOverActive) {
  LoadBalancer lb = balancer(3, rule("least_request", {4, 2, 1}));
  lb.open(word(1), 0, 0);  // 4 / 2, 2 / 1, 1 / 1
  std::vector<int> counts(3);
  for (uint64_t k = 0; k < 500; ++k) ++counts[lb.choose(word(k), 0, nullptr)];
  EXPECT_NEAR(counts[0], 200, 2);
  EXPECT_NEAR(counts[1], 200, 2);
  EXPECT_NEAR(counts[2], 100, 2);
}

TEST(LeastRequest, WhatIsLeftMayHaveEqualWeights) {
  LoadBalancer lb = balancer(3, rule("least_request", {4, 2, 2}));
  lb.set_members(std::vector<ServerId>{1, 2});
  for (uint64_t k = 0; k < 5; ++k) lb.open(word(1000 + k), 1, 0);
  for (uint64_t k = 0; k < 50; ++k) EXPECT_EQ(lb.choose(word(k), 0, nullptr), 2);
}

TEST(C3, TheScoreByHand) {
  C3Scores scores(2, 3);
  EXPECT_EQ(scores.score(0, 0), 0.0F);
  EXPECT_EQ(scores.score(0, 7), C3Scores::kPenalty + 7);
  scores.learnt(0, 2.0F, 0.5F, 4.0F);
  EXPECT_FLOAT_EQ(scores.score(0, 0), 2.0F - 0.5F + 125.0F * 0.5F);          // qhat = 1 + 0 + 4
  EXPECT_FLOAT_EQ(scores.score(0, 2), 2.0F - 0.5F + 11.0F * 11 * 11 * .5F);  // 1 + 2 x 3 + 4
  scores.learnt(0, 1.0F, 0.1F, 0.0F);                                        // .9 new, .1 old
  const double r = 1.1, s = 0.14, q = 1.4;
  EXPECT_NEAR(scores.score(0, 0), r - s + q * q * q * s, 1e-5);
  EXPECT_EQ(scores.score(1, 0), 0.0F);
}

TEST(C3, LearnsFromTheRepliesOfFlowsThatItKnows) {
  LoadBalancer lb = balancer(2, rule("c3"), 2);
  for (const uint64_t key : {1U, 2U}) lb.open(word(key), static_cast<ServerId>(key - 1), 0);
  lb.learn_reply(word(1), 1, 1.0F, seconds(3));  // R = 3, qhat = 1 + 2 + 1: 3 - 1 + 64
  lb.learn_reply(word(2), 2, 1.0F, seconds(1));  // R = 1, qhat = 1 + 2 + 2: 1 - 1 + 125
  lb.learn_reply(word(9), 0, 0.0F, seconds(1));  // a stranger's
  for (uint64_t k = 10; k < 40; ++k) EXPECT_EQ(lb.choose(word(k), seconds(3), nullptr), 0);
  lb.close(word(2), true, seconds(3));  // qhat = 1 + 0 + 2: 1 - 1 + 27
  for (uint64_t k = 10; k < 40; ++k) EXPECT_EQ(lb.choose(word(k), seconds(3), nullptr), 1);
}

TEST(Prequal, LatencyIsTheMedianAtOrNearTheCurrentCount) {
  LatencyByRif latency;
  EXPECT_EQ(latency.estimate(3), 0.0F);
  latency.add(3, 5.0F);
  EXPECT_EQ(latency.estimate(100), 5.0F);
  latency.add(3, 7.0F);
  EXPECT_EQ(latency.estimate(3), 5.0F);                    // the lower middle of two
  for (int k = 0; k < 15; ++k) latency.add(8, 20.0F + k);  // 20 to 34
  EXPECT_EQ(latency.estimate(8), 27.0F);
  EXPECT_EQ(latency.estimate(9), 27.0F);
  EXPECT_EQ(latency.estimate(5), 26.0F);  // those of 3 are two, those of 8 next: the 9th of 17
  for (const float x : {1.0F, 2.0F, 3.0F}) latency.add(7, x);
  EXPECT_EQ(latency.estimate(7), 2.0F);  // three are enough
  for (const float x : {4.0F, 5.0F}) latency.add(6, x);
  EXPECT_EQ(latency.estimate(6), 3.0F);                                // two are not: 1, 2, 3, 4, 5
  for (int k = 0; k < LatencyByRif::kKept; ++k) latency.add(2, 9.0F);  // the rest is forgotten
  EXPECT_EQ(latency.estimate(8), 9.0F);
}

TEST(Prequal, ReuseBudgetOfThePaper) {
  // m 16, n 100, r_probe 3, r_remove 1, delta 1: 2 / (0.84 x 3 - 1)
  EXPECT_NEAR(ProbePool::reuse_budget(3, 100), 2 / 1.52, 1e-9);
  EXPECT_NEAR(ProbePool::reuse_budget(3, 25), 25.0, 1e-9);  // 2 / (0.36 x 3 - 1)
  EXPECT_EQ(ProbePool::reuse_budget(30, 100), 1.0);
  EXPECT_EQ(ProbePool::reuse_budget(3, 8), 1.0);  // 2 / (-3 - 1)
}

TEST(Prequal, HotIsAboveTheQuantileOfRecentAnswers) {
  for (const auto& [quantile, expected] :
       std::vector<std::pair<double, int64_t>>{{0.84, 8}, {0.5, 4}, {0, -1}, {1, kAllCold}}) {
    ProbePool pool({.rif_quantile = quantile}, 1);
    EXPECT_EQ(pool.hot_above(), kAllCold);
    for (uint32_t k = 0; k < 64; ++k) pool.add(0, 99, 1.0F, 10, 0);
    for (uint32_t k = 0; k < 64; ++k)
      pool.add(0, k % 10, 1.0F, 10, 0);  // 0 to 9; 54 of 64 at 8 or below, 32 at 4
    EXPECT_EQ(pool.hot_above(), expected) << quantile;
  }
}

constexpr int kOften = 25;  // servers for which an answer may guide 25 flows

// A pool of three answers whose RIF is 1, 5 and 9, and a history of 5s: hot is above 5.
ProbePool three(double latency_of_least) {
  ProbePool pool({}, 1);
  for (int k = 0; k < 64; ++k) pool.add(7, 5, 1.0F, kOften, seconds(0));
  pool.add(0, 1, static_cast<float>(latency_of_least), kOften, seconds(0.1));
  pool.add(1, 9, 0.1F, kOften, seconds(0.2));
  pool.keep(std::vector<ServerId>{0, 1, 7});
  return pool;
}

TEST(Prequal, TakesTheColdOfLeastLatencyElseTheLeastRif) {
  EXPECT_EQ(three(3.0).choose(seconds(0.3)), 7);  // 1 s against 3 s; 0.1 s is hot
  EXPECT_EQ(three(0.5).choose(seconds(0.3)), 0);
  ProbePool all_hot({.rif_quantile = 0}, 1);
  all_hot.add(0, 4, 0.1F, kOften, 0);
  all_hot.add(1, 2, 9.0F, kOften, 0);
  all_hot.add(2, 3, 0.2F, kOften, 0);
  EXPECT_EQ(all_hot.choose(0), 1);
}

TEST(Prequal, AnswersAgeAndAreReplacedAndRunOut) {
  ProbePool pool({}, 1);
  pool.add(0, 1, 1.0F, kOften, seconds(0));
  EXPECT_EQ(pool.choose(seconds(0)), kNoServer);  // fewer than two
  pool.add(1, 1, 2.0F, kOften, seconds(0.5));
  EXPECT_EQ(pool.choose(seconds(0.6)), 0);
  EXPECT_EQ(pool.choose(seconds(1.1)), kNoServer);  // the first is older than 1 s
  EXPECT_EQ(pool.size(), 1);
  pool.add(1, 3, 2.0F, kOften, seconds(1.2));
  EXPECT_EQ(pool.size(), 1);
  for (ServerId j = 0; j < 40; ++j) pool.add(j, 1, 1.0F, 64, seconds(1.3));
  EXPECT_EQ(pool.size(), ProbePool::kSize);
  EXPECT_EQ(pool.choose(seconds(1.3)), 24);  // the oldest left of equals
  pool.keep(std::vector<ServerId>{30, 31});
  EXPECT_EQ(pool.size(), 2);
}

// Budget 2 / 1.25 = 1.6 uses in a pool of 64 servers: an answer guides one flow or two.
TEST(Prequal, AnAnswerGuidesAsManyFlowsAsItsBudget) {
  std::vector<uint64_t> uses(3);
  for (uint64_t key = 0; key < 4000; ++key) {
    ProbePool pool({}, key);
    pool.add(0, 1, 1.0F, 64, 0);
    pool.add(1, 1, 2.0F, 64, 0);
    pool.add(2, 1, 3.0F, 64, 0);
    int used = 0;
    while (pool.choose(0) == 0) ++used;
    ASSERT_TRUE(used == 1 || used == 2);
    ++uses[used];
  }
  EXPECT_TRUE(fits({uses[1], uses[2]}, {0.4, 0.6}));
}

TEST(Prequal, AFlowRaisesTheCountAndRemovesOldestAndWorstInTurn) {
  ProbePool pool = three(3.0);  // in order of age: 7 (RIF 5, 1 s), 0 (1, 3 s), 1 (9, 0.1 s)
  pool.settle(0);               // the oldest goes
  EXPECT_EQ(pool.size(), 2);
  EXPECT_EQ(pool.choose(seconds(0.3)), 0);  // the hot one would be faster
  pool.settle(0);                           // the worst goes: 1 is hot
  EXPECT_EQ(pool.size(), 1);
  EXPECT_EQ(pool.choose(seconds(0.3)), kNoServer);
  ProbePool raised({.rif_quantile = 0}, 1);
  raised.add(2, 9, 1.0F, kOften, 0);
  raised.add(0, 4, 1.0F, kOften, 0);
  raised.add(1, 5, 1.0F, kOften, 0);
  raised.settle(0);
  raised.add(2, 9, 1.0F, kOften, 0);
  EXPECT_EQ(raised.choose(0), 0);  // 5 against 5: the earlier one
  raised.settle(0);                // 6, and the worst of all goes
  raised.add(2, 9, 1.0F, kOften, 0);
  EXPECT_EQ(raised.choose(0), 1);
}

TEST(Prequal, ProbesDifferentMembersUniformly) {
  LoadBalancer lb = balancer(8, rule("prequal"));
  lb.set_members(std::vector<ServerId>{0, 2, 3, 5, 6});
  std::vector<uint64_t> pairs(64), counts(8);
  ServerId out[ProbePool::kMaxProbes];
  for (uint64_t k = 0; k < 20000; ++k) {
    ASSERT_EQ(lb.probe_targets(word(k), out), 3);
    uint32_t set = 0;
    for (int i = 0; i < 3; ++i) {
      set |= 1U << out[i];
      ++counts[out[i]];
    }
    ASSERT_EQ(__builtin_popcount(set), 3);
  }
  EXPECT_TRUE(fits({counts[0], counts[2], counts[3], counts[5], counts[6]}, {1, 1, 1, 1, 1}));
  EXPECT_EQ(counts[1] + counts[4] + counts[7], 0U);
  lb.set_members(std::vector<ServerId>{4});
  EXPECT_EQ(lb.probe_targets(word(1), out), 1);
  lb.set_members({});
  EXPECT_EQ(lb.probe_targets(word(1), out), 0);
}

TEST(Prequal, AFractionOfAProbeIsRoundedAtRandom) {
  const ProbePool pool({.probes = 1.25}, 1);
  const std::vector<ServerId> members = {0, 1, 2, 3};
  std::vector<uint64_t> counts(3);
  ServerId out[ProbePool::kMaxProbes];
  for (uint64_t k = 0; k < 20000; ++k) ++counts[pool.targets(members, word(k), out)];
  EXPECT_EQ(counts[0], 0U);
  EXPECT_TRUE(fits({counts[1], counts[2]}, {0.75, 0.25}));
}

TEST(Prequal, AnAnswerOfAServerThatLeftIsNotHeard) {
  LoadBalancer lb = balancer(3, rule("prequal"));
  lb.learn_probe(0, 0, 0.1F, 0);
  lb.set_members(std::vector<ServerId>{1, 2});
  lb.learn_probe(0, 0, 0.1F, 0);
  lb.learn_probe(1, 5, 2.0F, 0);
  lb.learn_probe(2, 5, 1.0F, 0);
  EXPECT_EQ(lb.choose(word(1), 0, nullptr), 2);
}

}  // namespace
}  // namespace steelyard::core
