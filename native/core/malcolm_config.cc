// How a server learns: the presets, and what is allowed.
#include <stdexcept>
#include <string>

#include "native/core/malcolm.h"

namespace steelyard::core {
namespace {

bool is_finite(float x) { return x - x == 0.0F; }

void require(bool holds, const char* key, double value, const char* allowed) {
  if (holds) return;
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  throw std::invalid_argument(std::string(key) + " is " + text + "; must be " + allowed);
}

void check_optimizer(const AdamWConfig& config, const char* key) {
  const std::string at = std::string(key) + ".";
  require(config.learning_rate >= 0 && config.learning_rate <= 1, (at + "learning_rate").c_str(),
          config.learning_rate, "in [0, 1]");
  require(config.beta1 >= 0 && config.beta1 < 1, (at + "beta1").c_str(), config.beta1, "in [0, 1)");
  require(config.beta2 >= 0 && config.beta2 < 1, (at + "beta2").c_str(), config.beta2, "in [0, 1)");
  require(config.epsilon > 0, (at + "epsilon").c_str(), config.epsilon, "positive");
  require(config.weight_decay >= 0 && config.weight_decay <= 1, (at + "weight_decay").c_str(),
          config.weight_decay, "in [0, 1]");
}

}  // namespace

MalcolmConfig MalcolmConfig::thesis() { return MalcolmConfig(); }

// Values of the released run script and of the server's source: quartic critic ("customized"), rank inputs
// ("sort"), lambda .6 for critic and actors. Loads are in units of 32 ms (tasks over a queue capacity of 32
// per worker, times ms), M is divided by .001, and the cost of a move, 1e-4, multiplied by .001 / N, here N
// = 10.
MalcolmConfig MalcolmConfig::code() {
  MalcolmConfig config;
  config.inputs = ActorInputs::kRanks;
  config.features = CriticFeatures::kQuartic;
  config.reward = RackReward::kImprovement;
  config.mean_score = true;
  config.td = {1.0F, 0.6F, 1e-3F};
  config.actor_trace = 0.6F;
  config.batch = 20;
  config.actor_optimizer.learning_rate = 1e-3F;
  config.costs = {1e-8F, 1e-8F};
  config.load_unit_s = 32e-3F;
  config.load_cap = 1;
  config.reward_scale = 1e3F;
  return config;
}

// Ours: docs/malcolm.md says why. Rates are known to 2 % after the last thousand completions.
MalcolmConfig MalcolmConfig::live() {
  MalcolmConfig config;
  config.live_draws = true;
  config.inputs = ActorInputs::kWaits;
  config.features = CriticFeatures::kQuadratic;
  config.reward = RackReward::kWaiting;
  config.td = {0.0F, 0.0F, 0.0F};
  config.batch = 64;
  config.actor_optimizer.learning_rate = 2e-3F;
  config.rate_weight = 1.0F / 1024;
  config.warm_start = 50;
  config.warm_others = 5;
  config.warm_keep = 6;
  return config;
}

void MalcolmConfig::check(uint32_t num_servers, uint32_t self, uint32_t workers) const {
  require(num_servers >= 2 && num_servers <= kMaxRackServers, "num_servers", num_servers, "in 2..64");
  require(self < num_servers, "self", self, "below num_servers");
  require(workers >= 1, "workers", workers, "at least 1");
  require(td.discount >= 0 && td.discount <= 1, "discount", td.discount, "in [0, 1]");
  require(td.trace >= 0 && td.trace <= 1, "critic_trace", td.trace, "in [0, 1]");
  require(td.average_step >= 0 && td.average_step <= 1, "average_step", td.average_step, "in [0, 1]");
  require(actor_trace >= 0 && actor_trace <= 1, "actor_trace", actor_trace, "in [0, 1]");
  check_optimizer(actor_optimizer, "actor_optimizer");
  check_optimizer(critic_optimizer, "critic_optimizer");
  require(batch >= 1, "batch", batch, "at least 1");
  require(consensus_every >= 1, "consensus_every", consensus_every, "at least 1");
  require(costs.migration >= 0 && is_finite(costs.migration), "migration_cost", costs.migration,
          "at least 0");
  require(costs.steal >= 0 && is_finite(costs.steal), "steal_cost", costs.steal, "at least 0");
  require(load_unit_s > 0 && is_finite(load_unit_s), "load_unit_s", load_unit_s, "positive");
  require(load_cap > 0 && is_finite(load_cap), "load_cap", load_cap, "positive");
  require(is_finite(reward_scale), "reward_scale", reward_scale, "finite");
  require(load_smoothing >= 0 && load_smoothing < 1, "load_smoothing", load_smoothing, "in [0, 1)");
  require(initial_service_s > 0 && is_finite(initial_service_s), "initial_service_s", initial_service_s,
          "positive");
  require(num_types >= 1 && num_types <= MalcolmServer::kMaxTypes, "num_types", num_types, "in 1..16");
  require(rate_weight > 0 && rate_weight <= 1, "rate_weight", rate_weight, "in (0, 1]");
  require(is_finite(warm_start), "warm_start", warm_start, "finite");
  require(is_finite(warm_others), "warm_others", warm_others, "finite");
  require(is_finite(warm_keep), "warm_keep", warm_keep, "finite");
  if (live_draws ? inputs == ActorInputs::kRanks
                 : inputs == ActorInputs::kWaits || reward == RackReward::kWaiting)
    throw std::invalid_argument(
        "inputs, reward: ranks do not go with live_draws; waits and waiting need them");
  require(init_scale >= 0 && is_finite(init_scale), "init_scale", init_scale, "at least 0");
}

}  // namespace steelyard::core
