// Distributions in C++: moments, purity, the ends of the support, refusals. (tests/test_distributions.py has
// the distribution functions.)
#include "native/sim/distribution.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "native/tests/worlds.h"

namespace steelyard::sim {
namespace {

using testing::Sample;
using testing::word;
using K = DistributionKind;

struct Case {
  K kind;
  std::vector<double> a, b;
  double mean, second;  // E[X], E[X^2]
};

Distribution distribution(K kind, std::vector<double> a, std::vector<double> b) {
  Distribution made;
  made.kind = kind;
  made.a = std::move(a);
  made.b = std::move(b);
  return made;
}

std::vector<Case> cases() {
  return {
      {K::kExponential, {0.5}, {}, 0.5, 0.5},
      {K::kDeterministic, {3}, {}, 3, 9},
      {K::kUniform, {1, 4}, {}, 2.5, 7},
      {K::kLognormal, {2, 0.5}, {}, 2, 4 * std::exp(0.25)},
      {K::kPareto, {1.25, 5}, {}, 1.25, 5.0 / 3},  // scale 1: alpha / (alpha - 2)
      {K::kDiscrete, {1, 10}, {0.9, 0.1}, 1.9, 10.9},
      {K::kHyperexponential, {1, 10}, {0.9, 0.1}, 1.9, 21.8},
      {K::kLognormalMixture, {1, 10, 0.5, 0.1}, {0.9, 0.1}, 1.9, 0.9 * std::exp(0.25) + 10 * std::exp(0.01)},
      {K::kEmpirical, {1, 2, 6}, {}, 3, 41.0 / 3},
  };
}

TEST(Distribution, Moments) {
  for (const Case& c : cases()) {
    Distribution made = distribution(c.kind, c.a, c.b);
    made.prepare("demand");
    EXPECT_NEAR(made.mean(), c.mean, 1e-12);
    Sample first, second;
    for (uint64_t k = 0; k < 100000; ++k) {
      const double x = made.sample(word(k));
      ASSERT_GT(x, 0);
      ASSERT_EQ(x, made.sample(word(k)));
      first.add(x);
      second.add(x * x);
    }
    EXPECT_TRUE(first.agrees_with(c.mean)) << static_cast<int>(c.kind) << " " << first.mean();
    EXPECT_TRUE(second.agrees_with(c.second)) << static_cast<int>(c.kind) << " " << second.mean();
  }
}

TEST(Distribution, ExtremeWordsGiveFiniteNumbersAboveZero) {
  for (const Case& c : cases()) {
    Distribution made = distribution(c.kind, c.a, c.b);
    made.prepare("demand");
    for (const uint64_t extreme : {uint64_t{0}, ~uint64_t{0}, uint64_t{1} << 63, (uint64_t{1} << 63) - 1}) {
      EXPECT_TRUE(std::isfinite(made.sample(extreme)));
      EXPECT_GT(made.sample(extreme), 0);
    }
  }
}

TEST(Distribution, AValueOfProbabilityZeroNeverComes) {
  Distribution made = distribution(K::kDiscrete, {1, 2, 3}, {0.5, 0.0, 0.5});
  made.prepare("demand");
  for (uint64_t k = 0; k < 10000; ++k) EXPECT_NE(made.sample(word(k)), 2);
}

TEST(Distribution, ATraceDrawsNothingItself) {
  Distribution made = distribution(K::kTrace, {}, {});
  made.prepare("demand");
  EXPECT_EQ(made.a, std::vector<double>{1.0});  // times the recorded service time
  EXPECT_TRUE(std::isnan(made.mean()));
  EXPECT_TRUE(std::isnan(made.sample(1)));
}

TEST(Distribution, RefusalsNameTheKey) {
  const std::vector<Case> bad = {
      {K::kExponential, {0}, {}, 0, 0},
      {K::kExponential, {NAN}, {}, 0, 0},
      {K::kExponential, {1, 2}, {}, 0, 0},
      {K::kUniform, {2, 1}, {}, 0, 0},
      {K::kUniform, {-1, 1}, {}, 0, 0},
      {K::kLognormal, {1, -1}, {}, 0, 0},
      {K::kPareto, {1, 1}, {}, 0, 0},
      {K::kPareto, {1, INFINITY}, {}, 0, 0},
      {K::kDiscrete, {1, 2}, {1}, 0, 0},
      {K::kDiscrete, {1, 2}, {0.5, 0.6}, 0, 0},
      {K::kHyperexponential, {}, {}, 0, 0},
      {K::kEmpirical, {}, {}, 0, 0},
      {K::kEmpirical, {0}, {}, 0, 0},
      {K::kTrace, {-1}, {}, 0, 0},
      {K::kDiscrete, {0, 1}, {0.5, 0.5}, 0, 0},
      {K::kLognormalMixture, {1, 2, 1}, {0.5, 0.5}, 0, 0},
      {K::kLognormalMixture, {1, 2, 1, -1}, {0.5, 0.5}, 0, 0},
      {K::kLognormalMixture, {}, {}, 0, 0},
  };
  for (const Case& c : bad) {
    try {
      distribution(c.kind, c.a, c.b).prepare("some.key");
      ADD_FAILURE() << "accepted kind " << static_cast<int>(c.kind);
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(std::string(error.what()).rfind("some.key: ", 0), 0U) << error.what();
    }
  }
}

TEST(Exponential, IsTheLogarithmOfTheUniform) {
  std::vector<uint64_t> words = {0, UINT64_MAX, uint64_t{1} << 63, (uint64_t{1} << 63) - 4096};
  for (uint64_t k = 0; k < 100000; ++k) {
    words.push_back(word(k));
    words.push_back(k << 12);
    words.push_back(~(k << 12));
  }
  for (const uint64_t w : words) {
    const double expected = -std::log(core::unit_open(w));
    ASSERT_NEAR(unit_exponential(w), expected, 2e-15 * expected) << w;
  }
}

TEST(Exponential, AStreamHasOneValuePerKeyInWhateverOrder) {
  const uint64_t key = core::stream_key(3, 4);
  ExponentialStream stream(key);
  for (const uint64_t at : {5, 6, 4, 0, 36, 37, 36, 500, 90, 532, 0}) {
    ASSERT_EQ(stream.at(at), unit_exponential(core::draw(key, at))) << at;
  }
}

}  // namespace
}  // namespace steelyard::sim
