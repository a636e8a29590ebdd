#include "native/sim/runner.h"

#include "native/sim/seeds.h"

namespace steelyard::sim {
namespace {

EpisodeResult run_one(ClusterWorld& world, uint64_t seed, Convention convention, bool details) {
  const double before_s = thread_cpu_s();
  world.metrics().reset(0, 0, details);
  world.reset(seed);
  if (convention == Convention::kPeer) {
    world.run_until(world.horizon_ns());
  } else {
    world.drain();
  }
  EpisodeResult result;
  result.seed = seed;
  result.stats = world.metrics().summarise(convention);
  world.add_counts(result.stats);
  result.digest = world.digest();
  result.cpu_s = thread_cpu_s() - before_s;
  if (!details) return result;
  result.flows = world.metrics().flows();
  result.timeline = std::move(world.metrics().timeline());
  return result;
}

}  // namespace

std::vector<EpisodeResult> run_episodes(std::shared_ptr<const ClusterConfig> config,
                                        const core::RuleConfig& rule, const std::vector<uint64_t>& seeds,
                                        int threads, Convention convention, bool details,
                                        const std::function<bool()>& stop) {
  return for_each_seed<EpisodeResult>(
      seeds, threads, stop, [&](uint64_t seed) { return std::make_unique<ClusterWorld>(config, rule, seed); },
      [&](ClusterWorld& world, uint64_t seed) { return run_one(world, seed, convention, details); });
}

}  // namespace steelyard::sim
