#include "native/dataplane/policy_host.h"

#include <utility>

#include "native/core/schema.h"

namespace steelyard::dataplane {
namespace {

std::string why_not(const core::LoadedPolicy& policy, int num_servers, int num_balancers) {
  if (policy.central()) return "policy is central: no balancer can decide for all";
  return core::check_policy_fits(policy, core::observation_schema_hash(num_servers), num_servers, num_balancers);
}

}  // namespace

void PolicyHost::host(const PolicyArtefact& artefact, int num_servers, int balancer, int num_balancers) {
  wanted_ = true;
  agent_ = balancer;
  const std::shared_ptr<const core::LoadedPolicy> policy = artefact.policy ? artefact.policy : hosted_.policy();
  refused_ = policy ? why_not(*policy, num_servers, num_balancers) : artefact.error;
  if (!refused_.empty()) return;
  if (policy == hosted_.policy()) return;
  hosted_ = core::HostedPolicy(policy, num_balancers);
  observation_.assign(core::observation_size(num_servers), 0.0F);
  action_.assign(num_servers, 0.0F);
}

void PolicyHost::stop() { *this = PolicyHost(); }

void PolicyHost::tick(core::LoadBalancer* core, core::TimeNs now) {
  if (!wanted_) return;
  if (!refused_.empty()) return fall_back(core, refused_);
  core->observe(now, observation_.data());
  if (!hosted_.act(agent_, observation_.data(), action_.data())) {
    hosted_.reset(agent_);
    return fall_back(core, "policy gave no finite action");
  }
  core->set_action(action_.data());
  core->apply_action();
  ++decisions_;
  recover();
}

void PolicyHost::fall_back(core::LoadBalancer* core, std::string why) {
  if (!healthy_ && why == why_) return;
  std::fill(action_.begin(), action_.end(), 0.0F);  // the action of weight 1
  action_.resize(core->flows_on().size(), 0.0F);
  core->set_action(action_.data());
  core->apply_action();
  ++fallbacks_;
  healthy_ = false;
  changed_ = true;
  why_ = std::move(why);
}

void PolicyHost::recover() {
  if (healthy_) return;
  healthy_ = true;
  changed_ = true;
  why_.clear();
}

bool PolicyHost::take_change() { return std::exchange(changed_, false); }

}  // namespace steelyard::dataplane
