#include "native/dataplane/policy_host.h"

#include <utility>

#include "native/core/schema.h"

namespace steelyard::dataplane {
namespace {

std::string why_not(const core::LoadedPolicy& policy, int num_servers, int num_balancers) {
  if (policy.central()) return "policy is central: no balancer can decide for all";
  return core::check_policy_fits(policy, core::observation_schema_hash(num_servers), num_servers,
                                 num_balancers);
}

}  // namespace

bool PolicyHost::host(const PolicyArtefact& artefact, const PolicyPlace& place) {
  const bool ran = hosts();
  wanted_ = true;
  agent_ = place.balancer;
  by_agent_ = artefact.policy == nullptr && artefact.error.empty();
  refused_.clear();
  if (by_agent_) {
    hosted_ = core::HostedPolicy();
    digest_ = 0;
    return ran;
  }
  const auto num_servers = static_cast<int>(place.servers.size());
  const bool stays = ran && (artefact.policy == nullptr || artefact.digest == digest_);
  const std::shared_ptr<const core::LoadedPolicy> policy = stays ? hosted_.policy() : artefact.policy;
  refused_ = policy ? why_not(*policy, num_servers, place.num_balancers) : artefact.error;
  if (!refused_.empty() || stays) return false;
  hosted_ = core::HostedPolicy(policy, place.num_balancers);
  digest_ = artefact.digest;
  observation_.assign(core::observation_size(num_servers), 0.0F);
  action_.assign(num_servers, 0.0F);
  return true;
}

void PolicyHost::stop() {
  wanted_ = healthy_ = changed_ = by_agent_ = false;
  hosted_ = core::HostedPolicy();
  digest_ = 0;
  refused_.clear();
  why_.clear();
}

void PolicyHost::share(const std::string& path, const PolicyPlace& place, core::TimeNs max_age) {
  max_age_ = max_age;
  const uint64_t pool = shm::pool_id_of(place.servers);
  if (path != shared_path_ || place.servers.size() != shared_servers_ || publisher_ == nullptr) {
    shared_path_ = path;
    shared_servers_ = place.servers.size();
    share_error_.clear();
    publisher_.reset();
    if (path.empty()) return;
    const shm::PoolSpec spec{.num_servers = static_cast<int>(shared_servers_),
                             .reservoir_size = place.reservoir_size,
                             .pool_id = pool};
    publisher_ = shm::Publisher::open(path, spec, &share_error_);
  }
  if (publisher_ == nullptr) return;
  publisher_->set_pool_id(pool);
  publisher_->forget();  // the core may be another one
}

void PolicyHost::tick(core::LoadBalancer* core, std::span<const shm::ServerCounters> counters,
                      core::BalancerLog* log, core::TimeNs now) {
  if (publisher_ != nullptr) publisher_->publish(*core, counters, now);
  if (!wanted_) return;
  if (!refused_.empty()) return fall_back(core, log, now, refused_);
  by_agent_ ? follow_agent(core, log, now) : decide(core, log, now);
}

void PolicyHost::decide(core::LoadBalancer* core, core::BalancerLog* log, core::TimeNs now) {
  core->observe(now, observation_.data());
  if (log != nullptr) log->on_policy(now);
  if (!hosted_.act(agent_, observation_.data(), action_.data())) {
    return fall_back(core, log, now, "policy gave no finite action");
  }
  core->set_action(action_.data());
  core->apply_action();
  if (log != nullptr) log->on_apply(now);
  recover();
}

void PolicyHost::follow_agent(core::LoadBalancer* core, core::BalancerLog* log, core::TimeNs now) {
  if (publisher_ == nullptr) {
    return fall_back(core, log, now,
                     share_error_.empty() ? "no policy_file and no shared_memory" : share_error_);
  }
  const shm::ActionView& view = publisher_->poll(now, max_age_);
  if (!view.usable()) return fall_back(core, log, now, view.why());
  view.apply_to(*core);
  if (log != nullptr && view.kind == STEELYARD_SHM_KIND_WEIGHT) {
    log->on_weights(view.weights, now);
  } else if (log != nullptr) {
    log->on_action(view.action, now);
    log->on_apply(now);
  }
  recover();
}

void PolicyHost::fall_back(core::LoadBalancer* core, core::BalancerLog* log, core::TimeNs now,
                           std::string why) {
  if (!healthy_ && why == why_) return;
  action_.assign(core->flows_on().size(), 0.0F);  // the action of weight 1
  core->set_action(action_.data());
  core->apply_action();
  if (log != nullptr) {
    log->on_action(action_, now);
    log->on_apply(now);
  }
  ++fallbacks_;
  healthy_ = false;
  changed_ = true;
  why_ = std::move(why);
}

void PolicyHost::recover() {
  ++decisions_;
  if (healthy_) return;
  healthy_ = true;
  changed_ = true;
  why_.clear();
}

bool PolicyHost::take_change() { return std::exchange(changed_, false); }

}  // namespace steelyard::dataplane
