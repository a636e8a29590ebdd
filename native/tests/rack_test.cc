// The rack world in C++: tasks by hand, conservation, snapshots, every rule under every discipline, what it
// refuses.
#include "native/sim/rack.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "native/sim/rack_runner.h"
#include "native/sim/worker_calendar.h"
#include "native/tests/rack_worlds.h"
#include "native/tests/worlds.h"

namespace steelyard::sim {
namespace {

using testing::prepared;
using testing::rack;
using testing::rack_rule;
using testing::seconds;
using testing::task_type;
using testing::word;

// Everything at once.
RackConfig busy(Discipline discipline, bool shaped = false) {
  RackConfig config = rack(4, 3, 0.8, 0.02);
  config.servers[1] = {5, 0.5};
  config.servers[2].speed = 2;
  config.types = {task_type(20e-6, 0.7), task_type(22e-6, 0.1),
                  task_type(200e-6, 0.2, DistributionKind::kDeterministic)};
  config.arrival.rate = 0.8 * 14.5 / config.mean_service_s();
  config.discipline = discipline;
  config.quantum_s = 30e-6;
  config.switch_s = 1e-6;
  config.darc_window = 200;
  config.load_info = LoadInfo::kBroadcast;
  config.task_delay.constant_s = 2e-6;
  config.message_delay.constant_s = 2e-6;
  config.reply_delay.constant_s = 2e-6;
  config.steal_delay.constant_s = 1e-6;
  config.migration_work_s = 1e-6;
  config.events = {{RackEventKind::kSpeed, 0.005, 0.5, {0, 1}, {}},
                   {RackEventKind::kWorkers, 0.006, 1, {2, 3}, {}},
                   {RackEventKind::kArrivalScale, 0.007, 0.5, {}, {}},
                   {RackEventKind::kWorkers, 0.012, 4, {2, 3}, {}},
                   {RackEventKind::kSplit, 0.013, 1, {}, {3, 1, 1, 1}}};
  if (!shaped) return config;
  config.events.erase(config.events.begin() + 3);  // pallas plans for workers that stay
  config.events.erase(config.events.begin() + 1);
  config.events.push_back({RackEventKind::kMix, 0.008, 1, {}, {0.3, 0.1, 0.6}});
  return config;
}

bool is_shaped(const RackRule& rule) { return rule.traits->kind == RackKind::kShaped; }

constexpr Discipline kDisciplines[] = {Discipline::kFcfs, Discipline::kPs, Discipline::kQuantum,
                                       Discipline::kDarc};

std::vector<RackRule> rules() {
  std::vector<RackRule> all;
  for (const RackTraits& traits : all_rack_rules()) {
    if (traits.kind == RackKind::kDecider) continue;
    RackRule rule;
    rule.shaping.candidate_tasks = 2000;
    rule.shaping.monitor_s = 1e-3;
    rule.shaping.clone = true;
    rule.traits = &traits;
    rule.rtt_s = 4e-6;
    all.push_back(rule);
    rule.steal = StealBy::kRandom;
    rule.increments = true;
    all.push_back(rule);
    rule.steal = StealBy::kLongest;
    rule.info = LoadInfo::kPiggyback;
    rule.first = rule.keep = true;
    rule.d = 3;
    all.push_back(rule);
  }
  return all;
}

bool fits_discipline(const RackRule& rule, Discipline discipline) {
  if (rule.traits->kind == RackKind::kShaped) return discipline == Discipline::kDarc;
  return rule.traits->kind != RackKind::kLateBinding || discipline == Discipline::kFcfs;
}

TEST(Rack, OneWorkerIsTheLindleyRecursion) {
  RackConfig config = rack(1, 1, 0.9, 0.02);
  config.types = {task_type(50e-6, 1, DistributionKind::kDeterministic)};
  const auto shared = prepared(config);
  RackWorld world(shared, rack_rule("local"), 3);
  world.drain();
  ArrivalProcess arrivals({shared, &shared->arrival}, nullptr, 3);
  core::TimeNs free = 0;
  double sum_us = 0;
  uint64_t tasks = 0;
  for (; arrivals.next() < world.horizon_ns(); arrivals.advance()) {
    free = std::max(free, arrivals.next()) + 50'000;
    sum_us += static_cast<double>(free - arrivals.next()) * 1e-3;
    ++tasks;
  }
  ASSERT_GT(tasks, 100U);
  EXPECT_EQ(world.stats().all.tasks, tasks);
  EXPECT_NEAR(world.stats().all.mean_us, sum_us / static_cast<double>(tasks), 1e-6);
}

TEST(Rack, EveryTaskIsSomewhere) {
  for (const Discipline discipline : kDisciplines) {
    for (const RackRule& rule : rules()) {
      if (!fits_discipline(rule, discipline)) continue;
      const auto config = prepared(busy(discipline, is_shaped(rule)));
      SCOPED_TRACE(std::string(rule.traits->name) + " " + std::to_string(static_cast<int>(discipline)));
      RackWorld world(config, rule, 5);
      world.run_until(seconds(0.01));
      uint64_t inside = 0;
      for (int j = 0; j < world.num_servers(); ++j) inside += world.node(j).in_system;
      EXPECT_LE(inside + world.completed() + world.held(), world.arrived() + world.stats().clones);
      if (rule.traits->kind != RackKind::kLateBinding && rule.traits->kind != RackKind::kShaped) {
        EXPECT_EQ(world.completed() + world.live_tasks(), world.arrived());
      }
      world.drain();
      const RackStats stats = world.stats();
      EXPECT_EQ(world.metrics().outstanding(), 0U);
      EXPECT_EQ(stats.all.tasks, stats.by_type[0].tasks + stats.by_type[1].tasks + stats.by_type[2].tasks);
      EXPECT_GT(stats.all.tasks, 1000U);
    }
  }
}

TEST(Rack, SameSeedSameDigestAndASnapshotGoesOnAlike) {
  for (const Discipline discipline : kDisciplines) {
    for (const RackRule& rule : rules()) {
      if (!fits_discipline(rule, discipline)) continue;
      const auto config = prepared(busy(discipline, is_shaped(rule)));
      SCOPED_TRACE(std::string(rule.traits->name) + " " + std::to_string(static_cast<int>(discipline)));
      RackWorld one(config, rule, 5), other(config, rule, 5);
      one.run_until(seconds(0.008));
      RackWorld snapshot = one;
      one.drain();
      for (int k = 1; k <= 16; ++k) other.run_until(seconds(0.0005 * k));
      other.drain();
      snapshot.drain();
      EXPECT_EQ(one.digest(), other.digest());
      EXPECT_EQ(one.digest(), snapshot.digest());
      EXPECT_EQ(one.stats().all.mean_us, snapshot.stats().all.mean_us);
      one.reset(5);
      one.drain();
      EXPECT_EQ(one.digest(), other.digest());
      EXPECT_EQ(one.stats().all.mean_us, other.stats().all.mean_us);
    }
  }
}

TEST(Rack, ThreadsChangeNothing) {
  const auto config = prepared(busy(Discipline::kFcfs));
  const auto run = [&](int threads) {
    return run_racks(config, rack_rule("jsq"), {1, 2, 3, 4, 5}, threads, true, false, {});
  };
  const auto one = run(1), three = run(3);
  for (size_t k = 0; k < one.size(); ++k) {
    EXPECT_EQ(one[k].seed, three[k].seed);
    EXPECT_EQ(one[k].digest, three[k].digest);
    EXPECT_EQ(one[k].stats.all.mean_us, three[k].stats.all.mean_us);
  }
}

TEST(Rack, WorkLeftIsTheSumOfWhatIsThere) {
  for (const Discipline discipline : kDisciplines) {
    RackConfig config = rack(1, 2, 0.9, 0.01);
    config.types = {task_type(50e-6, 1, DistributionKind::kDeterministic)};
    config.discipline = discipline;
    config.quantum_s = 20e-6;
    RackWorld world(prepared(config), rack_rule("local"), 5);
    double before_s = world.work_left_s(0);
    uint64_t arrived = world.arrived(), gained = 0;
    for (int k = 1; k < 9000; ++k) {
      const bool both_busy = world.node(0).in_system >= 2;
      world.run_until(world.now() + 100);
      gained = world.arrived() - arrived;
      arrived = world.arrived();
      const double after_s = world.work_left_s(0);
      if (both_busy && world.node(0).in_system >= 2 && world.node(0).serving >= 2) {
        EXPECT_NEAR(after_s, before_s - 100e-9 + static_cast<double>(gained) * 25e-6, 2e-8);
      }
      before_s = after_s;
    }
    EXPECT_GT(world.completed(), 10U);
  }
}

TEST(Rack, ACalendarServesTimesInOrder) {
  WorkerCalendar calendar;
  calendar.reset(100, 1000);
  std::vector<core::TimeNs> due(100, core::kNever);
  core::TimeNs now = 0;
  for (uint64_t k = 0; k < 20000; ++k) {
    const uint32_t worker = static_cast<uint32_t>(word(k) % 100);
    if (due[worker] == core::kNever) {
      due[worker] = now + static_cast<core::TimeNs>(word(k + 1) % (k % 7 == 0 ? 3'000'000 : 2000));
      calendar.set(worker, due[worker]);
    } else if (k % 5 == 0) {
      calendar.cancel(worker);
      due[worker] = core::kNever;
    } else {
      const core::TimeNs first = *std::min_element(due.begin(), due.end());
      ASSERT_EQ(calendar.next_time(), first);
      now = first;
      const uint32_t popped = calendar.pop();
      ASSERT_EQ(due[popped], first);
      due[popped] = core::kNever;
    }
  }
}

void expect_refused(const RackConfig& config, const std::string& key) {
  RackConfig copy = config;
  try {
    copy.prepare();
    ADD_FAILURE() << "not refused: " << key;
  } catch (const std::invalid_argument& refusal) {
    EXPECT_EQ(std::string(refusal.what()).find(key), 0U) << refusal.what();
  }
}

TEST(Rack, RefusesWhatMakesNoSense) {
  const RackConfig good = rack(2, 1, 0.5, 1);
  RackConfig bad = good;
  bad.servers.clear();
  expect_refused(bad, "rack.servers");
  bad = good;
  bad.servers[1].workers = 0;
  expect_refused(bad, "rack.servers[1].workers");
  bad = good;
  bad.types[0].ratio = 0;
  expect_refused(bad, "workload.types[0].ratio");
  bad = good;
  bad.split = {1};
  expect_refused(bad, "workload.split");
  bad = good;
  bad.discipline = Discipline::kQuantum;
  expect_refused(bad, "rack.quantum_s");
  bad = good;
  bad.task_delay.constant_s = -1;
  expect_refused(bad, "network.task_delay.constant_s");
  bad = good;
  bad.broadcast_period_s = 0;
  expect_refused(bad, "load.broadcast_period_s");
  bad = good;
  bad.events = {{RackEventKind::kSpeed, 0.1, 0.5, {2}, {}}};
  expect_refused(bad, "events[0].servers");
  bad = good;
  bad.warmup_s = 1;
  expect_refused(bad, "warmup_s");
}

}  // namespace
}  // namespace steelyard::sim
