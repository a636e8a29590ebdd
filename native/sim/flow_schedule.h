// The flows of a scenario without the world that serves them: when each arrives and what it asks for. A
// client that plays them against real servers meets the same flows as the simulator under the same seed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "native/sim/cluster_config.h"

namespace steelyard::sim {

struct FlowSchedule {
  std::vector<double> arrival_s;
  std::vector<double> demand_s;     // work of all CPU stages at speed 1
  std::vector<uint32_t> trace_row;  // 0 without a trace
};

// Every flow that arrives before the horizon. `config` must be prepared. std::invalid_argument for what a
// client cannot ask for: IO stages, and a timetable that changes the rate.
FlowSchedule flow_schedule(const std::shared_ptr<const ClusterConfig>& config, uint64_t seed);

}  // namespace steelyard::sim
