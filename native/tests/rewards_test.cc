// Rewards: values by hand, the marginal identity, the counter-example to Lemma 3, order and symmetry.
#include "native/sim/rewards.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <vector>

#include "native/sim/payoff.h"
#include "native/tests/worlds.h"

namespace steelyard::sim {
namespace {

using F = RewardForm;
using testing::word;
using Vector = std::vector<double>;

constexpr F kForms[] = {F::kVbf,  F::kLogVbf,   F::kVbfPlusLog,  F::kPbf,
                        F::kJain, F::kMakespan, F::kLogMakespan, F::kCv};

Vector random_load(uint64_t key, int n) {
  Vector l;
  for (int j = 0; j < n; ++j) l.push_back(0.1 + 9.9 * core::unit_open(word(key * 64 + j)));
  return l;
}

TEST(Rewards, ByHand) {
  const Vector l = {1, 2, 3, 6};  // mean 3, variance 3.5
  EXPECT_DOUBLE_EQ(fairness(F::kVbf, l), -3.5);
  EXPECT_DOUBLE_EQ(fairness(F::kLogVbf, l), -std::log(3.5 + kLogEpsilon));
  EXPECT_DOUBLE_EQ(fairness(F::kVbfPlusLog, l), -3.5 - std::log(3.5 + kLogEpsilon));
  EXPECT_DOUBLE_EQ(fairness(F::kPbf, l), 36.0 / (6 * 6 * 6 * 6));
  EXPECT_DOUBLE_EQ(fairness(F::kJain, l), 144.0 / (4 * 50));
  EXPECT_DOUBLE_EQ(fairness(F::kMakespan, l), -6);
  EXPECT_DOUBLE_EQ(fairness(F::kLogMakespan, l), -std::log(6 + kLogEpsilon));
  EXPECT_DOUBLE_EQ(fairness(F::kCv, l), -std::sqrt(3.5) / 3);
  EXPECT_TRUE(std::isnan(fairness(F::kMarginalVbf, l)));  // takes two vectors
}

TEST(Rewards, AreFiniteWhenThePoolIsIdleOrHasOneServer) {
  for (const F form : kForms) {
    EXPECT_TRUE(std::isfinite(fairness(form, Vector(4, 0.0))));
    EXPECT_TRUE(std::isfinite(fairness(form, Vector{2.5})));
  }
  EXPECT_EQ(fairness(F::kPbf, Vector(4, 0.0)), 1.0);
  EXPECT_EQ(fairness(F::kJain, Vector(4, 0.0)), 1.0);
}

TEST(Rewards, EqualLoadIsBest) {
  for (uint64_t k = 0; k < 500; ++k) {
    const Vector l = random_load(k, 2 + static_cast<int>(k % 7));
    double mean = 0;
    for (const double x : l) mean += x / static_cast<double>(l.size());
    for (const F form : kForms) EXPECT_LE(fairness(form, l), fairness(form, Vector(l.size(), mean)) + 1e-12);
  }
}

TEST(Rewards, ServersHaveNoOrder) {
  for (uint64_t k = 0; k < 200; ++k) {
    Vector l = random_load(k, 6);
    for (const F form : kForms) {
      const double before = fairness(form, l);
      Vector turned = l;
      std::rotate(turned.begin(), turned.begin() + 1 + static_cast<std::ptrdiff_t>(k % 5), turned.end());
      std::swap(turned[0], turned[3]);
      EXPECT_NEAR(fairness(form, turned), before, 1e-12 * (1 + std::abs(before)));
    }
  }
}

TEST(Rewards, ProductOfRatiosFallsWithEveryGap) {
  EXPECT_GT(fairness(F::kPbf, Vector{2, 2}), fairness(F::kPbf, Vector{1.9, 2}));
  EXPECT_GT(fairness(F::kPbf, Vector{1.9, 2}), fairness(F::kPbf, Vector{1, 2}));
  EXPECT_DOUBLE_EQ(fairness(F::kPbf, Vector{1, 2}), 0.5);
  EXPECT_DOUBLE_EQ(fairness(F::kPbf, Vector{10, 20}), 0.5);  // a ratio has no unit
  EXPECT_EQ(fairness(F::kPbf, Vector{0, 2}), 0.0);
}

TEST(Rewards, MovingWorkFromTheFullestToTheEmptiestPays) {
  for (uint64_t k = 0; k < 300; ++k) {
    Vector l = random_load(k, 5);
    const auto least = std::min_element(l.begin(), l.end());
    const auto most = std::max_element(l.begin(), l.end());
    const double step = 0.4 * (*most - *least);
    for (const F form : {F::kVbf, F::kLogVbf, F::kJain, F::kMakespan, F::kCv, F::kPbf}) {
      Vector moved = l;
      moved[least - l.begin()] += step;
      moved[most - l.begin()] -= step;
      EXPECT_GT(fairness(form, moved), fairness(form, l) - 1e-12);
    }
  }
}

TEST(Marginal, IsTheDifferenceOfTheTeamReward) {
  for (uint64_t k = 0; k < 1000; ++k) {
    const int n = 2 + static_cast<int>(k % 9);
    const Vector own = random_load(k, n), others = random_load(k + 5000, n);
    Vector all(n);
    for (int j = 0; j < n; ++j) all[j] = own[j] + others[j];
    EXPECT_NEAR(marginal_vbf(own, others), fairness(F::kVbf, all) - fairness(F::kVbf, others), 1e-11);
  }
}

// network-lb.md "Rewards": Lemma 3 of seed 002 drops the cross term.
TEST(Marginal, CounterExampleToLemma3) {
  const Vector others = {0, 1}, before = {1, 0}, after = {0, 1};
  const auto potential = [&](const Vector& own) {
    return fairness(F::kVbf, Vector{own[0] + others[0], own[1] + others[1]});
  };
  EXPECT_DOUBLE_EQ(potential(after) - potential(before), -1);
  EXPECT_DOUBLE_EQ(fairness(F::kVbf, after) - fairness(F::kVbf, before), 0);
  EXPECT_DOUBLE_EQ(marginal_vbf(after, others) - marginal_vbf(before, others), -1);
}

TEST(Rewards, NamesAreUniqueAndEveryFormHasATeamForm) {
  std::set<std::string_view> names;
  for (const RewardTraits& traits : all_rewards()) {
    EXPECT_TRUE(names.insert(traits.name).second);
    EXPECT_EQ(find_reward(traits.name), &traits);
    if (traits.team || traits.form == F::kMarginalVbf) continue;
    const RewardTraits* team = find_reward("team_" + std::string(traits.name));
    ASSERT_NE(team, nullptr) << traits.name;
    EXPECT_EQ(team->form, traits.form);
  }
  EXPECT_EQ(find_reward("VBF"), nullptr);
}

TEST(Payoff, RefusesWhatItCannotTake) {
  EXPECT_THROW(Payoff("vbff", "durations"), std::invalid_argument);
  EXPECT_THROW(Payoff("vbf", "queue"), std::invalid_argument);
  EXPECT_THROW(Payoff("marginal_vbf", "durations"), std::invalid_argument);
  EXPECT_THROW(Payoff("team_vbf", "own"), std::invalid_argument);
}

TEST(Payoff, IsTheFormulaOverItsMeasure) {
  ClusterWorld world(testing::prepared(testing::cluster(4, 2, 3.2, 100)), testing::rule("lsq"), 5);
  world.run_until(testing::seconds(60));
  Vector all(4), own(4), others(4);
  std::vector<float> seen(4), out(2);
  world.remaining_time(-1, all.data());
  for (int agent = 0; agent < 2; ++agent) {
    world.remaining_time(agent, own.data());
    for (int j = 0; j < 4; ++j) others[j] = all[j] - own[j];
    world.observe_durations(agent, seen.data());
    const Vector durations(seen.begin(), seen.end());
    for (const RewardTraits& traits : all_rewards()) {
      if (traits.form == F::kMarginalVbf) continue;
      Payoff(traits.name, "true")(world, out.data());
      EXPECT_EQ(out[agent], static_cast<float>(fairness(traits.form, all))) << traits.name;
      if (traits.team) continue;
      Payoff(traits.name, "own")(world, out.data());
      EXPECT_EQ(out[agent], static_cast<float>(fairness(traits.form, own))) << traits.name;
      Payoff(traits.name, "durations")(world, out.data());
      EXPECT_EQ(out[agent], static_cast<float>(fairness(traits.form, durations))) << traits.name;
    }
    Payoff("marginal_vbf", "true")(world, out.data());
    EXPECT_NEAR(out[agent], marginal_vbf(own, others), 1e-6);
  }
  Payoff("team_vbf", "durations")(world, out.data());
  EXPECT_EQ(out[0], out[1]);
}

}  // namespace
}  // namespace steelyard::sim
