// The first steps of every task, which are the same whether ends of service are events or planned. Only
// rack.cc and rack_planned.cc include it.
#pragma once

#include "native/core/rng.h"
#include "native/sim/choice.h"
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
  if (rule_.increments || info_ == LoadInfo::kOutstanding) [[likely]]
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
  return config_->latency_with_reply && task.remote ? reply_delay_ns(task.id) : 0;
}

// The load of server j as it is.
inline float RackWorld::load_of(uint32_t j) {
  if (!planned_) return kept_load_of(j);
  const PlannedService::Count count = plan_.count(j, counted_until_);
  const uint32_t serving = measure_ == LoadMeasure::kTasks ? count.serving : 0;
  return static_cast<float>(static_cast<int32_t>(serving + count.waiting));
}

// The loads that decider i has been told: `stride_` floats.
inline const float* RackWorld::told_row(uint32_t i) {
  if (info_ != LoadInfo::kExact) [[likely]]
    return &rows_[i * stride_];
  if (reads_true_row_) return true_row_.data();
  for (uint32_t j = 0; j < nodes_.size(); ++j) scratch_[j] = load_of(j);
  return scratch_.data();
}

// Loads as a decider knows them, in lanes. Its own load is put in on the way: a row that was just written to
// would keep the lanes waiting.
struct RackWorld::KnownLoads {
  const float* row;
  int own;  // -1: none is
  float own_load, add;

  f32x8 operator()(uint32_t at) const {
    const i32x8 is_own = i32x8{0, 1, 2, 3, 4, 5, 6, 7} == own - static_cast<int>(at);
    return (is_own ? f32x8{} + own_load : load_lanes(row + at)) + add;
  }
};

[[gnu::always_inline]] inline int RackWorld::least(uint32_t i, uint64_t word) {
  const KnownLoads loads{told_row(i), patches_own_ ? static_cast<int>(i) : -1, patches_own_ ? load_of(i) : 0,
                         add_};
  const int preferred = rule_.keep && at_servers_ ? static_cast<int>(i) : -1;
  if (rule_.estimated_rates) [[unlikely]]
    return least_by_rates(loads, i, preferred, word);
  const float* scale = scale_.data();
  return least_of(stride_, preferred, rule_.first, word,
                  [=](uint32_t at) { return loads(at) * load_lanes(scale + at); });
}

// The server for the task `id`, of this type, that arrived at decider i.
[[gnu::always_inline]] inline int RackWorld::choose(uint32_t i, uint64_t id, uint32_t type) {
  const uint64_t word = core::draw(choice_stream_, id);
  if (kind_ == RackKind::kLeast) [[likely]]
    return least(i, word);
  return choose_otherwise(i, type, word);
}

}  // namespace steelyard::sim
