// Time of the cluster world: steelyard_bench --benchmark_filter=Cluster
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "native/core/delay_keys.h"
#include "native/core/reservoir.h"
#include "native/core/rng.h"
#include "native/core/select.h"
#include "native/sim/batch.h"
#include "native/sim/cluster.h"

namespace steelyard::sim {
namespace {

// The scenario cluster-a-cpu: 2 balancers, 4 x 4 + 4 x 2 workers, 20.28 flows/s of mean demand 1 s.
std::shared_ptr<const ClusterConfig> cluster_a(bool features, double horizon_s) {
  auto config = std::make_shared<ClusterConfig>();
  config->num_load_balancers = 2;
  for (int j = 0; j < 8; ++j) {
    ServerConfig server;
    server.workers = j < 4 ? 4 : 2;
    config->servers.push_back(server);
  }
  StageConfig stage;
  stage.demand.a = {1.0};
  config->stages = {stage};
  config->arrival.rate = 20.28;
  config->hop_low_s = 1e-4;
  config->hop_high_s = 1e-3;
  config->node_low_s = 1e-6;
  config->node_high_s = 1e-5;
  config->features = features;
  config->horizon_s = horizon_s;
  config->prepare();
  return config;
}

// Decision and queueing of SED, per flow (items are flows); the argument turns the reservoirs on.
void ClusterSed(benchmark::State& state) {
  constexpr double kHorizonS = 2000;
  core::RuleConfig rule;
  rule.traits = core::find_rule("sed");
  rule.weights = {4, 4, 4, 4, 2, 2, 2, 2};
  ClusterWorld world(cluster_a(state.range(0) != 0, kHorizonS), rule, 0);
  uint64_t seed = 0;
  int64_t flows = 0;
  for (auto _ : state) {
    world.reset(seed++);
    world.run_until(world.horizon_ns());
    flows += static_cast<int64_t>(world.metrics().flows().size());
  }
  state.SetItemsProcessed(flows);
}

// Joint steps of the batched environment with full observations (items are steps of one world).
void ClusterBatchStep(benchmark::State& state) {
  const int worlds = static_cast<int>(state.range(0));
  const auto config = cluster_a(true, 1e6);
  ClusterBatch batch(config, worlds, 1, "vbf", "durations");
  const size_t agents = static_cast<size_t>(worlds) * config->num_load_balancers;
  std::vector<float> observations(agents * core::observation_size(config->num_servers()));
  std::vector<float> rewards(agents), actions(agents * config->servers.size(), 0.1F);
  std::vector<uint8_t> truncated(worlds);
  std::vector<uint64_t> seeds(worlds);
  for (int b = 0; b < worlds; ++b) seeds[b] = static_cast<uint64_t>(b);
  batch.bind({observations.data(), rewards.data(), truncated.data()});
  batch.reset(seeds.data());
  for (auto _ : state) batch.step(actions.data(), nullptr);
  state.SetItemsProcessed(state.iterations() * worlds);
}

// One reduction of a full reservoir; the argument says whether a sample came since the last one.
void ReservoirReduce(benchmark::State& state) {
  core::Reservoir reservoir(1);
  core::TimeNs now = 0;
  const auto add = [&] {
    now += 50'000'000;
    reservoir.add(now, static_cast<float>(core::unit_open(core::draw(2, static_cast<uint64_t>(now)))));
  };
  for (int k = 0; k < 1000; ++k) add();
  for (auto _ : state) {
    if (state.range(0) != 0) add();
    benchmark::DoNotOptimize(reservoir.reduce(now));
  }
}

// One choice among all servers, of unpredictable loads: by the loop over integers, and by keys.
struct ArgminPool {
  explicit ArgminPool(const benchmark::State& state) : servers(static_cast<size_t>(state.range(0))) {
    for (size_t j = 0; j < servers; ++j) {
      members.push_back(static_cast<core::ServerId>(j));
      weight.push_back((j < servers / 2 ? 4 : 2) * core::kUnitWeight);
    }
    load.resize(servers);
  }
  size_t servers;
  std::vector<core::ServerId> members;
  std::vector<uint32_t> load;
  std::vector<core::WeightQ16> weight;
  uint64_t key = 0;
};

void Argmin(benchmark::State& state) {
  ArgminPool pool(state);
  for (auto _ : state) {
    const uint64_t word = core::draw(3, pool.key++);
    pool.load[word % pool.servers] = static_cast<uint32_t>(word >> 60);
    benchmark::DoNotOptimize(
        core::argmin_expected_delay(pool.members, pool.load.data(), pool.weight.data(), word));
  }
}

void ArgminByKeys(benchmark::State& state) {
  ArgminPool pool(state);
  core::DelayKeys keys(static_cast<int>(pool.servers));
  keys.build(pool.members, pool.load.data(), pool.weight.data());
  for (auto _ : state) {
    const uint64_t word = core::draw(3, pool.key++);
    const size_t j = word % pool.servers;
    keys.update(static_cast<core::ServerId>(j), static_cast<uint32_t>(word >> 60), pool.weight[j]);
    benchmark::DoNotOptimize(
        pool.members[keys.first_least(core::below(word, static_cast<uint32_t>(pool.servers)))]);
  }
}

BENCHMARK(ClusterSed)->Arg(0)->Arg(1);
BENCHMARK(ClusterBatchStep)->Arg(1)->Arg(64);
BENCHMARK(ReservoirReduce)->Arg(0)->Arg(1);
BENCHMARK(Argmin)->Arg(8)->Arg(16)->Arg(64);
BENCHMARK(ArgminByKeys)->Arg(8)->Arg(16)->Arg(64);

}  // namespace
}  // namespace steelyard::sim
