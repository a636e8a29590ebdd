// Time of the rack world: steelyard_bench --benchmark_filter=Rack
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <vector>

#include "native/core/rng.h"
#include "native/sim/rack.h"

namespace steelyard::sim {
namespace {

// Servers of 8 workers, exponential tasks of 50 us at 85 % load that arrive at the servers; loads broadcast
// every 100 us at a delay of 2 us, migration takes 2 us.
std::shared_ptr<const RackConfig> rack(int servers, double horizon_s) {
  auto config = std::make_shared<RackConfig>();
  config->servers.assign(servers, {.workers = 8, .speed = 1});
  RackType type;
  type.service.a = {50e-6};
  config->types = {type};
  config->arrival.rate = 0.85 * servers * 8 / 50e-6;
  config->task_delay.constant_s = 2e-6;
  config->message_delay.constant_s = 2e-6;
  config->horizon_s = horizon_s;
  config->prepare();
  return config;
}

// A whole task, JSQ over stale loads (items are tasks); the argument is the number of servers.
void RackJsq(benchmark::State& state) {
  const int servers = static_cast<int>(state.range(0));
  RackRule rule;
  rule.traits = find_rack_rule("jsq");
  rule.increments = true;
  RackWorld world(rack(servers, 0.8 / servers), rule, 0);
  uint64_t seed = 0;
  int64_t tasks = 0;
  for (auto _ : state) {
    world.reset(seed++);
    world.drain();
    tasks += static_cast<int64_t>(world.metrics().measured());
  }
  state.SetItemsProcessed(tasks);
}

BENCHMARK(RackJsq)->Arg(8)->Arg(16)->Arg(32);

// What the machine takes for the two things that any engine does for each event: an exponential draw through
// the logarithm of the standard library, and the next event of a standard heap (the argument is its size).
void RackReferenceDraw(benchmark::State& state) {
  uint64_t key = 0;
  double sum = 0;
  for (auto _ : state) {
    const uint64_t word = core::draw(1, key++);
    sum += -std::log(static_cast<double>((word >> 11) + 1) * 0x1p-53);
  }
  benchmark::DoNotOptimize(sum);
}

void RackReferenceHeap(benchmark::State& state) {
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> heap;
  for (uint64_t k = 0; k < static_cast<uint64_t>(state.range(0)); ++k)
    heap.push(static_cast<int64_t>(core::draw(2, k) >> 44));
  uint64_t key = 0;
  for (auto _ : state) {
    const int64_t next = heap.top() + static_cast<int64_t>(core::draw(3, key++) >> 44);
    heap.pop();
    heap.push(next);
  }
}

BENCHMARK(RackReferenceDraw);
BENCHMARK(RackReferenceHeap)->Arg(64)->Arg(256)->Arg(8192);

}  // namespace
}  // namespace steelyard::sim
