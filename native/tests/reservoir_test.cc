// Reservoirs: Alg. 3 of seed 002 as a random process, and the five reductions against plain double
// arithmetic.
#include "native/core/reservoir.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "native/core/lanes.h"
#include "native/tests/worlds.h"

namespace steelyard::core {
namespace {

using testing::Sample;
using testing::seconds;
using testing::word;

struct Expected {
  double mean, p90, std, discounted, weighted;
};

// The definitions of network-lb.md, over the samples that the reservoir holds.
Expected reference(const Reservoir& reservoir, TimeNs now) {
  const int n = reservoir.filled();
  std::vector<double> values;
  double sum = 0, squares = 0, weights = 0, weighted = 0;
  for (int i = 0; i < n; ++i) {
    const double v = reservoir.value_at(i);
    const double weight = std::pow(0.9, static_cast<double>(now - reservoir.time_at(i)) * 1e-9);
    values.push_back(v);
    sum += v;
    weights += weight;
    weighted += weight * v;
  }
  for (const double v : values) squares += (v - sum / n) * (v - sum / n);
  std::sort(values.begin(), values.end());
  const double at = 0.9 * (n - 1);
  const int low = std::min(static_cast<int>(at), n - 1);
  const double p90 = values[low] + (at - low) * (values[std::min(low + 1, n - 1)] - values[low]);
  return {sum / n, p90, std::sqrt(squares / n), weighted / n, weighted / weights};
}

void expect_close(const Reduced& got, const Expected& expected, double scale) {
  EXPECT_NEAR(got.mean, expected.mean, 1e-5 * scale);
  EXPECT_NEAR(got.p90, expected.p90, 1e-5 * scale);
  EXPECT_NEAR(got.std, expected.std, 1e-5 * scale);
  EXPECT_NEAR(got.discounted_mean, expected.discounted, 1e-5 * scale);
  EXPECT_NEAR(got.weighted_discounted_mean, expected.weighted, 1e-5 * scale);
}

TEST(Reservoir, ReductionsAreTheirDefinitionsAtEveryFill) {
  Reservoir reservoir(3);
  TimeNs now = 0;
  for (uint64_t k = 0; reservoir.filled() < Reservoir::kMaxSize || k < 500; ++k) {
    now += seconds(0.3 * unit_open(word(2 * k)));
    reservoir.add(now, static_cast<float>(-std::log(unit_open(word(2 * k + 1)))));
    const TimeNs later = now + seconds(0.1 * static_cast<double>(k % 7));
    expect_close(reservoir.reduce(later), reference(reservoir, later), 1.0);
  }
  EXPECT_EQ(reservoir.filled(), Reservoir::kMaxSize);
}

TEST(Reservoir, ReductionsHoldForAnyScaleOfValuesAndAges) {
  for (const double scale : {1e-6, 1e-3, 1.0, 1e4}) {
    for (const double gap_s : {1e-5, 0.01, 1.0, 5.0}) {
      Reservoir reservoir(5);
      TimeNs now = seconds(3e5);  // far from zero: time stamps keep their resolution
      for (uint64_t k = 0; k < 200; ++k) {
        now += seconds(gap_s);
        reservoir.add(now, static_cast<float>(scale * unit_open(word(k))));
      }
      expect_close(reservoir.reduce(now), reference(reservoir, now), scale);
    }
  }
}

TEST(Reservoir, TimePassesForTheDiscountedMeansOnly) {
  Reservoir reservoir(1);
  reservoir.add(seconds(10), 2.0f);
  reservoir.add(seconds(20), 4.0f);
  ASSERT_EQ(reservoir.filled(), 2);
  for (const double age : {0.0, 1.0, 60.0}) {
    const TimeNs now = seconds(20 + age);
    const Reduced got = reservoir.reduce(now);
    EXPECT_FLOAT_EQ(got.mean, 3.0f);
    EXPECT_FLOAT_EQ(got.std, 1.0f);
    EXPECT_FLOAT_EQ(got.p90, 3.8f);
    const double old = std::pow(0.9, 10 + age), young = std::pow(0.9, age);
    EXPECT_NEAR(got.discounted_mean, (2 * old + 4 * young) / 2, 1e-5);
    EXPECT_NEAR(got.weighted_discounted_mean, (2 * old + 4 * young) / (old + young), 1e-5);
  }
}

TEST(Reservoir, EmptyIsZeroAndZerosAreSamples) {
  Reservoir reservoir(1);
  const Reduced empty = reservoir.reduce(seconds(5));
  EXPECT_EQ(empty.mean, 0.0f);
  EXPECT_EQ(empty.weighted_discounted_mean, 0.0f);
  reservoir.add(seconds(1), 6.0f);  // 127 empty places are not 127 zeros
  EXPECT_FLOAT_EQ(reservoir.reduce(seconds(1)).mean, 6.0f);
  EXPECT_FLOAT_EQ(reservoir.reduce(seconds(1)).p90, 6.0f);
  EXPECT_FLOAT_EQ(reservoir.reduce(seconds(9)).weighted_discounted_mean, 6.0f);
  reservoir.add(seconds(1), 0.0f);
  ASSERT_EQ(reservoir.filled(), 2);
  EXPECT_FLOAT_EQ(reservoir.reduce(seconds(1)).mean, 3.0f);
  EXPECT_EQ(reservoir.added(), 2U);
}

TEST(Reservoir, VeryOldSamplesStayFinite) {
  Reservoir reservoir(1);
  for (int k = 0; k < 10; ++k) reservoir.add(seconds(k), 0.5f);
  for (const double now_s : {830.0, 2000.0, 1e6, 1e9}) {
    const Reduced got = reservoir.reduce(seconds(now_s));
    EXPECT_NEAR(got.weighted_discounted_mean, 0.5, 1e-3);
    EXPECT_GE(got.discounted_mean, 0.0f);
    EXPECT_LT(got.discounted_mean, 1e-30f);
  }
}

TEST(Reservoir, WritesItsReductionsInTheOrderOfTheSchema) {
  float out[kReducedScalars];
  Reduced{1, 2, 3, 4, 5}.write(out);
  for (int i = 0; i < kReducedScalars; ++i) EXPECT_EQ(out[i], static_cast<float>(i + 1));
}

// Seed 002 C.2.4: of lambda samples, lambda ((k - 1) / k)^n are expected to be left after n more.
TEST(Reservoir, SurvivorsDecayAsAlgorithm3Says) {
  for (const auto& [size, marked, later] :
       {std::tuple{8, 1, 5}, {16, 4, 20}, {128, 30, 200}, {128, 1, 128}}) {
    Sample left;
    for (uint64_t stream = 0; stream < 4000; ++stream) {
      Reservoir reservoir(stream_key(stream, 9), size);
      for (int i = 0; i < marked + later; ++i) reservoir.add(i, i < marked ? 1.0f : 0.0f);
      int survivors = 0;
      for (int slot = 0; slot < reservoir.filled(); ++slot) survivors += reservoir.value_at(slot) > 0 ? 1 : 0;
      left.add(survivors);
    }
    double expected = 0;  // the last marked sample sees `later` more, the one before it one more than that
    for (int i = 0; i < marked; ++i) expected += std::pow((size - 1.0) / size, later + i);
    EXPECT_TRUE(left.agrees_with(expected)) << left.mean() << " against " << expected;
  }
}

TEST(Reservoir, FillsAsFastAsPlacesAreFound) {
  Sample filled;  // expected number of distinct places after n draws: k (1 - ((k - 1) / k)^n)
  for (uint64_t stream = 0; stream < 4000; ++stream) {
    Reservoir reservoir(stream_key(stream, 10), 32);
    for (int i = 0; i < 40; ++i) reservoir.add(i, 1.0f);
    filled.add(reservoir.filled());
  }
  EXPECT_TRUE(filled.agrees_with(32 * (1 - std::pow(31.0 / 32, 40))));
}

TEST(Reservoir, RestartForgetsAndTheStreamDecides) {
  Reservoir used(1), fresh(2);
  for (int i = 0; i < 300; ++i) used.add(i, 1.0f);
  used.restart(2);
  EXPECT_EQ(used.filled(), 0);
  EXPECT_EQ(used.reduce(0).mean, 0.0f);
  for (int i = 0; i < 300; ++i) {
    used.add(i, static_cast<float>(i));
    fresh.add(i, static_cast<float>(i));
  }
  for (int slot = 0; slot < used.filled(); ++slot) EXPECT_EQ(used.value_at(slot), fresh.value_at(slot));
}

TEST(Lanes, Exp2IsWithinItsStatedError) {
  double worst = 0;
  for (double x = -126; x <= 126; x += 0.00137) {
    const float argument = static_cast<float>(x);
    worst = std::max(worst, std::abs(exp2_scalar(argument) / std::exp2(static_cast<double>(argument)) - 1));
  }
  EXPECT_LT(worst, 3e-7);
  for (int k = -126; k <= 126; ++k) EXPECT_EQ(exp2_scalar(static_cast<float>(k)), std::ldexp(1.0f, k));
}

}  // namespace
}  // namespace steelyard::core
