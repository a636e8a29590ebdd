#include "native/sim/payoff.h"

#include <stdexcept>

namespace steelyard::sim {
namespace {

RewardMeasure measure_of(std::string_view name) {
  if (name == "durations") return RewardMeasure::kDurations;
  if (name == "true") return RewardMeasure::kTrue;
  if (name == "own") return RewardMeasure::kOwn;
  throw std::invalid_argument("reward.measure: \"" + std::string(name) +
                              "\" is not known; use durations, true or own");
}

}  // namespace

Payoff::Payoff(std::string_view reward, std::string_view measure)
    : reward_(find_reward(reward)), measure_(measure_of(measure)) {
  if (reward_ == nullptr) {
    throw std::invalid_argument("reward.kind: \"" + std::string(reward) +
                                "\" is not known; see native.reward_names()");
  }
  if (reward_->form == RewardForm::kMarginalVbf && measure_ != RewardMeasure::kTrue) {
    throw std::invalid_argument(
        "reward.measure: marginal_vbf is defined on the true remaining time; use measure \"true\"");
  }
  if (reward_->team && measure_ == RewardMeasure::kOwn) {
    throw std::invalid_argument(
        "reward.measure: a team reward is over the global vector; use measure durations or true");
  }
}

// Fills l_ for one agent (-1: the global vector; of durations, their mean over agents).
void Payoff::measure(ClusterWorld& world, int agent) {
  if (measure_ == RewardMeasure::kTrue) return world.remaining_time(-1, l_.data());
  if (measure_ == RewardMeasure::kOwn) return world.remaining_time(agent, l_.data());
  l_.assign(l_.size(), 0.0);
  const int first = agent < 0 ? 0 : agent;
  const int last = agent < 0 ? world.num_balancers() - 1 : agent;
  for (int i = first; i <= last; ++i) {
    world.observe_durations(i, durations_.data());
    for (size_t j = 0; j < l_.size(); ++j) l_[j] += durations_[j] / (last - first + 1);
  }
}

void Payoff::operator()(ClusterWorld& world, float* out) {
  const int m = world.num_balancers();
  l_.resize(world.num_servers());
  others_.resize(world.num_servers());
  durations_.resize(world.num_servers());
  if (reward_->team) {
    measure(world, -1);
    for (int i = 0; i < m; ++i) out[i] = static_cast<float>(fairness(reward_->form, l_));
    return;
  }
  for (int i = 0; i < m; ++i) {
    if (reward_->form == RewardForm::kMarginalVbf) {
      world.remaining_time(-1, others_.data());
      world.remaining_time(i, l_.data());
      for (size_t j = 0; j < l_.size(); ++j) others_[j] -= l_[j];
      out[i] = static_cast<float>(marginal_vbf(l_, others_));
    } else {
      measure(world, i);
      out[i] = static_cast<float>(fairness(reward_->form, l_));
    }
  }
}

}  // namespace steelyard::sim
