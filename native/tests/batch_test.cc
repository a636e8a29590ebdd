// The batch: step is act and run_until of each world bit for bit, whatever the batch, its threads or its
// mask.
#include "native/sim/batch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "native/tests/worlds.h"

namespace steelyard::sim {
namespace {

using testing::cluster;
using testing::prepared;
using testing::rule;
using testing::word;

constexpr int kAgents = 3, kServers = 4, kSteps = 40;

std::shared_ptr<const ClusterConfig> world_config() {
  ClusterConfig config = cluster(kServers, kAgents, 3.0, 20);
  config.hop_low_s = 1e-4;
  config.hop_high_s = 1e-3;
  config.actuation_delay_s = 0.1;
  return prepared(config);
}

// A batch with its buffers.
struct Bench {
  Bench(int envs, int threads, const char* reward = "vbf", const char* measure = "durations")
      : batch(world_config(), envs, threads, reward, measure),
        seen(envs * kAgents * core::observation_size(kServers)),
        paid(envs * kAgents),
        over(envs) {
    batch.bind({seen.data(), paid.data(), over.data()});
  }
  const float* world(int b) const { return &seen[b * kAgents * core::observation_size(kServers)]; }

  ClusterBatch batch;
  std::vector<float> seen, paid;
  std::vector<uint8_t> over;
};

// (M, N) actions that belong to a seed and a step.
std::vector<float> actions(uint64_t seed, int step) {
  std::vector<float> a;
  for (int k = 0; k < kAgents * kServers; ++k) {
    a.push_back(static_cast<float>(2 * core::unit_open(word(seed * 100000 + step * 100 + k)) - 1));
  }
  return a;
}

std::vector<float> joint(const std::vector<uint64_t>& seeds, int step) {
  std::vector<float> all;
  for (const uint64_t seed : seeds) {
    const std::vector<float> one = actions(seed, step);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

TEST(Batch, StepIsActAndRunUntil) {
  const std::vector<uint64_t> seeds = {4, 7, 1, 90};
  for (const int threads : {1, 2, 4, 9}) {
    Bench bench(4, threads, "vbf+log_vbf");
    bench.batch.reset(seeds.data());
    std::vector<ClusterWorld> worlds;
    for (const uint64_t seed : seeds) worlds.emplace_back(world_config(), rule("policy"), seed);
    Payoff payoff("vbf+log_vbf", "durations");
    std::vector<float> observed(core::observation_size(kServers)), paid(kAgents);
    for (int step = 0; step < kSteps; ++step) {
      bench.batch.step(joint(seeds, step).data(), nullptr);
      for (int b = 0; b < 4; ++b) {
        const std::vector<float> a = actions(seeds[b], step);
        for (int i = 0; i < kAgents; ++i) worlds[b].act(i, &a[i * kServers]);
        worlds[b].run_until(worlds[b].now() + worlds[b].step_ns());
        for (int i = 0; i < kAgents; ++i) {
          worlds[b].observe(i, observed.data());
          for (size_t d = 0; d < observed.size(); ++d) {
            ASSERT_EQ(bench.world(b)[i * observed.size() + d], observed[d])
                << "agent " << i << ", feature " << d;
          }
        }
        payoff(worlds[b], paid.data());
        for (int i = 0; i < kAgents; ++i) ASSERT_EQ(bench.paid[b * kAgents + i], paid[i]);
        ASSERT_EQ(bench.over[b], step == kSteps - 1 ? 1 : 0);
        ASSERT_EQ(bench.batch.world(b).digest(), worlds[b].digest());
      }
    }
  }
}

TEST(Batch, ResetWritesObservationsAndNoReward) {
  const std::vector<uint64_t> seeds = {4, 7};
  Bench bench(2, 2);
  bench.batch.reset(seeds.data());
  for (int step = 0; step < 5; ++step) bench.batch.step(joint(seeds, step).data(), nullptr);
  const std::vector<float> other(bench.seen.begin() + static_cast<std::ptrdiff_t>(bench.seen.size() / 2),
                                 bench.seen.end());
  bench.batch.reset_world(0, 33);
  EXPECT_EQ(bench.paid[0], 0.0f);
  EXPECT_EQ(bench.over[0], 0);
  Bench fresh(1, 1);
  fresh.batch.reset_world(0, 33);
  for (size_t k = 0; k < fresh.seen.size(); ++k) ASSERT_EQ(bench.seen[k], fresh.seen[k]);
  for (size_t k = 0; k < other.size(); ++k) ASSERT_EQ(bench.seen[fresh.seen.size() + k], other[k]);
}

TEST(Batch, InactiveWorldsStayAsTheyAre) {
  const std::vector<uint64_t> seeds = {4, 7};
  Bench bench(2, 2), alone(1, 1);
  bench.batch.reset(seeds.data());
  alone.batch.reset(&seeds[1]);
  const uint8_t second[] = {0, 1};
  const std::vector<float> before(bench.seen.begin(),
                                  bench.seen.begin() + static_cast<std::ptrdiff_t>(alone.seen.size()));
  for (int step = 0; step < 5; ++step) {
    bench.batch.step(joint(seeds, step).data(), second);
    alone.batch.step(joint({7}, step).data(), nullptr);
    for (size_t k = 0; k < alone.seen.size(); ++k) {
      ASSERT_EQ(bench.seen[k], before[k]);
      ASSERT_EQ(bench.seen[alone.seen.size() + k], alone.seen[k]);
    }
  }
  EXPECT_EQ(bench.batch.world(0).now(), 0);
}

TEST(Batch, RefusesWhatIsNoNumberBeforeAnythingMoves) {
  const std::vector<uint64_t> seeds = {4, 7};
  Bench bench(2, 2);
  bench.batch.reset(seeds.data());
  std::vector<float> bad = joint(seeds, 0);
  bad.back() = std::nanf("");
  EXPECT_THROW(bench.batch.step(bad.data(), nullptr), std::invalid_argument);
  EXPECT_EQ(bench.batch.world(0).now(), 0);
  EXPECT_EQ(bench.batch.world(1).now(), 0);
  bench.batch.step(joint(seeds, 0).data(), nullptr);
  EXPECT_EQ(bench.batch.world(1).now(), bench.batch.world(1).step_ns());
}

TEST(Batch, RefusesBadShapes) {
  EXPECT_THROW(ClusterBatch(world_config(), 0, 1, "vbf", "durations"), std::invalid_argument);
  EXPECT_THROW(ClusterBatch(world_config(), 1, 0, "vbf", "durations"), std::invalid_argument);
  EXPECT_THROW(ClusterBatch(world_config(), 1, 1, "vbff", "durations"), std::invalid_argument);
}

}  // namespace
}  // namespace steelyard::sim
