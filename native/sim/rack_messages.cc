// What deciders hear of servers, and everything else that takes its time on the network.
#include <algorithm>
#include <cmath>

#include "native/core/rng.h"
#include "native/sim/rack.h"
#include "native/sim/rack_path.h"

namespace steelyard::sim {

using core::TimeNs;

void RackWorld::set_up_messages() {
  const size_t n = nodes_.size();
  // Rounds of broadcasts that can be under way at once, all at the same delay.
  const double delay_s = config_->message_delay.constant_s;
  rounds_ = static_cast<uint32_t>(delay_s / config_->broadcast_period_s) + 2;
  round_in_ = round_out_ = 0;
  together_ = config_->broadcast_phase == BroadcastPhase::kTogether && !config_->message_delay.jitter;
  const bool broadcasts = info_ == LoadInfo::kBroadcast;
  reports_.assign(broadcasts && together_ ? rounds_ * n : 0, {});
  sent_rows_.assign(broadcasts && together_ ? rounds_ * stride_ : 0, 0.0F);
  if (!broadcasts || together_) return;
  for (uint32_t j = 0; j < n; ++j) {
    TimeNs phase = 0;
    if (config_->broadcast_phase == BroadcastPhase::kStaggered)
      phase = period_ns_ * static_cast<TimeNs>(j) / static_cast<TimeNs>(n);
    if (config_->broadcast_phase == BroadcastPhase::kRandom)
      phase = static_cast<TimeNs>(core::unit_open(core::draw(message_stream_, j)) *
                                  static_cast<double>(period_ns_));
    queue_.push(Event::make(phase, kReport, j, 0));
  }
}

void RackWorld::dispatch(Event event) {
  const uint32_t subject = event.subject;
  switch (event.kind()) {
    case kTick:
      return tick();
    case kReport:
      return broadcast_one(subject);
    case kHearAll:
      return hear_all();
    case kWindow:
      return window();
    case kTimetable:
      return apply(config_->events[subject]);
    case kTransit:
      return enter_server(subject);
    case kAsk:
      return asked(subject);
    case kAnswer:
      return answered(subject);
    case kMonitor:
      return monitor();
    case kBounce:
      return bounced(subject);
    default:
      break;
  }
  const Message message = messages_pool_[subject];
  free_messages_.push_back(subject);
  switch (event.kind()) {
    case kHearOne:
      return hear_one(message);
    case kReply:
      return hear_reply({message.to, message.from, message.report.load});
    case kStealAsk:
      return steal_asked(message);
    case kStealRefused:
      nodes_[message.to].stealing = false;
      return;
    case kStolen:
      return stolen(message);
    case kReserved:
      return reserved(message);
    default:
      return;
  }
}

void RackWorld::post(TimeNs at, Kind kind, const Message& message) {
  uint32_t place = static_cast<uint32_t>(messages_pool_.size());
  if (free_messages_.empty()) {
    messages_pool_.push_back(message);
  } else {
    place = free_messages_.back();
    free_messages_.pop_back();
    messages_pool_[place] = message;
  }
  queue_.push(Event::make(at, kind, place, 0));
}

// The delay of the next message.
TimeNs RackWorld::message_ns() {
  return config_->message_delay.ns(core::draw(message_stream_, (uint64_t{1} << 32) + message_count_++));
}

// Every period: a look at the loads for the statistics, and the broadcasts.
void RackWorld::tick() {
  ++ticks_;
  queue_.push(Event::make(now_ + period_ns_, kTick, 0, 0));
  for (uint32_t j = 0; j < nodes_.size() && planned_; ++j) settle(j);
  double serving = 0, workers = 0;
  for (const RackNode& node : nodes_) {
    serving += std::min(node.serving, node.workers);
    workers += node.workers;
  }
  tasks_row_.resize(nodes_.size());
  for (size_t j = 0; j < nodes_.size(); ++j) tasks_row_[j] = static_cast<float>(nodes_[j].in_system);
  metrics_.sample(now_, expected_waits_us(), tasks_row_, serving / workers);
  if (info_ == LoadInfo::kBroadcast && together_) return broadcast_all();
  if (window_offset_ == 0) return window();
  queue_.push(Event::make(now_ + window_offset_, kWindow, 0, 0));
}

std::span<const float> RackWorld::expected_waits_us() {
  for (uint32_t j = 0; j < nodes_.size(); ++j)
    waits_us_[j] = static_cast<float>(nodes_[j].in_system / true_rate(static_cast<int>(j)) * 1e6);
  return waits_us_;
}

LoadReport RackWorld::report_of(uint32_t j) {
  RackNode& node = nodes_[j];
  LoadReport report{kept_load_of(j),
                    static_cast<float>(node.in_system),
                    tracks_rates_ ? static_cast<float>(estimated_rate(j)) : 0.0F,
                    node.migrations,
                    node.steals,
                    static_cast<float>(node.workers)};
  node.migrations = node.steals = 0;
  messages_ += static_cast<uint64_t>(at_servers_ ? num_deciders_ - 1 : num_deciders_);
  return decider_ ? decider_->on_broadcast(static_cast<int>(j), report) : report;
}

void RackWorld::broadcast_all() {
  const size_t n = nodes_.size();
  LoadReport* reports = &reports_[round_in_ * n];
  float* row = &sent_rows_[round_in_ * stride_];
  for (uint32_t j = 0; j < n; ++j) {
    reports[j] = report_of(j);
    row[j] = reports[j].load;
  }
  round_in_ = round_in_ + 1 == rounds_ ? 0 : round_in_ + 1;
  const TimeNs delay = config_->message_delay.ns(0);
  if (delay == 0) return hear_all();
  queue_.push(Event::make(now_ + delay, kHearAll, 0, 0));
}

void RackWorld::hear_all() {
  const uint32_t n = static_cast<uint32_t>(nodes_.size());
  const LoadReport* reports = &reports_[round_out_ * n];
  const float* row = &sent_rows_[round_out_ * stride_];
  round_out_ = round_out_ + 1 == rounds_ ? 0 : round_out_ + 1;
  for (int i = 0; i < num_deciders_; ++i) {
    std::copy_n(row, n, &rows_[i * stride_]);
    if (!rates_.empty()) {
      for (uint32_t j = 0; j < n; ++j) rates_[i * stride_ + j] = reports[j].rate;
    }
    if (!decider_) continue;
    for (uint32_t j = 0; j < n; ++j) {
      if (static_cast<int>(j) != i) decider_->on_load(i, static_cast<int>(j), reports[j]);
    }
  }
  window();
}

void RackWorld::broadcast_one(uint32_t j) {
  queue_.push(Event::make(now_ + period_ns_, kReport, j, 0));
  if (planned_) settle(j);
  const LoadReport report = report_of(j);
  for (int i = 0; i < num_deciders_; ++i) {
    const Message message{static_cast<uint16_t>(i), static_cast<uint16_t>(j), 0, report};
    const bool own = at_servers_ && i == static_cast<int>(j);
    const TimeNs delay = own ? 0 : message_ns();
    if (delay == 0) {
      hear_one(message);
    } else {
      post(now_ + delay, kHearOne, message);
    }
  }
}

void RackWorld::hear_one(const Message& message) {
  const size_t place = message.to * stride_ + message.from;
  rows_[place] = message.report.load;
  if (!rates_.empty()) rates_[place] = message.report.rate;
  if (decider_ && message.to != message.from) decider_->on_load(message.to, message.from, message.report);
}

void RackWorld::window() {
  next_window_ += period_ns_;
  if (decider_) decider_->on_window(now_);
}

TimeNs RackWorld::reply_delay_ns(uint64_t id) const {
  return reply_jitter_ ? config_->reply_delay.ns(core::draw(delay_stream_, 2 * id + 1)) : reply_ns_;
}

// The reply of a task starts on its way to the task's decider.
void RackWorld::note_completion(uint32_t slot, uint32_t j) {
  const RackTask& task = tasks_[slot];
  const Reply reply{task.decider, static_cast<uint16_t>(j),
                    info_ == LoadInfo::kPiggyback ? load_of(j) : 0.0F};
  const TimeNs delay = reply_delay_ns(task.id);
  if (delay == 0) return hear_reply(reply);
  if (!reply_jitter_) return replies_.push(now_ + delay, reply);
  Message message{reply.decider, reply.server, 0, {}};
  message.report.load = reply.load;
  post(now_ + delay, kReply, message);
}

void RackWorld::hear_reply(const Reply& reply) {
  float& known = rows_[reply.decider * stride_ + reply.server];
  if (info_ == LoadInfo::kPiggyback) {
    known = reply.load;
    return;
  }
  known -= 1;
  if (kind_ == RackKind::kBounded && !held_.empty()) send_held();
}

}  // namespace steelyard::sim
