// Where a VIP's weights come from when its rule is "policy", and what happens when they do not come: all
// weights are then 1, by which the rule is lsq, bit for bit.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "native/core/balancer_log.h"
#include "native/core/hosted_policy.h"
#include "native/core/load_balancer.h"
#include "native/shm/publisher.h"

namespace steelyard::dataplane {

// What reading a policy file gave.
struct PolicyArtefact {
  std::shared_ptr<const core::LoadedPolicy> policy;
  uint64_t digest = 0;  // 64-bit FNV-1a of the file
  std::string error;    // why there is none
};

// Which pool a host decides for.
struct PolicyPlace {
  std::vector<std::string> servers;  // addresses, in the order of the core
  int reservoir_size = core::Reservoir::kMaxSize;
  int balancer = 0, num_balancers = 1;
};

class PolicyHost {
 public:
  // Takes weights from `artefact` from now on; from the agent if the artefact holds neither policy nor error.
  // An artefact that cannot be read leaves a running policy in place if that still fits; one that is the same
  // file goes on as it runs. True when another policy runs than before.
  bool host(const PolicyArtefact& artefact, const PolicyPlace& place);
  // Takes no weights: the rule needs none.
  void stop();
  // Tells an agent what is measured, in the file at `path`; an empty path tells nobody.
  void share(const std::string& path, const PolicyPlace& place, core::TimeNs max_age);

  // Publishes and decides; to be called on the timer. counters: (N,). log: what is decided, or null.
  void tick(core::LoadBalancer* core, std::span<const shm::ServerCounters> counters, core::BalancerLog* log,
            core::TimeNs now);

  bool wanted() const { return wanted_; }
  bool hosts() const { return hosted_.policy() != nullptr; }
  uint64_t digest() const { return digest_; }  // of the policy's file; 0: none is hosted
  bool healthy() const { return healthy_; }
  const std::string& why() const { return why_; }  // it is not healthy
  uint64_t decisions() const { return decisions_; }
  uint64_t fallbacks() const { return fallbacks_; }
  // Whether health has changed since the last call.
  bool take_change();
  // Why nothing is shared although it should be; empty: all is well.
  const std::string& share_error() const { return share_error_; }

 private:
  void decide(core::LoadBalancer* core, core::BalancerLog* log, core::TimeNs now);
  void follow_agent(core::LoadBalancer* core, core::BalancerLog* log, core::TimeNs now);
  void fall_back(core::LoadBalancer* core, core::BalancerLog* log, core::TimeNs now, std::string why);
  void recover();

  bool wanted_ = false;
  bool by_agent_ = false;
  bool healthy_ = false;
  bool changed_ = false;
  int agent_ = 0;
  core::HostedPolicy hosted_;
  uint64_t digest_ = 0;
  std::string refused_;  // why the artefact was not taken; empty: hosted_ runs
  std::string why_;
  uint64_t decisions_ = 0, fallbacks_ = 0;
  std::vector<float> observation_, action_;
  std::unique_ptr<shm::Publisher> publisher_;
  std::string shared_path_, share_error_;
  size_t shared_servers_ = 0;
  core::TimeNs max_age_ = 0;
};

}  // namespace steelyard::dataplane
