// Service that is planned as tasks enter: when it may be, and what deciders and statistics see of it.
#include <algorithm>

#include "native/sim/rack.h"

namespace steelyard::sim {
namespace {

// What is there when a task enters alone decides when it will be done.
bool leaves_servers_alone(const RackConfig& config) {
  return std::none_of(config.events.begin(), config.events.end(), [](const RackEvent& event) {
    return event.kind == RackEventKind::kSpeed || event.kind == RackEventKind::kWorkers;
  });
}

bool looks_at_no_load(RackKind kind) {
  return kind == RackKind::kLocal || kind == RackKind::kRandom || kind == RackKind::kRoundRobin;
}

bool looks_at_loads(RackKind kind) {
  return kind == RackKind::kPowerOfD || kind == RackKind::kLeast || kind == RackKind::kBelow ||
         kind == RackKind::kIdle;
}

}  // namespace

// Before anything has arrived. Loads that are told at moments can be counted then; those that are kept up to
// date task by task, and work, cannot.
bool RackWorld::may_plan() const {
  const bool told = info_ == LoadInfo::kBroadcast && measure_ != LoadMeasure::kWork && looks_at_loads(kind_);
  return !planned_ && next_id_ == 0 && discipline_ == Discipline::kFcfs &&
         (told || looks_at_no_load(kind_)) && !may_steal_ && !hears_completions_ && !tracks_rates_ &&
         leaves_servers_alone(*config_);
}

void RackWorld::begin_planning() {
  planned_ = true;
  std::vector<uint32_t> workers;
  for (const RackNode& node : nodes_) workers.push_back(node.workers);
  plan_.reset(workers);
  entered_.assign(nodes_.size(), 0);
  counted_until_ = now_;
}

}  // namespace steelyard::sim
