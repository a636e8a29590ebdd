#include "native/sim/cluster.h"

#include <bit>
#include <cmath>
#include <stdexcept>

#include "native/core/rng.h"
#include "native/sim/streams.h"

namespace steelyard::sim {

using core::ServerId;
using core::TimeNs;

namespace {

TimeNs nanos(double seconds) { return static_cast<TimeNs>(std::llround(seconds * 1e9)); }

// The four 16-bit parts of a word, the lowest first.
f64x4 quarters(uint64_t word) {
  using u16x4 = uint16_t __attribute__((vector_size(8)));
  const u16x4 parts = std::bit_cast<u16x4>(word);
  return __builtin_convertvector(__builtin_convertvector(parts, core::i32x4), f64x4);
}
static_assert(std::endian::native == std::endian::little);

int cpu_cap(const ServerConfig& server, int workers) {
  if (server.cpu == CpuMode::kFifo) return workers;
  return server.ps_cap > 0 ? server.ps_cap : kNoCap;
}

}  // namespace

ClusterWorld::ClusterWorld(std::shared_ptr<const ClusterConfig> config, const core::RuleConfig& rule,
                           uint64_t seed)
    : config_(std::move(config)), rule_(rule), arrivals_(config_, seed) {
  const int n = config_->num_servers();
  const int m = config_->num_load_balancers;
  rule_.check(n, m);
  step_ns_ = nanos(config_->step_s);
  horizon_ns_ = nanos(config_->horizon_s);
  actuation_ns_ = nanos(config_->actuation_delay_s);
  const ClusterConfig& c = *config_;
  least_delay_ns_ = (c.hop_low_s + c.node_low_s) * 1e9;
  hop_unit_ns_ = (c.hop_high_s - c.hop_low_s) * 1e9 * 0x1p-16;
  node_unit_ns_ = (c.node_high_s - c.node_low_s) * 1e9 * 0x1p-16;
  const core::BalancerConfig balancer{.num_servers = n,
                                      .num_load_balancers = m,
                                      .flow_table_buckets = c.flow_table_buckets,
                                      .flow_table_ways = c.flow_table_ways,
                                      .reservoir_size = c.reservoir_size,
                                      .features = c.features,
                                      .preallocate = false};
  balancers_.assign(m, core::LoadBalancer(balancer, rule_));
  servers_.resize(n);
  servers_report_ = rule_.traits->score == core::Score::kC3 || rule_.traits->score == core::Score::kProbed;
  loads_.resize(n);
  set_up_agents();
  reset(seed);
}

void ClusterWorld::reset(uint64_t seed) {
  const int m = config_->num_load_balancers;
  hash_stream_ = core::stream_key(seed, kStreamHash);
  hop_stream_ = core::stream_key(seed, kStreamHop);
  node_stream_ = core::stream_key(seed, kStreamNode);
  stages_.clear();
  num_stages_ = config_->stages.size();
  for (size_t s = 0; s < config_->stages.size(); ++s) {
    const StageConfig& stage = config_->stages[s];
    const uint64_t stream = core::stream_key(seed, kStreamStage + s);
    stages_.push_back({stream, ExponentialStream(stream), &stage.demand, stage.kind});
  }
  reservoir_stream_ = core::stream_key(seed, kStreamReservoir);
  for (int i = 0; i < m; ++i) restart_balancer(i);
  balancer_up_.assign(m, 1);
  in_system_.assign(config_->num_servers(), 0);
  if (rule_.traits->score == core::Score::kProbed) latencies_.assign(servers_.size(), {});
  probes_.clear();
  free_probes_.clear();
  for (int j = 0; j < config_->num_servers(); ++j) {
    const ServerConfig& c = config_->servers[j];
    Server& server = servers_[j];
    server = Server{};
    server.cpu.reset(c.workers, cpu_cap(c, c.workers), c.speed);
    server.io.reset(1, kNoCap, 1.0);
    server.member = c.present;
  }
  flows_.clear();
  free_slots_.clear();
  queue_.clear();
  hosted_.reset();
  line_.clear();
  arrivals_ = ArrivalProcess(config_, seed);
  metrics_.reset(nanos(config_->warmup_s), horizon_ns_, metrics_.keeps_timeline());
  next_id_ = untracked_by_failed_ = digest_ = messages_ = 0;
  now_ = 0;
  next_boundary_ = 0;
  draw_timetable(seed);
  set_member(0, config_->servers[0].present);
  set_up(0, true);
  run_until(0);
}

inline uint32_t ClusterWorld::take_slot() {
  if (free_slots_.empty()) {
    flows_.emplace_back();
    return static_cast<uint32_t>(flows_.size() - 1);
  }
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

// Uniform network and processing delays of four hops, each from 16 bits of two words drawn by `key`.
inline ClusterWorld::Delays ClusterWorld::delays(uint64_t key) const {
  const f64x4 network = quarters(core::draw(hop_stream_, key));
  const f64x4 node = quarters(core::draw(node_stream_, key));
  const f64x4 ns = least_delay_ns_ + network * hop_unit_ns_ + node * node_unit_ns_;
  return {static_cast<TimeNs>(ns[0]), static_cast<TimeNs>(ns[1]), static_cast<TimeNs>(ns[2]),
          static_cast<TimeNs>(ns[3])};
}

// Whether a packet that is due at `at` (not before now) meets nothing on its way. It is then handled at once,
// without a stay in the calendar: the same order, since a calendar serves equal times in order of entry.
inline bool ClusterWorld::is_next(TimeNs at) const {
  return at < queue_.next_time() && at <= arrivals_.next() && at <= pause_;
}

inline void ClusterWorld::close(uint32_t slot) {
  Flow& flow = flows_[slot];
  if (tap_.log != nullptr) [[unlikely]]
    tell_close(flow);
  balancers_[flow.balancer].close(flow.hash, flow.completed, now_);
  flow.epoch = (flow.epoch + 1) & kEpochMask;
  free_slots_.push_back(slot);
}

inline void ClusterWorld::first_ack(const Flow& flow) {
  if (tap_.log != nullptr) [[unlikely]]
    tell_ack(flow);
  balancers_[flow.balancer].first_ack(flow.hash, now_);
}

inline void ClusterWorld::complete(uint32_t slot) {
  Flow& flow = flows_[slot];
  --in_system_[flow.server];
  flow.completed = true;
  const TimeNs replied = now_ + flow.reply_ns;
  metrics_.flow_done(flow.opened, replied, flow.service_s);
  const TimeNs closes = replied + flow.fin_ns;
  if (servers_report_) [[unlikely]]
    note_completion(slot);
  if (!is_next(closes)) return queue_.push(Event::make(closes, kClose, slot, 0));
  now_ = closes;
  metrics_.count_event();
  close(slot);
}

// Demand of a stage at speed 1, whole nanoseconds (whole numbers keep virtual times exact).
double ClusterWorld::stage_work_ns(uint64_t flow_id, uint32_t trace_row, size_t stage) const {
  const Distribution& demand = *stages_[stage].demand;
  if (demand.kind == DistributionKind::kTrace) return trace_work_ns(demand, trace_row);
  return std::floor(demand.sample(core::draw(stages_[stage].stream, flow_id)) * 1e9);
}

// The same of a flow's current stage: fast where flows come nearly in the order of their numbers.
inline double ClusterWorld::current_work_ns(const Flow& flow) {
  Stage& stage = stages_[flow.stage];
  if (stage.demand->kind != DistributionKind::kExponential)
    return stage_work_ns(flow.id, flow.trace_row, flow.stage);
  return std::floor(stage.demand->a[0] * stage.exponentials.at(flow.id) * 1e9);
}

double ClusterWorld::trace_work_ns(const Distribution& demand, uint32_t trace_row) const {
  const double class_id = config_->trace->class_id()[trace_row];
  bool served = demand.b.empty();
  for (const double id : demand.b) served = served || id == class_id;
  return served ? std::floor(config_->trace->service_s()[trace_row] * demand.a[0] * 1e9) : 0.0;
}

void ClusterWorld::announce(uint32_t j, bool io) {
  Device& device = io ? servers_[j].io : servers_[j].cpu;
  TimeNs at = core::kNever;
  if (device.reschedule(now_, &at)) queue_.push(Event::make(at, io ? kIoDone : kCpuDone, j, device.epoch()));
}

// Puts the flow into the next stage that has work for it; false when there is none.
inline bool ClusterWorld::start_stage(uint32_t slot) {
  Flow& flow = flows_[slot];
  const uint32_t j = static_cast<uint32_t>(flow.server);
  for (;; ++flow.stage) {
    if (flow.stage == num_stages_) return false;
    flow.work_ns = current_work_ns(flow);
    if (flow.work_ns > 0) break;
  }
  const double speed =
      stages_[flow.stage].kind == StageKind::kIo ? servers_[j].io.speed() : servers_[j].cpu.speed();
  flow.service_s += static_cast<float>(flow.work_ns * 1e-9 / speed);
  Server& server = servers_[j];
  if (stages_[flow.stage].kind == StageKind::kIo) {
    server.io.start(slot, flow.work_ns, now_);
    announce(j, true);
    return true;
  }
  if (server.line_head == kNoSlot && server.cpu.has_room()) {
    server.cpu.start(slot, flow.work_ns, now_);
    announce(j, false);
    return true;
  }
  flow.next = kNoSlot;
  (server.line_head == kNoSlot ? server.line_head : flows_[server.line_tail].next) = slot;
  server.line_tail = slot;
  ++server.waiting;
  return true;
}

// The delays of the first one or two of the hops drawn by `key`.
TimeNs ClusterWorld::hops(uint64_t key, int count) const {
  const Delays delay = delays(key);
  return delay.ns[0] + (count > 1 ? delay.ns[1] : 0);
}

// The server answers with RST; the client's own RST passes the balancer one hop after it has heard.
void ClusterWorld::reject(uint32_t slot) {
  const Flow& flow = flows_[slot];
  metrics_.flow_rejected(flow.opened, now_, config_->reject_sojourn_s);
  queue_.push(Event::make(now_ + flow.reply_ns + flow.fin_ns, kClose, slot, flow.epoch));
}

inline void ClusterWorld::enter(uint32_t slot) {
  Flow& flow = flows_[slot];
  if (in_system_[flow.server] > static_cast<uint32_t>(config_->admission_limit)) return reject(slot);
  flow.reported_load = static_cast<uint16_t>(++in_system_[flow.server]);
  // From the server's SYN-ACK to the balancer (it carries Charon's load), or on by way of the client: its
  // ACK.
  const uint64_t key = 2 * flow.id + 1;
  if (config_->features) queue_.push(Event::make(now_ + hops(key, 2), kAck, slot, flow.epoch));
  if (rule_.traits->score == core::Score::kPredicted)
    queue_.push(Event::make(now_ + hops(key, 1), kReply, slot, flow.epoch));
  if (!start_stage(slot)) complete(slot);
}

inline void ClusterWorld::arrive() {
  const uint64_t id = next_id_++;
  const uint32_t row = static_cast<uint32_t>(arrivals_.trace_row());
  arrivals_.advance();
  metrics_.flow_opened(now_);
  const uint64_t hash = core::draw(hash_stream_, id);
  if (up_list_.empty()) return metrics_.flow_rejected(now_, now_, config_->reject_sojourn_s);
  const int i = up_list_[core::below(hash, static_cast<uint32_t>(up_list_.size()))];
  core::LoadBalancer& balancer = balancers_[i];
  const bool plain = rule_.traits->score < core::Score::kProbed;
  const ServerId chosen =
      plain ? balancer.choose(hash, now_, in_system_.data()) : choose_with_host(i, hash, {id, row});
  const ServerId server = chosen == core::kNoServer ? chosen : balancer.open(hash, chosen, now_);
  if (tap_.log != nullptr) [[unlikely]]
    tell_open(i, hash, server);
  digest_ = core::mix64(digest_ ^ (id * core::kGolden + static_cast<uint64_t>(server + 1)));
  if (server == core::kNoServer) return metrics_.flow_rejected(now_, now_, config_->reject_sojourn_s);
  const Delays delay = delays(2 * id);
  const uint32_t slot = take_slot();
  Flow& flow = flows_[slot];
  flow = {.id = id,
          .hash = hash,
          .opened = now_,
          .reply_ns = static_cast<uint32_t>(delay.ns[1]),
          .fin_ns = static_cast<uint32_t>(delay.ns[2]),
          .epoch = flow.epoch,
          .trace_row = row,
          .server = static_cast<int16_t>(server),
          .balancer = static_cast<uint16_t>(i)};
  const TimeNs enters = now_ + delay.ns[0];
  if (!is_next(enters)) return queue_.push(Event::make(enters, kEnter, slot, 0));
  now_ = enters;
  metrics_.count_event();
  enter(slot);
}

void ClusterWorld::admit_waiting(uint32_t j) {
  Server& server = servers_[j];
  while (server.line_head != kNoSlot && server.cpu.has_room()) {
    const uint32_t slot = server.line_head;
    server.line_head = flows_[slot].next;
    --server.waiting;
    server.cpu.start(slot, flows_[slot].work_ns, now_);
  }
}

inline void ClusterWorld::device_done(uint32_t j, bool io) {
  Device& device = io ? servers_[j].io : servers_[j].cpu;
  const uint32_t slot = device.finish(now_);
  if (!io && servers_[j].line_head != kNoSlot) admit_waiting(j);
  ++flows_[slot].stage;
  const bool stays = start_stage(slot);
  announce(j, io);
  if (!stays) complete(slot);
}

inline void ClusterWorld::dispatch(Event event) {
  const uint32_t subject = event.subject;
  switch (event.kind()) {
    case kEnter:
      return enter(subject);
    case kCpuDone:
      if (servers_[subject].cpu.epoch() == event.epoch()) device_done(subject, false);
      return;
    case kIoDone:
      if (servers_[subject].io.epoch() == event.epoch()) device_done(subject, true);
      return;
    case kAck:
      if (flows_[subject].epoch == event.epoch()) first_ack(flows_[subject]);
      return;
    case kReply:
      if (flows_[subject].epoch == event.epoch()) hear_reply(flows_[subject]);
      return;
    case kClose:
      return close(subject);
    case kActuate:
      return apply_action(static_cast<int>(subject));
    case kTimetable:
      return apply(timetable_[subject], false);
    case kUndo:
      return apply(timetable_[subject], true);
    case kObserve:
      return take_observations();
    case kProbe:
      return answer_probe(subject);
    case kAnswer:
      return hear_answer(subject);
  }
}

// At equal times events come first, then arrivals, then the boundary of the step.
void ClusterWorld::run_until(TimeNs t) {
  for (;;) {
    pause_ = next_boundary_ < t ? next_boundary_ : t;
    for (;;) {
      const TimeNs event_at = queue_.next_time();
      const TimeNs arrival_at = arrivals_.next();
      const bool event = event_at <= arrival_at;
      const TimeNs first = event ? event_at : arrival_at;
      if (first > pause_) break;
      now_ = first;
      metrics_.count_event();
      if (event) {
        dispatch(queue_.pop());
      } else {
        arrive();
      }
    }
    if (next_boundary_ > t) break;
    now_ = next_boundary_;
    boundary();
  }
  now_ = t;
}

void ClusterWorld::drain() {
  run_until(horizon_ns_);
  while (metrics_.outstanding() > 0) run_until(now_ + step_ns_);
}

void ClusterWorld::boundary() {
  next_boundary_ += step_ns_;
  for (int j = 0; j < num_servers(); ++j) loads_[j] = in_system_[j] / capacity(j);
  metrics_.sample_loads(now_, loads_);
  for (int i = 0; i < num_balancers(); ++i) {
    const int probed = balancers_[i].tick(now_, in_system_.data());
    if (core::BalancerLog* log = log_of(i)) {
      const bool told = rule_.traits->weighting == core::Weighting::kProbed;
      log->on_tick(told ? in_system_ : std::span<const uint32_t>{}, now_);
    }
    if (probed > 0 && balancer_up_[i] != 0) messages_ += 2 * static_cast<uint64_t>(probed);
  }
  run_agents();
  if (!metrics_.keeps_timeline() || now_ > horizon_ns_) return;
  TimelinePoint point{static_cast<double>(now_) * 1e-9, {}, {in_system_.begin(), in_system_.end()}};
  for (const core::LoadBalancer& balancer : balancers_) {
    for (const core::WeightQ16 weight : balancer.weights())
      point.weights.push_back(static_cast<float>(weight) / core::kUnitWeight);
  }
  metrics_.timeline().push_back(std::move(point));
}

}  // namespace steelyard::sim
