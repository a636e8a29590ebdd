// Pallas: workload shaping (Liao et al., ATC'25; seed 003). A switch that reads the type of a task sends it
// to the group of servers made for its kind, in weighted round robin.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "native/core/types.h"

namespace steelyard::sim {

// Which types go together, and where.
struct ShapePlan {
  std::vector<int> group_of;  // (T,) type -> group
  std::vector<std::vector<double>>
      cores;  // (G, N) cores that a group has on each server: its dispatch weights

  int num_groups() const { return static_cast<int>(cores.size()); }
};

struct RackShaping {
  std::optional<ShapePlan> plan;  // given: no other is looked for at the start
  int candidate_tasks = 20000;    // simulated for each candidate
  bool by_slowdown = false;       // candidates by p99 of slowdown, not of latency
  bool adapt = true;              // watch the demand, plan anew
  double monitor_s = 10e-3;
  double ewma = 0.125;  // weight of the newest interval
  double delta = 0.1;   // of the types' shares of demand, absolute changes summed
  bool clone = false;   // bursts
  double burst_s = 20e-6;
};

// k groups of types by k-means on (mean, ratio), each over its greatest; groups from short to long. Fewer
// when fewer points are distinct.
std::vector<int> group_types(std::span<const double> means_s, std::span<const double> ratios, int k);

// Cores by demand, E_g ratio_g / sum; servers filled group by group, so that at most G - 1 of them are
// hybrid.
ShapePlan provision(const std::vector<int>& group_of, std::span<const double> means_s,
                    std::span<const double> ratios, std::span<const double> capacities);

// The same with every hybrid given to the group that has most of it; no groups when there is no hybrid, or
// when a group would have no server. For groups whose few cores on a hybrid are lost to shorter ones.
ShapePlan without_hybrids(const ShapePlan& plan, std::span<const double> capacities);

// The switch at work under one plan.
class Shaper {
 public:
  Shaper() = default;
  Shaper(const RackShaping& config, ShapePlan plan, std::span<const double> means_s,
         std::span<const double> ratios, std::span<const double> capacities);

  // The next server of a group.
  int next_of(int group);
  // A task of this type comes at `now`. The group that gets a clone of it, itself not full; -1: none.
  int count_arrival(uint32_t type, core::TimeNs now);
  void count_completion(uint32_t type, double service_s) {
    served_s_[type] += service_s;
    ++completed_[type];
  }
  // The end of an interval of watching: whether demand has moved from the plan's.
  bool demand_moved();
  // Mean service and share of arrivals by type, as watched.
  const std::vector<double>& means_s() const { return means_s_; }
  const std::vector<double>& ratios() const { return ratios_; }
  const ShapePlan& plan() const { return plan_; }
  void set_plan(ShapePlan plan);
  bool hosts(int server, uint32_t type) const { return plan_.cores[plan_.group_of[type]][server] > 0; }
  bool dedicated(int server) const;

 private:
  std::vector<double> shares() const;

  RackShaping config_;
  ShapePlan plan_;
  std::vector<double> means_s_, ratios_, capacities_;
  std::vector<double> planned_;              // shares of demand by type, when planned
  std::vector<std::vector<double>> credit_;  // smooth weighted round robin
  std::vector<double> total_;                // cores of a group
  std::vector<double> limit_;                // tasks that a group finishes in a burst window
  std::vector<uint32_t> in_window_;          // by group
  core::TimeNs window_end_ = 0, window_ns_ = 1;
  std::vector<uint32_t> arrived_, completed_;  // by type, since the last look
  std::vector<double> served_s_;
};

}  // namespace steelyard::sim
