// The rack world: servers of a few workers each, microsecond tasks, migration and stealing (Malcolm, seed
// 000; RackSched, OSDI'20). docs/rack.md describes it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "native/core/select.h"
#include "native/sim/arrivals.h"
#include "native/sim/device.h"
#include "native/sim/event_queue.h"
#include "native/sim/planned_entries.h"
#include "native/sim/planned_service.h"
#include "native/sim/rack_config.h"
#include "native/sim/rack_darc.h"
#include "native/sim/rack_decider.h"
#include "native/sim/rack_metrics.h"
#include "native/sim/rack_pallas.h"
#include "native/sim/rack_rule.h"
#include "native/sim/ring.h"
#include "native/sim/worker_calendar.h"

namespace steelyard::sim {

struct RackTask {
  uint64_t id = 0;
  core::TimeNs arrived = 0;
  int64_t service_ns = 0;  // at speed 1, with what migration and stealing add
  int64_t left_ns = 0;     // of it, under a quantum
  uint16_t decider = 0;
  uint16_t server = 0;
  uint16_t type = 0;
  uint16_t reservations = 0;   // not yet answered
  uint32_t twin = UINT32_MAX;  // pallas: the other copy
  bool clone = false;
  bool answered = false;  // the twin was done before
  bool bound = false;     // late binding: some server has it
  bool finished = false;  // late binding: served, but reservations are left
  bool remote = false;    // did not arrive where it is served: its decider hears of it by a reply
};

struct RackNode {
  uint32_t first = 0;    // its workers are numbered from here
  uint32_t workers = 0;  // now
  uint32_t room = 0;     // at most
  uint32_t idle = 0;
  uint32_t retiring = 0;  // workers to go as soon as they are free
  uint32_t in_system = 0;
  uint32_t serving = 0;  // tasks in service
  bool stealing = false;
  double speed = 1, pace = 1;  // pace = 1 / speed
  int64_t line_ns = 0;         // service of the waiting
  int64_t done_sum_ns = 0;     // of the times at which workers will be done
  double mean_service_s = 0;   // as the server estimates it
  double mean_inverse = 0;
  uint32_t migrations = 0, steals = 0;  // since its last report
  Ring<uint32_t> line;
};

// What happened at a server since reset.
struct RackTotals {
  uint64_t arrivals = 0;  // where servers decide
  uint64_t completions = 0;
  uint64_t migrations = 0;  // tasks given away
  uint64_t steals = 0;      // tasks stolen by it
};

// A copy of a decider goes with each copy of its world.
class DeciderOwner {
 public:
  DeciderOwner() = default;
  DeciderOwner(const DeciderOwner& other) : held_(other.held_ ? other.held_->clone() : nullptr) {}
  DeciderOwner& operator=(const DeciderOwner& other) {
    held_ = other.held_ ? other.held_->clone() : nullptr;
    return *this;
  }
  DeciderOwner(DeciderOwner&&) = default;
  DeciderOwner& operator=(DeciderOwner&&) = default;
  ~DeciderOwner() = default;
  void adopt(std::unique_ptr<RackDecider> decider) { held_ = std::move(decider); }
  RackDecider* operator->() const { return held_.get(); }
  RackDecider* get() const { return held_.get(); }
  explicit operator bool() const { return held_ != nullptr; }

 private:
  std::unique_ptr<RackDecider> held_;
};

// A value: copying it is a snapshot, assigning the copy back restores it. Everything that happens is a pure
// function of (config, rule, seed, what a decider answers).
class RackWorld {
 public:
  // `config` must be prepared and `rule` checked.
  RackWorld(std::shared_ptr<const RackConfig> config, const RackRule& rule, uint64_t seed);
  void reset(uint64_t seed);

  // All events with time <= t.
  void run_until(core::TimeNs t);
  // Until every task that arrived before the horizon is done (arrivals go on). From time 0 on this is faster
  // than steps are, where nothing that may happen in a server changes when its tasks will be done.
  void drain();
  core::TimeNs now() const { return now_; }
  core::TimeNs horizon_ns() const { return horizon_ns_; }
  core::TimeNs period_ns() const { return period_ns_; }
  // When the reports of a period have come in and the next window begins.
  core::TimeNs next_window() const { return next_window_; }

  int num_servers() const { return static_cast<int>(nodes_.size()); }
  int num_deciders() const { return num_deciders_; }
  const RackConfig& config() const { return *config_; }
  const RackRule& rule() const { return rule_; }
  RackDecider* decider() { return decider_.get(); }
  const RackNode& node(int j) const { return nodes_[j]; }
  const RackTotals& totals(uint32_t j) const { return totals_[j]; }
  uint32_t waiting(uint32_t j) const;
  // Workers x speed / mean service: tasks per second, as things are.
  double true_rate(int j) const { return nodes_[j].workers * nodes_[j].speed / mean_service_s_; }
  double estimated_rate(uint32_t j) const;
  double work_left_s(uint32_t j) const;
  // What decider i goes by: (N,) in the rule's measure.
  std::span<const float> view(int i) {
    return {row_of(static_cast<uint32_t>(i)), static_cast<size_t>(num_servers())};
  }
  // x_j = tasks / true rate, (N,) [us].
  std::span<const float> expected_waits_us();
  const RackMetrics& metrics() const { return metrics_; }
  RackMetrics& metrics() { return metrics_; }
  RackStats stats() const;
  // Of pallas: the plan in force, another one from now on.
  const ShapePlan& shape_plan() const { return shaper_.plan(); }
  void set_shape(ShapePlan plan);
  uint64_t digest() const { return digest_; }
  uint64_t arrived() const { return next_id_; }
  uint64_t completed() const { return completed_; }
  uint64_t migrations() const { return migrations_; }
  uint64_t steals() const { return steals_; }
  // Tasks that wait at their dispatcher.
  uint64_t held() const { return held_.size(); }
  // Tasks that have arrived and are not done.
  uint64_t live_tasks() const {
    return planned_ ? next_id_ - completed_ : tasks_.size() - free_slots_.size();
  }

 private:
  enum Kind : uint8_t {
    kTick,
    kReport,
    kHearAll,
    kHearOne,
    kWindow,
    kTimetable,
    kTransit,
    kReply,
    kStealAsk,
    kStealRefused,
    kStolen,
    kReserved,
    kAsk,
    kAnswer,
    kMonitor,
    kBounce
  };
  struct Reply {
    uint16_t decider, server;
    float load;
  };
  struct Message {
    uint16_t to = 0, from = 0;
    uint32_t slot = 0;
    LoadReport report;
  };
  static constexpr uint32_t kReservation = 1u << 31;  // in a line: a reservation, not a task
  static constexpr uint32_t kNobody = UINT32_MAX;
  static constexpr uint32_t kHeld = UINT32_MAX - 1;  // a worker that waits for a task
  static constexpr float kFull = 1e30F;

  // `inline`: the path of every task, defined and called in rack.cc alone, its first steps in rack_path.h;
  // others go through the calls below. Where calls cost a tenth of a task it is forced.
  inline RackTask next_task();
  inline bool assign(RackTask& task, int j);
  inline uint32_t take_slot();
  inline void send_alone(uint32_t slot);
  inline int64_t time_at(const RackNode& node, int64_t service_ns) const;
  inline core::TimeNs reply_of(const RackTask& task) const;
  inline void arrive();
  inline void dispatch_to(uint32_t slot, int j);
  inline void enter(uint32_t slot);
  inline void start(uint32_t j, uint32_t worker, uint32_t slot);
  inline void finish(uint32_t j, uint32_t slot);
  inline void worker_done(uint32_t worker);
  inline void release_worker(uint32_t j, uint32_t worker);
  void send(uint32_t slot, int j);
  void enter_server(uint32_t slot);
  void begin_service(uint32_t j, uint32_t worker, uint32_t slot);
  void end_service(uint32_t j, uint32_t slot);
  void free_worker(uint32_t j, uint32_t worker);

  // rack_planned.cc: service that is planned as tasks enter
  bool may_plan() const;
  void begin_planning();
  void run_planned(core::TimeNs t);
  inline void arrive_planned();
  inline PlannedEntry entry_of(const RackTask& task, core::TimeNs at) const;
  inline void serve(const PlannedEntry& entry);
  void enter_planned(uint32_t slot);
  void enter_until(core::TimeNs t);
  inline void settle(uint32_t j);

  // rack_servers.cc: disciplines other than FCFS, changes of servers
  void set_up_servers();
  void enter_otherwise(uint32_t j, uint32_t slot);
  void done_otherwise(uint32_t worker);
  void start_turn(uint32_t j, uint32_t worker, uint32_t slot, int64_t switch_ns);
  void turn_done(uint32_t j, uint32_t worker);
  void next_turn(uint32_t j, uint32_t worker, int64_t switch_ns);
  void shared_done(uint32_t j);
  void reserved_done(uint32_t j, uint32_t worker);
  void reserved_next(uint32_t j, uint32_t core);
  void offer_idle_cores(uint32_t j);
  void announce(uint32_t j);
  void retire(uint32_t j);
  void set_speed(uint32_t j, double speed);
  void set_workers(uint32_t j, uint32_t workers);
  void learn_rate(uint32_t j, const RackTask& task);
  void apply(const RackEvent& event);
  void set_split(const std::vector<double>& shares);

  // rack_shaped.cc: pallas
  void set_up_shaping();
  ShapePlan best_plan(const std::vector<double>& means_s, const std::vector<double>& ratios) const;
  std::vector<double> capacities() const;
  Darc darc_of(uint32_t j) const;
  core::TimeNs monitor_ns() const;
  void shape(uint32_t slot);
  bool turned_away(uint32_t slot);
  bool first_reply(uint32_t slot);
  void monitor();
  void bounced(uint32_t slot);
  uint32_t new_slot();

  static void fill_alias(core::AliasTable& table, const std::vector<double>& shares);

  // rack_choices.cc: who gets a task
  struct KnownLoads;
  void set_up_views();
  void set_up_capacities();
  inline int choose(uint32_t i, uint64_t id, uint32_t type);
  int choose_otherwise(uint32_t i, uint32_t type, uint64_t word);
  inline const float* told_row(uint32_t i);
  const float* row_of(uint32_t i);
  inline float load_of(uint32_t j);
  float kept_load_of(uint32_t j) const;
  inline int least(uint32_t i, uint64_t word);
  int least_by_rates(KnownLoads loads, uint32_t i, int preferred, uint64_t word);
  int pick(uint32_t i, const std::vector<float>& limits, uint64_t word);
  int power_of_d(const float* row, uint64_t word) const;

  // rack_messages.cc: what deciders hear
  void set_up_messages();
  void dispatch(Event event);
  void tick();
  void window();
  LoadReport report_of(uint32_t j);
  void broadcast_all();
  void broadcast_one(uint32_t j);
  void hear_all();
  void hear_one(const Message& message);
  void note_completion(uint32_t slot, uint32_t j);
  void hear_reply(const Reply& reply);
  core::TimeNs reply_delay_ns(uint64_t id) const;
  core::TimeNs message_ns();
  void post(core::TimeNs at, Kind kind, const Message& message);

  // rack_held.cc: stealing, tasks that wait at their decider
  void consider_stealing(uint32_t j);
  void steal_asked(const Message& message);
  void stolen(const Message& message);
  void hold_or_send(uint32_t slot);
  uint32_t take_waiting(uint32_t j);
  int most_loaded(uint32_t j);
  void send_held();
  int least_with_room(uint64_t word);
  void reserve(uint32_t slot);
  void reserved(const Message& message);
  void start_reservation(uint32_t worker, uint32_t slot);
  void asked(uint32_t worker);
  void answered(uint32_t worker);

  std::shared_ptr<const RackConfig> config_;
  RackRule rule_;
  RackKind kind_ = RackKind::kRandom;
  LoadInfo info_ = LoadInfo::kExact;
  LoadMeasure measure_ = LoadMeasure::kTasks;
  Discipline discipline_ = Discipline::kFcfs;
  bool equal_split_ = true;
  bool at_servers_ = false;  // deciders are the servers
  bool hears_completions_ = false;
  bool may_steal_ = false;
  bool tracks_rates_ = false;
  bool planned_ = false;
  bool sees_entries_ = false;  // a decider, those into its own server; while `planned_`
  bool count_early_ = false;   // true_row_ counts a task from the decision on, not from its entry
  float increment_ = 1;        // of a row, for a task sent
  int num_deciders_ = 1;
  DeciderOwner decider_;
  double mean_service_s_ = 0;

  std::vector<RackNode> nodes_;
  std::vector<RackTotals> totals_;
  std::vector<uint16_t> server_of_;  // worker -> server
  std::vector<uint32_t> running_;    // worker -> task
  std::vector<uint32_t> idle_;       // per server, from its first worker on: the idle ones
  std::vector<int64_t> slice_;       // worker -> work of this turn (kQuantum)
  std::vector<uint32_t> asking_;     // worker -> task of the reservation that it has come to
  std::vector<Device> devices_;      // kPs
  std::vector<Darc> darcs_;          // kDarc
  std::vector<RackTask> tasks_;
  std::vector<uint32_t> free_slots_;
  WorkerCalendar calendar_;
  PlannedService plan_;  // instead of the calendar, while `planned_`
  PlannedEntries entries_;
  std::vector<uint64_t> entered_;   // tasks, per server, while `planned_`
  core::TimeNs counted_until_ = 0;  // who is done by then is not in a server any more
  core::TimeNs last_done_ = 0;      // of the tasks that are measured
  DelayLine<uint32_t> transit_;
  DelayLine<Reply> replies_;
  EventQueue queue_;
  ArrivalProcess arrivals_;
  core::AliasTable origins_, type_table_;
  ExponentialStream exponentials_;

  // What deciders know. Rows of `stride_` floats, padded with infinity.
  uint32_t stride_ = 0;
  std::vector<float> true_row_;  // tasks in each server, or on their way to it
  std::vector<float> rows_;      // (M, stride)
  std::vector<float> rates_;     // (M, stride), when estimated rates matter
  std::vector<float> scale_;     // 1 / capacity
  std::vector<float> scratch_;
  std::vector<uint32_t> turn_;       // round robin
  std::vector<LoadReport> reports_;  // rounds under way, N each
  std::vector<float> sent_rows_;
  uint32_t rounds_ = 1, round_in_ = 0, round_out_ = 0;
  std::vector<Message> messages_pool_;
  std::vector<uint32_t> free_messages_;
  std::vector<float> waits_us_, tasks_row_;

  std::vector<float> limits_;       // jbt, jiq: of the load of a server that will do
  std::vector<uint16_t> shuffled_;  // servers
  float add_ = 0;                   // to a load before it is weighed
  bool reads_true_row_ = false, patches_own_ = false, together_ = true;
  Ring<uint32_t> held_;  // tasks that wait at the dispatcher

  Shaper shaper_;
  std::optional<ShapePlan> first_plan_;
  uint64_t clones_ = 0, clones_dropped_ = 0, bounced_ = 0, plans_ = 0;

  RackMetrics metrics_;
  uint64_t type_stream_ = 0, service_stream_ = 0, origin_stream_ = 0, choice_stream_ = 0, delay_stream_ = 0,
           message_stream_ = 0, steal_stream_ = 0;
  core::TimeNs task_ns_ = 0;  // constant delay to another server
  core::TimeNs reply_ns_ = 0;
  bool task_jitter_ = false, reply_jitter_ = false;
  int64_t migration_work_ns_ = 0, steal_work_ns_ = 0, quantum_ns_ = 0, switch_ns_ = 0;
  uint64_t next_id_ = 0, completed_ = 0, migrations_ = 0, steals_ = 0, steal_requests_ = 0, messages_ = 0,
           preemptions_ = 0, events_ = 0, message_count_ = 0, steal_draws_ = 0, digest_ = 0, ticks_ = 0;
  core::TimeNs now_ = 0, period_ns_ = 0, horizon_ns_ = 0, next_window_ = 0, window_offset_ = 0;
};

// Brings what is kept of server j to the moment.
inline void RackWorld::settle(uint32_t j) {
  const PlannedService::Count count = plan_.count(j, counted_until_);
  nodes_[j].serving = count.serving;
  nodes_[j].in_system = count.serving + count.waiting;
}

}  // namespace steelyard::sim
