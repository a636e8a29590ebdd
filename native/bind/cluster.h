// Shared by the bindings of worlds and batches.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "native/core/rule.h"
#include "native/sim/cluster.h"

namespace steelyard::bind {

// A checked private copy, so that later changes to the Python object reach no running world.
std::shared_ptr<const sim::ClusterConfig> frozen(const sim::ClusterConfig& config);
sim::Convention convention_of(const std::string& word);
pybind11::dict stats_dict(const sim::EpisodeStats& stats);

}  // namespace steelyard::bind
