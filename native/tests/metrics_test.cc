// Metrics over flows written by hand: both conventions, the measured window, quantiles, loads at boundaries.
#include "native/sim/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "native/tests/worlds.h"

namespace steelyard::sim {
namespace {

using testing::seconds;

// A flow from opened_s to replied_s with this much demand.
void serve(Metrics& metrics, double opened_s, double replied_s, double demand_s) {
  metrics.flow_opened(seconds(opened_s));
  metrics.flow_done(seconds(opened_s), seconds(replied_s), demand_s);
}

void refuse(Metrics& metrics, double opened_s) {
  metrics.flow_opened(seconds(opened_s));
  metrics.flow_rejected(seconds(opened_s), seconds(opened_s), 40.0);
}

Metrics sample() {
  Metrics metrics;
  metrics.reset(seconds(10), seconds(20), false);
  serve(metrics, 9.999, 12, 1);  // before the measured window
  serve(metrics, 10, 11, 1);     // sojourn 1
  serve(metrics, 12, 15, 2);     // 3
  serve(metrics, 18, 20, 1);     // 2, just in time
  serve(metrics, 19, 25, 4);     // 6, in flight at the horizon
  refuse(metrics, 13);           // 40
  serve(metrics, 20, 21, 1);     // after the measured window
  return metrics;
}

TEST(Metrics, UncensoredCountsEveryFlowOfTheWindow) {
  const EpisodeStats s = sample().summarise(Convention::kUncensored);
  EXPECT_EQ(s.flows, 5U);
  EXPECT_EQ(s.rejected, 1U);
  EXPECT_NEAR(s.sojourn_mean_s, (1 + 3 + 2 + 6 + 40) / 5.0, 1e-6);
  EXPECT_NEAR(s.sojourn_p50_s, 3, 1e-6);
  EXPECT_NEAR(s.sojourn_p90_s, 6 + 0.6 * 34, 1e-5);
  EXPECT_NEAR(s.waiting_mean_s, (0 + 1 + 1 + 2) / 4.0, 1e-6);
  EXPECT_NEAR(s.slowdown_mean, (1 + 1.5 + 2 + 1.5) / 4.0, 1e-6);
}

TEST(Metrics, PeerDropsWhatIsInFlightAtTheHorizon) {
  const EpisodeStats s = sample().summarise(Convention::kPeer);
  EXPECT_EQ(s.flows, 4U);
  EXPECT_EQ(s.rejected, 1U);
  EXPECT_NEAR(s.sojourn_mean_s, (1 + 3 + 2 + 40) / 4.0, 1e-6);
}

TEST(Metrics, OutstandingFlowsAreThoseOfTheWindow) {
  Metrics metrics;
  metrics.reset(seconds(10), seconds(20), false);
  metrics.flow_opened(seconds(5));
  metrics.flow_opened(seconds(15));
  metrics.flow_opened(seconds(20));
  EXPECT_EQ(metrics.outstanding(), 1U);
  metrics.flow_done(seconds(5), seconds(21), 1);
  EXPECT_EQ(metrics.outstanding(), 1U);
  metrics.flow_done(seconds(15), seconds(21), 1);
  EXPECT_EQ(metrics.outstanding(), 0U);
}

TEST(Metrics, RunningMeanCountsRejections) {
  Metrics metrics = sample();
  EXPECT_NEAR(metrics.running_sojourn_s(), 52 / 5.0, 1e-9);
  EXPECT_EQ(metrics.running_rejected(), 1U);
  metrics.reset(0, seconds(1), false);
  EXPECT_TRUE(std::isnan(metrics.running_sojourn_s()));
  EXPECT_EQ(metrics.flows().size(), 0U);
}

TEST(Metrics, NothingMeasuredIsNoNumber) {
  Metrics metrics;
  metrics.reset(0, seconds(1), false);
  const EpisodeStats s = metrics.summarise(Convention::kUncensored);
  EXPECT_EQ(s.flows, 0U);
  EXPECT_TRUE(std::isnan(s.sojourn_mean_s));
  EXPECT_TRUE(std::isnan(s.sojourn_p999_s));
  EXPECT_TRUE(std::isnan(s.jain_mean));
  refuse(metrics, 0.5);
  EXPECT_TRUE(std::isnan(metrics.summarise(Convention::kUncensored).waiting_mean_s));
  EXPECT_NEAR(metrics.summarise(Convention::kUncensored).sojourn_mean_s, 40, 1e-6);
}

TEST(Metrics, QuantilesAreThoseOfNumpy) {
  Metrics metrics;
  metrics.reset(0, seconds(1e6), false);
  for (int k = 0; k < 1001; ++k) {
    const int sojourn = k * 7919 % 1001;  // 0 to 1000, shuffled
    serve(metrics, 1, 1 + sojourn, 1);
  }
  const EpisodeStats s = metrics.summarise(Convention::kUncensored);
  EXPECT_NEAR(s.sojourn_p50_s, 500, 1e-9);
  EXPECT_NEAR(s.sojourn_p90_s, 900, 1e-9);
  EXPECT_NEAR(s.sojourn_p95_s, 950, 1e-9);
  EXPECT_NEAR(s.sojourn_p99_s, 990, 1e-9);
  EXPECT_NEAR(s.sojourn_p999_s, 999, 1e-9);
}

TEST(Metrics, OneFlowIsAllItsQuantiles) {
  Metrics metrics;
  metrics.reset(0, seconds(10), false);
  serve(metrics, 1, 3, 1);
  const EpisodeStats s = metrics.summarise(Convention::kUncensored);
  EXPECT_EQ(s.sojourn_p50_s, 2);
  EXPECT_EQ(s.sojourn_p999_s, 2);
}

TEST(Metrics, LoadsAreSampledInTheWindow) {
  Metrics metrics;
  metrics.reset(seconds(10), seconds(20), false);
  const std::vector<double> outside = {100, 0}, even = {2, 2}, uneven = {3, 1};
  metrics.sample_loads(seconds(9.5), outside);
  metrics.sample_loads(seconds(10), even);
  metrics.sample_loads(seconds(20), uneven);
  metrics.sample_loads(seconds(20.5), outside);
  const EpisodeStats s = metrics.summarise(Convention::kUncensored);
  EXPECT_NEAR(s.jain_mean, (1 + 16.0 / 20) / 2, 1e-12);
  EXPECT_NEAR(s.makespan_mean, 2.5, 1e-12);
  EXPECT_NEAR(s.overprovision_mean, (1 + 1.5) / 2, 1e-12);
  EXPECT_NEAR(metrics.running_jain(), s.jain_mean, 1e-12);
}

TEST(Jain, IsOneWhenEqualAndOneOverNWhenOneHasAll) {
  EXPECT_DOUBLE_EQ(jain_index(std::vector<double>{3, 3, 3}), 1);
  EXPECT_DOUBLE_EQ(jain_index(std::vector<double>{0, 5, 0, 0}), 0.25);
  EXPECT_DOUBLE_EQ(jain_index(std::vector<double>{0, 0}), 1);
  EXPECT_DOUBLE_EQ(jain_index(std::vector<double>{1, 2, 3}), 36.0 / (3 * 14));
}

}  // namespace
}  // namespace steelyard::sim
