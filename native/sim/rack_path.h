// The first steps of every task, which are the same whether ends of service are events or planned. Only
// rack.cc and rack_planned.cc include it.
#pragma once

#include "native/core/rng.h"
#include "native/sim/rack.h"

namespace steelyard::sim {

// A task arrives now.
[[gnu::always_inline]] inline RackTask RackWorld::next_task() {
  const uint64_t id = next_id_++;
  arrivals_.advance();
  metrics_.task_arrived(now_);
  const size_t types = config_->types.size();
  const uint32_t type =
      types == 1 ? 0 : static_cast<uint32_t>(type_table_.sample(core::draw(type_stream_, id)));
  const Distribution& law = config_->types[type].service;
  const double service_s = law.kind == DistributionKind::kExponential
                               ? law.a[0] * exponentials_.at(id)
                               : law.sample(core::draw(service_stream_, id));
  const uint64_t origin = core::draw(origin_stream_, id);
  const uint32_t deciders = static_cast<uint32_t>(num_deciders_);
  const uint32_t i = equal_split_ || deciders == 1 ? core::below(origin, deciders)
                                                   : static_cast<uint32_t>(origins_.sample(origin));
  return {.id = id,
          .arrived = now_,
          .service_ns = static_cast<int64_t>(service_s * 1e9 + 0.5),
          .decider = static_cast<uint16_t>(i),
          .type = static_cast<uint16_t>(type)};
}

// Its decider gives it to server j: whether that is another one. Without a jump, since this is random.
[[gnu::always_inline]] inline bool RackWorld::assign(RackTask& task, int j) {
  const uint32_t i = task.decider;
  const uint32_t server = static_cast<uint32_t>(j);
  const bool away = !at_servers_ || server != i;
  digest_ = (digest_ ^ (task.id * core::kGolden + server + 1)) * 0x9fb21c651e98df25ULL;
  task.server = static_cast<uint16_t>(j);
  task.remote = away;
  if (rule_.increments || info_ == LoadInfo::kOutstanding)
    rows_[i * stride_ + server] += increment_ * static_cast<float>(away);
  if (!at_servers_) return away;
  ++totals_[i].arrivals;
  totals_[i].migrations += away;
  nodes_[i].migrations += away;
  migrations_ += away;
  task.service_ns += migration_work_ns_ * away;
  return away;
}

inline uint32_t RackWorld::take_slot() {
  if (free_slots_.empty()) {
    tasks_.emplace_back();
    return static_cast<uint32_t>(tasks_.size() - 1);
  }
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

// One that travels for a time of its own.
inline void RackWorld::send_alone(uint32_t slot) {
  const core::TimeNs delay = config_->task_delay.ns(core::draw(delay_stream_, 2 * tasks_[slot].id));
  queue_.push(Event::make(now_ + delay, kTransit, slot, 0));
}

// Time that a worker of the server takes for it.
inline int64_t RackWorld::time_at(const RackNode& node, int64_t service_ns) const {
  return node.speed == 1 ? service_ns
                         : static_cast<int64_t>(static_cast<double>(service_ns) * node.pace + 0.5);
}

// What latency counts beyond the end of its service.
inline core::TimeNs RackWorld::reply_of(const RackTask& task) const {
  return config_->latency_with_reply && task.remote ? reply_delay_ns(task) : 0;
}

}  // namespace steelyard::sim
