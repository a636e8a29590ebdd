// Envoy's least request among servers of unequal weights: a weighted round robin, earliest deadline first, in
// which a server's weight at the time of its turn is weight / (active + 1) (Envoy's documentation, "Weighted
// least request", active_request_bias 1). Among servers of equal weights Envoy takes the better of two
// instead.
#pragma once

#include <span>
#include <vector>

#include "native/core/rng.h"
#include "native/core/types.h"
#include "native/core/weights.h"

namespace steelyard::core {

class LeastRequestSchedule {
 public:
  explicit LeastRequestSchedule(int num_servers = 0, uint64_t stream = 0)
      : deadline_(num_servers), stream_(stream) {}

  // A new schedule, as after each change of the pool. Every server starts at a random place of its first
  // turn: balancers that start together must not send together.
  void build(std::span<const ServerId> members, const WeightQ16* weight, const uint32_t* active) {
    ++builds_;
    equal_ = true;
    for (const ServerId j : members) {
      equal_ = equal_ && weight[j] == weight[members[0]];
      const double phase = unit_open(draw(draw(stream_, builds_), static_cast<uint64_t>(j)));
      deadline_[j] = phase * turn(j, weight, active);
    }
  }
  bool equal() const { return equal_; }
  // The member whose turn it is; its next one is due a turn later.
  ServerId pick(std::span<const ServerId> members, const WeightQ16* weight, const uint32_t* active) {
    ServerId first = members[0];
    for (const ServerId j : members) first = deadline_[j] < deadline_[first] ? j : first;
    deadline_[first] += turn(first, weight, active);
    return first;
  }

 private:
  static double turn(ServerId server, const WeightQ16* weight, const uint32_t* active) {
    return (static_cast<double>(active[server]) + 1) * kUnitWeight / static_cast<double>(weight[server]);
  }

  std::vector<double> deadline_;
  uint64_t stream_;
  uint64_t builds_ = 0;
  bool equal_ = true;
};

}  // namespace steelyard::core
