// Arrival processes in C++: purity, rates, scaling on the way, copies. (tests/test_arrivals.py has their
// laws.)
#include "native/sim/arrivals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "native/tests/worlds.h"

namespace steelyard::sim {
namespace {

using testing::cluster;
using testing::prepared;
using testing::Sample;
using testing::seconds;

std::shared_ptr<const ClusterConfig> with(const ArrivalConfig& arrival,
                                          std::shared_ptr<const Trace> trace = nullptr) {
  ClusterConfig config = cluster(1, 1, 1.0, 10.0);
  config.arrival = arrival;
  config.trace = std::move(trace);
  return prepared(config);
}

ArrivalConfig poisson() {
  ArrivalConfig made;
  made.rate = 10;
  return made;
}

ArrivalConfig mmpp() {
  ArrivalConfig made;
  made.kind = ArrivalKind::kMmpp;
  made.mmpp_rates = {16, 4};
  made.mmpp_mean_s = {1, 1};
  return made;
}

ArrivalConfig diurnal() {
  ArrivalConfig made;
  made.kind = ArrivalKind::kDiurnal;
  made.rate = 10;
  made.diurnal_amplitude = 0.9;
  made.diurnal_period_s = 5;
  return made;
}

// Arrivals in [0, end_s) of one seed; the rate is scaled by `factor` at from_s.
int count(const std::shared_ptr<const ClusterConfig>& config, uint64_t seed, double end_s, double from_s = -1,
          double factor = 1) {
  ArrivalProcess process(config, seed);
  int n = 0;
  for (; process.next() < seconds(end_s); process.advance()) {
    if (from_s >= 0 && process.next() >= seconds(from_s)) {
      process.scale(seconds(from_s), factor);
      from_s = -1;
      if (process.next() >= seconds(end_s)) break;
    }
    ++n;
  }
  return n;
}

TEST(Arrivals, NeverGoBackAndRepeatThemselves) {
  for (const ArrivalConfig& arrival : {poisson(), mmpp(), diurnal()}) {
    ArrivalProcess one(with(arrival), 7), other(with(arrival), 7), stranger(with(arrival), 8);
    core::TimeNs last = 0;
    int equal = 0;
    for (int k = 0; k < 2000; ++k) {
      EXPECT_GE(one.next(), last);
      EXPECT_EQ(one.next(), other.next());
      EXPECT_EQ(one.next(), one.next());
      equal += one.next() == stranger.next() ? 1 : 0;
      last = one.next();
      one.advance();
      other.advance();
      stranger.advance();
    }
    EXPECT_LT(equal, 5);
  }
}

TEST(Arrivals, ComeAtTheirMeanRate) {
  for (const ArrivalConfig& arrival : {poisson(), mmpp(), diurnal()}) {
    Sample counts;
    for (uint64_t seed = 0; seed < 200; ++seed) counts.add(count(with(arrival), seed, 50));
    EXPECT_TRUE(counts.agrees_with(500)) << static_cast<int>(arrival.kind) << " " << counts.mean();
  }
}

TEST(Arrivals, AreScaledFromThenOn) {
  for (const ArrivalConfig& arrival : {poisson(), mmpp(), diurnal()}) {
    for (const double factor : {0.2, 3.0}) {
      Sample counts;
      for (uint64_t seed = 0; seed < 300; ++seed) counts.add(count(with(arrival), seed, 50, 20, factor));
      EXPECT_TRUE(counts.agrees_with(200 + 300 * factor))
          << static_cast<int>(arrival.kind) << " " << counts.mean();
    }
  }
}

TEST(Arrivals, ScalingBackAndForthChangesNothing) {
  for (const ArrivalConfig& arrival : {poisson(), mmpp(), diurnal()}) {
    ArrivalProcess plain(with(arrival), 3), scaled(with(arrival), 3);
    core::TimeNs last = 0;
    for (int k = 0; k < 500; ++k) {
      scaled.scale(last, 7.0);
      scaled.scale(last, 1.0);
      EXPECT_NEAR(static_cast<double>(scaled.next()), static_cast<double>(plain.next()), 1000);
      last = scaled.next();
      plain.advance();
      scaled.advance();
    }
  }
}

TEST(Arrivals, ACopyIsASnapshot) {
  for (const ArrivalConfig& arrival : {poisson(), mmpp(), diurnal()}) {
    ArrivalProcess process(with(arrival), 5);
    for (int k = 0; k < 100; ++k) process.advance();
    ArrivalProcess snapshot = process;
    std::vector<core::TimeNs> first, second;
    for (int k = 0; k < 300; ++k, process.advance()) first.push_back(process.next());
    for (int k = 0; k < 300; ++k, snapshot.advance()) second.push_back(snapshot.next());
    EXPECT_EQ(first, second);
  }
}

TEST(Arrivals, ATraceGoesInACircle) {
  const auto trace = parse_trace(
      "# steelyard-trace-v1\narrival_us,class,service_us,bytes\n0,a,1,0\n1000000,a,2,0\n4000000,a,3,0\n");
  ArrivalConfig arrival;
  arrival.kind = ArrivalKind::kTrace;
  arrival.time_scale = 0.5;
  bool started[3] = {};
  for (uint64_t seed = 0; seed < 30; ++seed) {
    ArrivalProcess process(with(arrival, trace), seed);
    size_t row = process.trace_row();
    started[row] = true;
    core::TimeNs at = 0;
    for (int k = 0; k < 20; ++k) {
      EXPECT_EQ(process.next(), at);
      EXPECT_EQ(process.trace_row(), row);
      process.advance();
      at += seconds(0.5 * (row == 0 ? 1 : (row == 1 ? 3 : 2)));  // the last gap is the mean one
      row = (row + 1) % 3;
    }
  }
  EXPECT_TRUE(started[0] && started[1] && started[2]);
}

TEST(Arrivals, AVanishingRateNeverComes) {
  ArrivalConfig arrival = poisson();
  arrival.rate = 1e-300;
  EXPECT_EQ(ArrivalProcess(with(arrival), 1).next(), core::kNever);
}

}  // namespace
}  // namespace steelyard::sim
