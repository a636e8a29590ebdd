// What the Python faces of racks share.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "native/sim/rack.h"

namespace steelyard::bind {

// A prepared copy. Throws ValueError for what the simulator refuses.
std::shared_ptr<const sim::RackConfig> frozen(const sim::RackConfig& config);

// The statistics of simulate_rack.
pybind11::dict stats_dict(const sim::RackStats& stats);

}  // namespace steelyard::bind
