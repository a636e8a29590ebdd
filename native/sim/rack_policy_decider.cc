#include "native/sim/rack_policy_decider.h"

#include <stdexcept>
#include <string>

#include "native/sim/rack_config.h"

namespace steelyard::sim {

RackPolicyDecider::RackPolicyDecider(const RackPolicyDecider& other)
    : RackDecider(other), policy_(other.policy_) {
  players_.reserve(other.players_.size());
  for (const auto& player : other.players_) players_.push_back(player->clone());
}

void RackPolicyDecider::check(const RackConfig& config) const {
  const auto servers = static_cast<uint32_t>(config.num_servers());
  if (policy_->num_servers() != servers) {
    throw std::invalid_argument("policy is for " + std::to_string(policy_->num_servers()) +
                                " servers; this rack has " + std::to_string(servers));
  }
  core::MalcolmConfig limits;
  limits.num_types = static_cast<uint32_t>(config.types.size());
  for (uint32_t i = 0; i < servers; ++i)
    limits.check(servers, i, static_cast<uint32_t>(config.servers[i].workers));
}

void RackPolicyDecider::reset(const RackConfig& config, uint64_t seed) {
  (void)seed;
  players_.clear();
  for (uint32_t i = 0; i < policy_->num_servers(); ++i) {
    players_.push_back(policy_->player(i, static_cast<uint32_t>(config.servers[i].workers),
                                       static_cast<uint32_t>(config.types.size())));
  }
}

int RackPolicyDecider::migrate(int i, uint32_t type, uint64_t word) {
  (void)type;
  return players_[i]->migrate(word);
}

void RackPolicyDecider::on_window(core::TimeNs now) {
  (void)now;
  for (const auto& player : players_) player->on_window();
}

LoadReport RackPolicyDecider::on_broadcast(int i, const LoadReport& report) {
  const core::LoadMessage told = players_[i]->broadcast();
  return {told.load_s, report.tasks, 1.0F / told.task_s, told.migrations, told.steals, told.workers};
}

void RackPolicyDecider::on_load(int i, int j, const LoadReport& report) {
  players_[i]->on_load_message(static_cast<core::ServerId>(j), {report.load, report.migrations, report.steals,
                                                                1.0F / report.rate, report.workers});
}

void RackPolicyDecider::on_completion(int i, uint32_t type, double service_s) {
  players_[i]->on_completion(type, static_cast<float>(service_s));
}

}  // namespace steelyard::sim
