// Service that is planned as tasks enter gives what happens when every end of service is an event.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "native/core/rng.h"
#include "native/sim/planned_service.h"
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

// Against a list of what every task does.
TEST(PlannedService, IsWhatEachTaskDoes) {
  for (const uint32_t workers : {1U, 3U, 4U, 8U, 14U, 64U, 131U}) {
    SCOPED_TRACE(workers);
    const std::vector<uint32_t> sizes = {2, workers};
    PlannedService plan;
    plan.reset(sizes);
    std::vector<core::TimeNs> free(workers, 0), starts, ends;
    core::TimeNs now = 0;
    for (uint64_t k = 0; k < 3000; ++k) {
      now += core::below(core::draw(1, k), 41);
      const int64_t time_ns = core::below(core::draw(2, k), 40 * workers);
      const auto soonest = std::min_element(free.begin(), free.end());
      starts.push_back(std::max(now, *soonest));
      ends.push_back(*soonest = starts.back() + time_ns);
      ASSERT_EQ(plan.enter(1, now, time_ns), ends.back());
      uint32_t waiting = 0, serving = 0;
      int64_t left_ns = 0;
      for (size_t i = 0; i < ends.size(); ++i) {
        waiting += starts[i] > now;
        serving += starts[i] <= now && ends[i] > now;
        left_ns += std::max<core::TimeNs>(ends[i] - std::max(now, starts[i]), 0);
      }
      EXPECT_EQ(plan.left_ns(1, now), left_ns);
      if (k % 3 != 0) continue;
      const PlannedService::Count count = plan.count(1, now);
      ASSERT_EQ(count.serving, serving);
      ASSERT_EQ(count.waiting, waiting);
    }
    EXPECT_EQ(plan.count(0, now).serving, 0U);
  }
}

// Times of tens of nanoseconds: much happens at the same one.
RackConfig crowded() {
  RackConfig config = rack(5, 3, 0.9, 60e-6);
  config.servers[1] = {9, 0.5};
  config.servers[2] = {1, 2.0};
  config.types = {task_type(40e-9, 0.7), task_type(30e-9, 0.3, DistributionKind::kDeterministic)};
  config.arrival.rate = 0.9 * 15.5 / config.mean_service_s();
  config.load_info = LoadInfo::kBroadcast;
  config.broadcast_period_s = 100e-9;
  config.task_delay.constant_s = 4e-9;
  config.message_delay.constant_s = 4e-9;
  config.reply_delay.constant_s = 3e-9;
  config.migration_work_s = 2e-9;
  config.latency_with_reply = true;
  config.warmup_s = 2e-6;
  config.events = {{RackEventKind::kArrivalScale, 10e-6, 0.5, {}, {}},
                   {RackEventKind::kSplit, 20e-6, 1, {}, {3, 1, 1, 1, 1}},
                   {RackEventKind::kMix, 30e-6, 1, {}, {0.5, 0.5}}};
  return config;
}

std::vector<RackConfig> configs() {
  std::vector<RackConfig> all(5, crowded());
  all[1].task_delay.constant_s = all[1].message_delay.constant_s = 0;
  all[1].broadcast_phase = BroadcastPhase::kRandom;
  all[2].task_delay.jitter = task_type(5e-9).service;
  all[2].message_delay.jitter = all[2].reply_delay.jitter = all[2].task_delay.jitter;
  all[3].dispatchers = 2;
  all[3].split = {2, 1};
  all[3].events.erase(all[3].events.begin() + 1);
  all[3].load_measure = LoadMeasure::kWaiting;
  all[4].task_delay.constant_s = 1e-6;  // hundreds are on their way
  return all;
}

// On its way already, so that nothing is planned.
void begin(RackWorld& world) {
  while (world.arrived() == 0) world.run_until(world.now() + 1);
}

void expect_same(RackWorld& planned, RackWorld& stepped) {
  EXPECT_EQ(planned.now(), stepped.now());
  EXPECT_EQ(planned.digest(), stepped.digest());
  EXPECT_EQ(planned.completed(), stepped.completed());
  EXPECT_EQ(planned.live_tasks(), stepped.live_tasks());
  const RackStats one = planned.stats(), other = stepped.stats();
  ASSERT_GT(one.all.tasks, 5000U);
  EXPECT_EQ(one.events, other.events);
  EXPECT_EQ(one.migrations, other.migrations);
  EXPECT_EQ(one.all.tasks, other.all.tasks);
  EXPECT_EQ(one.all.quantile_us, other.all.quantile_us);
  EXPECT_EQ(one.by_type[1].slowdown, other.by_type[1].slowdown);
  EXPECT_EQ(one.all.mean_us, other.all.mean_us);
  EXPECT_NEAR(one.all.slowdown_mean, other.all.slowdown_mean, 1e-9);
  EXPECT_EQ(one.imbalance_mean_us, other.imbalance_mean_us);
  EXPECT_EQ(one.busy_mean, other.busy_mean);
  for (int j = 0; j < planned.num_servers(); ++j) {
    const uint32_t server = static_cast<uint32_t>(j);
    EXPECT_EQ(planned.node(j).in_system, stepped.node(j).in_system);
    EXPECT_EQ(planned.waiting(server), stepped.waiting(server));
    EXPECT_NEAR(planned.work_left_s(server), stepped.work_left_s(server), 2e-9);
    EXPECT_EQ(planned.totals(server).completions, stepped.totals(server).completions);
  }
}

TEST(RackPlanned, GivesWhatStepsGive) {
  for (const char* name : {"local", "random", "round_robin", "power_of_d", "jsq", "sed", "jbt", "jiq"}) {
    for (const RackConfig& config : configs()) {
      SCOPED_TRACE(name);
      RackRule rule = rack_rule(name);
      rule.increments = true;
      RackWorld planned(prepared(config), rule, 5), stepped(prepared(config), rule, 5);
      for (RackWorld* world : {&planned, &stepped}) world->metrics().keep_timeline(true);
      planned.reset(7);
      stepped.reset(7);
      begin(stepped);
      planned.drain();
      stepped.drain();
      expect_same(planned, stepped);
      ASSERT_EQ(planned.metrics().timeline().size(), stepped.metrics().timeline().size());
      for (size_t k = 0; k < planned.metrics().timeline().size(); ++k)
        ASSERT_EQ(planned.metrics().timeline()[k].tasks, stepped.metrics().timeline()[k].tasks);
      planned.run_until(planned.now() + 5000);
      stepped.run_until(stepped.now() + 5000);
      expect_same(planned, stepped);
      planned.reset(8);
      stepped = planned;
      planned.run_until(seconds(30e-6));
      planned.drain();
      stepped.drain();
      expect_same(stepped, planned);
    }
  }
}

// Where ends of service matter, they happen.
TEST(RackPlanned, IsLeftWhereServersChange) {
  std::vector<RackConfig> all(3, crowded());
  all[0].events.push_back({RackEventKind::kSpeed, 15e-6, 0.5, {0}, {}});
  all[1].load_measure = LoadMeasure::kWork;
  all[2].discipline = Discipline::kPs;
  for (const RackConfig& config : all) {
    RackWorld drained(prepared(config), rack_rule("jsq"), 5), stepped = drained;
    begin(stepped);
    drained.drain();
    stepped.drain();
    expect_same(drained, stepped);
    EXPECT_EQ(drained.stats().all.slowdown_mean, stepped.stats().all.slowdown_mean);
  }
}

}  // namespace
}  // namespace steelyard::sim
