// The batch of racks: a step is one window of each world, bit for bit, whatever the batch, its threads or its
// mask; a copy of a world is a snapshot.
#include "native/sim/rack_batch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "native/core/rng.h"
#include "native/tests/rack_worlds.h"

namespace steelyard::sim {
namespace {

constexpr int kServers = 4, kWindows = 30;
constexpr size_t kNumbers = kServers * rack_observation_size(kServers);
constexpr size_t kWeights = 2 * kServers * kServers;

std::shared_ptr<const RackConfig> window_rack(int dispatchers = 0) {
  RackConfig config = testing::rack(kServers, 3, 0.9, 0.01);
  config.dispatchers = dispatchers;
  config.load_info = LoadInfo::kBroadcast;
  config.broadcast_period_s = 100e-6;
  config.message_delay.constant_s = config.task_delay.constant_s = 2e-6;
  return testing::prepared(config);
}

// Weights (2, N, N) that belong to a seed and a window.
std::vector<float> weights_of(uint64_t seed, int window) {
  std::vector<float> weights;
  for (size_t k = 0; k < kWeights; ++k) {
    const uint64_t word = core::draw(seed, static_cast<uint64_t>(window) * kWeights + k);
    weights.push_back(static_cast<float>(core::unit_open(word)));
  }
  return weights;
}

struct Bench {
  Bench(int envs, int threads, const RackReward& reward = {})
      : batch(window_rack(), envs, threads, reward),
        seen(static_cast<size_t>(envs) * kNumbers),
        paid(static_cast<size_t>(envs) * kServers),
        over(static_cast<size_t>(envs)) {
    batch.bind({seen.data(), paid.data(), over.data()});
  }
  void step(const std::vector<uint64_t>& seeds, int window, const uint8_t* active = nullptr) {
    std::vector<float> joint;
    for (const uint64_t seed : seeds) {
      const std::vector<float> one = weights_of(seed, window);
      joint.insert(joint.end(), one.begin(), one.end());
    }
    batch.step(joint.data(), active);
  }
  std::vector<float> numbers(size_t b) const {
    std::vector<float> all(&seen[b * kNumbers], &seen[b * kNumbers] + kNumbers);
    all.insert(all.end(), &paid[b * kServers], &paid[b * kServers] + kServers);
    return all;
  }

  RackBatch batch;
  std::vector<float> seen, paid;
  std::vector<uint8_t> over;
};

TEST(RackBatch, AWorldDoesNotDependOnItsNeighboursOrThreads) {
  const std::vector<uint64_t> seeds = {4, 7, 1, 90, 7};
  for (const int threads : {1, 2, 5, 9}) {
    Bench all(5, threads);
    all.batch.reset(seeds.data());
    std::vector<std::unique_ptr<Bench>> alone;
    for (const uint64_t seed : seeds) {
      alone.push_back(std::make_unique<Bench>(1, 1));
      alone.back()->batch.reset(&seed);
    }
    for (int window = 0; window < kWindows; ++window) {
      all.step(seeds, window);
      for (size_t b = 0; b < seeds.size(); ++b) {
        alone[b]->step({seeds[b]}, window);
        ASSERT_EQ(all.numbers(b), alone[b]->numbers(0));
        ASSERT_EQ(all.batch.world(static_cast<int>(b)).digest(), alone[b]->batch.world(0).digest());
      }
    }
    EXPECT_EQ(all.numbers(1), all.numbers(4));
    EXPECT_NE(all.numbers(0), all.numbers(1));
  }
}

TEST(RackBatch, AStepIsOneWindowOfTheWorld) {
  const uint64_t seed = 3;
  Bench bench(1, 1);
  bench.batch.reset(&seed);
  RackRule rule = testing::rack_rule("categorical");
  rule.decider = std::make_shared<CategoricalDecider>();
  RackWorld world(window_rack(), rule, seed);
  if (world.next_window() <= 2000) world.run_until(world.next_window());
  for (int window = 0; window < kWindows; ++window) {
    const std::vector<float> weights = weights_of(seed, window);
    static_cast<CategoricalDecider*>(world.decider())
        ->set({weights.data(), kWeights / 2}, {weights.data() + kWeights / 2, kWeights / 2});
    world.run_until(world.next_window());
    bench.step({seed}, window);
    ASSERT_EQ(bench.batch.world(0).now(), world.now());
    ASSERT_EQ(bench.batch.world(0).digest(), world.digest());
  }
  EXPECT_GT(world.completed(), 0U);
}

TEST(RackBatch, MasksFreezeAndCopiesAreSnapshots) {
  const std::vector<uint64_t> seeds = {1, 2};
  Bench bench(2, 2);
  bench.batch.reset(seeds.data());
  const uint8_t first_alone[] = {1, 0};
  const std::vector<float> frozen = bench.numbers(1);
  bench.step(seeds, 0, first_alone);
  EXPECT_EQ(bench.numbers(1), frozen);
  bench.batch.copy_world(0, 1);
  EXPECT_EQ(bench.numbers(1), bench.numbers(0));
  for (int window = 1; window < kWindows; ++window) bench.step({9, 9}, window);
  EXPECT_EQ(bench.numbers(1), bench.numbers(0));
  EXPECT_EQ(bench.batch.world(1).digest(), bench.batch.world(0).digest());
}

TEST(RackBatch, PhiIsPaidToAllAndTheHorizonTruncates) {
  RackReward reward;
  reward.potential = true;
  Bench bench(1, 1, reward);
  const uint64_t seed = 5;
  bench.batch.reset(&seed);
  int windows = 0;
  while (bench.over[0] == 0 && windows < 1000) {
    bench.step({seed}, windows++);
    for (const float paid : bench.paid) ASSERT_EQ(paid, bench.paid[0]);
    ASSERT_LE(bench.paid[0], 0.0F);
  }
  EXPECT_EQ(windows, 100);  // 10 ms of 100 us
}

TEST(RackBatch, RefusesWhatItCannotPlay) {
  EXPECT_THROW(RackBatch(window_rack(), 0, 1, {}), std::invalid_argument);
  EXPECT_THROW(RackBatch(window_rack(), 1, 0, {}), std::invalid_argument);
  EXPECT_THROW(RackBatch(window_rack(2), 1, 1, {}), std::invalid_argument);
  RackReward negative;
  negative.costs.steal = -1;
  EXPECT_THROW(RackBatch(window_rack(), 1, 1, negative), std::invalid_argument);
  RackReward no_unit;
  no_unit.load_unit_s = 0;
  EXPECT_THROW(RackBatch(window_rack(), 1, 1, no_unit), std::invalid_argument);
}

}  // namespace
}  // namespace steelyard::sim
