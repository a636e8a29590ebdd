// Malcolm inside the rack: same seed same run, snapshots, learning that goes on, frozen servers, consensus.
#include "native/sim/malcolm_decider.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "native/sim/rack.h"
#include "native/tests/rack_worlds.h"
#include "native/tests/worlds.h"

namespace steelyard::sim {
namespace {

using testing::prepared;
using testing::rack;
using testing::rack_rule;
using testing::seconds;
using testing::task_type;

RackConfig shifting() {
  RackConfig config = rack(4, 3, 0.8, 0.1);
  config.types = {task_type(30e-6, 0.8), task_type(130e-6, 0.2)};
  config.servers[1].workers = 5;
  config.arrival.rate = 0.8 * 14 / config.mean_service_s();
  config.load_info = LoadInfo::kBroadcast;
  config.task_delay.constant_s = config.message_delay.constant_s = config.steal_delay.constant_s = 2e-6;
  config.events = {{RackEventKind::kWorkers, 0.02, 1, {0}, {}},
                   {RackEventKind::kWorkers, 0.03, 3, {0}, {}},
                   {RackEventKind::kSplit, 0.04, 1, {}, {5, 1, 1, 1}}};
  return config;
}

RackRule malcolm(MalcolmSetup setup) {
  RackRule rule = rack_rule("malcolm");
  rule.decider = std::make_shared<MalcolmDecider>(std::move(setup));
  return rule;
}

const MalcolmDecider& decider_of(RackWorld& world) {
  return dynamic_cast<const MalcolmDecider&>(*world.decider());
}

class HostedMalcolm : public ::testing::TestWithParam<const char*> {
 protected:
  static bool is(const char* variant) { return std::string(GetParam()) == variant; }
  static MalcolmSetup setup() {
    MalcolmSetup setup;
    setup.config = is("Code")   ? core::MalcolmConfig::code()
                   : is("Live") ? core::MalcolmConfig::live()
                                : core::MalcolmConfig::thesis();
    setup.config.batch = 16;
    setup.config.consensus_every = 4;
    setup.curve_windows = 50;
    return setup;
  }
};

TEST_P(HostedMalcolm, SameSeedSameRunAndASnapshotGoesOnAlike) {
  const auto config = prepared(shifting());
  const RackRule rule = malcolm(setup());
  RackWorld one(config, rule, 5), other(config, rule, 6);
  one.run_until(seconds(0.035));
  RackWorld copy = one;
  one.drain();
  copy.drain();
  EXPECT_EQ(one.digest(), copy.digest());
  EXPECT_EQ(decider_of(one).parameters(), decider_of(copy).parameters());
  EXPECT_EQ(decider_of(one).learning(), decider_of(copy).learning());
  other.drain();
  EXPECT_NE(one.digest(), other.digest());
  other.reset(5);
  other.drain();
  EXPECT_EQ(one.digest(), other.digest());
  EXPECT_EQ(decider_of(one).parameters(), decider_of(other).parameters());
  EXPECT_GT(one.migrations(), 0U);
  EXPECT_GT(one.steals(), 0U);
}

TEST_P(HostedMalcolm, CountsItsServersTasks) {
  RackWorld world(prepared(shifting()), malcolm(setup()), 5);
  for (int k = 1; k <= 40; ++k) {
    world.run_until(seconds(0.002) * k);
    for (int j = 0; j < world.num_servers(); ++j)
      EXPECT_EQ(decider_of(world).servers()[j].num_tasks(), world.node(j).in_system);
  }
}

TEST_P(HostedMalcolm, FrozenServersStayAsTheyAre) {
  MalcolmSetup frozen = setup();
  frozen.frozen = true;
  RackWorld world(prepared(shifting()), malcolm(frozen), 5);
  const std::vector<float> before = decider_of(world).parameters();
  world.drain();
  EXPECT_EQ(decider_of(world).parameters(), before);
  EXPECT_EQ(decider_of(world).consensus_rounds(), 0U);
}

TEST_P(HostedMalcolm, LearningGoesOnFromItsBytes) {
  const auto config = prepared(shifting());
  RackWorld first(config, malcolm(setup()), 5);
  first.drain();
  MalcolmSetup next = setup();
  next.config.seed = 77;
  next.learning = decider_of(first).learning();
  RackWorld second(config, malcolm(next), 6);
  EXPECT_EQ(decider_of(second).parameters(), decider_of(first).parameters());
  EXPECT_EQ(decider_of(second).learning(), next.learning);
  const uint64_t before = decider_of(second).servers()[0].updates();
  EXPECT_GT(before, 0U);
  second.drain();
  EXPECT_GT(decider_of(second).servers()[0].updates(), before);
  EXPECT_NE(decider_of(second).parameters(), decider_of(first).parameters());
}

TEST_P(HostedMalcolm, ConsensusMakesCriticsOne) {
  RackWorld world(prepared(shifting()), malcolm(setup()), 5);
  uint64_t rounds = 0;
  while (rounds < 3) {
    world.run_until(world.next_window());
    const MalcolmDecider& decider = decider_of(world);
    if (decider.consensus_rounds() == rounds) continue;
    rounds = decider.consensus_rounds();
    const auto& servers = decider.servers();
    const size_t size = servers[0].critic_size();
    EXPECT_EQ(decider.consensus_bytes(), rounds * 4 * 3 * size * sizeof(float));
    for (const core::MalcolmServer& server : servers)
      EXPECT_TRUE(std::equal(servers[0].critic_parameters(), servers[0].critic_parameters() + size,
                             server.critic_parameters()));
  }
}

TEST_P(HostedMalcolm, CurvesAreMeansOverWindows) {
  RackWorld world(prepared(shifting()), malcolm(setup()), 5);
  world.drain();
  const auto& curve = decider_of(world).curve();
  ASSERT_GE(curve.size(), 19U);
  EXPECT_EQ(curve.size(), decider_of(world).windows() / 50);
  double migrations = 0;
  for (size_t k = 0; k < curve.size(); ++k) {
    EXPECT_NEAR(curve[k].t_s, 49 * 100e-6 + 50 * 100e-6 * static_cast<double>(k) + 2e-6, 1e-9);
    EXPECT_GT(curve[k].imbalance, 0);
    EXPECT_LT(curve[k].potential, 0);
    EXPECT_GT(curve[k].kept, 0);
    EXPECT_LT(curve[k].kept, 1);
    migrations += 50 * curve[k].migrations;
  }
  EXPECT_NEAR(migrations, static_cast<double>(world.migrations()),
              0.05 * static_cast<double>(world.migrations()));
  if (is("Thesis")) {  // it is paid the potential, a window late
    const double last = curve.back().reward, said = curve.back().potential;
    EXPECT_NEAR(last, said, 0.3 * std::fabs(said));
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, HostedMalcolm, ::testing::Values("Thesis", "Code", "Live"),
                         [](const auto& each) { return each.param; });

TEST(HostedMalcolm, RefusesWhatDoesNotFit) {
  const auto refusal = [](MalcolmSetup setup, const RackConfig& config) -> std::string {
    try {
      malcolm(std::move(setup)).check(config);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  const RackConfig config = shifting();
  EXPECT_EQ(refusal({}, config), "");
  MalcolmSetup bad;
  bad.parameters.assign(7, 0.0F);
  EXPECT_EQ(refusal(bad, config).rfind("malcolm.parameters: 7 is not allowed; use 220", 0), 0U)
      << refusal(bad, config);
  bad = {};
  bad.learning.assign(7, 0);
  EXPECT_EQ(refusal(bad, config).rfind("malcolm.learning: 7 is not allowed", 0), 0U);
  bad = {};
  bad.config.td.discount = 2;
  EXPECT_EQ(refusal(bad, config), "discount is 2; must be in [0, 1]");
  RackConfig alone = shifting();
  alone.servers.resize(1);
  alone.events.clear();
  EXPECT_NE(refusal({}, alone), "");
}

}  // namespace
}  // namespace steelyard::sim
