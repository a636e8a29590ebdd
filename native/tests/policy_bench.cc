// Time of one decision: steelyard_bench --benchmark_filter=Policy
#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <vector>

#include "native/core/hosted_policy.h"
#include "native/tests/policy_samples.h"

namespace steelyard::core {
namespace {

void run_policy(benchmark::State& state, PolicyInput input, PolicyOutput output) {
  const auto servers = static_cast<uint32_t>(state.range(0));
  const auto hidden = static_cast<uint32_t>(state.range(1));
  const std::vector<uint8_t> blob = blob_of(PolicyMaker(1).policy(servers, input, output, hidden));
  std::string error;
  HostedPolicy hosted(load_policy_bytes(blob.data(), blob.size(), &error), 1);
  const std::vector<float> obs(hosted.policy()->obs_size(), 0.5F);
  std::vector<float> action(servers);
  for (auto _ : state) {
    benchmark::DoNotOptimize(hosted.act(0, obs.data(), action.data()));
    benchmark::ClobberMemory();
  }
}

void PolicyFlatGru(benchmark::State& state) { run_policy(state, PolicyInput::kFlat, PolicyOutput::kTanh); }
void PolicyPerServerGru(benchmark::State& state) {
  run_policy(state, PolicyInput::kPerServer, PolicyOutput::kTanh);
}

// Servers, hidden units; 0 hidden units is the linear policy.
BENCHMARK(PolicyFlatGru)->Args({8, 64})->Args({8, 0})->Args({64, 64});
BENCHMARK(PolicyPerServerGru)->Args({8, 32})->Args({64, 32});

}  // namespace
}  // namespace steelyard::core
