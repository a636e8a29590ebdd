// The policies that a cluster world hosts: what they see at a step, and whom their actions reach.
#include <algorithm>

#include "native/sim/cluster.h"

namespace steelyard::sim {

// A policy that refuses (no finite action) leaves the weights of the last step in force. A failed balancer is
// no agent while it is down.
void ClusterWorld::host_policies() {
  if (rule_.policy->central()) return host_central();
  for (const int i : up_list_) {
    balancers_[i].observe(now_, observation_.data());
    if (hosted_.act(i, observation_.data(), action_.data())) act(i, action_.data());
  }
}

// One inference for all: every balancer's observation goes up and its row of the action comes down within the
// step. A failed balancer reports nothing, which the agent reads as zeros (what a balancer sees that has just
// been started), and the row for it is dropped, so that it comes back with the weights of a start.
void ClusterWorld::host_central() {
  const size_t size = observation_.size() / balancers_.size();
  std::fill(observation_.begin(), observation_.end(), 0.0F);
  for (const int i : up_list_) balancers_[i].observe(now_, observation_.data() + i * size);
  if (!hosted_.act(0, observation_.data(), action_.data())) return;
  for (const int i : up_list_) act(i, action_.data() + static_cast<size_t>(i) * num_servers());
}

}  // namespace steelyard::sim
