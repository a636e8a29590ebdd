// The cluster world: M load balancers before N servers (network load balancing; seed 002 Sec. 3, App. C.1).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "native/core/balancer_log.h"
#include "native/core/load_balancer.h"
#include "native/sim/arrivals.h"
#include "native/sim/cluster_config.h"
#include "native/sim/device.h"
#include "native/sim/event_queue.h"
#include "native/sim/metrics.h"
#include "native/sim/observation_line.h"

namespace steelyard::sim {

// A flow from its arrival at a balancer until that balancer has seen its FIN or RST.
struct Flow {
  uint64_t id = 0;
  uint64_t hash = 0;
  core::TimeNs opened = 0;
  double work_ns = 0;   // demand of the current stage
  float service_s = 0;  // work of all stages entered so far, at the speed that the server had then
  uint32_t reply_ns = 0, fin_ns = 0;  // network delays of the reply and of the client's FIN
  uint32_t next = kNoSlot;            // behind this one in a waiting line
  uint32_t epoch = 0;                 // of the slot: an event of an earlier tenant is stale
  uint32_t trace_row = 0;
  int16_t server = -1;
  uint16_t balancer = 0;
  uint16_t reported_load = 0;  // what its server says: flows in it when it came (Charon), when it left (C3)
  uint8_t stage = 0;
  bool completed = false;
};

struct Server {
  Device cpu, io;
  uint32_t line_head = kNoSlot, line_tail = kNoSlot;  // waiting for a CPU worker
  uint32_t waiting = 0;
  bool member = true;
};

// A question to a server and its answer (Prequal), on their way.
struct Probe {
  core::TimeNs back_ns = 0;  // network delay of the answer
  uint32_t rif = 0;
  float latency_s = 0;
  int16_t server = -1;
  uint16_t balancer = 0;
};

// Whom a world tells what happens to one of its balancers. Copies of the world tell nobody.
struct Tap {
  core::BalancerLog* log = nullptr;
  int balancer = -1;
  Tap() = default;
  Tap(const Tap&) {}
  Tap& operator=(const Tap&) { return *this; }
};

// A value: copying it is a snapshot, assigning the copy back restores it. Everything that happens is a
// pure function of (config, rule, seed, actions).
class ClusterWorld {
 public:
  // `config` must be prepared and `rule` checked.
  ClusterWorld(std::shared_ptr<const ClusterConfig> config, const core::RuleConfig& rule, uint64_t seed);
  void reset(uint64_t seed);
  // From the next reset on, `log` (which must live as long) is told what happens to one balancer.
  void listen(int balancer, core::BalancerLog* log) {
    tap_.log = log;
    tap_.balancer = balancer;
  }

  // All events with time <= t, step boundaries included (rules tick and hosted policies act there).
  void run_until(core::TimeNs t);
  // Until every flow that opened before the horizon has completed (arrivals go on).
  void drain();
  core::TimeNs now() const { return now_; }
  core::TimeNs step_ns() const { return step_ns_; }
  core::TimeNs horizon_ns() const { return horizon_ns_; }

  // What has reached the balancer's agent by now: (observation_size(N),) float32, the hidden features 0.
  void observe(int balancer, float* out);
  void observe_durations(int balancer, float* out) { balancers_[balancer].observe_durations(now_, out); }
  // (N,) in [-1, 1]; its weights act after the actuation delay.
  void act(int balancer, const float* action);
  // l_j of network-lb.md "Rewards": remaining time of each server, of all flows or of one balancer's
  // (balancer = -1: all). (N,) [s].
  void remaining_time(int balancer, double* out) const;
  // As run_until. out: (M, N), the remaining time [s] that the flows which arrive meanwhile bring to the
  // server that was chosen for them, by balancer, before any of it is served, at the capacities of now.
  void place_until(core::TimeNs t, double* out);
  // Weights of one balancer, (N,), in force at once and until the rule or an action sets others.
  void set_weights(int balancer, std::span<const double> weights) {
    balancers_[balancer].set_weights(weights);
    if (core::BalancerLog* log = log_of(balancer)) log->on_weights(weights, now_);
  }

  int num_balancers() const { return config_->num_load_balancers; }
  int num_servers() const { return config_->num_servers(); }
  const ClusterConfig& config() const { return *config_; }
  const core::LoadBalancer& balancer(int i) const { return balancers_[i]; }
  const std::vector<uint32_t>& in_system() const { return in_system_; }
  std::vector<uint32_t> waiting() const;
  // Workers x speed now.
  double capacity(int server) const {
    const Device& cpu = servers_[server].cpu;
    return cpu.workers() * cpu.speed();
  }
  const Metrics& metrics() const { return metrics_; }
  Metrics& metrics() { return metrics_; }
  uint64_t digest() const { return digest_; }
  uint64_t untracked() const;  // flows that found no room in a flow table
  uint64_t arrived() const { return next_id_; }
  // Control messages sent so far, apart from the flows' own packets: probes and their answers.
  uint64_t messages() const { return messages_; }
  // What an episode's statistics take from the world itself.
  void add_counts(EpisodeStats& stats) const;
  uint64_t live_flows() const { return flows_.size() - free_slots_.size(); }

 private:
  enum Kind : uint8_t {
    kEnter,
    kCpuDone,
    kIoDone,
    kAck,
    kClose,
    kReply,
    kActuate,
    kTimetable,
    kUndo,
    kObserve,
    kProbe,
    kAnswer
  };
  struct Arriving {  // what fixes the demands of a flow
    uint64_t id;
    uint32_t trace_row;
  };
  struct Stage {
    uint64_t stream;                 // of its demands
    ExponentialStream exponentials;  // of the same draws
    const Distribution* demand;
    StageKind kind;
  };
  struct Delays {
    core::TimeNs ns[4];
  };
  struct Change {  // a timetable line as drawn for this seed
    const EventConfig* line;
    std::vector<int> targets;
    std::vector<double> values;
  };

  core::BalancerLog* log_of(int balancer) const { return balancer == tap_.balancer ? tap_.log : nullptr; }
  // Apart, so that the path of every flow only asks whether anybody listens.
  [[gnu::cold, gnu::noinline]] void tell_open(int balancer, uint64_t hash, core::ServerId server);
  [[gnu::cold, gnu::noinline]] void tell_ack(const Flow& flow);
  [[gnu::cold, gnu::noinline]] void tell_close(const Flow& flow);
  void restart_balancer(int balancer);
  void take_action(int balancer, const float* action);
  void apply_action(int balancer);
  // `inline`: the path of every flow, defined and called in cluster.cc alone.
  inline void dispatch(Event event);
  inline void arrive();
  [[gnu::cold]] core::ServerId choose_with_host(int balancer, uint64_t hash, const Arriving& arriving);
  core::ServerId choose_exact(uint64_t hash, const Arriving& arriving) const;
  double forecast(int server, const Arriving& arriving) const;
  double server_remaining(int server, int balancer) const;
  inline uint32_t take_slot();
  inline void enter(uint32_t slot);
  void reject(uint32_t slot);
  inline bool start_stage(uint32_t slot);
  inline void device_done(uint32_t server, bool io);
  void admit_waiting(uint32_t server);
  void announce(uint32_t server, bool io);
  inline void complete(uint32_t slot);
  inline void close(uint32_t slot);
  inline void first_ack(const Flow& flow);
  inline bool is_next(core::TimeNs at) const;
  double stage_work_ns(uint64_t flow_id, uint32_t trace_row, size_t stage) const;
  inline double current_work_ns(const Flow& flow);
  [[gnu::noinline]] double trace_work_ns(const Distribution& demand, uint32_t trace_row) const;
  inline Delays delays(uint64_t key) const;
  core::TimeNs hops(uint64_t key, int count) const;
  [[gnu::cold]] void note_completion(uint32_t slot);
  [[gnu::cold]] void hear_reply(const Flow& flow);
  void send_probes(int balancer, uint64_t hash, uint64_t flow_id);
  [[gnu::cold]] void answer_probe(uint32_t slot);
  [[gnu::cold]] void hear_answer(uint32_t slot);
  void boundary();
  void set_up_agents();
  void observe_now(int balancer, float* out);
  void take_observations();
  void run_agents();
  void run_central();
  void draw_timetable(uint64_t seed);
  void apply(const Change& change, bool undo);
  void set_speed(int server, double factor);
  void set_workers(int server, int workers);
  void set_member(int server, bool member);
  void set_up(int balancer, bool up);

  std::shared_ptr<const ClusterConfig> config_;
  core::RuleConfig rule_;
  Tap tap_;
  bool servers_report_ = false;  // replies or probes carry what servers know
  std::vector<core::LoadBalancer> balancers_;
  std::vector<uint8_t> balancer_up_;
  std::vector<int> up_list_;
  core::HostedPolicy hosted_;
  std::vector<float> observation_, action_;
  std::vector<int> hidden_;  // features that read as 0
  ObservationLine line_;
  std::vector<double> loads_;
  std::vector<Server> servers_;
  std::vector<uint32_t> in_system_;
  std::vector<Flow> flows_;
  std::vector<uint32_t> free_slots_;
  EventQueue queue_;
  ArrivalProcess arrivals_;
  std::vector<Stage> stages_;
  size_t num_stages_ = 0;
  std::vector<Change> timetable_;
  Metrics metrics_;
  uint64_t hash_stream_ = 0, hop_stream_ = 0, node_stream_ = 0, reservoir_stream_ = 0;
  double hop_unit_ns_ = 0, node_unit_ns_ = 0, least_delay_ns_ = 0;
  std::vector<core::LatencyByRif> latencies_;  // of each server, for its answers to probes
  std::vector<Probe> probes_;
  std::vector<uint32_t> free_probes_;
  uint64_t messages_ = 0;
  uint64_t next_id_ = 0;
  uint64_t untracked_by_failed_ = 0;  // what failed balancers had counted
  uint64_t digest_ = 0;
  core::TimeNs now_ = 0, step_ns_ = 0, horizon_ns_ = 0, next_boundary_ = 0, actuation_ns_ = 0;
  core::TimeNs pause_ = 0;  // run_until looks up here: at the next boundary or at its end
};

}  // namespace steelyard::sim
