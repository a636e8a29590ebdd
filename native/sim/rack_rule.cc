#include "native/sim/rack_rule.h"

#include <array>
#include <string>

#include "native/sim/checks.h"

namespace steelyard::sim {
namespace {

constexpr std::array<RackTraits, 17> kRules{{
    {.name = "local", .kind = RackKind::kLocal, .summary = "Tasks stay where they arrive."},
    {.name = "random", .kind = RackKind::kRandom, .summary = "Any server."},
    {.name = "round_robin", .kind = RackKind::kRoundRobin, .summary = "Servers in turn, per decider."},
    {.name = "power_of_d", .kind = RackKind::kPowerOfD, .summary = "The least loaded of d random servers."},
    {.name = "jsq", .kind = RackKind::kLeast, .summary = "The least load."},
    {.name = "sed", .kind = RackKind::kLeast, .summary = "The least (load + 1) / capacity."},
    {.name = "least_work_left",
     .kind = RackKind::kLeast,
     .measure = LoadMeasure::kWork,
     .summary = "The least remaining work per capacity."},
    {.name = "jbt", .kind = RackKind::kBelow, .summary = "A server whose load is below the threshold."},
    {.name = "jiq", .kind = RackKind::kIdle, .summary = "A server with an idle worker."},
    {.name = "jbsq",
     .kind = RackKind::kBounded,
     .central = true,
     .info = LoadInfo::kOutstanding,
     .summary = "The shortest bounded queue; tasks wait at the dispatcher."},
    {.name = "cfcfs",
     .kind = RackKind::kBounded,
     .central = true,
     .info = LoadInfo::kOutstanding,
     .summary = "One queue for all workers of the rack."},
    {.name = "racksched",
     .kind = RackKind::kPowerOfD,
     .central = true,
     .info = LoadInfo::kExact,
     .summary = "Central power of two on exact loads."},
    {.name = "sparrow",
     .kind = RackKind::kLateBinding,
     .summary = "Reservations at d servers; the first free worker gets the task."},
    {.name = "decider",
     .kind = RackKind::kDecider,
     .info = LoadInfo::kBroadcast,
     .summary = "A policy that is given with the rule."},
    {.name = "categorical",
     .kind = RackKind::kDecider,
     .info = LoadInfo::kBroadcast,
     .summary = "Servers draw from distributions that an environment sets."},
    {.name = "pallas",
     .kind = RackKind::kShaped,
     .central = true,
     .info = LoadInfo::kExact,
     .summary = "Types shaped into groups of servers."},
    {.name = "malcolm",
     .kind = RackKind::kDecider,
     .info = LoadInfo::kBroadcast,
     .summary = "Servers draw from distributions that they learn as they go."},
}};

void check_plan(const ShapePlan& plan, const RackConfig& config) {
  if (plan.group_of.size() != config.types.size())
    refuse("rule.shaping.group_of", static_cast<double>(plan.group_of.size()),
           std::to_string(config.types.size()) + " groups, one per type");
  if (plan.cores.empty()) throw std::invalid_argument("rule.shaping.cores: empty; give a row per group");
  for (const int group : plan.group_of) in_range("rule.shaping.group_of", group, 0, plan.num_groups() - 1);
  for (const std::vector<double>& row : plan.cores) {
    if (row.size() != config.servers.size())
      refuse("rule.shaping.cores", static_cast<double>(row.size()),
             std::to_string(config.servers.size()) + " numbers a row, one per server");
    double total = 0;
    for (const double cores : row) {
      in_range("rule.shaping.cores", cores, 0, 1e9);
      total += cores;
    }
    positive("rule.shaping.cores", total);
  }
}

void check_shaping(const RackShaping& shaping, const RackConfig& config) {
  in_range("rule.shaping.candidate_tasks", shaping.candidate_tasks, 1000, 1e9);
  in_range("rule.shaping.monitor_s", shaping.monitor_s, 1e-9, 1e6);
  in_range("rule.shaping.burst_s", shaping.burst_s, 1e-9, 1e6);
  if (!(shaping.ewma > 0 && shaping.ewma <= 1))
    refuse("rule.shaping.ewma", shaping.ewma, "a number in (0, 1]");
  positive("rule.shaping.delta", shaping.delta);
  if (shaping.plan) check_plan(*shaping.plan, config);
  if (config.arrival.kind == ArrivalKind::kTrace)
    throw std::invalid_argument("workload.arrival.kind: pallas plans by a rate; a replayed trace has none");
  for (const RackEvent& event : config.events) {
    if (event.kind == RackEventKind::kWorkers)
      throw std::invalid_argument("events: pallas plans for the configured workers; they cannot change");
  }
}

}  // namespace

std::span<const RackTraits> all_rack_rules() { return kRules; }

const RackTraits* find_rack_rule(std::string_view name) {
  for (const RackTraits& rule : kRules) {
    if (rule.name == name) return &rule;
  }
  return nullptr;
}

LoadInfo RackRule::info_of(const RackConfig& config) const {
  return traits->info ? *traits->info : info.value_or(config.load_info);
}

LoadMeasure RackRule::measure_of(const RackConfig& config) const {
  if (info_of(config) == LoadInfo::kOutstanding) return LoadMeasure::kTasks;
  return traits->measure.value_or(config.load_measure);
}

void RackRule::check(const RackConfig& config) const {
  const int n = config.num_servers();
  in_range("rule.d", d, 1, 64);
  if (!(threshold >= 0)) refuse("rule.threshold", threshold, "a number of at least 0");
  in_range("rule.bound", bound, 1, 1e6);
  in_range("rule.rtt_s", rtt_s, 0, 1e6);
  if (!weights.empty() && static_cast<int>(weights.size()) != n)
    refuse("rule.weights", static_cast<double>(weights.size()), std::to_string(n) + " weights or none");
  for (const double weight : weights) positive("rule.weights", weight);
  if (traits->kind == RackKind::kShaped) check_shaping(shaping, config);
  if (traits->kind == RackKind::kLateBinding && config.discipline != Discipline::kFcfs)
    throw std::invalid_argument("rack.discipline: late binding needs fcfs");
  if (traits->kind == RackKind::kDecider) {
    if (!decider) throw std::invalid_argument("rule.decider: none given; rule \"decider\" needs one");
    if (config.dispatchers > 0)
      refuse("rack.dispatchers", config.dispatchers, "0: a decider's policy plays the servers");
    decider->check(config);
  }
}

}  // namespace steelyard::sim
