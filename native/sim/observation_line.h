// Observations on their way to the agents: one of every balancer is taken each step, at such a moment that at
// a step boundary one is exactly as old as the delay.
#pragma once

#include <cstddef>
#include <vector>

#include "native/core/types.h"

namespace steelyard::sim {

class ObservationLine {
 public:
  ObservationLine() = default;  // no delay: nothing is kept
  // floats: of one moment, all balancers together.
  ObservationLine(core::TimeNs delay, core::TimeNs step, size_t floats)
      : delay_(delay),
        offset_((step - delay % step) % step),
        floats_(floats),
        taken_at_(static_cast<size_t>(delay / step) + 2, core::kNever),
        kept_(taken_at_.size() * floats) {}

  bool delays() const { return delay_ > 0; }
  // From a step boundary to the moment at which to take the next one; in [0, step).
  core::TimeNs offset() const { return offset_; }
  void clear() { taken_at_.assign(taken_at_.size(), core::kNever); }

  // Room for what the balancers see now; the oldest is given up.
  float* take(core::TimeNs now) {
    newest_ = (newest_ + 1) % taken_at_.size();
    taken_at_[newest_] = now;
    return kept_.data() + newest_ * floats_;
  }
  // The newest that is at least as old as the delay; null when none has arrived yet.
  const float* arrived(core::TimeNs now) const {
    for (size_t back = 0; back < taken_at_.size(); ++back) {
      const size_t at = (newest_ + taken_at_.size() - back) % taken_at_.size();
      if (taken_at_[at] <= now - delay_) return kept_.data() + at * floats_;
    }
    return nullptr;
  }

 private:
  core::TimeNs delay_ = 0, offset_ = 0;
  size_t floats_ = 0, newest_ = 0;
  std::vector<core::TimeNs> taken_at_;
  std::vector<float> kept_;
};

}  // namespace steelyard::sim
