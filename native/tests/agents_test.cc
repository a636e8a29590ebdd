// What reaches the agents of a cluster world: the line of late observations, and hidden features.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "native/core/feature_families.h"
#include "native/sim/observation_line.h"
#include "native/tests/worlds.h"

namespace steelyard::sim {
namespace {

using testing::cluster;
using testing::prepared;
using testing::rule;
using testing::seconds;

TEST(ObservationLine, GivesTheNewestThatIsOldEnough) {
  for (const core::TimeNs delay : {1, 4, 5, 7, 10, 15, 23}) {
    ObservationLine line(delay, 5, 1);
    ASSERT_EQ((line.offset() + delay) % 5, 0);
    ASSERT_LT(line.offset(), 5);
    core::TimeNs next = line.offset();
    for (core::TimeNs now = 0; now < 200; ++now) {
      if (now == next) {
        *line.take(now) = static_cast<float>(now);
        next += 5;
      }
      const float* got = line.arrived(now);
      const core::TimeNs latest = now - delay;
      if (latest < line.offset()) {
        ASSERT_EQ(got, nullptr) << delay << " " << now;
      } else {
        const core::TimeNs expected = latest - (latest - line.offset()) % 5;
        ASSERT_NE(got, nullptr) << delay << " " << now;
        ASSERT_EQ(*got, static_cast<float>(expected)) << delay << " " << now;
      }
    }
    line.clear();
    EXPECT_EQ(line.arrived(1000), nullptr);
  }
}

TEST(FeatureFamilies, CoverTheObservationTwice) {
  constexpr int kServers = 5;
  std::vector<int> measured(core::observation_size(kServers)), reduced(measured.size());
  for (size_t family = 0; family < core::kFeatureFamilies.size(); ++family) {
    const std::vector<std::string> one{std::string(core::kFeatureFamilies[family])};
    for (const int index : core::feature_indices(kServers, one))
      ++(family < core::kFirstReduction ? measured : reduced)[index];
  }
  EXPECT_EQ(measured, std::vector<int>(measured.size(), 1));
  for (int j = 0; j < kServers; ++j) {
    EXPECT_EQ(reduced[j * core::kServerFeatures], 0);  // a flow count is no reduction
    EXPECT_EQ(reduced[j * core::kServerFeatures + 1], 1);
    EXPECT_EQ(reduced[measured.size() - 1 - j], 0);  // nor is an action
  }
  EXPECT_TRUE(core::feature_indices(kServers, {}).empty());
  EXPECT_FALSE(core::is_feature_family("fcts"));
}

TEST(ClusterWorld, ACopyHasItsOwnObservationsOnTheWay) {
  ClusterConfig config = cluster(3, 2, 4.0, 30);
  config.observation_delay_s = 1.25;
  ClusterWorld world(prepared(config), rule("lsq"), 1);
  world.run_until(seconds(10));
  ClusterWorld copy = world;
  const size_t size = core::observation_size(3);
  std::vector<float> first(size), second(size);
  world.run_until(seconds(12));
  world.observe(0, first.data());
  copy.observe(0, second.data());
  EXPECT_NE(first, second);
  copy.run_until(seconds(12));
  copy.observe(0, second.data());
  EXPECT_EQ(first, second);
}

}  // namespace
}  // namespace steelyard::sim
