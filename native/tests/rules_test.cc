// One balancer by hand: its counters, what each rule chooses, Charon's scores, HLB's filters.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "native/core/charon.h"
#include "native/core/hlb.h"
#include "native/core/load_balancer.h"
#include "native/core/rule.h"
#include "native/tests/worlds.h"

namespace steelyard::core {
namespace {

using testing::fits;
using testing::rule;
using testing::seconds;
using testing::word;

LoadBalancer balancer(int servers, const RuleConfig& by, BalancerConfig config = {}) {
  config.num_servers = servers;
  LoadBalancer made(config, by);
  made.restart(1);
  return made;
}

// Opens flows until server j has load[j] of this balancer.
void load_up(LoadBalancer& lb, const std::vector<int>& load) {
  uint64_t key = 1u << 30;
  for (size_t j = 0; j < load.size(); ++j) {
    for (int k = 0; k < load[j]; ++k) lb.open(word(key++), static_cast<ServerId>(j), 0);
  }
}

std::vector<uint64_t> choices(LoadBalancer& lb, int servers, int flows, const uint32_t* global = nullptr) {
  std::vector<uint64_t> counts(servers);
  for (int k = 0; k < flows; ++k) ++counts[lb.choose(word(static_cast<uint64_t>(k)), 0, global)];
  return counts;
}

TEST(Rules, NamesAreUniqueAndFound) {
  std::set<std::string_view> names;
  for (const RuleTraits& traits : all_rules()) {
    EXPECT_TRUE(names.insert(traits.name).second) << traits.name;
    EXPECT_EQ(find_rule(traits.name), &traits);
    EXPECT_FALSE(traits.summary.empty());
  }
  for (const char* asked :
       {"ecmp", "wcmp", "awcmp", "lsq", "gsq", "sed", "lsq2", "gsq2", "sed2", "hlb", "hlb2", "charon_sapp",
        "charon_wsapp", "maglev", "rr", "oracle", "oracle2", "oracle_srt"}) {
    EXPECT_TRUE(names.contains(asked)) << asked;
  }
  EXPECT_EQ(find_rule("SED"), nullptr);
}

TEST(Rules, BadParametersNameKeyAndValue) {
  const auto refused = [](RuleConfig by) {
    try {
      by.check(3, 2);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused(rule("sed", {1, 2, 3})), "accepted");
  EXPECT_NE(refused(rule("sed", {1, 2})).find("rule.weights: 2 given"), std::string::npos);
  EXPECT_NE(refused(rule("sed", {1, -2, 3})).find("rule.weights[1]"), std::string::npos);
  EXPECT_NE(refused(RuleConfig{}).find("rule"), std::string::npos);
}

TEST(Balancer, CountsFromOpenToClose) {
  LoadBalancer lb = balancer(2, rule("lsq"));
  EXPECT_EQ(lb.open(word(1), 0, seconds(1)), 0);
  EXPECT_EQ(lb.open(word(2), 0, seconds(2)), 0);
  EXPECT_EQ(lb.open(word(3), 1, seconds(3)), 1);
  EXPECT_EQ(lb.flows_on(), (std::vector<uint32_t>{2, 1}));
  lb.close(word(1), true, seconds(4));
  lb.close(word(1), true, seconds(5));  // a second FIN finds nothing
  lb.close(word(9), true, seconds(5));  // nor does a stranger's
  EXPECT_EQ(lb.flows_on(), (std::vector<uint32_t>{1, 1}));
  lb.close(word(3), false, seconds(6));
  lb.close(word(2), true, seconds(6));
  EXPECT_EQ(lb.flows_on(), (std::vector<uint32_t>{0, 0}));
}

TEST(Balancer, SamplesAcksAndFinsButNoReset) {
  LoadBalancer lb = balancer(1, rule("lsq"));
  std::vector<float> seen(observation_size(1));
  lb.open(word(1), 0, seconds(0));
  lb.first_ack(word(1), seconds(1));
  lb.first_ack(word(1), seconds(3));  // only the first one counts
  lb.open(word(2), 0, seconds(10));
  lb.close(word(2), false, seconds(10.001));  // RST: a refusal is not a fast flow
  lb.first_ack(word(2), seconds(11));
  lb.observe(seconds(12), seen.data());
  EXPECT_EQ(seen[0], 1.0f);
  EXPECT_FLOAT_EQ(seen[1], 1.0f);  // mean flow duration
  EXPECT_EQ(seen[6], 0.0f);        // no completion yet
  lb.close(word(1), true, seconds(21));
  lb.observe(seconds(21), seen.data());
  EXPECT_EQ(seen[0], 0.0f);
  EXPECT_FLOAT_EQ(seen[1], 11.0f);  // (1 + 21) / 2
  EXPECT_FLOAT_EQ(seen[6], 21.0f);
  EXPECT_FLOAT_EQ(seen[11], 10.0f);  // one gap between arrivals
}

TEST(Balancer, UntrackedFlowsAreNeverCounted) {
  BalancerConfig config;
  config.flow_table_buckets = 1;
  config.flow_table_ways = 2;
  LoadBalancer lb = balancer(1, rule("lsq"), config);
  for (uint64_t k = 0; k < 5; ++k) EXPECT_EQ(lb.open(word(k), 0, 0), 0);
  EXPECT_EQ(lb.flows_on()[0], 2u);
  EXPECT_EQ(lb.untracked(), 3U);
  for (uint64_t k = 5; k-- > 0;) lb.close(word(k), true, seconds(1));
  EXPECT_EQ(lb.flows_on()[0], 0u);
}

TEST(Balancer, ChoosesAmongMembersOnly) {
  const std::vector<uint32_t> global(6, 1);
  for (const RuleTraits& traits : all_rules()) {
    if (traits.score == Score::kExact) continue;  // chosen by the host
    LoadBalancer lb = balancer(6, rule(std::string(traits.name)));
    lb.set_members(std::vector<ServerId>{1, 4});
    const std::vector<uint64_t> counts = choices(lb, 6, 400, global.data());
    EXPECT_GT(counts[1], 100U) << traits.name;
    EXPECT_GT(counts[4], 100U) << traits.name;
    EXPECT_EQ(counts[1] + counts[4], 400U) << traits.name;
    lb.set_members({});
    EXPECT_EQ(lb.choose(word(1), 0, global.data()), kNoServer) << traits.name;
    lb.set_members(std::vector<ServerId>{3});
    EXPECT_EQ(lb.choose(word(1), 0, global.data()), 3) << traits.name;
  }
}

TEST(Sed, TakesTheLeastExpectedDelay) {
  LoadBalancer lb = balancer(3, rule("sed", {4, 2, 1}));
  load_up(lb, {7, 2, 1});  // (q + 1) / w = 2, 1.5, 2
  EXPECT_EQ(choices(lb, 3, 100), (std::vector<uint64_t>{0, 100, 0}));
  load_up(lb, {0, 1, 0});  // 2, 2, 2
  EXPECT_TRUE(fits(choices(lb, 3, 30000), {1, 1, 1}));
  LoadBalancer equal = balancer(3, rule("lsq"));
  load_up(equal, {7, 3, 1});
  EXPECT_EQ(choices(equal, 3, 100), (std::vector<uint64_t>{0, 0, 100}));
}

TEST(Sed, AnActionActsWhenItIsApplied) {
  LoadBalancer lb = balancer(2, rule("policy"));
  load_up(lb, {1, 3});
  const std::vector<float> action = {-1.0f, 1.0f};  // weights 1/4 and 4: (q + 1) / w = 8 and 1
  lb.set_action(action.data());
  EXPECT_EQ(lb.choose(word(1), 0, nullptr), 0);
  lb.apply_action();
  EXPECT_EQ(lb.choose(word(1), 0, nullptr), 1);
  EXPECT_EQ(lb.weights(), (std::vector<WeightQ16>{kUnitWeight / 4, kUnitWeight * 4}));
}

TEST(Gsq, LooksAtTheLoadThatItIsTold) {
  LoadBalancer lb = balancer(3, rule("gsq"));
  load_up(lb, {0, 5, 5});
  const std::vector<uint32_t> global = {9, 2, 4};
  EXPECT_EQ(choices(lb, 3, 50, global.data()), (std::vector<uint64_t>{0, 50, 0}));
}

TEST(RoundRobin, TakesTurns) {
  LoadBalancer lb = balancer(3, rule("rr"));
  for (int k = 0; k < 9; ++k) EXPECT_EQ(lb.choose(word(1), 0, nullptr), k % 3);
}

TEST(Hashing, AFlowAlwaysGoesTheSameWay) {
  for (const char* name : {"ecmp", "wcmp", "maglev"}) {
    LoadBalancer lb = balancer(5, rule(name, {1, 2, 3, 4, 5}));
    for (uint64_t k = 0; k < 200; ++k) {
      const ServerId first = lb.choose(word(k), 0, nullptr);
      lb.open(word(k), first, 0);
      EXPECT_EQ(lb.choose(word(k), seconds(5), nullptr), first);
    }
  }
}

TEST(Awcmp, RefreshesEveryInterval) {
  RuleConfig by = rule("awcmp", {2, 1});
  by.interval_s = 1.0;
  LoadBalancer lb = balancer(2, by);
  std::vector<uint32_t> load = {3, 0};
  lb.tick(seconds(0), load.data());
  EXPECT_EQ(lb.weights(), (std::vector<WeightQ16>{kUnitWeight / 2, kUnitWeight}));
  load = {0, 9};
  lb.tick(seconds(0.5), load.data());
  EXPECT_EQ(lb.weights(), (std::vector<WeightQ16>{kUnitWeight / 2, kUnitWeight}));
  lb.tick(seconds(1.0), load.data());
  EXPECT_EQ(lb.weights(), (std::vector<WeightQ16>{kUnitWeight * 2, weight_to_q16(0.1f)}));
  EXPECT_TRUE(fits(choices(lb, 2, 30000), {2.0, weight_to_q16(0.1f) / 65536.0}));
}

// The worked example of seed 004 Sec. 4.2, Fig. 4.2a: at time 8, (g, v, t) = (1, 2, 5) and (3, 1, 7).
TEST(Charon, ScoresOfTheSeedsExample) {
  CharonScores scores(2);
  scores.learnt(0, 1, 1.0f / 2, seconds(5));
  scores.learnt(1, 3, 1.0f / 1, seconds(7));
  EXPECT_EQ(scores.predicted(0, seconds(8)), 0.0f);
  EXPECT_FLOAT_EQ(scores.predicted(1, seconds(8)), 2.0f);
  scores.chosen(0, seconds(8));  // the winner gets one more
  EXPECT_FLOAT_EQ(scores.predicted(0, seconds(8)), 1.0f);
  EXPECT_FLOAT_EQ(scores.predicted(0, seconds(8.25)), 0.5f);
  EXPECT_FLOAT_EQ(scores.predicted(1, seconds(8)), 2.0f);
}

TEST(Charon, DoesNotDrainBeforeItKnowsASpeed) {
  CharonScores scores(1);
  EXPECT_EQ(scores.predicted(0, seconds(1)), 0.0f);
  scores.learnt(0, 5, 0.0f, seconds(1));
  EXPECT_FLOAT_EQ(scores.predicted(0, seconds(1000)), 5.0f);
}

TEST(Charon, TakesTheLowerOfTwoScores) {
  LoadBalancer lb = balancer(3, rule("charon_sapp"));
  lb.learn_load(0, 30000, seconds(1));
  lb.learn_load(1, 10000, seconds(1));
  lb.learn_load(2, 20000, seconds(1));
  std::vector<uint64_t> counts(3);  // few enough that the +1 of each choice changes no order
  for (uint64_t k = 0; k < 3000; ++k) ++counts[lb.choose(word(k), seconds(1), nullptr)];
  EXPECT_EQ(counts[0], 0U);
  counts.erase(counts.begin());
  EXPECT_TRUE(fits(counts, {2, 1}));
}

TEST(Charon, DrawsCandidatesByWeight) {
  RuleConfig by = rule("charon_wsapp", {6, 1, 1});
  by.interval_s = 1.0;
  LoadBalancer lb = balancer(3, by);
  lb.learn_load(0, 9000, seconds(0));  // it loses whenever another is a candidate too
  lb.tick(seconds(0), nullptr);        // weights 6 / 9001, 1, 1
  std::vector<uint64_t> counts = choices(lb, 3, 2000);
  EXPECT_LT(counts[0], 5U);
  EXPECT_TRUE(fits({counts[1], counts[2]}, {1, 1}));
}

TEST(Hlb, OneStepByHand) {
  HlbFilter filter(2);
  std::vector<WeightQ16> weight(2);
  const std::vector<ServerId> members = {0, 1};
  const std::vector<float> mean = {3.0f, 1.0f}, std = {1.0f, 0.5f};
  filter.step(members, mean.data(), std.data(), weight.data());
  // z = 1.5 and 0.5; R = .99 x .5 + .01 x (std / 2)^2; K = 1 / (1 + R); mu = .5 + K (z - .5)
  const double r0 = 0.99 * 0.5 + 0.01 * 0.25, mu0 = 0.5 + 1 / (1 + r0);
  EXPECT_NEAR(filter.estimate(0), mu0, 1e-6);
  EXPECT_NEAR(filter.estimate(1), 0.5, 1e-6);
  const double e0 = std::exp(-mu0), e1 = std::exp(-0.5);
  EXPECT_NEAR(weight[0] / 65536.0, 2 * e0 / (e0 + e1), 1e-4);
  EXPECT_NEAR(weight[1] / 65536.0, 2 * e1 / (e0 + e1), 1e-4);
}

TEST(Hlb, ConvergesToTheNormalisedDurations) {
  HlbFilter filter(3);
  std::vector<WeightQ16> weight(3);
  const std::vector<ServerId> members = {0, 1, 2};
  const std::vector<float> mean = {1.0f, 2.0f, 3.0f}, std = {0.1f, 0.1f, 0.1f};
  for (int n = 0; n < 2000; ++n) filter.step(members, mean.data(), std.data(), weight.data());
  for (int j = 0; j < 3; ++j) EXPECT_NEAR(filter.estimate(j), mean[j] / 2, 0.01);
  EXPECT_GT(weight[0], weight[1]);
  EXPECT_GT(weight[1], weight[2]);
}

TEST(Hlb, AServerWithoutSamplesKeepsItsEstimate) {
  HlbFilter filter(3);
  std::vector<WeightQ16> weight(3);
  const std::vector<ServerId> members = {0, 1, 2};
  const std::vector<float> mean = {1.0f, 0.0f, 3.0f}, std(3, 0.0f);
  for (int n = 0; n < 100; ++n) filter.step(members, mean.data(), std.data(), weight.data());
  EXPECT_EQ(filter.estimate(1), HlbFilter::kInitialMean);
  EXPECT_NEAR(filter.estimate(0), 0.5, 0.01);  // 1 and 3 over their mean 2
  EXPECT_NEAR(filter.estimate(2), 1.5, 0.02);
}

TEST(Balancer, ARestartIsANewBalancer) {
  for (const RuleTraits& traits : all_rules()) {
    if (traits.score == Score::kExact) continue;
    const std::vector<uint32_t> global = {4, 0, 2};
    LoadBalancer used = balancer(3, rule(std::string(traits.name))), fresh = used;
    for (uint64_t k = 0; k < 500; ++k) {
      const ServerId j = used.choose(word(k), seconds(0.01 * k), global.data());
      used.open(word(k), j, seconds(0.01 * k));
      used.first_ack(word(k), seconds(0.01 * k + 0.001));
      used.learn_load(j, static_cast<uint32_t>(k % 7), seconds(0.01 * k));
      if (k % 3 > 0) used.close(word(k), true, seconds(0.01 * k + 0.005));
      if (k % 50 == 0) used.tick(seconds(0.01 * k), global.data());
    }
    used.restart(1);
    std::vector<float> a(observation_size(3)), b(observation_size(3));
    for (uint64_t k = 0; k < 200; ++k) {
      ASSERT_EQ(used.choose(word(k), seconds(10), global.data()),
                fresh.choose(word(k), seconds(10), global.data()));
    }
    used.observe(seconds(10), a.data());
    fresh.observe(seconds(10), b.data());
    EXPECT_EQ(a, b) << traits.name;
    EXPECT_EQ(used.weights(), fresh.weights()) << traits.name;
    EXPECT_EQ(used.untracked(), 0U);
  }
}

}  // namespace
}  // namespace steelyard::core
