#include "native/sim/rack_runner.h"

#include <utility>

#include "native/sim/seeds.h"

namespace steelyard::sim {

std::vector<RackResult> run_racks(std::shared_ptr<const RackConfig> config, const RackRule& rule,
                                  const std::vector<uint64_t>& seeds, int threads, bool drain, bool timeline,
                                  const std::function<bool()>& stop) {
  const auto run = [&](RackWorld& world, uint64_t seed) {
    const double before_s = thread_cpu_s();
    world.metrics().keep_timeline(timeline);
    world.reset(seed);
    if (drain) {
      world.drain();
    } else {
      world.run_until(world.horizon_ns());
    }
    RackResult result;
    result.seed = seed;
    result.stats = world.stats();
    result.digest = world.digest();
    result.cpu_s = thread_cpu_s() - before_s;
    result.timeline = std::move(world.metrics().timeline());
    return result;
  };
  return for_each_seed<RackResult>(
      seeds, threads, stop, [&](uint64_t seed) { return std::make_unique<RackWorld>(config, rule, seed); },
      run);
}

}  // namespace steelyard::sim
