// Inputs that follow every event, for draws from the state at their moment (MalcolmConfig::live_draws).
#include <algorithm>

#include "native/core/malcolm.h"

namespace steelyard::core {

void MalcolmServer::set_input(uint32_t k, float value) {
  const float delta = value - inputs_[k];
  if (delta == 0) return;
  inputs_[k] = value;
  actors_.add_input(k, delta);
  stale_ = true;
}

// What a task that goes to a server of this load would expect there: full_ is its service time.
void MalcolmServer::see(uint32_t server, float load) {
  const float with_it = load + task_[server];
  if (config_.inputs == ActorInputs::kWaits) {
    const float wait = std::max(with_it - full_[server], 0.0F);
    set_input(server, std::min(wait, config_.load_cap));
    set_input(num_servers() + server, std::min(full_[server], config_.load_cap));
  } else {
    set_input(server, std::min(with_it, config_.load_cap));
  }
}

void MalcolmServer::see_own() {
  task_[self_] = task_s() / config_.load_unit_s;
  full_[self_] = static_cast<float>(workers_) * task_[self_];
  see(self_, load_s() / config_.load_unit_s);
}

// One task more at a server, until that says how many it has.
void MalcolmServer::count_sent(uint32_t server) {
  state_[server] += task_[server];
  see(server, state_[server]);
}

uint32_t MalcolmServer::draw_now(ActorKind actor, uint64_t word) {
  if (config_.live_draws && stale_) {
    actors_.refresh();
    stale_ = false;
  }
  const uint32_t drawn = actors_.draw(actor, word);
  if (config_.live_draws && started_ && !frozen_) {
    add_draw_score(actors_.lanes(), actors_.num_inputs(), actor, inputs_.data(), actors_.probabilities(actor),
                   drawn, draws_score_.data());
  }
  return drawn;
}

// sum_j q_j (q_j + 1) / (2 mu_j): a queue of q is worked off one by one, so this is what all who wait have
// yet to wait. Its mean over time is the arrival rate times half the second moment of the waiting time.
float MalcolmServer::waiting() const {
  float sum = 0;
  for (uint32_t j = 0; j < num_servers(); ++j) {
    const float wait = std::max(state_[j] - full_[j], 0.0F);
    if (wait > 0) sum += 0.5F * wait * (wait + task_[j]) / task_[j];
  }
  return sum;
}

}  // namespace steelyard::core
