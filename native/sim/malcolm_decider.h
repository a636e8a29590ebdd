// Malcolm inside the running rack (seed 000): one learner per server, fed by what happens at its server and
// by the broadcasts that reach it, with no Python in between.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "native/core/malcolm.h"
#include "native/sim/rack_decider.h"

namespace steelyard::sim {

// How the servers of a rack learn, and where they start.
struct MalcolmSetup {
  core::MalcolmConfig config;     // num_types is the rack's
  bool frozen = false;            // plays without learning
  std::vector<float> parameters;  // (N, P), as MalcolmServer::export_parameters has them; empty: drawn
  std::vector<uint8_t> learning;  // of a decider before, from learning(): goes on from there; or empty
  uint32_t curve_windows = 100;   // windows that a point of the curves is the mean of
};

// Means over the windows of a point; the counts are of the whole rack.
struct MalcolmPoint {
  double t_s = 0;         // end
  double reward = 0;      // of the learners
  double potential = 0;   // phi = -I(x) - sum_i C_i (seed 000, eq. 4.1), x in load_unit_s
  double imbalance = 0;   // I(x) [us], x as told
  double td_error = 0;    // absolute
  double migrations = 0;  // per window
  double steals = 0;      // asked for, per window
  double kept = 0;        // probability that a server keeps a task
};

class MalcolmDecider : public RackDecider {
 public:
  explicit MalcolmDecider(MalcolmSetup setup) : setup_(std::move(setup)) {}

  std::unique_ptr<RackDecider> clone() const override { return std::make_unique<MalcolmDecider>(*this); }
  void check(const RackConfig& config) const override;
  // The servers are as the setup has them: an episode does not depend on the one before it.
  void reset(const RackConfig& config, uint64_t seed) override;
  int migrate(int i, uint32_t type, uint64_t word) override;
  int steal(int i, uint64_t word) override;
  void on_window(core::TimeNs now) override;
  // The report's load becomes what the server says: tasks over its rate [s].
  LoadReport on_broadcast(int i, const LoadReport& report) override;
  void on_load(int i, int j, const LoadReport& report) override;
  void on_accept(int i, uint32_t type) override;
  void on_completion(int i, uint32_t type, double service_s) override;
  void on_stolen(int i, uint32_t type) override;
  void on_workers(int i, uint32_t workers) override;

  const std::vector<core::MalcolmServer>& servers() const { return servers_; }
  const std::vector<MalcolmPoint>& curve() const { return curve_; }
  std::vector<float> parameters() const;  // (N, P)
  std::vector<uint8_t> learning() const;
  void set_frozen(bool frozen);
  uint64_t windows() const { return windows_; }
  uint64_t consensus_rounds() const { return consensus_rounds_; }
  uint64_t consensus_bytes() const { return consensus_bytes_; }

 private:
  core::MalcolmConfig config_for(const RackConfig& config) const;
  void note_window(core::TimeNs now);

  MalcolmSetup setup_;
  std::vector<core::MalcolmServer> servers_;
  std::vector<float> told_us_;  // (N,) followed by 8 zeros
  MalcolmPoint sums_;
  std::vector<MalcolmPoint> curve_;
  uint64_t windows_ = 0, consensus_rounds_ = 0, consensus_bytes_ = 0;
  uint32_t moves_migrated_ = 0, moves_stolen_ = 0;  // told since the last window
};

}  // namespace steelyard::sim
