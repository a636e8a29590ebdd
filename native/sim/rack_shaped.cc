// Pallas in the world: planning, dispatch, clones and their twins, tasks that bounce after a change.
#include <algorithm>

#include "native/core/rng.h"
#include "native/sim/rack.h"

namespace steelyard::sim {

using core::TimeNs;

namespace {

constexpr uint64_t kPlanningSeed = 0x70616c6c6173;  // candidates meet the same tasks, whatever the episode
constexpr double kOneGroup = 1e12;
constexpr double kStarving = 2.0;  // times the p99 that a type has when nothing is shaped

bool starves(const RackStats& stats, const std::vector<double>& together_us) {
  for (size_t t = 0; t < together_us.size(); ++t)
    if (stats.by_type[t].quantile_us[2] > kStarving * together_us[t]) return true;
  return false;
}

}  // namespace

std::vector<double> RackWorld::capacities() const {
  std::vector<double> all;
  for (const RackServer& server : config_->servers) all.push_back(server.workers * server.speed);
  return all;
}

// Of the plans for 1, 2, ... groups, with and without hybrids, the one with the lowest p99 in a simulation of
// its own. The tail of all tasks does not see a rare type that starves: hence `starves`.
ShapePlan RackWorld::best_plan(const std::vector<double>& means_s, const std::vector<double>& ratios) const {
  auto trial = std::make_shared<RackConfig>(*config_);
  trial->events.clear();
  for (size_t t = 0; t < ratios.size(); ++t) trial->types[t].ratio = std::max(ratios[t], 1e-9);
  const double tasks = rule_.shaping.candidate_tasks;
  trial->horizon_s = 1.1 * tasks / arrivals_.mean_rate();
  trial->warmup_s = 0.1 * tasks / arrivals_.mean_rate();
  trial->arrival.kind = ArrivalKind::kPoisson;
  trial->arrival.rate = arrivals_.mean_rate();
  trial->prepare();
  RackRule rule = rule_;
  rule.shaping.adapt = rule.shaping.clone = false;
  ShapePlan best;
  double lowest = 0;
  std::vector<double> together_us;  // p99 of each type when all are one group
  std::vector<std::vector<int>> tried;
  for (size_t k = 1; k <= means_s.size(); ++k) {
    const std::vector<int> groups = group_types(means_s, ratios, static_cast<int>(k));
    if (std::find(tried.begin(), tried.end(), groups) != tried.end()) continue;
    tried.push_back(groups);
    const ShapePlan exact = provision(groups, means_s, ratios, capacities());
    for (const ShapePlan& plan : {exact, without_hybrids(exact, capacities())}) {
      if (plan.num_groups() == 0) continue;
      rule.shaping.plan = plan;
      RackWorld world(trial, rule, kPlanningSeed);
      world.drain();
      const RackStats stats = world.stats();
      const double p99 = rule.shaping.by_slowdown ? stats.all.slowdown[2] : stats.all.quantile_us[2];
      if (together_us.empty()) {
        for (const LatencyStats& type : stats.by_type) together_us.push_back(type.quantile_us[2]);
      } else if (!(p99 < lowest) || starves(stats, together_us)) {
        continue;
      }
      lowest = p99;
      best = plan;
    }
  }
  return best;
}

void RackWorld::set_up_shaping() {
  std::vector<double> means_s, ratios;
  for (const RackType& type : config_->types) {
    means_s.push_back(type.service.mean());
    ratios.push_back(type.ratio);
  }
  if (!first_plan_) first_plan_ = rule_.shaping.plan ? *rule_.shaping.plan : best_plan(means_s, ratios);
  shaper_ = Shaper(rule_.shaping, *first_plan_, means_s, ratios, capacities());
  for (uint32_t j = 0; j < nodes_.size(); ++j) darcs_[j] = darc_of(j);
  if (rule_.shaping.adapt) queue_.push(Event::make(monitor_ns(), kMonitor, 0, 0));
}

TimeNs RackWorld::monitor_ns() const {
  return std::max<TimeNs>(1, static_cast<TimeNs>(rule_.shaping.monitor_s * 1e9));
}

// One group's server is cFCFS, a hybrid reserves cores by type.
Darc RackWorld::darc_of(uint32_t j) const {
  std::vector<double> ratios = shaper_.ratios();
  for (size_t t = 0; t < ratios.size(); ++t) {
    const std::vector<double>& cores = shaper_.plan().cores[shaper_.plan().group_of[t]];
    double total = 0;
    for (const double c : cores) total += c;
    ratios[t] *= cores[j] / total;
  }
  const double within = shaper_.dedicated(static_cast<int>(j)) ? kOneGroup : config_->darc_within;
  return {shaper_.means_s(), ratios, static_cast<int>(nodes_[j].workers), within, 1.0, INT32_MAX};
}

void RackWorld::shape(uint32_t slot) {
  const uint32_t type = tasks_[slot].type;
  const int group = shaper_.plan().group_of[type];
  const int other = shaper_.count_arrival(type, now_);
  const int server = shaper_.next_of(group);
  const int second = other >= 0 ? shaper_.next_of(other) : server;
  if (second != server) {
    const uint32_t clone = new_slot();
    tasks_[clone] = tasks_[slot];
    tasks_[clone].twin = slot;
    tasks_[clone].clone = true;
    tasks_[slot].twin = clone;
    ++clones_;
    send(clone, second);
  }
  send(slot, server);
}

// A clone enters its server only if a core idles there.
bool RackWorld::turned_away(uint32_t slot) {
  RackTask& task = tasks_[slot];
  if (!task.clone || darcs_[task.server].has_idle()) return false;
  if (task.twin != kNobody) tasks_[task.twin].twin = kNobody;
  ++clones_dropped_;
  --nodes_[task.server].in_system;
  true_row_[task.server] -= 1;
  free_slots_.push_back(slot);
  return true;
}

// True when this is the first of the copies of a task to be done: the reply that counts.
bool RackWorld::first_reply(uint32_t slot) {
  RackTask& task = tasks_[slot];
  if (!task.clone || task.twin != kNobody)
    shaper_.count_completion(task.type, static_cast<double>(task.service_ns) * 1e-9);
  if (task.answered) return false;
  if (task.twin == kNobody) return true;
  RackTask& twin = tasks_[task.twin];
  twin.twin = kNobody;
  twin.answered = true;
  task.twin = kNobody;
  return true;
}

void RackWorld::monitor() {
  queue_.push(Event::make(now_ + monitor_ns(), kMonitor, 0, 0));
  if (!shaper_.demand_moved()) return;
  set_shape(best_plan(shaper_.means_s(), shaper_.ratios()));
}

// A new plan comes into force; waiting tasks that would now block shorter ones go back to the switch.
void RackWorld::set_shape(ShapePlan plan) {
  shaper_.set_plan(std::move(plan));
  ++plans_;
  for (uint32_t j = 0; j < nodes_.size(); ++j) {
    double shortest_s = 1e300;
    for (uint32_t t = 0; t < config_->types.size(); ++t)
      if (shaper_.hosts(static_cast<int>(j), t)) shortest_s = std::min(shortest_s, shaper_.means_s()[t]);
    const auto bounces = [&](uint32_t type) {
      return !shaper_.hosts(static_cast<int>(j), type) && shaper_.means_s()[type] > shortest_s;
    };
    Darc next = darc_of(j);
    std::vector<uint8_t> idle(nodes_[j].workers);
    for (uint32_t k = 0; k < nodes_[j].workers; ++k)
      idle[k] = calendar_.time_of(nodes_[j].first + k) == core::kNever;
    const std::vector<uint32_t> waiting = darcs_[j].empty_lines();
    darcs_[j] = std::move(next);
    darcs_[j].set_idle(std::move(idle));
    for (const uint32_t slot : waiting) {
      const uint32_t type = tasks_[slot].type;
      nodes_[j].line_ns -= tasks_[slot].service_ns;
      if (bounces(type)) {
        --nodes_[j].in_system;
        true_row_[j] -= 1;
        ++bounced_;
        queue_.push(Event::make(now_ + task_ns_, kBounce, slot, 0));
        continue;
      }
      const uint32_t core = darcs_[j].place(slot, type);
      if (core != Darc::kNone) {
        begin_service(j, nodes_[j].first + core, slot);
      } else {
        nodes_[j].line_ns += tasks_[slot].service_ns;
      }
    }
  }
}

void RackWorld::bounced(uint32_t slot) {
  send(slot, shaper_.next_of(shaper_.plan().group_of[tasks_[slot].type]));
}

}  // namespace steelyard::sim
