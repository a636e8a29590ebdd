// The one body that turns what a balancer has measured into an observation, wherever the measurements lie: in
// the balancer, or in a copy that another process took of them (native/shm).
#pragma once

#include <cstdint>
#include <span>

#include "native/core/reservoir.h"
#include "native/core/types.h"

namespace steelyard::core {

// By server; `duration` and `completion` are empty when no features are kept.
struct Measured {
  std::span<const uint32_t> flows_on;
  std::span<Reservoir> duration;
  std::span<Reservoir> completion;
  Reservoir* inter_arrival;
  std::span<const float> action;  // the previous one
};

// out: (observation_size(N),) float32, see schema.h.
void write_observation(const Measured& measured, TimeNs now, float* out);

}  // namespace steelyard::core
