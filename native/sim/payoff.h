// The payoff of the agents of a cluster world at one moment.
#pragma once

#include <vector>

#include "native/sim/cluster.h"
#include "native/sim/rewards.h"

namespace steelyard::sim {

class Payoff {
 public:
  // Throws std::invalid_argument for an unknown name or a measure that the reward cannot take
  // (marginal_vbf is defined on true remaining time).
  Payoff(std::string_view reward, std::string_view measure);
  // out: (M,) float32.
  void operator()(ClusterWorld& world, float* out);

 private:
  void measure(ClusterWorld& world, int agent);

  const RewardTraits* reward_;
  RewardMeasure measure_;
  std::vector<double> l_, others_;
  std::vector<float> durations_;
};

}  // namespace steelyard::sim
