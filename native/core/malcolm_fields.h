// Every field of MalcolmConfig by name: what a policy file carries of it. One list, so that a field that is
// added here is in the files and in the exported sources.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "native/core/malcolm.h"

namespace steelyard::core {

// f(name, field) for each field in turn; the names are those of the Python face.
template <typename Config, typename F>
void visit_malcolm_fields(Config& config, F&& f) {
  f("inputs", config.inputs);
  f("features", config.features);
  f("reward", config.reward);
  f("rate_average", config.rate_average);
  f("mean_score", config.mean_score);
  f("discount", config.td.discount);
  f("critic_trace", config.td.trace);
  f("average_step", config.td.average_step);
  f("actor_trace", config.actor_trace);
  f("actor_rate", config.actor_optimizer.learning_rate);
  f("actor_weight_decay", config.actor_optimizer.weight_decay);
  f("critic_rate", config.critic_optimizer.learning_rate);
  f("critic_weight_decay", config.critic_optimizer.weight_decay);
  f("batch", config.batch);
  f("consensus_every", config.consensus_every);
  f("migration_cost", config.costs.migration);
  f("steal_cost", config.costs.steal);
  f("load_cap", config.load_cap);
  f("load_unit_s", config.load_unit_s);
  f("reward_scale", config.reward_scale);
  f("load_smoothing", config.load_smoothing);
  f("initial_service_s", config.initial_service_s);
  f("num_types", config.num_types);
  f("steal_below", config.steal_below);
  f("rate_weight", config.rate_weight);
  f("live_draws", config.live_draws);
  f("warm_start", config.warm_start);
  f("warm_others", config.warm_others);
  f("warm_keep", config.warm_keep);
  f("init_scale", config.init_scale);
  f("seed", config.seed);
}

// The least value of an enumeration's field that this build does not know; 2 of a bool.
constexpr uint64_t beyond(ActorInputs) { return 3; }
constexpr uint64_t beyond(CriticFeatures) { return 3; }
constexpr uint64_t beyond(RackReward) { return 3; }
constexpr uint64_t beyond(RateAverage) { return 2; }
constexpr uint64_t beyond(bool) { return 2; }
constexpr uint64_t beyond(uint32_t) { return uint64_t{1} << 32; }
constexpr uint64_t beyond(float) { return uint64_t{1} << 32; }

// A field's value in 64 bits: a float's own, a number, a bool, the place of a word.
template <typename T>
uint64_t field_bits(T value) {
  if constexpr (std::is_same_v<T, float>) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
  } else {
    return static_cast<uint64_t>(value);
  }
}

// False when `bits` are no value of the field.
template <typename T>
bool set_field_bits(T* field, uint64_t bits) {
  if constexpr (std::is_same_v<T, uint64_t>) {
    *field = bits;
    return true;
  } else if (bits >= beyond(T{})) {
    return false;
  } else if constexpr (std::is_same_v<T, float>) {
    const auto word = static_cast<uint32_t>(bits);
    std::memcpy(field, &word, sizeof word);
    return true;
  } else {
    *field = static_cast<T>(bits);
    return true;
  }
}

}  // namespace steelyard::core
