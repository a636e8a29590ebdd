// What is measured of an episode, in two conventions (network-lb.md "Numbers to reproduce").
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "native/core/types.h"

namespace steelyard::sim {

enum class Convention : uint8_t {
  kUncensored,  // every flow that arrives in the measured window, run to completion
  kPeer,        // flows completed by the horizon; those still in flight are dropped
};

struct FlowRecord {
  float opened_s;
  float
      sojourn_s;  // from the SYN at the balancer to the reply at the client; rejected: the configured penalty
  float service_s;  // over all stages, alone at the server's speed
  bool rejected;
  bool by_horizon;
};

// Summary of one episode; NaN where nothing was measured.
struct EpisodeStats {
  uint64_t flows = 0, rejected = 0, untracked = 0, events = 0;
  uint64_t arrived = 0;   // all flows simulated: measured ones and those of warm-up and drain
  uint64_t messages = 0;  // probes and their answers; those of all flows simulated
  double sojourn_mean_s = 0, sojourn_p50_s = 0, sojourn_p90_s = 0, sojourn_p95_s = 0, sojourn_p99_s = 0,
         sojourn_p999_s = 0;
  double slowdown_mean = 0;   // sojourn / service, served flows
  double waiting_mean_s = 0;  // sojourn - service, served flows (network included)
  double jain_mean = 0, makespan_mean = 0, overprovision_mean = 0;
};

// The state of the servers at one step boundary.
struct TimelinePoint {
  double t_s;
  std::vector<float> weights;    // (M, N)
  std::vector<float> in_system;  // (N,)
};

class Metrics {
 public:
  void reset(core::TimeNs warmup, core::TimeNs horizon, bool timeline);

  bool measures(core::TimeNs opened) const { return opened >= warmup_ && opened < horizon_; }
  void flow_opened(core::TimeNs opened) { outstanding_ += measures(opened) ? 1 : 0; }
  void flow_done(core::TimeNs opened, core::TimeNs replied, float service_s) {
    if (!measures(opened)) return;
    --outstanding_;
    const double sojourn_s = static_cast<double>(replied - opened) * 1e-9;
    sojourn_sum_ += sojourn_s;
    flows_.push_back({static_cast<float>(static_cast<double>(opened) * 1e-9), static_cast<float>(sojourn_s),
                      service_s, false, replied <= horizon_});
  }
  void flow_rejected(core::TimeNs opened, core::TimeNs at, double penalty_s);
  // Loads in_system_j / capacity_j at a step boundary.
  void sample_loads(core::TimeNs now, std::span<const double> loads);
  void count_event() { ++events_; }

  bool keeps_timeline() const { return keep_timeline_; }
  std::vector<TimelinePoint>& timeline() { return timeline_; }
  uint64_t outstanding() const { return outstanding_; }
  const std::vector<FlowRecord>& flows() const { return flows_; }
  uint64_t events() const { return events_; }
  // Mean sojourn of the flows recorded so far, rejections included; NaN when there is none. [s]
  double running_sojourn_s() const;
  uint64_t running_rejected() const { return rejected_; }
  double running_jain() const;
  EpisodeStats summarise(Convention convention) const;

 private:
  core::TimeNs warmup_ = 0, horizon_ = 0;
  bool keep_timeline_ = false;
  uint64_t outstanding_ = 0, events_ = 0, rejected_ = 0, samples_ = 0;
  double sojourn_sum_ = 0, jain_sum_ = 0, makespan_sum_ = 0, overprovision_sum_ = 0;
  std::vector<FlowRecord> flows_;
  std::vector<TimelinePoint> timeline_;
};

// (sum l)^2 / (n sum l^2); 1 when all are zero.
double jain_index(std::span<const double> l);

}  // namespace steelyard::sim
