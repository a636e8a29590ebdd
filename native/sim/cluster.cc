#include "native/sim/cluster.h"

#include <cmath>
#include <stdexcept>

#include "native/core/rng.h"
#include "native/sim/streams.h"

namespace steelyard::sim {

using core::ServerId;
using core::TimeNs;

namespace {

TimeNs nanos(double seconds) { return static_cast<TimeNs>(std::llround(seconds * 1e9)); }

int cpu_cap(const ServerConfig& server, int workers) {
  if (server.cpu == CpuMode::kFifo) return workers;
  return server.ps_cap > 0 ? server.ps_cap : kNoCap;
}

}  // namespace

ClusterWorld::ClusterWorld(std::shared_ptr<const ClusterConfig> config, const core::RuleConfig& rule, uint64_t seed)
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
                                      .flow_table_buckets = c.flow_table_buckets,
                                      .flow_table_ways = c.flow_table_ways,
                                      .reservoir_size = c.reservoir_size,
                                      .features = c.features,
                                      .preallocate = false};
  balancers_.assign(m, core::LoadBalancer(balancer, rule_));
  servers_.resize(n);
  loads_.resize(n);
  if (rule_.policy) {
    hosted_ = core::HostedPolicy(rule_.policy, m);
    observation_.resize(core::observation_size(n));
    action_.resize(n);
  }
  reset(seed);
}

void ClusterWorld::reset(uint64_t seed) {
  const int m = config_->num_load_balancers;
  hash_stream_ = core::stream_key(seed, kStreamHash);
  hop_stream_ = core::stream_key(seed, kStreamHop);
  node_stream_ = core::stream_key(seed, kStreamNode);
  stage_streams_.clear();
  for (size_t s = 0; s < config_->stages.size(); ++s) stage_streams_.push_back(core::stream_key(seed, kStreamStage + s));
  reservoir_stream_ = core::stream_key(seed, kStreamReservoir);
  for (int i = 0; i < m; ++i) balancers_[i].restart(core::draw(reservoir_stream_, static_cast<uint64_t>(i)));
  balancer_up_.assign(m, 1);
  in_system_.assign(config_->num_servers(), 0);
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
  arrivals_ = ArrivalProcess(config_, seed);
  metrics_.reset(nanos(config_->warmup_s), horizon_ns_, metrics_.keeps_timeline());
  next_id_ = 0;
  digest_ = 0;
  now_ = 0;
  next_boundary_ = 0;
  draw_timetable(seed);
  set_member(0, config_->servers[0].present);
  set_up(0, true);
  run_until(0);
}

void ClusterWorld::run_until(TimeNs t) {
  for (;;) {
    const TimeNs event_at = queue_.next_time();
    const TimeNs arrival_at = arrivals_.next();
    const TimeNs first = event_at <= arrival_at ? event_at : arrival_at;
    if (next_boundary_ < first) {
      if (next_boundary_ > t) break;
      now_ = next_boundary_;
      boundary();
      continue;
    }
    if (first > t) break;
    now_ = first;
    if (event_at <= arrival_at) {
      dispatch(queue_.pop());
    } else {
      arrive();
    }
  }
  now_ = t;
}

void ClusterWorld::drain() {
  run_until(horizon_ns_);
  while (metrics_.outstanding() > 0) run_until(now_ + step_ns_);
}

void ClusterWorld::dispatch(const Event& event) {
  metrics_.count_event();
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
      if (flows_[subject].epoch == event.epoch()) balancers_[flows_[subject].balancer].first_ack(flows_[subject].hash, now_);
      return;
    case kReply: {
      const Flow& flow = flows_[subject];
      if (flow.epoch == event.epoch()) balancers_[flow.balancer].learn_load(flow.server, flow.reported_load, now_);
      return;
    }
    case kClose:
      return close(subject);
    case kActuate:
      return balancers_[subject].apply_action();
    case kTimetable:
      return apply(timetable_[subject], false);
    case kUndo:
      return apply(timetable_[subject], true);
  }
}

void ClusterWorld::arrive() {
  metrics_.count_event();
  const uint64_t id = next_id_++;
  const uint32_t row = static_cast<uint32_t>(arrivals_.trace_row());
  arrivals_.advance();
  metrics_.flow_opened(now_);
  const uint64_t hash = core::draw(hash_stream_, id);
  if (up_list_.empty()) return metrics_.flow_rejected(now_, now_, config_->reject_sojourn_s);
  const int i = up_list_[core::below(hash, static_cast<uint32_t>(up_list_.size()))];
  core::LoadBalancer& balancer = balancers_[i];
  const ServerId server = choose(balancer, hash, {id, row});
  digest_ = core::mix64(digest_ ^ (id * core::kGolden + static_cast<uint64_t>(server + 1)));
  if (server == core::kNoServer) return metrics_.flow_rejected(now_, now_, config_->reject_sojourn_s);
  balancer.open(hash, server, now_);
  const uint32_t slot = take_slot();
  Flow& flow = flows_[slot];
  flow.id = id;
  flow.hash = hash;
  flow.opened = now_;
  flow.trace_row = row;
  flow.server = static_cast<int16_t>(server);
  flow.balancer = static_cast<uint16_t>(i);
  const uint64_t network = core::draw(hop_stream_, 2 * id);
  const uint64_t node = core::draw(node_stream_, 2 * id);
  flow.reply_ns = static_cast<uint32_t>(delay(network, node, 1));
  flow.fin_ns = static_cast<uint32_t>(delay(network, node, 2));
  queue_.push(Event::make(now_ + delay(network, node, 0), kEnter, slot, flow.epoch));
}

ServerId ClusterWorld::choose(core::LoadBalancer& balancer, uint64_t hash, const Arriving& arriving) {
  if (rule_.traits->score == core::Score::kExact) return choose_exact(hash, arriving);
  return balancer.choose(hash, now_, in_system_.data());
}

uint32_t ClusterWorld::take_slot() {
  if (free_slots_.empty()) {
    flows_.emplace_back();
    flows_.back().live = true;
    return static_cast<uint32_t>(flows_.size() - 1);
  }
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  const uint32_t epoch = flows_[slot].epoch;
  flows_[slot] = Flow{};
  flows_[slot].epoch = epoch;
  flows_[slot].live = true;
  return slot;
}

// Uniform network and processing delay of hop `number` < 4, 16 bits of each word.
TimeNs ClusterWorld::delay(uint64_t network_word, uint64_t node_word, unsigned number) const {
  const double network = static_cast<double>(static_cast<uint32_t>(network_word >> (16 * number)) & 0xffff);
  const double node = static_cast<double>(static_cast<uint32_t>(node_word >> (16 * number)) & 0xffff);
  return static_cast<TimeNs>(least_delay_ns_ + network * hop_unit_ns_ + node * node_unit_ns_);
}

// From the server's SYN-ACK to the balancer (it carries Charon's load), or by way of the client (its first ACK).
TimeNs ClusterWorld::handshake(uint64_t flow_id, bool whole) const {
  const uint64_t network = core::draw(hop_stream_, 2 * flow_id + 1);
  const uint64_t node = core::draw(node_stream_, 2 * flow_id + 1);
  return delay(network, node, 0) + (whole ? delay(network, node, 1) : 0);
}

void ClusterWorld::enter(uint32_t slot) {
  Flow& flow = flows_[slot];
  if (in_system_[flow.server] > static_cast<uint32_t>(config_->admission_limit)) return reject(slot);
  flow.at_server = true;
  flow.reported_load = static_cast<uint16_t>(++in_system_[flow.server]);
  if (config_->features) queue_.push(Event::make(now_ + handshake(flow.id, true), kAck, slot, flow.epoch));
  if (rule_.traits->score == core::Score::kPredicted) queue_.push(Event::make(now_ + handshake(flow.id, false), kReply, slot, flow.epoch));
  start_stage(slot);
}

// The server answers with RST; the client's own RST passes the balancer one hop after it has heard.
void ClusterWorld::reject(uint32_t slot) {
  const Flow& flow = flows_[slot];
  metrics_.flow_rejected(flow.opened, now_, config_->reject_sojourn_s);
  queue_.push(Event::make(now_ + flow.reply_ns + flow.fin_ns, kClose, slot, flow.epoch));
}

// Demand of a stage at speed 1, whole nanoseconds (whole numbers keep virtual times exact).
double ClusterWorld::stage_work_ns(uint64_t flow_id, uint32_t trace_row, size_t stage) const {
  const Distribution& demand = config_->stages[stage].demand;
  if (demand.kind != DistributionKind::kTrace) {
    return std::floor(demand.sample(core::draw(stage_streams_[stage], flow_id)) * 1e9);
  }
  const double class_id = config_->trace->class_id()[trace_row];
  bool served = demand.b.empty();
  for (const double id : demand.b) served = served || id == class_id;
  return served ? std::floor(config_->trace->service_s()[trace_row] * demand.a[0] * 1e9) : 0.0;
}

void ClusterWorld::start_stage(uint32_t slot) {
  Flow& flow = flows_[slot];
  const uint32_t j = static_cast<uint32_t>(flow.server);
  for (; flow.stage < config_->stages.size(); ++flow.stage) {
    flow.work_ns = stage_work_ns(flow.id, flow.trace_row, flow.stage);
    if (flow.work_ns > 0) break;
  }
  if (flow.stage == config_->stages.size()) return complete(slot);
  flow.demand_s += static_cast<float>(flow.work_ns * 1e-9);
  Server& server = servers_[j];
  if (config_->stages[flow.stage].kind == StageKind::kIo) {
    server.io.start(slot, flow.work_ns, now_);
    return announce(j, true);
  }
  if (server.line_head == kNoSlot && server.cpu.has_room()) {
    server.cpu.start(slot, flow.work_ns, now_);
    return announce(j, false);
  }
  flow.next = kNoSlot;
  (server.line_head == kNoSlot ? server.line_head : flows_[server.line_tail].next) = slot;
  server.line_tail = slot;
  ++server.waiting;
}

void ClusterWorld::device_done(uint32_t j, bool io) {
  Device& device = io ? servers_[j].io : servers_[j].cpu;
  const uint32_t slot = device.finish(now_);
  ++flows_[slot].stage;
  if (!io) admit_waiting(j);
  start_stage(slot);
  announce(j, io);
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

void ClusterWorld::announce(uint32_t j, bool io) {
  Device& device = io ? servers_[j].io : servers_[j].cpu;
  TimeNs at = core::kNever;
  if (device.reschedule(now_, &at)) queue_.push(Event::make(at, io ? kIoDone : kCpuDone, j, device.epoch()));
}

void ClusterWorld::complete(uint32_t slot) {
  Flow& flow = flows_[slot];
  --in_system_[flow.server];
  flow.at_server = false;
  flow.completed = true;
  const TimeNs replied = now_ + flow.reply_ns;
  metrics_.flow_done(flow.opened, replied, flow.demand_s);
  queue_.push(Event::make(replied + flow.fin_ns, kClose, slot, flow.epoch));
}

void ClusterWorld::close(uint32_t slot) {
  Flow& flow = flows_[slot];
  balancers_[flow.balancer].close(flow.hash, flow.completed, now_);
  flow.live = false;
  flow.epoch = (flow.epoch + 1) & kEpochMask;
  free_slots_.push_back(slot);
}

void ClusterWorld::boundary() {
  next_boundary_ += step_ns_;
  for (int j = 0; j < num_servers(); ++j) loads_[j] = in_system_[j] / capacity(j);
  metrics_.sample_loads(now_, loads_);
  for (core::LoadBalancer& balancer : balancers_) balancer.tick(now_, in_system_.data());
  if (rule_.policy) host_policies();
  if (!metrics_.keeps_timeline() || now_ > horizon_ns_) return;
  TimelinePoint point{static_cast<double>(now_) * 1e-9, {}, {in_system_.begin(), in_system_.end()}};
  for (const core::LoadBalancer& balancer : balancers_) {
    for (const core::WeightQ16 weight : balancer.weights()) point.weights.push_back(static_cast<float>(weight) / core::kUnitWeight);
  }
  metrics_.timeline().push_back(std::move(point));
}

// A policy that refuses (no finite action) leaves the weights of the last step in force.
void ClusterWorld::host_policies() {
  for (const int i : up_list_) {
    balancers_[i].observe(now_, observation_.data());
    if (hosted_.act(i, observation_.data(), action_.data())) act(i, action_.data());
  }
}

void ClusterWorld::act(int balancer, const float* action) {
  for (int j = 0; j < num_servers(); ++j) {
    if (std::isfinite(action[j])) continue;
    throw std::invalid_argument("action[" + std::to_string(balancer) + "][" + std::to_string(j) + "]: " + std::to_string(action[j]) +
                                " is not allowed; use a finite number in [-1, 1]");
  }
  balancers_[balancer].set_action(action);
  if (actuation_ns_ == 0) return balancers_[balancer].apply_action();
  queue_.push(Event::make(now_ + actuation_ns_, kActuate, static_cast<uint32_t>(balancer), 0));
}

double ClusterWorld::capacity(int server) const {
  const Device& cpu = servers_[server].cpu;
  return cpu.workers() * cpu.speed();
}

std::vector<uint32_t> ClusterWorld::waiting() const {
  std::vector<uint32_t> out;
  for (const Server& server : servers_) out.push_back(server.waiting);
  return out;
}

}  // namespace steelyard::sim
