#include "native/sim/flow_schedule.h"

#include <cmath>
#include <stdexcept>
#include <string>

#include "native/core/rng.h"
#include "native/sim/arrivals.h"
#include "native/sim/streams.h"

namespace steelyard::sim {

namespace {

double demand_s(const ClusterConfig& config, uint64_t seed, uint64_t flow, uint32_t row) {
  double total = 0;
  for (size_t s = 0; s < config.stages.size(); ++s) {
    const Distribution& demand = config.stages[s].demand;
    total += demand.kind == DistributionKind::kTrace
                 ? config.trace->service_s()[row] * demand.a[0]
                 : demand.sample(core::draw(core::stream_key(seed, kStreamStage + s), flow));
  }
  return total;
}

}  // namespace

FlowSchedule flow_schedule(const std::shared_ptr<const ClusterConfig>& config, uint64_t seed) {
  for (size_t s = 0; s < config->stages.size(); ++s) {
    if (config->stages[s].kind == StageKind::kIo)
      throw std::invalid_argument("workload.stages." + std::to_string(s) +
                                  ".kind: 'io' cannot be asked of a real server; must be cpu");
  }
  for (size_t e = 0; e < config->events.size(); ++e) {
    if (config->events[e].kind == EventKind::kArrivalScale)
      throw std::invalid_argument("events." + std::to_string(e) +
                                  ".kind: 'arrival_scale' has no schedule that is fixed in advance");
  }
  FlowSchedule schedule;
  ArrivalProcess arrivals(config, seed);
  const double horizon_ns = config->horizon_s * 1e9;
  for (uint64_t flow = 0; static_cast<double>(arrivals.next()) <= horizon_ns; ++flow) {
    const uint32_t row = static_cast<uint32_t>(arrivals.trace_row());
    schedule.arrival_s.push_back(static_cast<double>(arrivals.next()) * 1e-9);
    schedule.demand_s.push_back(demand_s(*config, seed, flow, row));
    schedule.trace_row.push_back(row);
    arrivals.advance();
  }
  return schedule;
}

}  // namespace steelyard::sim
