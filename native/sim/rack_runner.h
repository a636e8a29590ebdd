// Whole episodes of racks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "native/sim/rack.h"

namespace steelyard::sim {

struct RackResult {
  uint64_t seed = 0;
  RackStats stats;
  uint64_t digest = 0;  // of every decision
  double cpu_s = 0;     // of the thread that ran it
  std::vector<RackMoment> timeline;
};

// One episode per seed; `drain`: every task that arrived in the measured time is run to its end, else those
// that are done by the horizon count. As run_episodes for `stop`.
std::vector<RackResult> run_racks(std::shared_ptr<const RackConfig> config, const RackRule& rule,
                                  const std::vector<uint64_t>& seeds, int threads, bool drain, bool timeline,
                                  const std::function<bool()>& stop);

}  // namespace steelyard::sim
