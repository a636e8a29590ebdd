// Whole episodes: one world a seed, several threads, results in the order of the seeds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "native/sim/cluster.h"

namespace steelyard::sim {

struct EpisodeResult {
  uint64_t seed = 0;
  EpisodeStats stats;
  uint64_t digest = 0;            // of every decision
  double cpu_s = 0;               // of the thread that ran it
  std::vector<FlowRecord> flows;  // when details are asked for
  std::vector<TimelinePoint> timeline;
};

// Runs one episode per seed to the end of the convention (kUncensored drains). `stop` is polled between
// episodes; when it says true, the episodes not yet begun are left out of the result.
std::vector<EpisodeResult> run_episodes(std::shared_ptr<const ClusterConfig> config,
                                        const core::RuleConfig& rule, const std::vector<uint64_t>& seeds,
                                        int threads, Convention convention, bool details,
                                        const std::function<bool()>& stop);

}  // namespace steelyard::sim
