// DARC's plans and lines, Pallas's groups, provisioning, dispatch and burst detection, by hand.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "native/sim/rack_darc.h"
#include "native/sim/rack_pallas.h"

namespace steelyard::sim {
namespace {

using Doubles = std::vector<double>;

TEST(Darc, CoresFollowDemand) {
  // Demand 10 x .5 and 100 x .5: shares 1/11, 10/11 of 10 cores are .91 and 9.09.
  const DarcPlan plan = darc_plan(Doubles{10, 100}, Doubles{0.5, 0.5}, 10, 1.2);
  EXPECT_EQ(plan.group_of, (std::vector<uint16_t>{0, 1}));
  EXPECT_EQ(plan.level, (std::vector<uint16_t>{0, 1, 1, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_NEAR(plan.share[0], 1.0 / 11, 1e-12);
}

TEST(Darc, AFractionUpToAHalfIsCutOffElseRoundedUp) {
  // Of 10 cores 2.5, 3.5 + .01 and the rest.
  const DarcPlan cut = darc_plan(Doubles{1, 2, 4}, Doubles{0.249, 0.176, 0.09975}, 10, 1.2);
  EXPECT_EQ(std::count(cut.level.begin(), cut.level.end(), 0), 2);
  EXPECT_EQ(std::count(cut.level.begin(), cut.level.end(), 1), 4);
  EXPECT_EQ(std::count(cut.level.begin(), cut.level.end(), 2), 4);
}

TEST(Darc, NeighboursShareAGroupAndTheSpillwayIsShared) {
  const DarcPlan near = darc_plan(Doubles{100, 10, 11, 12.5}, Doubles{1, 1, 1, 1}, 4, 1.2);
  EXPECT_EQ(near.group_of, (std::vector<uint16_t>{1, 0, 0, 0}));
  const DarcPlan many = darc_plan(Doubles{1, 10, 100, 1000}, Doubles{1, 1, 1, 1}, 2, 1.2);
  EXPECT_EQ(many.level, (std::vector<uint16_t>{0, 3}));
}

TEST(Darc, ShortTasksMayUseLongCoresNeverTheReverse) {
  Darc darc(Doubles{10, 100}, Doubles{10, 1}, 2, 1.2, 1, 1000);  // a core each
  EXPECT_EQ(darc.place(1, 1), 1U);
  EXPECT_EQ(darc.place(2, 1), Darc::kNone);
  EXPECT_EQ(darc.place(3, 0), 0U);
  EXPECT_EQ(darc.place(4, 0), Darc::kNone);
  EXPECT_EQ(darc.place(5, 0), Darc::kNone);
  EXPECT_EQ(darc.waiting(), 3U);
  EXPECT_EQ(darc.next(1), 4U);  // short first
  EXPECT_EQ(darc.next(0), 5U);
  EXPECT_EQ(darc.next(0), Darc::kNone);  // a long one waits, not for this core
  EXPECT_EQ(darc.next(1), 2U);
  EXPECT_EQ(darc.waiting(), 0U);
}

TEST(Darc, PlansAnewWhenDemandShifts) {
  Darc darc(Doubles{10, 100}, Doubles{10, 1}, 4, 1.2, 0.1, 110);
  for (int k = 0; k < 110; ++k) EXPECT_FALSE(darc.completed(k % 11 == 0 ? 1 : 0, k % 11 == 0 ? 100 : 10));
  for (int k = 0; k < 109; ++k) EXPECT_FALSE(darc.completed(k % 2, k % 2 == 1 ? 100 : 10));
  EXPECT_TRUE(darc.completed(1, 100));
  EXPECT_EQ(darc.plan().level, (std::vector<uint16_t>{0, 1, 1, 1}));
}

TEST(Pallas, GroupsAreKMeans) {
  const Doubles means{5, 6, 100, 500}, ratios{1, 1, 1, 1};
  EXPECT_EQ(group_types(means, ratios, 1), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(group_types(means, ratios, 2), (std::vector<int>{0, 0, 0, 1}));
  EXPECT_EQ(group_types(means, ratios, 3), (std::vector<int>{0, 0, 1, 2}));
  EXPECT_EQ(group_types(means, ratios, 4), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(group_types(Doubles{5, 5}, Doubles{1, 1}, 2), (std::vector<int>{0, 0}));
}

TEST(Pallas, ProvisionsByDemand) {
  const Doubles means{5, 50, 500}, ratios{1, 1, 1}, capacities{10, 10, 10, 10, 10, 10, 10, 10};
  const ShapePlan plan = provision({0, 1, 2}, means, ratios, capacities);
  Doubles used(8, 0);
  int hybrids = 0;
  for (int g = 0; g < 3; ++g) {
    double total = 0;
    for (int j = 0; j < 8; ++j) {
      total += plan.cores[g][j];
      used[j] += plan.cores[g][j];
    }
    EXPECT_NEAR(total, 80 * means[g] / 555, 1e-3);
  }
  for (int j = 0; j < 8; ++j) {
    EXPECT_NEAR(used[j], 10, 1e-3);
    hybrids += (plan.cores[0][j] > 0) + (plan.cores[1][j] > 0) + (plan.cores[2][j] > 0) > 1 ? 1 : 0;
  }
  EXPECT_LE(hybrids, 2);
}

TEST(Pallas, AHybridMayGoToTheGroupThatHasMostOfIt) {
  const Doubles capacities{10, 10, 10};
  const ShapePlan plan{{0, 1}, {{7.9, 0, 0}, {2.1, 10, 10}}};
  const ShapePlan whole = without_hybrids(plan, capacities);
  EXPECT_EQ(whole.group_of, plan.group_of);
  EXPECT_EQ(whole.cores, (std::vector<Doubles>{{10, 0, 0}, {0, 10, 10}}));
  const ShapePlan small{{0, 1}, {{1.4, 0, 0}, {8.6, 10, 10}}};
  EXPECT_EQ(without_hybrids(small, capacities).num_groups(), 0);  // no server would be left for group 0
  EXPECT_EQ(without_hybrids(whole, capacities).num_groups(), 0);  // there is none
}

TEST(Pallas, DispatchesInProportionToCores) {
  const Doubles means{10, 100}, ratios{1, 1}, capacities{10, 10, 10};
  Shaper shaper({}, {{0, 1}, {{2.5, 0, 0}, {7.5, 10, 10}}}, means, ratios, capacities);
  std::vector<int> sent(3, 0);
  for (int k = 0; k < 1100; ++k) ++sent[shaper.next_of(1)];
  EXPECT_EQ(sent, (std::vector<int>{300, 400, 400}));
  EXPECT_EQ(shaper.next_of(0), 0);
  EXPECT_FALSE(shaper.dedicated(0));
  EXPECT_TRUE(shaper.dedicated(1));
}

TEST(Pallas, ABurstIsWhatAGroupCannotFinishInAWindow) {
  RackShaping config;  // windows of 20 us
  config.clone = true;
  const Doubles means{10e-6, 10e-6}, ratios{1, 1}, capacities{3, 3};
  Shaper shaper(config, {{0, 1}, {{3, 0}, {0, 3}}}, means, ratios, capacities);
  for (int k = 0; k < 6; ++k) EXPECT_EQ(shaper.count_arrival(0, 5000), -1);  // 3 cores x 20 us / 10 us
  EXPECT_EQ(shaper.count_arrival(0, 19999), 1);
  for (int k = 0; k < 6; ++k) EXPECT_EQ(shaper.count_arrival(1, 19999), -1);
  EXPECT_EQ(shaper.count_arrival(0, 19999), -1);  // the other is full, too
  EXPECT_EQ(shaper.count_arrival(0, 20000), -1);
}

TEST(Pallas, SeesDemandMove) {
  RackShaping config;
  const Doubles means{10e-6, 100e-6}, ratios{0.5, 0.5}, capacities{10};
  Shaper shaper(config, {{0, 1}, {{1}, {9}}}, means, ratios, capacities);
  int intervals = 0;
  const auto interval = [&](int shorts) {
    for (int k = 0; k < 1000; ++k) shaper.count_arrival(k % 10 < shorts ? 0 : 1, k);
    return shaper.demand_moved();
  };
  for (int k = 0; k < 50; ++k) EXPECT_FALSE(interval(5));
  while (!interval(9)) ASSERT_LT(++intervals, 50);
  EXPECT_GT(intervals, 0);
  EXPECT_NEAR(shaper.means_s()[1], 100e-6, 1e-12);
}

}  // namespace
}  // namespace steelyard::sim
