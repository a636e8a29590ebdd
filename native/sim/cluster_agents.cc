// The agents' side of the cluster world: what they see, when they see it, how they act.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "native/core/feature_families.h"
#include "native/sim/cluster.h"

namespace steelyard::sim {

void ClusterWorld::set_up_agents() {
  const size_t size = static_cast<size_t>(core::observation_size(num_servers()));
  hidden_ = core::feature_indices(num_servers(), config_->hidden_features);
  const auto delay = static_cast<core::TimeNs>(std::llround(config_->observation_delay_s * 1e9));
  if (delay > 0) line_ = ObservationLine(delay, step_ns_, size * static_cast<size_t>(num_balancers()));
  if (!rule_.policy) return;
  hosted_ = core::HostedPolicy(rule_.policy, num_balancers(), rule_.cycle_actors);
  observation_.resize(rule_.policy->obs_size());
  action_.resize(rule_.policy->action_size());
}

void ClusterWorld::observe_now(int balancer, float* out) {
  balancers_[balancer].observe(now_, out);
  for (const int index : hidden_) out[index] = 0;
}

// Before the first observation has come through, an agent knows nothing: zeros.
void ClusterWorld::observe(int balancer, float* out) {
  if (!line_.delays()) return observe_now(balancer, out);
  const int size = core::observation_size(num_servers());
  const float* seen = line_.arrived(now_);
  if (seen == nullptr) {
    std::fill_n(out, size, 0.0f);
  } else {
    std::copy_n(seen + static_cast<size_t>(balancer) * size, size, out);
  }
}

void ClusterWorld::take_observations() {
  const size_t size = static_cast<size_t>(core::observation_size(num_servers()));
  float* at = line_.take(now_);
  for (int i = 0; i < num_balancers(); ++i) observe_now(i, at + i * size);
}

// At a step boundary. A policy that refuses (no finite action) leaves the weights of the last step in force.
// A failed balancer is no agent while it is down.
void ClusterWorld::run_agents() {
  if (line_.delays() && line_.offset() == 0) take_observations();
  if (line_.delays() && line_.offset() > 0) queue_.push(Event::make(now_ + line_.offset(), kObserve, 0, 0));
  if (!rule_.policy) return;
  if (rule_.policy->central()) return run_central();
  for (const int i : up_list_) {
    observe(i, observation_.data());
    core::BalancerLog* log = log_of(i);
    if (log != nullptr) log->on_policy(now_);
    if (hosted_.act(i, observation_.data(), action_.data())) take_action(i, action_.data());
  }
}

// One inference for all: every balancer's observation goes up and its row of the action comes down within the
// step. A failed balancer reports nothing, which the agent reads as zeros (what a balancer sees that has just
// been started), and the row for it is dropped, so that it comes back with the weights of a start.
void ClusterWorld::run_central() {
  const size_t size = observation_.size() / balancers_.size();
  std::fill(observation_.begin(), observation_.end(), 0.0F);
  for (const int i : up_list_) observe(i, observation_.data() + i * size);
  if (!hosted_.act(0, observation_.data(), action_.data())) return;
  for (const int i : up_list_) act(i, action_.data() + static_cast<size_t>(i) * num_servers());
}

void ClusterWorld::act(int balancer, const float* action) {
  for (int j = 0; j < num_servers(); ++j) {
    if (std::isfinite(action[j])) continue;
    throw std::invalid_argument("action[" + std::to_string(balancer) + "][" + std::to_string(j) +
                                "]: " + std::to_string(action[j]) +
                                " is not allowed; use a finite number in [-1, 1]");
  }
  if (core::BalancerLog* log = log_of(balancer))
    log->on_action({action, static_cast<size_t>(num_servers())}, now_);
  take_action(balancer, action);
}

void ClusterWorld::take_action(int balancer, const float* action) {
  balancers_[balancer].set_action(action);
  if (actuation_ns_ == 0) return apply_action(balancer);
  queue_.push(Event::make(now_ + actuation_ns_, kActuate, static_cast<uint32_t>(balancer), 0));
}

void ClusterWorld::apply_action(int balancer) {
  balancers_[balancer].apply_action();
  if (core::BalancerLog* log = log_of(balancer)) log->on_apply(now_);
}

void ClusterWorld::restart_balancer(int balancer) {
  const uint64_t stream = core::draw(reservoir_stream_, static_cast<uint64_t>(balancer));
  balancers_[balancer].restart(stream);
  if (core::BalancerLog* log = log_of(balancer)) log->on_restart(stream);
}

void ClusterWorld::tell_open(int balancer, uint64_t hash, core::ServerId server) {
  if (core::BalancerLog* log = log_of(balancer)) log->on_open(hash, server, now_);
}

void ClusterWorld::tell_ack(const Flow& flow) {
  if (core::BalancerLog* log = log_of(flow.balancer)) log->on_first_ack(flow.hash, now_);
}

void ClusterWorld::tell_close(const Flow& flow) {
  if (core::BalancerLog* log = log_of(flow.balancer)) log->on_close(flow.hash, flow.completed, now_);
}

}  // namespace steelyard::sim
