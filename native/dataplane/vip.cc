// The path of a packet through a VIP.
#include "native/dataplane/vip.h"

#include <algorithm>

namespace steelyard::dataplane {
namespace {

constexpr TimeNs kSweepPeriod = core::kNanosPerSecond;  // in which each place is looked at once

}  // namespace

// Packets that change something; `place` is the flow's, or kNone.
int Vip::route_slowly(const Segment& segment, uint32_t place, TimeNs now) {
  if (place != ConnectionTable::kNone && table_.expired(place, now)) [[unlikely]] {
    expire(place, now);
    if (!table_.taken(place)) place = ConnectionTable::kNone;
  }
  const bool opens = udp_ || (segment.flags & (kSyn | kAck)) == kSyn;
  if (place == ConnectionTable::kNone) return opens ? new_flow(segment, now) : adopt(segment, now);
  Connection& flow = table_.at(place);
  if (flow.state != FlowState::kEstablished || (segment.flags & kNotData) != 0) {
    const bool old = flow.state != FlowState::kOpening && flow.state != FlowState::kEstablished;
    if (opens && old && !udp_) {
      ++counters_.reused;
      forget(place);
      return new_flow(segment, now);
    }
    advance(flow, segment.flags, now);
  }
  table_.set_deadline(place, now + timeout_[static_cast<size_t>(flow.state)]);
  return count(flow.endpoint, segment.bytes);
}

int Vip::route_related(const FlowKey& key, uint64_t hash) const {
  const uint32_t place = table_.find(key, hash);
  return place == ConnectionTable::kNone ? fallback(hash) : table_.at(place).endpoint;
}

void Vip::advance(Connection& flow, uint8_t flags, TimeNs now) {
  Endpoint& endpoint = endpoints_[flow.endpoint];
  if ((flags & (kRst | kFin)) != 0) {
    const bool completed = (flags & kRst) == 0;
    if (flow.counted) ++(completed ? endpoint.completed : endpoint.reset);
    uncount(flow, completed, now);
    set_state(flow, FlowState::kClosing);
  } else if (flow.state == FlowState::kOpening && (udp_ || (flags & kAck) != 0)) {
    if (!udp_) {
      core_->first_ack(flow.hash, now);
      if (log_ != nullptr) log_->on_first_ack(flow.hash, now);
    }
    set_state(flow, FlowState::kEstablished);
  } else if (flow.state == FlowState::kIdle) {
    set_state(flow, FlowState::kAdopted);
  }
}

int Vip::new_flow(const Segment& segment, TimeNs now) {
  if (core_->members().empty()) {
    ++counters_.no_server;
    return kNoEndpoint;
  }
  // Later packets of a flow that is not bound here find their way by the same hashing.
  if (in_state(FlowState::kOpening) >= half_open_limit_) {
    ++counters_.half_open_refused;
    return fallback_counted(segment);
  }
  uint32_t place = table_.free_place(segment.hash);
  if (place == ConnectionTable::kNone) {
    place = table_.oldest_place(segment.hash, now);
    if (place == ConnectionTable::kNone) {
      ++counters_.untracked_flows;
      return fallback_counted(segment);
    }
    if (table_.at(place).counted) expire(place, now);
    if (table_.taken(place)) forget(place);
    ++counters_.evicted;
  }
  const core::ServerId chosen = core_->choose(segment.hash, now, nullptr);
  const core::ServerId server = core_->open(segment.hash, chosen, now);
  if (log_ != nullptr) log_->on_open(segment.hash, server, now);
  const int endpoint = endpoint_of_[server];
  ++endpoints_[endpoint].opened;
  bind(segment, place, endpoint, FlowState::kOpening, now);
  return count(endpoint, segment.bytes);
}

int Vip::adopt(const Segment& segment, TimeNs now) {
  const bool data = (segment.flags & (kNotData | kAck)) == kAck;
  const uint32_t place = data ? table_.free_place(segment.hash) : ConnectionTable::kNone;
  const int endpoint = fallback_counted(segment);
  if (place == ConnectionTable::kNone || endpoint == kNoEndpoint) return endpoint;
  ++counters_.adopted;
  bind(segment, place, endpoint, FlowState::kAdopted, now);
  return endpoint;
}

int Vip::fallback(uint64_t hash) const {
  if (!has_consistent_) return kNoEndpoint;
  return endpoint_of_[consistent_.lookup(core::LoadBalancer::choice_word(hash))];
}

int Vip::fallback_counted(const Segment& segment) {
  const int endpoint = fallback(segment.hash);
  if (endpoint == kNoEndpoint) {
    ++counters_.no_server;
    return kNoEndpoint;
  }
  ++counters_.fallback_packets;
  return count(endpoint, segment.bytes);
}

void Vip::bind(const Segment& segment, uint32_t place, int endpoint, FlowState state, TimeNs now) {
  const Connection flow{.client = segment.key.client,
                        .hash = segment.hash,
                        .port = segment.key.port,
                        .endpoint = static_cast<uint16_t>(endpoint),
                        .state = state,
                        .counted = state == FlowState::kOpening};
  table_.take(place, flow, now + timeout_[static_cast<size_t>(state)]);
  ++in_state_[static_cast<size_t>(state)];
  ++endpoints_[endpoint].bound;
}

void Vip::uncount(Connection& flow, bool completed, TimeNs now) {
  if (!flow.counted) return;
  flow.counted = false;
  core_->close(flow.hash, completed, now);
  if (log_ != nullptr) log_->on_close(flow.hash, completed, now);
}

void Vip::set_state(Connection& flow, FlowState state) {
  --in_state_[static_cast<size_t>(flow.state)];
  ++in_state_[static_cast<size_t>(state)];
  flow.state = state;
}

// An established TCP connection stays bound while nobody needs its place: it may only have been silent.
void Vip::expire(uint32_t place, TimeNs now) {
  Connection& flow = table_.at(place);
  if (flow.counted) ++endpoints_[flow.endpoint].timed_out;
  uncount(flow, false, now);
  const bool silent = flow.state == FlowState::kEstablished || flow.state == FlowState::kAdopted;
  if (flow.state == FlowState::kIdle) {
    const bool removed = endpoints_[flow.endpoint].server == core::kNoServer;
    if (removed || table_.expired(place, now - ConnectionTable::kRemembered)) forget(place);
  } else if (silent && !udp_) {
    set_state(flow, FlowState::kIdle);
  } else {
    forget(place);
  }
}

void Vip::forget(uint32_t place) {
  const Connection& flow = table_.at(place);
  --in_state_[static_cast<size_t>(flow.state)];
  --endpoints_[flow.endpoint].bound;
  table_.free(place);
}

void Vip::sweep(TimeNs now) {
  const TimeNs elapsed = std::min(now - swept_, kSweepPeriod);
  const uint32_t places = table_.places();
  auto left =
      static_cast<uint32_t>(static_cast<double>(places) * static_cast<double>(elapsed) / kSweepPeriod);
  if (left == 0) return;
  swept_ = now;
  for (; left > 0; --left) {
    if (table_.taken(sweep_at_) && table_.expired(sweep_at_, now)) expire(sweep_at_, now);
    sweep_at_ = sweep_at_ + 1 == places ? 0 : sweep_at_ + 1;
  }
}

void Vip::tick(TimeNs now) {
  sweep(now);
  if (now < next_update_) return;
  const auto interval = static_cast<TimeNs>(config_.interval_s * core::kNanosPerSecond);
  next_update_ = std::max(next_update_ + interval, now);
  core_->tick(now, nullptr);
  if (log_ != nullptr) log_->on_tick({}, now);
  for (size_t j = 0; j < shared_.size(); ++j) {
    const Endpoint& endpoint = endpoints_[endpoint_of_[j]];
    shared_[j] = {endpoint.opened, endpoint.completed, endpoint.packets, endpoint.bytes, endpoint.reset, 0};
  }
  policy_.tick(core_.get(), shared_, log_, now);
}

}  // namespace steelyard::dataplane
