// The path of every task: arrival, way to its server, service, end.
#include "native/sim/rack.h"

#include <cmath>

#include "native/core/rng.h"
#include "native/sim/rack_path.h"
#include "native/sim/streams.h"

namespace steelyard::sim {

using core::TimeNs;

namespace {

TimeNs nanos(double seconds) { return static_cast<TimeNs>(std::llround(seconds * 1e9)); }

}  // namespace

RackWorld::RackWorld(std::shared_ptr<const RackConfig> config, const RackRule& rule, uint64_t seed)
    : config_(std::move(config)), rule_(rule), arrivals_({config_, &config_->arrival}, config_->trace, seed) {
  const RackConfig& c = *config_;
  rule_.check(c);
  if (rule_.traits->name == "cfcfs") rule_.bound = 1;
  kind_ = rule_.traits->kind;
  info_ = rule_.info_of(c);
  measure_ = rule_.measure_of(c);
  discipline_ = kind_ == RackKind::kShaped ? Discipline::kDarc : c.discipline;
  at_servers_ = c.dispatchers == 0 && !rule_.traits->central;
  num_deciders_ = rule_.traits->central ? 1 : c.num_deciders();
  mean_service_s_ = c.mean_service_s();
  horizon_ns_ = nanos(c.horizon_s);
  period_ns_ = std::max<TimeNs>(1, nanos(c.broadcast_period_s));
  window_offset_ = info_ == LoadInfo::kBroadcast ? nanos(c.message_delay.constant_s) : 0;
  task_jitter_ = c.task_delay.jitter.has_value() && !rule_.traits->central;
  reply_jitter_ = c.reply_delay.jitter.has_value() && !rule_.traits->central;
  task_ns_ = nanos(rule_.traits->central ? rule_.rtt_s / 2 : c.task_delay.constant_s);
  reply_ns_ = nanos(rule_.traits->central ? rule_.rtt_s / 2 : c.reply_delay.constant_s);
  hears_completions_ =
      info_ == LoadInfo::kPiggyback || info_ == LoadInfo::kOutstanding || kind_ == RackKind::kBounded;
  may_steal_ = (rule_.steal != StealBy::kNone || kind_ == RackKind::kDecider) &&
               discipline_ != Discipline::kPs && kind_ != RackKind::kLateBinding && c.num_servers() > 1;
  migration_work_ns_ = nanos(c.migration_work_s);
  steal_work_ns_ = nanos(c.steal_work_s);
  quantum_ns_ = nanos(c.quantum_s);
  switch_ns_ = nanos(c.switch_s);
  if (rule_.decider) decider_.adopt(rule_.decider->clone());
  reset(seed);
}

void RackWorld::reset(uint64_t seed) {
  const RackConfig& c = *config_;
  type_stream_ = core::stream_key(seed, kStreamType);
  service_stream_ = core::stream_key(seed, kStreamStage);
  origin_stream_ = core::stream_key(seed, kStreamHash);
  choice_stream_ = core::stream_key(seed, kStreamChoice);
  delay_stream_ = core::stream_key(seed, kStreamHop);
  message_stream_ = core::stream_key(seed, kStreamNode);
  steal_stream_ = core::stream_key(seed, kStreamSteal);
  exponentials_ = ExponentialStream(service_stream_);
  arrivals_ = ArrivalProcess({config_, &c.arrival}, config_->trace, seed);
  tasks_.clear();
  free_slots_.clear();
  transit_.clear();
  replies_.clear();
  queue_.clear();
  held_.clear();
  planned_ = false;
  last_done_ = 0;
  messages_pool_.clear();
  free_messages_.clear();
  next_id_ = completed_ = migrations_ = steals_ = steal_requests_ = messages_ = preemptions_ = 0;
  clones_ = clones_dropped_ = bounced_ = plans_ = 0;
  mean_service_s_ = c.mean_service_s();
  events_ = message_count_ = steal_draws_ = digest_ = ticks_ = 0;
  now_ = 0;
  set_split(c.split.empty() ? std::vector<double>(c.num_deciders(), 1.0) : c.split);
  std::vector<double> ratios;
  for (const RackType& type : c.types) ratios.push_back(type.ratio);
  fill_alias(type_table_, ratios);
  set_up_servers();
  set_up_views();
  metrics_.reset(nanos(c.warmup_s), horizon_ns_, c.types.size(), metrics_.keeps_timeline());
  for (size_t k = 0; k < c.events.size(); ++k)
    queue_.push(Event::make(nanos(c.events[k].t_s), kTimetable, static_cast<uint32_t>(k), 0));
  queue_.push(Event::make(0, kTick, 0, 0));
  next_window_ = window_offset_;
  if (kind_ == RackKind::kShaped) set_up_shaping();
  if (decider_) decider_->reset(c, seed);
  run_until(0);
}

[[gnu::always_inline]] inline void RackWorld::arrive() {
  const uint32_t slot = take_slot();
  const RackTask& task = tasks_[slot] = next_task();
  if (kind_ == RackKind::kBounded) [[unlikely]]
    return hold_or_send(slot);
  if (kind_ == RackKind::kLateBinding) [[unlikely]]
    return reserve(slot);
  if (kind_ == RackKind::kShaped) [[unlikely]]
    return shape(slot);
  dispatch_to(slot, choose(task.decider, task.id, task.type));
}

// The task is on its way to server j.
inline void RackWorld::dispatch_to(uint32_t slot, int j) {
  const bool away = assign(tasks_[slot], j);
  if (count_early_) true_row_[j] += 1;
  if (!away) return enter(slot);
  if (task_jitter_) [[unlikely]]
    return send_alone(slot);
  if (task_ns_ == 0) return enter(slot);
  transit_.push(now_ + task_ns_, slot);
}

inline void RackWorld::enter(uint32_t slot) {
  const uint32_t j = tasks_[slot].server;
  RackNode& node = nodes_[j];
  ++node.in_system;
  if (!count_early_) true_row_[j] += 1;
  if (decider_) decider_->on_accept(static_cast<int>(j), tasks_[slot].type);
  if (discipline_ != Discipline::kFcfs) return enter_otherwise(j, slot);
  if (node.idle > 0) return start(j, idle_[node.first + --node.idle], slot);
  node.line_ns += tasks_[slot].service_ns;
  node.line.push_back(slot);
}

inline void RackWorld::start(uint32_t j, uint32_t worker, uint32_t slot) {
  RackNode& node = nodes_[j];
  const TimeNs done = now_ + time_at(node, tasks_[slot].service_ns);
  ++node.serving;
  node.done_sum_ns += done;
  running_[worker] = slot;
  calendar_.set(worker, done);
}

// The task has left service at server j.
inline void RackWorld::finish(uint32_t j, uint32_t slot) {
  RackNode& node = nodes_[j];
  const RackTask& task = tasks_[slot];
  --node.in_system;
  true_row_[j] -= 1;
  ++totals_[j].completions;
  if (kind_ == RackKind::kShaped && !first_reply(slot)) [[unlikely]]
    return free_slots_.push_back(slot);
  ++completed_;
  metrics_.task_done(task.arrived, now_ - task.arrived + reply_of(task), task.service_ns, task.type);
  if (tracks_rates_) [[unlikely]]
    learn_rate(j, task);
  if (hears_completions_ && task.remote) [[unlikely]]
    note_completion(slot, j);
  if (task.reservations > 0) [[unlikely]] {
    tasks_[slot].finished = true;  // other servers will yet ask for it
    return;
  }
  free_slots_.push_back(slot);
}

inline void RackWorld::worker_done(uint32_t worker) {
  if (discipline_ != Discipline::kFcfs) return done_otherwise(worker);
  const uint32_t j = server_of_[worker];
  RackNode& node = nodes_[j];
  --node.serving;
  node.done_sum_ns -= now_;
  finish(j, running_[worker]);
  release_worker(j, worker);
  if (may_steal_) [[unlikely]]
    consider_stealing(j);
}

// The worker is free: it takes the next from the line, idles, or retires.
inline void RackWorld::release_worker(uint32_t j, uint32_t worker) {
  RackNode& node = nodes_[j];
  if (node.retiring > 0) [[unlikely]]
    return retire(j);
  if (node.line.empty()) {
    idle_[node.first + node.idle++] = worker;
    return;
  }
  const uint32_t next = node.line.pop_front();
  if ((next & kReservation) != 0) [[unlikely]]
    return start_reservation(worker, next & ~kReservation);
  node.line_ns -= tasks_[next].service_ns;
  start(j, worker, next);
}

void RackWorld::send(uint32_t slot, int j) { dispatch_to(slot, j); }
uint32_t RackWorld::new_slot() { return take_slot(); }
void RackWorld::end_service(uint32_t j, uint32_t slot) { finish(j, slot); }
void RackWorld::free_worker(uint32_t j, uint32_t worker) { release_worker(j, worker); }
void RackWorld::begin_service(uint32_t j, uint32_t worker, uint32_t slot) { start(j, worker, slot); }
void RackWorld::enter_server(uint32_t slot) { planned_ ? enter_planned(slot) : enter(slot); }

// At equal times: messages and the timetable, then completions, tasks on their way, replies, arrivals.
void RackWorld::run_until(TimeNs t) {
  if (planned_) return run_planned(t);
  for (;;) {
    const TimeNs event_at = queue_.next_time();
    const TimeNs done_at = calendar_.next_time();
    const TimeNs task_at = transit_.next_time();
    const TimeNs reply_at = replies_.next_time();
    const TimeNs arrival_at = arrivals_.next();
    const TimeNs machine = event_at <= done_at ? event_at : done_at;
    const TimeNs network = task_at <= reply_at ? task_at : reply_at;
    const TimeNs inside = machine <= network ? machine : network;
    const TimeNs first = inside <= arrival_at ? inside : arrival_at;
    if (first > t) break;
    now_ = first;
    ++events_;
    if (first == machine) {
      if (event_at <= done_at) {
        dispatch(queue_.pop());
      } else {
        worker_done(calendar_.pop());
      }
    } else if (first == network) {
      if (task_at <= reply_at) {
        enter(transit_.pop());
      } else {
        hear_reply(replies_.pop());
      }
    } else {
      arrive();
    }
  }
  now_ = t;
}

void RackWorld::drain() {
  if (may_plan()) begin_planning();
  run_until(horizon_ns_);
  while (metrics_.outstanding() > 0 || now_ < last_done_) run_until(now_ + period_ns_);
}

RackStats RackWorld::stats() const {
  RackStats s;
  metrics_.summarise(s);
  s.migrations = migrations_;
  s.steals = steals_;
  s.steal_requests = steal_requests_;
  s.messages = messages_;
  s.preemptions = preemptions_;
  s.arrived = next_id_;
  s.clones = clones_;
  s.clones_dropped = clones_dropped_;
  s.bounced = bounced_;
  s.plans = plans_;
  s.events = events_ + (planned_ ? completed_ : 0);
  return s;
}

}  // namespace steelyard::sim
