// Where a VIP's weights come from when its rule is "policy", and what happens when they do not come: all weights
// are then 1, by which the rule is lsq, bit for bit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/core/hosted_policy.h"
#include "native/core/load_balancer.h"

namespace steelyard::dataplane {

// What reading a policy file gave.
struct PolicyArtefact {
  std::shared_ptr<const core::LoadedPolicy> policy;
  std::string error;  // why there is none
};

class PolicyHost {
 public:
  // Follows `artefact` from now on, as agent `balancer` of `num_balancers` over `num_servers` servers. An
  // artefact that cannot be read leaves a running policy in place if that still fits.
  void host(const PolicyArtefact& artefact, int num_servers, int balancer, int num_balancers);
  // Follows nothing: the rule needs no weights.
  void stop();

  // One decision; to be called on the timer.
  void tick(core::LoadBalancer* core, core::TimeNs now);

  bool wanted() const { return wanted_; }
  bool healthy() const { return healthy_; }
  const std::string& why() const { return why_; }  // it is not healthy
  uint64_t decisions() const { return decisions_; }
  uint64_t fallbacks() const { return fallbacks_; }
  // Whether health has changed since the last call.
  bool take_change();

 private:
  void fall_back(core::LoadBalancer* core, std::string why);
  void recover();

  bool wanted_ = false;
  bool healthy_ = false;
  bool changed_ = false;
  int agent_ = 0;
  core::HostedPolicy hosted_;
  std::string refused_;  // why the artefact was not taken; empty: hosted_ runs
  std::string why_;
  uint64_t decisions_ = 0, fallbacks_ = 0;
  std::vector<float> observation_, action_;
};

}  // namespace steelyard::dataplane
