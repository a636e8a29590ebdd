// Peak EWMA: a moving average of round-trip times that follows a rise at once and a fall slowly, times the
// flows under way (Finagle, loadbalancer/PeakEwma.scala; Linkerd and Envoy follow it).
#pragma once

#include <vector>

#include "native/core/activations.h"
#include "native/core/types.h"

namespace steelyard::core {

class PeakEwma {
 public:
  // Finagle's Penalty, Long.MaxValue >> 16 nanoseconds: more than any round trip.
  static constexpr float kPenaltyS = 140737.488F;

  explicit PeakEwma(int num_servers = 0, double decay_s = 10)
      : rows_(num_servers), per_ns_(static_cast<float>(-1e-9 / decay_s)) {}

  // Cost of one more flow [s]: average x (outstanding + 1). A server without a sample costs nothing while it
  // has no flow, so that it gets a first one, and the penalty plus `outstanding` while it has. Looking at a
  // server counts as a sample of 0, as in Finagle: its average decays with the time, not with the samples.
  float cost(ServerId server, uint32_t outstanding, TimeNs now) {
    Row& row = rows_[server];
    if (!row.measured) return outstanding == 0 ? 0.0F : kPenaltyS + static_cast<float>(outstanding);
    update(row, 0.0F, now);
    return row.average_s * static_cast<float>(outstanding + 1);
  }
  // A flow of `rtt_s` from its opening to the end of its reply.
  void observe(ServerId server, float rtt_s, TimeNs now) {
    update(rows_[server], rtt_s, now);
    rows_[server].measured = true;
  }

 private:
  struct Row {
    float average_s = 0;
    bool measured = false;
    TimeNs updated = 0;
  };
  void update(Row& row, float rtt_s, TimeNs now) const {
    const float keep = exp8(fill8(static_cast<float>(now - row.updated) * per_ns_))[0];
    row.average_s = rtt_s > row.average_s ? rtt_s : row.average_s * keep + rtt_s * (1.0F - keep);
    row.updated = now;
  }

  std::vector<Row> rows_;
  float per_ns_;  // -1 / decay
};

}  // namespace steelyard::core
