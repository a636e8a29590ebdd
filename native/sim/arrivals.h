// Arrival processes. The k-th arrival of a (scenario, seed) is the same whatever the policies do.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "native/core/types.h"
#include "native/sim/cluster_config.h"
#include "native/sim/exponential.h"

namespace steelyard::sim {

// Poisson, Markov-modulated Poisson and diurnal processes by time change: arrival k comes when the integrated
// rate since arrival k-1 reaches a unit-exponential draw keyed by k. A trace is replayed in a circle from a
// row drawn per seed.
class ArrivalProcess {
 public:
  // `trace` is needed by the kind that replays one.
  ArrivalProcess(std::shared_ptr<const ArrivalConfig> config, std::shared_ptr<const Trace> trace,
                 uint64_t seed);
  ArrivalProcess(const std::shared_ptr<const ClusterConfig>& config, uint64_t seed)
      : ArrivalProcess({config, &config->arrival}, config->trace, seed) {}

  // Time of the next arrival; pure until `advance`.
  core::TimeNs next() const { return next_; }
  // Moves on to the following arrival.
  void advance() {
    if (mean_gap_s_ == 0) return advance_unevenly();
    next_s_ += gaps_.at(count_++) * mean_gap_s_;
    next_ = in_ns(next_s_);
  }
  // From `now` on the rate is `factor` times the configured one (timetable). Not for traces.
  void scale(core::TimeNs now, double factor);
  // Long-run arrivals per second at the present scale. Not for traces.
  double mean_rate() const;
  // Trace row of the arrival that `next` announces.
  size_t trace_row() const { return row_; }

 private:
  struct Segment {
    double start_s, end_s, rate;
  };
  static core::TimeNs in_ns(double t_s) {
    return t_s < 9e9 ? static_cast<core::TimeNs>(t_s * 1e9 + 0.5) : core::kNever;
  }
  void advance_unevenly();
  double time_after(double from_s, double area);
  double diurnal_area(double t_s) const;
  const Segment& segment_at(double t_s);
  double area_between(double from_s, double to_s);
  void schedule(double from_s, double area);
  void next_trace_row();

  std::shared_ptr<const ArrivalConfig> config_;
  std::shared_ptr<const Trace> trace_;
  ExponentialStream gaps_;
  uint64_t state_stream_;
  uint64_t count_ = 0;
  double scale_ = 1;
  double mean_gap_s_ = 0;  // of a Poisson process at its present rate; else 0
  double next_s_ = 0;
  core::TimeNs next_ = 0;
  std::vector<Segment> segments_;  // states of the modulating chain, in time
  size_t segment_ = 0;
  size_t row_ = 0;
  double turn_start_s_ = 0;
};

}  // namespace steelyard::sim
