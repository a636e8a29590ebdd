#include "native/sim/runner.h"

#include <atomic>
#include <ctime>
#include <exception>
#include <mutex>
#include <thread>

namespace steelyard::sim {
namespace {

double thread_cpu_s() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

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
  std::vector<EpisodeResult> results(seeds.size());
  std::vector<uint8_t> done(seeds.size(), 0);
  std::atomic<size_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_lock;
  const auto work = [&](bool polls) {
    try {
      std::unique_ptr<ClusterWorld> world;
      for (size_t k = next++; k < seeds.size(); k = next++) {
        if (!world) world = std::make_unique<ClusterWorld>(config, rule, seeds[k]);
        results[k] = run_one(*world, seeds[k], convention, details);
        done[k] = 1;
        if (polls && stop && stop()) next = seeds.size();
      }
    } catch (...) {
      const std::lock_guard<std::mutex> guard(failure_lock);
      failure = std::current_exception();
      next = seeds.size();
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads; ++i) helpers.emplace_back(work, false);
  work(true);
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
  std::vector<EpisodeResult> finished;
  for (size_t k = 0; k < results.size(); ++k) {
    if (done[k]) finished.push_back(std::move(results[k]));
  }
  return finished;
}

}  // namespace steelyard::sim
