#include "native/core/load_balancer.h"

#include <algorithm>
#include <numeric>

#include "native/core/rng.h"

namespace steelyard::core {
namespace {

constexpr uint64_t kChoiceSalt =
    0x5bd1e9955bd1e995ULL;                        // the choice must not reuse the edge router's hash bits
constexpr uint64_t kProbeSalt = 0x70726f6265ULL;  // nor probes those of the choice
constexpr uint32_t kScoreUnit = 256;              // predicted and noisy loads carry 8 fractional bits
constexpr float kSecondsPerNs = 1e-9f;

float seconds(TimeNs duration) { return static_cast<float>(duration) * kSecondsPerNs; }

}  // namespace

LoadBalancer::LoadBalancer(const BalancerConfig& config, const RuleConfig& rule)
    : config_(config),
      keeps_samples_(config.features || rule.traits->score == Score::kPeakEwma),
      by_delay_(rule.traits->score == Score::kLocal && rule.traits->sampling == Sampling::kAll &&
                config.num_servers >= DelayKeys::kFewest),
      rule_(rule),
      keys_(config.num_servers),
      table_(config.flow_table_buckets, config.flow_table_ways, config.preallocate) {
  const int n = config.num_servers;
  configured_.assign(n, kUnitWeight);
  for (size_t j = 0; j < rule.weights.size(); ++j)
    configured_[j] = weight_to_q16(static_cast<float>(rule.weights[j]));
  members_.resize(n);
  std::iota(members_.begin(), members_.end(), 0);
  const Reservoir empty(0, config.reservoir_size);
  if (config.features) {
    duration_.assign(n, empty);
    completion_.assign(n, empty);
  }
  inter_arrival_ = empty;
}

void LoadBalancer::restart(uint64_t stream) {
  const int n = config_.num_servers;
  table_.clear();
  flows_on_.assign(n, 0);
  action_.assign(n, 0.0f);
  score_.assign(n, 0);
  mean_.assign(n, 0.0f);
  std_.assign(n, 0.0f);
  const bool uses_configured =
      rule_.traits->weighting == Weighting::kConfigured || rule_.traits->weighting == Weighting::kProbed;
  if (uses_configured) {
    weight_ = configured_;
  } else {
    weight_.assign(n, kUnitWeight);
  }
  for (size_t j = 0; j < duration_.size(); ++j) {
    duration_[j].restart(stream_key(stream, 2 * j));
    completion_[j].restart(stream_key(stream, 2 * j + 1));
  }
  inter_arrival_.restart(stream_key(stream, UINT64_MAX));
  last_arrival_ = -1;
  next_refresh_ = 0;
  turn_ = 0;
  untracked_ = 0;
  hlb_ = HlbFilter(n);
  charon_ = CharonScores(n);
  schedule_ = LeastRequestSchedule(n, stream);
  peak_ewma_ = PeakEwma(n, rule_.decay_s);
  c3_ = C3Scores(n, config_.num_load_balancers, rule_.newest);
  const TimeNs age = static_cast<TimeNs>(rule_.probe_age_s * kNanosPerSecond);
  pool_ = ProbePool({.rif_quantile = rule_.rif_quantile, .probes = rule_.probes, .age = age}, stream);
  refresh_tables();
}

const uint32_t* LoadBalancer::told_loads(uint64_t word, TimeNs now, const uint32_t* global_load) {
  switch (rule_.traits->score) {
    case Score::kGlobal:
      return global_load;
    case Score::kNoisy:
      for (const ServerId j : members_) {
        const uint32_t noise =
            below(draw(word, static_cast<uint64_t>(j)), static_cast<uint32_t>(rule_.noise * kScoreUnit) + 1);
        score_[j] = global_load[j] * kScoreUnit + noise;
      }
      return score_.data();
    case Score::kPredicted:
      for (const ServerId j : members_)
        score_[j] = static_cast<uint32_t>(charon_.predicted(j, now) * kScoreUnit);
      return score_.data();
    default:
      return flows_on_.data();
  }
}

ServerId LoadBalancer::choose_by_hash(uint64_t word) {
  switch (rule_.traits->sampling) {
    case Sampling::kWeightedHash:
      return alias_.sample(word);
    case Sampling::kMaglev:
      return maglev_.lookup(word);
    case Sampling::kRoundRobin:
      return members_[turn_++ % members_.size()];
    default:
      return members_[below(word, static_cast<uint32_t>(members_.size()))];
  }
}

// As argmin_expected_delay.
ServerId LoadBalancer::choose_by_delay(uint64_t word) const {
  const uint32_t start = below(word, static_cast<uint32_t>(members_.size()));
  const ServerId server = members_[keys_.first_least(start)];
  if (flows_on_[server] < DelayKeys::kExactLoad) [[likely]]
    return server;
  return argmin_expected_delay(members_, flows_on_.data(), weight_.data(), word);
}

inline ServerId LoadBalancer::choose_by_score(uint64_t word, TimeNs now, const uint32_t* global_load) {
  if (by_delay_) return choose_by_delay(word);
  const Score score = rule_.traits->score;
  const uint32_t* load = score == Score::kLocal ? flows_on_.data() : told_loads(word, now, global_load);
  ServerId server = kNoServer;
  if (rule_.traits->sampling == Sampling::kAll) {
    server = argmin_expected_delay(members_, load, weight_.data(), word);
  } else if (rule_.traits->sampling == Sampling::kTwo) {
    server = better_of_two(members_, load, weight_.data(), word);
  } else {
    const ServerId a = alias_.sample(word);
    const ServerId b = alias_.sample(mix64(word + kChoiceSalt));
    server = load[b] < load[a] ? b : a;
  }
  if (score == Score::kPredicted) charon_.chosen(server, now);
  return server;
}

uint64_t LoadBalancer::choice_word(uint64_t hash) { return mix64(hash ^ kChoiceSalt); }

ServerId LoadBalancer::choose(uint64_t hash, TimeNs now, const uint32_t* global_load) {
  if (members_.empty()) return kNoServer;
  const uint64_t word = choice_word(hash);
  return rule_.traits->score >= Score::kRandom ? choose_otherwise(word, now)
                                               : choose_by_score(word, now, global_load);
}

ServerId LoadBalancer::choose_otherwise(uint64_t word, TimeNs now) {
  switch (rule_.traits->score) {
    case Score::kLeastRequest:
      return schedule_.equal() ? better_of_two(members_, flows_on_.data(), weight_.data(), word)
                               : schedule_.pick(members_, weight_.data(), flows_on_.data());
    case Score::kPeakEwma:
      return choose_by_peak_ewma(word, now);
    case Score::kC3:
      return choose_by_c3(word);
    case Score::kProbed:
      return choose_by_probes(word, now);
    default:
      return choose_by_hash(word);
  }
}

ServerId LoadBalancer::choose_by_peak_ewma(uint64_t word, TimeNs now) {
  if (members_.size() == 1) return members_[0];
  const Pair pair = two_below(word, static_cast<uint32_t>(members_.size()));
  const ServerId a = members_[pair.first], b = members_[pair.second];
  const float cost_a = peak_ewma_.cost(a, flows_on_[a], now), cost_b = peak_ewma_.cost(b, flows_on_[b], now);
  return cost_b < cost_a ? b : a;
}

// Ties as in argmin_expected_delay.
ServerId LoadBalancer::choose_by_c3(uint64_t word) const {
  const size_t n = members_.size();
  size_t at = below(word, static_cast<uint32_t>(n));
  ServerId best = members_[at];
  float best_score = c3_.score(best, flows_on_[best]);
  for (size_t left = n - 1; left > 0; --left) {
    at = at + 1 == n ? 0 : at + 1;
    const float score = c3_.score(members_[at], flows_on_[members_[at]]);
    if (score >= best_score) continue;
    best = members_[at];
    best_score = score;
  }
  return best;
}

ServerId LoadBalancer::choose_by_probes(uint64_t word, TimeNs now) {
  const ServerId chosen = pool_.choose(now);
  const ServerId server =
      chosen == kNoServer ? members_[below(word, static_cast<uint32_t>(members_.size()))] : chosen;
  pool_.settle(server);
  return server;
}

int LoadBalancer::probe_targets(uint64_t hash, ServerId* out) const {
  return pool_.targets(members_, mix64(hash ^ kProbeSalt), out);
}

ServerId LoadBalancer::open(uint64_t hash, ServerId server, TimeNs now) {
  if (config_.features) {
    if (last_arrival_ >= 0) inter_arrival_.add(now, seconds(now - last_arrival_));
    last_arrival_ = now;
  }
  if (table_.open(hash, server, now) == nullptr) {
    ++untracked_;
    return members_[below(mix64(hash ^ kChoiceSalt), static_cast<uint32_t>(members_.size()))];
  }
  ++flows_on_[server];
  follow(server);
  return server;
}

bool LoadBalancer::adopt(uint64_t hash, ServerId server, LoadBalancer& from) {
  const FlowEntry* known = from.table_.find(hash);
  if (known == nullptr) return false;
  FlowEntry* entry = table_.open(hash, server, known->opened);
  if (entry == nullptr) return false;
  entry->acked = known->acked;
  ++flows_on_[server];
  follow(server);
  return true;
}

void LoadBalancer::first_ack(uint64_t hash, TimeNs now) {
  FlowEntry* entry = table_.find(hash);
  if (entry == nullptr || entry->acked != 0) return;
  entry->acked = 1;
  if (config_.features) duration_[entry->server].add(now, seconds(now - entry->opened));
}

void LoadBalancer::close(uint64_t hash, bool completed, TimeNs now) {
  FlowEntry* entry = table_.find(hash);
  if (entry == nullptr) return;
  const ServerId server = entry->server;
  const TimeNs opened = entry->opened;
  --flows_on_[server];
  follow(server);
  table_.close(hash, entry);
  if (keeps_samples_ && completed) add_completion(server, opened, now);
}

void LoadBalancer::add_completion(ServerId server, TimeNs opened, TimeNs now) {
  const float duration_s = seconds(now - opened);
  if (rule_.traits->score == Score::kPeakEwma) peak_ewma_.observe(server, duration_s, now);
  if (!config_.features) return;
  duration_[server].add(now, duration_s);
  completion_[server].add(now, duration_s);
}

void LoadBalancer::learn_load(ServerId server, uint32_t load, TimeNs now) {
  const float mean_fct_s = config_.features ? completion_[server].reduce(now).mean : 0;
  charon_.learnt(server, static_cast<float>(load), mean_fct_s, now);
}

void LoadBalancer::learn_reply(uint64_t hash, uint32_t queue, float service_s, TimeNs now) {
  const FlowEntry* entry = table_.find(hash);
  if (entry == nullptr) return;
  c3_.learnt(entry->server, seconds(now - entry->opened), service_s, static_cast<float>(queue));
}

void LoadBalancer::learn_probe(ServerId server, uint32_t rif, float latency_s, TimeNs now) {
  if (std::find(members_.begin(), members_.end(), server) == members_.end()) return;  // it left meanwhile
  pool_.add(server, rif, latency_s, static_cast<int>(members_.size()), now);
}

void LoadBalancer::set_members(std::span<const ServerId> members) {
  members_.assign(members.begin(), members.end());
  pool_.keep(members);
  refresh_tables();
}

void LoadBalancer::refresh_keys() {
  if (by_delay_) keys_.build(members_, flows_on_.data(), weight_.data());
}

void LoadBalancer::refresh_tables() {
  refresh_keys();
  if (members_.empty()) return;
  const Sampling sampling = rule_.traits->sampling;
  if (rule_.traits->score == Score::kLeastRequest)
    schedule_.build(members_, weight_.data(), flows_on_.data());
  if (sampling == Sampling::kMaglev) maglev_.build(members_, names_);
  if (sampling == Sampling::kWeightedHash || sampling == Sampling::kTwoWeighted) {
    alias_.build(members_, weight_.data());
  }
}

int LoadBalancer::probe(TimeNs now, const uint32_t* probed_load) {
  if (now < next_refresh_) return 0;
  next_refresh_ = now + static_cast<TimeNs>(rule_.interval_s * kNanosPerSecond);
  const bool predicted = rule_.traits->score == Score::kPredicted;
  if (!predicted && probed_load == nullptr) return 0;
  for (const ServerId j : members_) {
    const float load = predicted ? charon_.predicted(j, now) : static_cast<float>(probed_load[j]);
    const float weight = static_cast<float>(configured_[j]) / static_cast<float>(kUnitWeight);
    weight_[j] = weight_to_q16(weight / (load + 1.0f));
  }
  refresh_tables();
  return predicted ? 0 : static_cast<int>(members_.size());
}

int LoadBalancer::tick(TimeNs now, const uint32_t* probed_load) {
  if (rule_.traits->weighting == Weighting::kProbed) return probe(now, probed_load);
  if (rule_.traits->weighting != Weighting::kKalman || !config_.features) return 0;
  for (const ServerId j : members_) {
    const Reduced reduced = duration_[j].reduce(now);
    mean_[j] = reduced.mean;
    std_[j] = reduced.std;
  }
  hlb_.step(members_, mean_.data(), std_.data(), weight_.data());
  refresh_keys();
  return 0;
}

void LoadBalancer::set_action(const float* action) { action_.assign(action, action + flows_on_.size()); }

void LoadBalancer::apply_action() {
  for (size_t j = 0; j < weight_.size(); ++j) weight_[j] = weight_to_q16(weight_of_action(action_[j]));
  refresh_keys();
}

void LoadBalancer::set_weights(std::span<const double> weights) {
  for (size_t j = 0; j < weight_.size(); ++j) weight_[j] = weight_to_q16(static_cast<float>(weights[j]));
  refresh_tables();
}

void LoadBalancer::observe(TimeNs now, float* out) {
  write_observation({flows_on_, duration_, completion_, &inter_arrival_, action_}, now, out);
}

void LoadBalancer::show(std::span<const uint32_t> flows_on, std::span<const Reservoir> durations,
                        std::span<const Reservoir> completions, const Reservoir& inter_arrival) {
  flows_on_.assign(flows_on.begin(), flows_on.end());
  refresh_keys();
  duration_.assign(durations.begin(), durations.end());
  completion_.assign(completions.begin(), completions.end());
  inter_arrival_ = inter_arrival;
}

void LoadBalancer::observe_durations(TimeNs now, float* out) {
  for (int j = 0; j < config_.num_servers; ++j) {
    out[j] = config_.features ? duration_[j].reduce(now).weighted_discounted_mean : 0.0f;
  }
}

}  // namespace steelyard::core
