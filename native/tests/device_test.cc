// The processor-sharing device against a device that keeps the remaining work of every job; the calendar.
#include "native/sim/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <vector>

#include "native/sim/event_queue.h"
#include "native/tests/worlds.h"

namespace steelyard::sim {
namespace {

using core::TimeNs;
using testing::word;

// Every job carries what is left of it; seed 002 eq. (42) gives the speed of each.
class Naive {
 public:
  Naive(int workers, double speed) : workers_(workers), speed_(speed) {}
  double rate() const {
    const auto n = static_cast<double>(left_.size());
    return n <= workers_ ? speed_ : speed_ * workers_ / n;
  }
  void run_until(double now) {
    for (auto& [slot, left] : left_) left -= (now - now_) * rate();
    now_ = now;
  }
  double next_finish() const {
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [slot, left] : left_) least = std::min(least, std::max(0.0, left));
    return now_ + least / rate();
  }
  std::map<uint32_t, double> left_;
  double workers_, speed_, now_ = 0;
};

using Shape = std::tuple<int, int>;  // workers, cap (0: none)

class DeviceShape : public ::testing::TestWithParam<Shape> {};

// Random starts, speeds and numbers of workers; every finish is the naive one within the rounding of finishes
// to whole nanoseconds, which adds up over a busy period.
constexpr double kRoundingNs = 1000;

TEST_P(DeviceShape, FinishesWhenTheNaiveDeviceDoes) {
  const auto [workers, cap] = GetParam();
  Device device;
  device.reset(workers, cap > 0 ? cap : kNoCap, 1.5);
  Naive naive(workers, 1.5);
  TimeNs now = 0;
  int finished = 0;
  for (uint64_t step = 0; step < 4000; ++step) {
    const TimeNs wanted = now + static_cast<TimeNs>(word(3 * step) % 1'000'000'000);
    const TimeNs finish = device.next_finish(now);
    if (device.in_service() == 0) {
      EXPECT_EQ(finish, core::kNever);
    } else {
      EXPECT_NEAR(static_cast<double>(finish), naive.next_finish(), kRoundingNs);
    }
    now = std::min(wanted, finish);
    naive.run_until(static_cast<double>(now));
    if (now == finish) {
      const uint32_t slot = device.finish(now);
      ASSERT_TRUE(naive.left_.contains(slot));
      EXPECT_NEAR(naive.left_[slot], 0.0, kRoundingNs);
      naive.left_.erase(slot);
      ++finished;
      continue;
    }
    const uint64_t coin = word(3 * step + 1);
    if (coin % 20 == 0) {
      naive.speed_ = 0.25 + static_cast<double>(coin >> 32) / 4e9;
      device.set_speed(naive.speed_, now);
    } else if (coin % 20 == 1 && cap == 0) {
      naive.workers_ = 1.0 + static_cast<double>((coin >> 32) % 5);
      device.set_workers(static_cast<int>(naive.workers_), kNoCap, now);
    } else if (device.has_room()) {
      const double work = std::floor(-1e9 * std::log(core::unit_open(word(3 * step + 2))));
      device.start(static_cast<uint32_t>(step), work, now);
      naive.left_[static_cast<uint32_t>(step)] = work;
    }
    ASSERT_EQ(device.in_service(), static_cast<int>(naive.left_.size()));
    EXPECT_LE(device.in_service(), device.cap());
    for (const Device::Job& job : device.jobs()) {
      EXPECT_NEAR(device.remaining_ns(job, now), naive.left_[job.slot], kRoundingNs);
    }
  }
  EXPECT_GT(finished, 500);
}

INSTANTIATE_TEST_SUITE_P(Shapes, DeviceShape,
                         ::testing::Values(Shape{1, 1}, Shape{4, 4}, Shape{1, 0}, Shape{3, 0}, Shape{2, 5}));

TEST(Device, SpeedOfEachJobByTheEquation) {
  Device device;
  device.reset(2, 4, 1.0);
  for (uint32_t n = 1; n <= 4; ++n) {
    device.start(n, 8e9, 0);
    const double speed = n <= 2 ? 1.0 : 2.0 / n;
    EXPECT_EQ(device.next_finish(0), static_cast<TimeNs>(8e9 / speed + 0.5));
  }
  EXPECT_FALSE(device.has_room());
}

TEST(Device, AnnouncesOnlyWhatHasChanged) {
  Device device;
  device.reset(2, kNoCap, 1.0);
  TimeNs at = 0;
  EXPECT_FALSE(device.reschedule(0, &at));
  device.start(1, 1000, 0);
  ASSERT_TRUE(device.reschedule(0, &at));
  EXPECT_EQ(at, 1000);
  const uint32_t epoch = device.epoch();
  device.start(2, 5000, 0);  // later, and both still run at full speed
  EXPECT_FALSE(device.reschedule(0, &at));
  EXPECT_EQ(device.epoch(), epoch);
  device.start(3, 9000, 100);  // now three share two workers
  ASSERT_TRUE(device.reschedule(100, &at));
  EXPECT_EQ(at, 100 + 1350);
  EXPECT_NE(device.epoch(), epoch);
  EXPECT_FALSE(device.reschedule(100, &at));
  EXPECT_EQ(device.finish(1450), 1u);
  ASSERT_TRUE(device.reschedule(1450, &at));
  EXPECT_EQ(at, 1450 + 4000);
}

TEST(Device, ALongBusyPeriodKeepsItsExactness) {
  Device device;
  device.reset(1, kNoCap, 1.0);
  TimeNs now = 0;
  device.start(0, 1e18, now);  // never finishes here: the virtual time is never set back
  for (uint32_t k = 1; k <= 100000; ++k) {
    device.start(k, 1e6, now);
    const TimeNs finish = device.next_finish(now);
    ASSERT_NEAR(static_cast<double>(finish - now), 2e6, 2) << k;
    now = finish;
    ASSERT_EQ(device.finish(now), k);
  }
}

// Any mixture of pushes and pops leaves in order of time.
TEST(EventQueue, IsAPriorityQueue) {
  for (const uint64_t spread : {uint64_t{3}, uint64_t{1000}, uint64_t{1} << 40}) {
    EventQueue queue;
    std::multimap<TimeNs, uint32_t> model;
    TimeNs now = 0;
    for (uint32_t step = 0; step < 30000; ++step) {
      const uint64_t coin = word(step + spread);
      const bool growing = (step / 3000) % 2 == 0;
      if (model.empty() || coin % 10 < (growing ? 7 : 3)) {
        const TimeNs at = now + static_cast<TimeNs>((coin >> 8) % spread);
        queue.push(Event::make(at, 1, step, 0));
        model.emplace(at, step);
      } else {
        ASSERT_EQ(queue.next_time(), model.begin()->first);
        const Event event = queue.pop();
        ASSERT_EQ(event.time, model.begin()->first);
        auto [same, end] = model.equal_range(event.time);
        while (same != end && same->second != event.subject) ++same;
        ASSERT_NE(same, end);
        model.erase(same);
        now = event.time;
      }
      ASSERT_EQ(queue.size(), model.size());
    }
    queue.clear();
    EXPECT_EQ(queue.size(), 0U);
    EXPECT_EQ(queue.next_time(), core::kNever);
  }
}

TEST(EventQueue, TheSamePushesAndPopsGiveTheSameOrder) {
  std::vector<uint32_t> order[2];
  for (std::vector<uint32_t>& one : order) {
    EventQueue queue;
    for (uint32_t k = 0; k < 500; ++k) queue.push(Event::make(static_cast<TimeNs>(word(k) % 5), 1, k, 0));
    while (queue.size() > 0) one.push_back(queue.pop().subject);
  }
  EXPECT_EQ(order[0], order[1]);
}

TEST(Event, PacksKindAndEpoch) {
  const Event event = Event::make(7, 200, 5, kEpochMask);
  EXPECT_EQ(event.kind(), 200);
  EXPECT_EQ(event.epoch(), kEpochMask);
  EXPECT_EQ(event.subject, 5u);
  EXPECT_EQ(sizeof(Event), 16U);
}

}  // namespace
}  // namespace steelyard::sim
