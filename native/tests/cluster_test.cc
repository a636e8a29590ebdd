// The cluster world in C++: flows by hand, snapshots, restarts, the admission limit, what it refuses.
#include "native/sim/cluster.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "native/sim/runner.h"
#include "native/tests/worlds.h"

namespace steelyard::sim {
namespace {

using testing::cluster;
using testing::prepared;
using testing::rule;
using testing::seconds;
using testing::stage;

// Everything at once, on four servers and three balancers.
ClusterConfig busy() {
  ClusterConfig config = cluster(4, 3, 5.0, 30);
  config.servers[0].workers = 2;
  config.servers[1].cpu = CpuMode::kBlockedPs;
  config.servers[2] = {.workers = 2, .speed = 0.75, .cpu = CpuMode::kBlockedPs, .ps_cap = 3};
  config.stages = {stage(StageKind::kCpu, 0.6), stage(StageKind::kIo, 0.2, DistributionKind::kDeterministic)};
  config.admission_limit = 10;
  config.hop_low_s = 1e-4;
  config.hop_high_s = 1e-3;
  config.flow_table_buckets = 8;
  config.flow_table_ways = 2;
  EventConfig slow;
  slow.t_low_s = 5;
  slow.t_high_s = 15;
  slow.value_low = 0.3;
  slow.value_high = 0.9;
  slow.targets = {0, 1, 2, 3};
  slow.count = 2;
  slow.duration_s = 5;
  EventConfig fail;
  fail.kind = EventKind::kBalancerFail;
  fail.t_low_s = fail.t_high_s = 12;
  fail.targets = {1};
  fail.duration_s = 4;
  config.events = {slow, fail};
  return config;
}

uint32_t total(const std::vector<uint32_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), 0u);
}

std::vector<float> seen(ClusterWorld& world) {
  std::vector<float> all(world.num_balancers() * core::observation_size(world.num_servers()));
  for (int i = 0; i < world.num_balancers(); ++i)
    world.observe(i, &all[i * core::observation_size(world.num_servers())]);
  return all;
}

TEST(Cluster, OneServerIsTheLindleyRecursion) {
  ClusterConfig config = cluster(1, 1, 0.9, 200);
  config.stages = {stage(StageKind::kCpu, 1.0, DistributionKind::kDeterministic)};
  ClusterWorld world(prepared(config), rule("ecmp"), 3);
  world.drain();
  double free_s = 0;
  ASSERT_GT(world.metrics().flows().size(), 100U);
  for (const FlowRecord& flow : world.metrics().flows()) {  // FIFO: in order of arrival
    free_s = std::max(free_s, static_cast<double>(flow.opened_s)) + 1.0;
    EXPECT_NEAR(flow.sojourn_s, free_s - flow.opened_s, 1e-3);
    EXPECT_EQ(flow.service_s, 1.0f);
  }
}

TEST(Cluster, AtMostTheLimitAndOneAreAdmitted) {
  for (const int limit : {0, 1, 7}) {
    ClusterConfig config = cluster(2, 2, 50.0, 20);
    config.admission_limit = limit;
    ClusterWorld world(prepared(config), rule("lsq"), 1);
    uint32_t most = 0;
    for (int step = 1; step <= 2000; ++step) {
      world.run_until(seconds(0.01 * step));
      for (const uint32_t n : world.in_system()) most = std::max(most, n);
    }
    EXPECT_EQ(most, static_cast<uint32_t>(limit) + 1);
    EXPECT_GT(world.metrics().running_rejected(), 0U);
  }
}

TEST(Cluster, ACopyIsASnapshot) {
  for (const core::RuleTraits& traits : core::all_rules()) {
    ClusterWorld world(prepared(busy()), rule(std::string(traits.name)), 9);
    world.run_until(seconds(11.03));
    ClusterWorld snapshot = world;
    world.run_until(seconds(29));
    const uint64_t digest = world.digest();
    const std::vector<float> observed = seen(world);
    world = snapshot;
    EXPECT_EQ(world.now(), seconds(11.03));
    world.run_until(seconds(20));  // in two steps, and the copy alone: the same end
    world.run_until(seconds(29));
    snapshot.run_until(seconds(29));
    EXPECT_EQ(world.digest(), digest) << traits.name;
    EXPECT_EQ(snapshot.digest(), digest) << traits.name;
    EXPECT_EQ(seen(world), observed) << traits.name;
    EXPECT_EQ(seen(snapshot), observed) << traits.name;
  }
}

TEST(Cluster, AResetWorldIsANewOne) {
  for (const core::RuleTraits& traits : core::all_rules()) {
    const auto config = prepared(busy());
    ClusterWorld used(config, rule(std::string(traits.name)), 1);
    used.run_until(seconds(13.7));
    used.reset(2);
    ClusterWorld fresh(config, rule(std::string(traits.name)), 2);
    EXPECT_EQ(seen(used), seen(fresh));
    used.drain();
    fresh.drain();
    EXPECT_EQ(used.digest(), fresh.digest()) << traits.name;
    EXPECT_EQ(seen(used), seen(fresh)) << traits.name;
    EXPECT_EQ(used.metrics().events(), fresh.metrics().events());
    EXPECT_EQ(used.live_flows(), fresh.live_flows());
  }
}

TEST(Cluster, FlowsOnTheBalancersAreTheTrackedLiveOnes) {
  ClusterConfig config = busy();
  config.flow_table_buckets = 65536;
  config.events.clear();
  ClusterWorld world(prepared(config), rule("sed"), 4);
  for (int step = 1; step <= 300; ++step) {
    world.run_until(seconds(0.1 * step));
    uint32_t counted = 0;
    for (int i = 0; i < 3; ++i) counted += total(world.balancer(i).flows_on());
    EXPECT_EQ(counted, world.live_flows());
    EXPECT_LE(total(world.in_system()), world.live_flows());
    EXPECT_LE(total(world.waiting()), total(world.in_system()));
  }
}

TEST(Cluster, ActsAfterTheActuationDelay) {
  ClusterConfig config = cluster(2, 1, 1.0, 10);
  config.actuation_delay_s = 0.3;
  ClusterWorld world(prepared(config), rule("policy"), 1);
  world.run_until(seconds(1));
  const float action[] = {0.5f, -0.5f};
  world.act(0, action);
  world.run_until(seconds(1.29));
  EXPECT_EQ(world.balancer(0).weights()[0], core::kUnitWeight);
  world.run_until(seconds(1.31));
  EXPECT_EQ(world.balancer(0).weights()[0], 2 * core::kUnitWeight);
  EXPECT_EQ(world.balancer(0).weights()[1], core::kUnitWeight / 2);
}

TEST(Cluster, RefusesActionsThatAreNoNumbers) {
  ClusterWorld world(prepared(cluster(2, 1, 1.0, 10)), rule("policy"), 1);
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    const float action[] = {0.5f, bad};
    EXPECT_THROW(world.act(0, action), std::invalid_argument);
  }
  EXPECT_EQ(world.balancer(0).weights()[0], core::kUnitWeight);
}

TEST(Cluster, RemainingTimeIsWorkOverCapacity) {
  ClusterConfig config = cluster(1, 1, 1000.0, 1);
  config.servers[0] = {.workers = 4, .speed = 2.0};
  config.stages = {stage(StageKind::kCpu, 8.0, DistributionKind::kDeterministic),
                   stage(StageKind::kIo, 0.5, DistributionKind::kDeterministic)};
  ClusterWorld world(prepared(config), rule("ecmp"), 1);
  double left_s = 0, own_s = 0;
  for (int step = 1; step <= 20; ++step) {
    world.run_until(seconds(0.001 * step));
    const uint32_t n = world.in_system()[0];
    world.remaining_time(-1, &left_s);
    world.remaining_time(0, &own_s);
    EXPECT_EQ(left_s, own_s);
    EXPECT_NEAR(left_s, n * (8.0 / 8.0 + 0.5), 0.021);  // up to 20 ms of it done
  }
}

TEST(Runner, ThreadsChangeNothingAndStopIsHeard) {
  const auto config = prepared(busy());
  const std::vector<uint64_t> seeds = {5, 3, 8, 1, 9, 2};
  const auto one = run_episodes(config, rule("sed"), seeds, 1, Convention::kUncensored, false, {});
  const auto three = run_episodes(config, rule("sed"), seeds, 3, Convention::kUncensored, false, {});
  ASSERT_EQ(one.size(), seeds.size());
  for (size_t k = 0; k < seeds.size(); ++k) {
    EXPECT_EQ(one[k].seed, seeds[k]);
    EXPECT_EQ(one[k].digest, three[k].digest);
    EXPECT_EQ(one[k].stats.sojourn_mean_s, three[k].stats.sojourn_mean_s);
    EXPECT_EQ(one[k].stats.untracked, three[k].stats.untracked);
  }
  const auto stopped =
      run_episodes(config, rule("sed"), seeds, 1, Convention::kPeer, false, [] { return true; });
  EXPECT_EQ(stopped.size(), 1U);
}

std::string refusal(ClusterConfig config) {
  try {
    config.prepare();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ClusterConfig, NamesWhatItRefuses) {
  EXPECT_EQ(refusal(busy()), "accepted");
  const auto expect = [](void (*change)(ClusterConfig&), const char* key) {
    ClusterConfig config = busy();
    change(config);
    const std::string message = refusal(config);
    EXPECT_EQ(message.rfind(key, 0), 0U) << key << " against: " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  };
  expect([](ClusterConfig& c) { c.num_load_balancers = 0; }, "pool.balancers: 0");
  expect([](ClusterConfig& c) { c.servers.clear(); }, "pool.servers: 0");
  expect([](ClusterConfig& c) { c.servers[1].workers = 0; }, "pool.servers[1].workers: 0");
  expect([](ClusterConfig& c) { c.servers[2].speed = -1; }, "pool.servers[2].speed: -1");
  expect([](ClusterConfig& c) { c.servers[2].ps_cap = 1; }, "pool.servers[2].ps_cap: 1");
  expect([](ClusterConfig& c) { c.stages.clear(); }, "workload.stages: 0");
  expect([](ClusterConfig& c) { c.stages[0].demand.a = {-2}; }, "workload.stages[0].demand");
  expect([](ClusterConfig& c) { c.arrival.rate = 0; }, "workload.arrival.rate: 0");
  expect([](ClusterConfig& c) { c.admission_limit = -1; }, "pool.admission_limit: -1");
  expect([](ClusterConfig& c) { c.hop_high_s = 0; }, "latency.hop_high_s: 0");
  expect([](ClusterConfig& c) { c.flow_table_buckets = 12; }, "flow_table.buckets: 12");
  expect([](ClusterConfig& c) { c.flow_table_ways = 0; }, "flow_table.ways: 0");
  expect([](ClusterConfig& c) { c.reservoir_size = 129; }, "observation.reservoir_size: 129");
  expect([](ClusterConfig& c) { c.step_s = 0; }, "control.step_s: 0");
  expect([](ClusterConfig& c) { c.actuation_delay_s = 0.6; }, "control.actuation_delay_s");
  expect([](ClusterConfig& c) { c.horizon_s = NAN; }, "episode.horizon_s");
  expect([](ClusterConfig& c) { c.warmup_s = 31; }, "episode.warmup_s: 31");
  expect([](ClusterConfig& c) { c.events[0].targets = {4}; }, "events[0].servers: 4");
  expect([](ClusterConfig& c) { c.events[1].targets = {3}; }, "events[1].balancers: 3");
  expect([](ClusterConfig& c) { c.events[0].value_low = 0; }, "events[0].value: 0");
}

}  // namespace
}  // namespace steelyard::sim
