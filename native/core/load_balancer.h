// One load balancer: what it sees and how it chooses. The simulator, the dataplanes and the VPP plugin
// all host this class; time and hashes are arguments, and nothing here is ever told a true demand.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "native/core/c3.h"
#include "native/core/charon.h"
#include "native/core/delay_keys.h"
#include "native/core/flow_table.h"
#include "native/core/hlb.h"
#include "native/core/least_request.h"
#include "native/core/observation.h"
#include "native/core/peak_ewma.h"
#include "native/core/prequal.h"
#include "native/core/reservoir.h"
#include "native/core/rule.h"
#include "native/core/schema.h"
#include "native/core/select.h"

namespace steelyard::core {

struct BalancerConfig {
  int num_servers = 0;
  int num_load_balancers = 1;  // that share the servers (C3)
  int flow_table_buckets = 65536;
  int flow_table_ways = 4;
  int reservoir_size = Reservoir::kMaxSize;
  bool features = true;      // keep reservoirs
  bool preallocate = false;  // no heap after construction (dataplanes)
};

class LoadBalancer {
 public:
  // Not usable before the first restart.
  LoadBalancer(const BalancerConfig& config, const RuleConfig& rule);

  // Chooses a server for a new flow; kNoServer when the pool is empty. `global_load[j]`: flows in server j,
  // for the rules that are told (Score::kGlobal, kNoisy); may be null for others.
  ServerId choose(uint64_t hash, TimeNs now, const uint32_t* global_load);
  // Registers a flow on the server chosen for it, and returns where it goes: there, or, when the flow table
  // has no room, to a server that follows from its hash alone, since its later packets find no entry (not
  // counted).
  ServerId open(uint64_t hash, ServerId server, TimeNs now);
  // First ACK of the client: a flow-duration sample.
  void first_ack(uint64_t hash, TimeNs now);
  // Registers a flow that `from` counts, as it is there and without samples: a host builds a new balancer in
  // the place of a running one. False when `from` does not know it or there is no room.
  bool adopt(uint64_t hash, ServerId server, LoadBalancer& from);
  // The client's FIN (completed) or RST (not completed: no sample, a refusal is not a fast flow).
  void close(uint64_t hash, bool completed, TimeNs now);
  // A reply that carries the server's load (Charon; its replies pass the balancer).
  void learn_load(ServerId server, uint32_t load, TimeNs now);
  // The reply of a flow that says the flows that its server still has, and the flow's service time (C3).
  void learn_reply(uint64_t hash, uint32_t queue, float service_s, TimeNs now);
  // The servers to probe when the flow has opened (Prequal): writes up to ProbePool::kMaxProbes of them,
  // returns how many.
  int probe_targets(uint64_t hash, ServerId* out) const;
  // A server's answer to a probe: flows in it, and its estimate of their latency.
  void learn_probe(ServerId server, uint32_t rif, float latency_s, TimeNs now);

  // For hosts that see several flows coming: see FlowTable.
  const FlowTable& table() const { return table_; }
  // The word by which every rule chooses for a flow; hosts that know no flow look it up in a Maglev table.
  static uint64_t choice_word(uint64_t hash);

  // By what each server is known to every balancer (see MaglevTable); acts from set_members on.
  void set_names(std::span<const uint64_t> names) { names_.assign(names.begin(), names.end()); }
  // The pool's membership, by the control plane.
  void set_members(std::span<const ServerId> members);
  // The periodic part of the rule, every step and after each change of membership. `probed_load[j]`: flows
  // in server j as probed now (awcmp); may be null for rules that do not probe. Returns how many it looked
  // at.
  int tick(TimeNs now, const uint32_t* probed_load);
  // The agent's action in [-1, 1]^N is noted for the next observation; its weights act from apply_action on.
  void set_action(const float* action);
  void apply_action();
  void set_weights(std::span<const double> weights);
  // (observation_size(N),) float32, see schema.h.
  void observe(TimeNs now, float* out);
  // Weighted discounted mean flow duration [s] per server, the default measure of rewards.
  void observe_durations(TimeNs now, float* out);
  // For a balancer that gets no flows itself but stands for several of one pool: from now on it has measured
  // what they have.
  void show(std::span<const uint32_t> flows_on, std::span<const Reservoir> durations,
            std::span<const Reservoir> completions, const Reservoir& inter_arrival);
  // As a balancer that has just been started: no flow, no sample, initial weights; `stream` keys its
  // reservoirs.
  void restart(uint64_t stream);

  const std::vector<uint32_t>& flows_on() const { return flows_on_; }
  const std::vector<WeightQ16>& weights() const { return weight_; }
  const std::vector<ServerId>& members() const { return members_; }
  // The action that set_action noted last, zeros before.
  const std::vector<float>& action() const { return action_; }
  // Samples per server; empty spans when no features are kept.
  std::span<const Reservoir> durations() const { return duration_; }
  std::span<const Reservoir> completions() const { return completion_; }
  const Reservoir& inter_arrival() const { return inter_arrival_; }
  int num_servers() const { return config_.num_servers; }
  uint64_t untracked() const { return untracked_; }

 private:
  ServerId choose_by_delay(uint64_t word) const;
  ServerId choose_otherwise(uint64_t word, TimeNs now);
  ServerId choose_by_hash(uint64_t word);
  ServerId choose_by_c3(uint64_t word) const;
  ServerId choose_by_peak_ewma(uint64_t word, TimeNs now);
  ServerId choose_by_probes(uint64_t word, TimeNs now);
  inline ServerId choose_by_score(uint64_t word, TimeNs now, const uint32_t* global_load);
  const uint32_t* told_loads(uint64_t word, TimeNs now, const uint32_t* global_load);
  [[gnu::noinline]] void add_completion(ServerId server, TimeNs opened,
                                        TimeNs now);  // apart: close needs no frame
  void refresh_tables();
  void refresh_keys();
  void follow(ServerId server) {
    if (by_delay_) keys_.update(server, flows_on_[server], weight_[server]);
  }
  int probe(TimeNs now, const uint32_t* probed_load);

  BalancerConfig config_;
  bool keeps_samples_;  // of completed flows
  bool by_delay_;       // keys_ follow: the rule looks at all of many servers, by this balancer's counts
  RuleConfig rule_;
  std::vector<ServerId> members_;
  std::vector<uint64_t> names_;
  std::vector<uint32_t> flows_on_;
  std::vector<WeightQ16> weight_;
  std::vector<WeightQ16> configured_;
  std::vector<float> action_;
  DelayKeys keys_;
  std::vector<uint32_t> score_;
  std::vector<float> mean_, std_;  // scratch of tick
  FlowTable table_;
  std::vector<Reservoir> duration_;
  std::vector<Reservoir> completion_;
  Reservoir inter_arrival_;
  TimeNs last_arrival_ = -1;
  TimeNs next_refresh_ = 0;
  uint64_t turn_ = 0;
  uint64_t untracked_ = 0;
  AliasTable alias_;
  MaglevTable maglev_;
  HlbFilter hlb_;
  CharonScores charon_;
  LeastRequestSchedule schedule_;
  PeakEwma peak_ewma_;
  C3Scores c3_;
  ProbePool pool_;
};

}  // namespace steelyard::core
