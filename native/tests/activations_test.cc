// The core's own exp, sigmoid and tanh against long double.
#include "native/core/activations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace steelyard::core {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float scalar(f32x8 (*f)(f32x8), float x) { return f(fill8(x))[0]; }

// Units in the last place of the exact value's binade.
double ulps(float value, long double exact) {
  const auto rounded = static_cast<float>(exact);
  const long double unit = std::nextafter(std::fabs(rounded), kInf) - std::fabs(rounded);
  return static_cast<double>(std::fabs(static_cast<long double>(value) - exact) / unit);
}

// The largest error over floats of both signs in [-limit, limit], from tiny to large, every `stride`-th one.
double worst(f32x8 (*f)(f32x8), long double (*exact)(long double), float low, float high) {
  constexpr int32_t kStride = 4801;
  double error = 0;
  for (int32_t bits = 0x20000000; bits < 0x7f800000; bits += kStride) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    if (x <= high) error = std::max(error, ulps(scalar(f, x), exact(x)));
    if (-x >= low) error = std::max(error, ulps(scalar(f, -x), exact(-x)));
  }
  return error;
}

TEST(Activations, ExpIsWithinOneUlp) {
  EXPECT_LT(worst(exp8, [](long double x) { return std::exp(x); }, kExpLowest, kExpHighest), 1.0);
}

TEST(Activations, SigmoidIsWithinThreeUlps) {
  EXPECT_LT(worst(sigmoid8, [](long double x) { return 1 / (1 + std::exp(-x)); }, kExpLowest, 3e38F), 3.0);
}

TEST(Activations, TanhIsWithinTwoUlps) {
  EXPECT_LT(worst(tanh8, [](long double x) { return std::tanh(x); }, -3e38F, 3e38F), 2.0);
}

TEST(Activations, StayWithinTheirBounds) {
  for (const float x :
       {-kInf, -1e30F, -100.0F, -88.0F, -1.0F, -1e-30F, 0.0F, 1e-30F, 1.0F, 88.0F, 1e30F, kInf}) {
    EXPECT_GE(scalar(sigmoid8, x), 0.0F) << x;
    EXPECT_LE(scalar(sigmoid8, x), 1.0F) << x;
    EXPECT_LE(std::fabs(scalar(tanh8, x)), 1.0F) << x;
    EXPECT_EQ(scalar(tanh8, -x), -scalar(tanh8, x)) << x;
    EXPECT_TRUE(std::isfinite(scalar(exp8, x))) << x;
    EXPECT_EQ(scalar(relu8, x), x > 0 ? x : 0.0F) << x;
  }
  EXPECT_EQ(scalar(tanh8, kInf), 1.0F);
  EXPECT_EQ(scalar(sigmoid8, kInf), 1.0F);
  EXPECT_EQ(scalar(sigmoid8, 0.0F), 0.5F);
}

TEST(Activations, KeepNan) {
  for (const auto f : {exp8, sigmoid8, tanh8, relu8}) EXPECT_TRUE(std::isnan(scalar(f, kNan)));
}

TEST(Activations, TreatEveryLaneAlike) {
  const f32x8 x = {-9.0F, -0.7F, -0.1F, 0.0F, 0.3F, 0.7F, 2.0F, 30.0F};
  for (const auto f : {exp8, sigmoid8, tanh8, relu8}) {
    const f32x8 y = f(x);
    for (int lane = 0; lane < 8; ++lane) EXPECT_EQ(y[lane], scalar(f, x[lane]));
  }
}

}  // namespace
}  // namespace steelyard::core
