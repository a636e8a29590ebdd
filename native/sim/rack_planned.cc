// Service that is planned as tasks enter: when it may be, and what deciders and statistics see of it.
#include <algorithm>

#include "native/sim/rack.h"
#include "native/sim/rack_path.h"

namespace steelyard::sim {

using core::TimeNs;

namespace {

// At the latest after so many arrivals tasks enter, so that not many are kept.
constexpr uint64_t kMostArrivals = 64;

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
  entries_.reset(nodes_.size());
  sees_entries_ = patches_own_ && looks_at_loads(kind_);
  entered_.assign(nodes_.size(), 0);
  counted_until_ = now_;
}

inline PlannedEntry RackWorld::entry_of(const RackTask& task, TimeNs at) const {
  return {at, task.arrived - reply_of(task), task.service_ns, task.server,
          metrics_.measures(task.arrived) ? task.type : PlannedEntry::kUnmeasured};
}

[[gnu::always_inline]] inline void RackWorld::serve(const PlannedEntry& entry) {
  const int64_t time_ns = time_at(nodes_[entry.server], entry.service_ns);
  const TimeNs done = plan_.enter(entry.server, entry.at, time_ns);
  ++entered_[entry.server];
  if (entry.type == PlannedEntry::kUnmeasured) return;
  last_done_ = std::max(last_done_, done);
  metrics_.measured_task_done(done - entry.since, entry.service_ns, entry.type);
}

// A task that travelled for a time of its own is there now.
void RackWorld::enter_planned(uint32_t slot) {
  serve(entry_of(tasks_[slot], now_));
  free_slots_.push_back(slot);
}

void RackWorld::enter_until(TimeNs t) {
  events_ += entries_.take_until(t, [this](const PlannedEntry& entry) { serve(entry); });
}

[[gnu::always_inline]] inline void RackWorld::arrive_planned() {
  RackTask task = next_task();
  // All that a decider sees of entries is its own server.
  if ((sees_entries_ && entries_.may_enter(task.decider, now_)) || task.id % kMostArrivals == 0)
    enter_until(now_);
  const bool away = assign(task, choose(task.decider, task.id, task.type));
  if (task_jitter_ && away) [[unlikely]] {
    const uint32_t slot = take_slot();
    tasks_[slot] = task;
    return send_alone(slot);
  }
  entries_.push(entry_of(task, now_ + task_ns_ * away), task_ns_ > 0 && away);
}

// At equal times: messages and the timetable, then ends of service, tasks on their way, arrivals.
void RackWorld::run_planned(TimeNs t) {
  for (;;) {
    TimeNs until = std::min(queue_.next_time() - 1, t);
    while (arrivals_.next() <= until) {
      now_ = counted_until_ = arrivals_.next();
      ++events_;
      arrive_planned();
      if (task_jitter_) until = std::min(queue_.next_time() - 1, t);
    }
    enter_until(until);
    if (until == t) break;
    now_ = queue_.next_time();
    counted_until_ = now_ - 1;
    ++events_;
    dispatch(queue_.pop());
  }
  now_ = counted_until_ = t;
  completed_ = 0;
  for (uint32_t j = 0; j < nodes_.size(); ++j) {
    settle(j);
    totals_[j].completions = entered_[j] - nodes_[j].in_system;
    completed_ += totals_[j].completions;
  }
}

}  // namespace steelyard::sim
