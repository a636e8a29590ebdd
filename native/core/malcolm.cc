#include "native/core/malcolm.h"

#include <algorithm>
#include <cstring>

#include "native/core/rng.h"

namespace steelyard::core {
namespace {

constexpr uint32_t kRefreshWindows = 256;  // logits are recomputed at least that often
constexpr float kShortestService = 1e-9F;
constexpr uint32_t kMostSamples = 1u << 20;

bool is_finite(float x) { return x - x == 0.0F; }

// ln(k + 1) for k < 64, each from the one before: ln((k + 1) / k) = 2 artanh(1 / (2 k + 1)).
constexpr double log_above(double before, int k) {
  const double y = 1.0 / (2 * k + 1);
  double power = y, sum = 0;
  for (int term = 1; term < 80; term += 2, power *= y * y) sum += power / term;
  return before + 2 * sum;
}

uint32_t num_inputs(ActorInputs inputs, uint32_t num_servers) {
  return inputs == ActorInputs::kLoads ? num_servers : 2 * num_servers;
}

}  // namespace

MalcolmServer::MalcolmServer(const MalcolmConfig& config, uint32_t num_servers, uint32_t self,
                             uint32_t workers)
    : config_(config),
      self_(self),
      workers_(workers),
      actors_(num_servers, num_inputs(config.inputs, num_servers), self),
      critic_(config.features, num_servers),
      actor_optimizer_(actors_.num_parameters()),
      critic_optimizer_(critic_.padded_size()),
      actor_gradient_(actors_.num_parameters()),
      actor_trace_(config.actor_trace > 0 ? actors_.num_parameters() : 0),
      score_(kNumActors * size_t{actors_.lanes()}),
      state_(actors_.lanes() + 8),
      inputs_(actors_.num_inputs() + 8),
      window_inputs_(inputs_.size()),
      log_rank_(num_servers),
      task_(config.live_draws ? num_servers : 0),
      full_(task_.size()),
      draws_score_(config.live_draws ? actors_.num_parameters() : 0) {
  double log = 0;
  for (uint32_t k = 0; k < num_servers; ++k) {
    if (k > 0) log = log_above(log, static_cast<int>(k));
    log_rank_[k] = static_cast<float>(log);
  }
  const float half = 0.5F * log_rank_[num_servers - 1];
  for (uint32_t k = 0; k < num_servers; ++k) log_rank_[k] = (log_rank_[k] - half) / half;
  initialise();
  restart();
}

void MalcolmServer::initialise() {
  std::vector<float> parameters(num_parameters());
  const uint64_t stream = stream_key(config_.seed, self_);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const double unit = 2 * unit_open(draw(stream, i)) - 1;
    parameters[i] = config_.init_scale * static_cast<float>(unit);
  }
  const size_t stealing = (size_t{actors_.num_inputs()} + 1) * num_servers();
  for (uint32_t i = 0; i < num_servers(); ++i) {
    const size_t own = size_t{i} * actors_.num_inputs() + i;
    if (config_.inputs == ActorInputs::kWaits) {
      parameters[own] -= i == self_ ? config_.warm_start : config_.warm_others;
      parameters[own + num_servers()] -= config_.warm_others;
      continue;
    }
    parameters[own] -= config_.warm_start;
    parameters[stealing + own] += config_.warm_start;
  }
  const size_t keep = size_t{actors_.num_inputs()} * num_servers() + self_;
  parameters[keep] += config_.warm_keep;
  parameters[stealing + keep] -= config_.warm_keep;
  import_parameters(parameters.data());
}

void MalcolmServer::restart() {
  state_.clear();
  inputs_.clear();
  actor_trace_.clear();
  draws_score_.clear();
  std::memset(tasks_, 0, sizeof tasks_);
  std::memset(samples_, 0, sizeof samples_);
  std::memset(migrated_, 0, sizeof migrated_);
  std::memset(stolen_, 0, sizeof stolen_);
  const bool inverse = config_.rate_average == RateAverage::kInverse;
  for (float& mean : mean_) mean = inverse ? 1.0F / config_.initial_service_s : config_.initial_service_s;
  mean_service_s_ = config_.initial_service_s;
  task_.clear();
  full_.clear();
  stale_ = false;
  num_tasks_ = own_migrations_ = own_steals_ = other_migrations_ = other_steals_ = 0;
  untold_ = {};
  told_load_s_ = 0;
  started_ = false;
  update_ranks();
  actors_.recompute(inputs_.data());
  actors_.refresh();
}

void MalcolmServer::on_accept(uint32_t type) {
  ++tasks_[std::min(type, config_.num_types - 1)];
  ++num_tasks_;
  if (config_.live_draws) see_own();
}

void MalcolmServer::on_stolen(uint32_t type) {
  uint32_t& tasks = tasks_[std::min(type, config_.num_types - 1)];
  if (tasks == 0) return;
  --tasks;
  --num_tasks_;
  if (config_.live_draws) see_own();
}

void MalcolmServer::on_completion(uint32_t type, float service_s) {
  on_stolen(type);
  if (!is_finite(service_s)) return;
  const uint32_t t = std::min(type, config_.num_types - 1);
  const float service = std::max(service_s, kShortestService);
  const float sample = config_.rate_average == RateAverage::kInverse ? 1.0F / service : service;
  if (samples_[t] < kMostSamples) ++samples_[t];
  const float weight = std::max(config_.rate_weight, 1.0F / static_cast<float>(samples_[t]));
  mean_[t] += weight * (sample - mean_[t]);
  mean_service_s_ += weight * (service - mean_service_s_);
  if (config_.live_draws) see_own();
}

// Live draws ask how many wait: a long task in a worker's hands is no one's wait, so every task counts alike.
float MalcolmServer::load_s() const {
  if (config_.live_draws) return static_cast<float>(num_tasks_) * task_s();
  float work = 0;
  for (uint32_t t = 0; t < config_.num_types; ++t) {
    const float tasks = static_cast<float>(tasks_[t]);
    work += config_.rate_average == RateAverage::kInverse ? tasks / mean_[t] : tasks * mean_[t];
  }
  return work / static_cast<float>(workers_);
}

ServerId MalcolmServer::migrate(uint64_t word) {
  const uint32_t to = draw_now(ActorKind::kMigration, word);
  ++migrated_[to];
  if (to != self_) {
    ++own_migrations_;
    ++untold_.migrations;
    if (config_.live_draws) count_sent(to);
  }
  return static_cast<ServerId>(to);
}

ServerId MalcolmServer::steal(uint64_t word) {
  if (num_tasks_ >= workers_ + config_.steal_below) return kNoServer;
  const uint32_t from = draw_now(ActorKind::kStealing, word);
  ++stolen_[from];
  if (from == self_) return kNoServer;
  ++own_steals_;
  ++untold_.steals;
  return static_cast<ServerId>(from);
}

void MalcolmServer::set_state(uint32_t server, float load_s) {
  state_[server] = load_s / config_.load_unit_s;
  if (!config_.live_draws) return set_input(server, std::min(state_[server], config_.load_cap));
  if (server == self_) return see_own();
  see(server, state_[server]);
}

LoadMessage MalcolmServer::broadcast() {
  told_load_s_ += (1.0F - config_.load_smoothing) * (load_s() - told_load_s_);
  set_state(self_, told_load_s_);
  LoadMessage message = untold_;
  message.task_s = task_s();
  message.workers = static_cast<float>(workers_);
  message.load_s = told_load_s_;
  untold_ = {};
  return message;
}

void MalcolmServer::on_load_message(ServerId from, const LoadMessage& message) {
  const auto server = static_cast<uint32_t>(from);
  if (server >= num_servers() || server == self_ || !is_finite(message.load_s)) return;
  if (config_.live_draws) {
    if (!is_finite(message.task_s) || !is_finite(message.workers)) return;
    task_[server] = message.task_s / config_.load_unit_s;
    full_[server] = message.workers * task_[server];
  }
  set_state(server, message.load_s);
  other_migrations_ += message.migrations;
  other_steals_ += message.steals;
}

void MalcolmServer::set_member(uint32_t server, bool member) {
  actors_.set_allowed(ActorKind::kMigration, server, member);
  actors_.set_allowed(ActorKind::kStealing, server, member);
}

// Position of every load in falling order, ties by index.
void MalcolmServer::update_ranks() {
  if (config_.inputs != ActorInputs::kRanks) return;
  const uint32_t n = num_servers();
  const i32x8 lane = {0, 1, 2, 3, 4, 5, 6, 7};
  for (uint32_t first = 0; first < n; first += 8) {
    const f32x8 x = load8(state_.data() + first);
    const i32x8 server = lane + static_cast<int32_t>(first);
    i32x8 rank = {};
    for (uint32_t k = 0; k < n; ++k) {
      const f32x8 other = fill8(state_[k]);
      rank -= (other > x) | ((other == x) & (server > static_cast<int32_t>(k)));
    }
    for (uint32_t i = first; i < std::min(first + 8, n); ++i) {
      const float value = log_rank_[static_cast<uint32_t>(rank[i - first])];
      if (value == inputs_[n + i]) continue;
      actors_.add_input(n + i, value - inputs_[n + i]);
      inputs_[n + i] = value;
    }
  }
}

// Of the window that ends: it began at imbalance_.
float MalcolmServer::reward() {
  const float cost = config_.costs.of(own_migrations_ + other_migrations_, own_steals_ + other_steals_);
  if (config_.reward == RackReward::kWaiting) return -config_.reward_scale * waiting() - cost;
  if (config_.reward == RackReward::kPotential) return -config_.reward_scale * imbalance_ - cost;
  const float now = mean_squared_imbalance(state_.data(), num_servers());
  return config_.reward_scale * (imbalance_ - now) - cost;
}

// d log pi / d logits of the draws of a window, or of their mean.
void MalcolmServer::score(ActorKind actor, float* out) const {
  const uint32_t* drawn = actor == ActorKind::kMigration ? migrated_ : stolen_;
  const float* pi = actors_.probabilities(actor);
  uint32_t total = 0;
  for (uint32_t i = 0; i < num_servers(); ++i) total += drawn[i];
  const float of_draw = total == 0 ? 0.0F : (config_.mean_score ? 1.0F / static_cast<float>(total) : 1.0F);
  const float of_pi = total == 0 ? 0.0F : (config_.mean_score ? 1.0F : static_cast<float>(total));
  for (uint32_t i = 0; i < num_servers(); ++i) {
    out[i] = of_draw * static_cast<float>(drawn[i]) - of_pi * pi[i];
  }
}

void MalcolmServer::cache_gradients(float td_error) {
  if (config_.live_draws) {
    cache_scores(actor_gradient_.size(), -td_error / static_cast<float>(config_.batch),
                 config_.td.discount * config_.actor_trace,
                 config_.actor_trace > 0 ? actor_trace_.data() : nullptr, actor_gradient_.data(),
                 draws_score_.data());
    return;
  }
  score(ActorKind::kMigration, score_.data());
  score(ActorKind::kStealing, score_.data() + actors_.lanes());
  cache_actor_gradient(actors_.lanes(), actors_.num_inputs(), window_inputs_.data(), score_.data(),
                       -td_error / static_cast<float>(config_.batch),
                       config_.td.discount * config_.actor_trace,
                       config_.actor_trace > 0 ? actor_trace_.data() : nullptr, actor_gradient_.data());
}

bool MalcolmServer::update() {
  if (++cached_ < config_.batch) return false;
  cached_ = 0;
  actor_optimizer_.update(config_.actor_optimizer, actors_.parameters(), actor_gradient_.data());
  critic_optimizer_.update(config_.critic_optimizer, critic_.parameters(), critic_.gradient());
  critic_.revalue();
  ++updates_;
  return true;
}

WindowResult MalcolmServer::on_window() {
  WindowResult result;
  update_ranks();
  if (!frozen_ && started_) {
    result.learned = true;
    result.reward = reward();
    result.td_error =
        critic_.observe(inputs_.data(), result.reward, config_.td, 1.0F / static_cast<float>(config_.batch));
    cache_gradients(result.td_error);
    result.updated = update();
    result.consensus_due = result.updated && updates_ % config_.consensus_every == 0;
  } else if (!frozen_) {
    critic_.start(inputs_.data());
    started_ = true;
  } else {
    started_ = false;
    draws_score_.clear();
  }
  if (result.updated || ++since_refresh_ >= kRefreshWindows) {
    actors_.recompute(inputs_.data());
    since_refresh_ = 0;
  }
  actors_.refresh();
  stale_ = false;
  if (!frozen_) {
    imbalance_ = config_.reward == RackReward::kPotential
                     ? load_imbalance(state_.data(), num_servers())
                     : mean_squared_imbalance(state_.data(), num_servers());
    std::memcpy(window_inputs_.data(), inputs_.data(), inputs_.size() * sizeof(float));
  }
  std::memset(migrated_, 0, num_servers() * sizeof(uint32_t));
  std::memset(stolen_, 0, num_servers() * sizeof(uint32_t));
  own_migrations_ = own_steals_ = other_migrations_ = other_steals_ = 0;
  return result;
}

size_t MalcolmServer::num_parameters() const {
  return size_t{kNumActors} * (actors_.num_inputs() + 1) * num_servers() + critic_.size();
}

void MalcolmServer::export_parameters(float* out) const {
  const size_t weights = size_t{actors_.num_inputs()} * num_servers();
  for (const ActorKind actor : {ActorKind::kMigration, ActorKind::kStealing}) {
    actors_.get_weights(actor, out, out + weights);
    out += weights + num_servers();
  }
  std::memcpy(out, critic_.parameters(), critic_.size() * sizeof(float));
}

void MalcolmServer::import_parameters(const float* in) {
  const size_t weights = size_t{actors_.num_inputs()} * num_servers();
  for (const ActorKind actor : {ActorKind::kMigration, ActorKind::kStealing}) {
    actors_.set_weights(actor, in, in + weights);
    in += weights + num_servers();
  }
  set_critic_parameters(in);
  actors_.recompute(inputs_.data());
  actors_.refresh();
}

void MalcolmServer::set_critic_parameters(const float* theta) {
  std::memcpy(critic_.parameters(), theta, critic_.size() * sizeof(float));
  critic_.revalue();
}

uint64_t MalcolmServer::consensus(MalcolmServer* const* servers, size_t count) {
  if (count == 0 || count > kMaxRackServers) return 0;
  const float* vectors[kMaxRackServers];
  LinearCritic& first = servers[0]->critic_;
  for (size_t i = 0; i < count; ++i) {
    if (servers[i]->critic_size() != first.size()) return 0;
    vectors[i] = servers[i]->critic_.parameters();
  }
  average_parameters(vectors, count, first.size(), first.parameters());
  first.revalue();
  for (size_t i = 1; i < count; ++i) servers[i]->set_critic_parameters(first.parameters());
  return consensus_bytes(count, first.size());
}

}  // namespace steelyard::core
