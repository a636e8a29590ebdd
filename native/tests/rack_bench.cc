// Time of the rack world: steelyard_bench --benchmark_filter=Rack
#include <benchmark/benchmark.h>

#include <memory>

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
    world.run_until(world.horizon_ns());
    tasks += static_cast<int64_t>(world.metrics().measured());
  }
  state.SetItemsProcessed(tasks);
}

BENCHMARK(RackJsq)->Arg(8)->Arg(16)->Arg(32);

}  // namespace
}  // namespace steelyard::sim
