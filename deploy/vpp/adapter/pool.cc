#include "deploy/vpp/adapter/pool.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace steelyard::vpp {
namespace {

using dataplane::Endpoint;
using dataplane::Vip;
using dataplane::VipConfig;

constexpr TimeNs kPatience = 100'000'000;  // for threads that do not answer: their last answer stands

// Holds a flag; the threads of packets only try.
class Hold {
 public:
  explicit Hold(std::atomic_flag* flag, bool wait) : flag_(flag) {
    while ((held_ = !flag_->test_and_set(std::memory_order_acquire)) == false && wait) {
      __builtin_ia32_pause();
    }
  }
  ~Hold() {
    if (held_) flag_->clear(std::memory_order_release);
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  explicit operator bool() const { return held_; }

 private:
  std::atomic_flag* flag_;
  bool held_ = false;
};

// Notes what a PolicyHost does to the merged core.
class Catcher final : public core::BalancerLog {
 public:
  void on_restart(uint64_t) override {}
  void on_open(uint64_t, core::ServerId, TimeNs) override {}
  void on_first_ack(uint64_t, TimeNs) override {}
  void on_close(uint64_t, bool, TimeNs) override {}
  void on_load(core::ServerId, uint32_t, TimeNs) override {}
  void on_reply(uint64_t, uint32_t, float, TimeNs) override {}
  void on_probe(core::ServerId, uint32_t, float, TimeNs) override {}
  void on_members(std::span<const core::ServerId>, TimeNs) override {}
  void on_names(std::span<const uint64_t>, TimeNs) override {}
  void on_tick(std::span<const uint32_t>, TimeNs) override {}
  void on_policy(TimeNs) override {}
  void on_action(std::span<const float>, TimeNs) override {}
  void on_apply(TimeNs) override { applied = true; }
  void on_weights(std::span<const double> given, TimeNs) override {
    weights.assign(given.begin(), given.end());
  }

  bool applied = false;
  std::vector<double> weights;
};

void add(shm::ServerCounters* sum, const shm::ServerCounters& part) {
  sum->flows_opened += part.flows_opened;
  sum->flows_completed += part.flows_completed;
  sum->packets += part.packets;
  sum->bytes += part.bytes;
  sum->resets += part.resets;
  sum->collisions += part.collisions;
}

void add(dataplane::VipCounters* sum, const dataplane::VipCounters& part) {
  sum->fallback_packets += part.fallback_packets;
  sum->untracked_flows += part.untracked_flows;
  sum->half_open_refused += part.half_open_refused;
  sum->reused += part.reused;
  sum->adopted += part.adopted;
  sum->evicted += part.evicted;
  sum->no_server += part.no_server;
}

// Copies only reservoirs that have changed: most of a large pool's have not.
void copy_changed(std::span<const core::Reservoir> from, std::vector<core::Reservoir>* to) {
  to->resize(from.size());
  for (size_t j = 0; j < from.size(); ++j) {
    if (from[j].version() != (*to)[j].version() || from[j].filled() != (*to)[j].filled()) (*to)[j] = from[j];
  }
}

// The samples of several reservoirs in one, each value times its scale.
struct Merged {
  std::array<TimeNs, core::Reservoir::kMaxSize> times;
  std::array<float, core::Reservoir::kMaxSize> values;
  size_t size = 0;

  void add(const core::Reservoir& from, float scale) {
    for (int i = 0; i < from.filled() && size < times.size(); ++i, ++size) {
      times[size] = from.time_at(i);
      values[size] = from.value_at(i) * scale;
    }
  }
  void write(core::Reservoir* to) const {
    const bool same = to->filled() == static_cast<int>(size) && [&] {
      for (size_t i = 0; i < size; ++i) {
        const int slot = static_cast<int>(i);
        if (to->time_at(slot) != times[i] || to->value_at(slot) != values[i]) return false;
      }
      return true;
    }();
    if (!same) to->assign({times.data(), size}, {values.data(), size});
  }
};

}  // namespace

Pool::Pool(int threads, int workers) : workers_(workers) {
  for (int i = 0; i < threads; ++i) parts_.push_back(std::make_unique<Part>());
}

void Pool::configure(const VipConfig& config, const dataplane::PolicyArtefact& artefact, int balancer,
                     int num_balancers, TimeNs now) {
  config_ = config;
  const size_t n = config.servers.size();
  dataplane::PolicyPlace place{.servers = {},
                               .reservoir_size = config.reservoir_size,
                               .balancer = balancer,
                               .num_balancers = num_balancers};
  core::RuleConfig rule;
  rule.traits = core::find_rule(config.rule);
  std::vector<core::ServerId> active;
  for (size_t j = 0; j < n; ++j) {
    rule.weights.push_back(config.servers[j].weight);
    place.servers.push_back(dataplane::text_of(config.servers[j].address));
    if (!config.servers[j].drain) active.push_back(static_cast<core::ServerId>(j));
  }
  const core::BalancerConfig shape{.num_servers = static_cast<int>(n),
                                   .num_load_balancers = num_balancers,
                                   .flow_table_buckets = 1,
                                   .flow_table_ways = 1,
                                   .reservoir_size = config.reservoir_size};
  core_ = std::make_unique<core::LoadBalancer>(shape, rule);
  core_->restart(0);
  core_->set_members(active);
  const core::Reservoir empty(0, config.reservoir_size);
  durations_.assign(n, empty);
  completions_.assign(n, empty);
  inter_arrival_ = empty;
  totals_ = Totals();
  totals_.flows_on.assign(n, 0);
  totals_.servers.assign(n, {});
  totals_.weights.assign(n, 1);
  for (const std::unique_ptr<Part>& part : parts_) {
    part->totals = totals_;
    part->durations.clear();
    part->completions.clear();
    part->inter_arrival = core::Reservoir(0, config.reservoir_size);
    part->answered = 0;
    part->followed = 0;
  }
  asked_ = merged_ = 0;
  decision_.number = 0;
  next_ = now;
  policy_.share(config.shared_memory, place, static_cast<TimeNs>(config.max_age_s * core::kNanosPerSecond));
  if (config.rule != "policy") return policy_.stop();
  policy_.host(artefact, place);
}

VipConfig Pool::for_thread() const {
  VipConfig config = config_;
  config.follows = true;
  config.policy_file.clear();
  config.shared_memory.clear();
  config.reservoir_size = std::max(1, config_.reservoir_size / workers_);
  return config;
}

void Pool::serve(int thread, Vip& vip, TimeNs now) {
  Part& part = *parts_[thread];
  const uint64_t asked = asked_.load(std::memory_order_acquire);
  if (part.answered.load(std::memory_order_relaxed) != asked) {
    const Hold hold(&part.busy, false);
    if (hold) {
      answer(vip, &part);
      part.answered.store(asked, std::memory_order_release);
    }
  }
  if (part.followed != decision_.number.load(std::memory_order_acquire)) follow(part, vip, now);
}

void Pool::answer(const Vip& vip, Part* part) {
  Totals& totals = part->totals;
  const core::LoadBalancer& core = vip.core();
  totals.flows_on = core.flows_on();
  totals.servers.assign(totals.flows_on.size(), {});
  totals.vip = vip.counters();
  totals.connections = vip.table().live();
  totals.weights.clear();
  for (const core::WeightQ16 weight : core.weights()) {
    totals.weights.push_back(static_cast<double>(weight) / core::kUnitWeight);
  }
  for (const Endpoint& endpoint : vip.endpoints()) {
    if (endpoint.server == core::kNoServer) continue;
    totals.servers[endpoint.server] = {endpoint.opened, endpoint.completed, endpoint.packets,
                                       endpoint.bytes,  endpoint.reset,     0};
  }
  copy_changed(core.durations(), &part->durations);
  copy_changed(core.completions(), &part->completions);
  part->inter_arrival = core.inter_arrival();
}

void Pool::follow(Part& part, Vip& vip, TimeNs now) {
  const Hold hold(&decision_.busy, false);
  if (!hold) return;
  decision_.action.empty() ? vip.follow_weights(decision_.weights, now)
                           : vip.follow_action(decision_.action, now);
  part.followed = decision_.number.load(std::memory_order_relaxed);
}

bool Pool::all_answered() const {
  return std::all_of(parts_.begin(), parts_.end(), [&](const std::unique_ptr<Part>& part) {
    return part->answered.load(std::memory_order_acquire) == asked_.load(std::memory_order_relaxed);
  });
}

void Pool::tick(TimeNs now) {
  if (merged_ != asked_ && (all_answered() || now - asked_at_ > kPatience)) {
    merged_ = asked_;
    merge();
    decide(now);
  }
  if (now < next_ || merged_ != asked_) return;
  next_ = std::max(next_ + static_cast<TimeNs>(config_.interval_s * core::kNanosPerSecond), now);
  asked_at_ = now;
  asked_.fetch_add(1, std::memory_order_release);
}

void Pool::merge() {
  const size_t n = totals_.flows_on.size();
  totals_ = Totals();
  totals_.flows_on.assign(n, 0);
  totals_.servers.assign(n, {});
  std::vector<std::unique_ptr<Hold>> held;
  for (const std::unique_ptr<Part>& part : parts_) held.push_back(std::make_unique<Hold>(&part->busy, true));
  uint64_t arrivals = 0;
  for (const std::unique_ptr<Part>& part : parts_) {
    const Totals& mine = part->totals;
    for (size_t j = 0; j < n; ++j) {
      totals_.flows_on[j] += mine.flows_on[j];
      add(&totals_.servers[j], mine.servers[j]);
    }
    add(&totals_.vip, mine.vip);
    totals_.connections += mine.connections;
    arrivals += part->inter_arrival.added();
  }
  totals_.weights = parts_.back()->totals.weights;  // with workers the first thread is idle
  for (size_t j = 0; j < n; ++j) merge_reservoirs(j);
  // The gaps of a thread that gets a share of the arrivals are longer by as much.
  Merged gaps;
  for (const std::unique_ptr<Part>& part : parts_) {
    const core::Reservoir& mine = part->inter_arrival;
    gaps.add(mine, static_cast<float>(static_cast<double>(mine.added()) /
                                      static_cast<double>(std::max<uint64_t>(arrivals, 1))));
  }
  gaps.write(&inter_arrival_);
  core_->show(totals_.flows_on, durations_, completions_, inter_arrival_);
}

void Pool::merge_reservoirs(size_t server) {
  Merged durations, completions;
  for (const std::unique_ptr<Part>& part : parts_) {
    if (part->durations.size() <= server) continue;  // it has not answered yet
    durations.add(part->durations[server], 1);
    completions.add(part->completions[server], 1);
  }
  durations.write(&durations_[server]);
  completions.write(&completions_[server]);
}

void Pool::decide(TimeNs now) {
  Catcher catcher;
  policy_.tick(core_.get(), totals_.servers, &catcher, now);
  if (!catcher.applied && catcher.weights.empty()) return;
  const Hold hold(&decision_.busy, true);
  decision_.weights = catcher.weights;
  decision_.action = catcher.applied ? core_->action() : std::vector<float>();
  decision_.number.fetch_add(1, std::memory_order_release);
}

std::vector<float> Pool::observe(TimeNs now) {
  std::vector<float> observation(core::observation_size(static_cast<int>(totals_.flows_on.size())));
  core_->observe(now, observation.data());
  return observation;
}

}  // namespace steelyard::vpp
