// Inside a server: its workers, the disciplines other than FCFS, and what the timetable does to it.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "native/core/weights.h"
#include "native/sim/rack.h"

namespace steelyard::sim {

using core::TimeNs;

void RackWorld::set_up_servers() {
  const RackConfig& c = *config_;
  const int n = c.num_servers();
  nodes_.assign(n, {});
  totals_.assign(n, {});
  server_of_.clear();
  for (int j = 0; j < n; ++j) {
    RackNode& node = nodes_[j];
    node.first = static_cast<uint32_t>(server_of_.size());
    node.workers = node.room = static_cast<uint32_t>(c.servers[j].workers);
    for (const RackEvent& event : c.events) {
      if (event.kind != RackEventKind::kWorkers) continue;
      for (const int target : event.targets)
        if (target == j) node.room = std::max(node.room, static_cast<uint32_t>(event.value));
    }
    node.speed = c.servers[j].speed;
    node.pace = 1 / node.speed;
    node.mean_service_s = mean_service_s_ / node.speed;
    node.mean_inverse = 1 / node.mean_service_s;
    server_of_.insert(server_of_.end(), node.room, static_cast<uint16_t>(j));
  }
  const size_t workers = server_of_.size();
  running_.assign(workers, kNobody);
  idle_.resize(workers);
  asking_.assign(workers, kNobody);
  slice_.assign(workers, 0);
  for (RackNode& node : nodes_) {
    for (uint32_t k = node.workers; k > 0; --k) idle_[node.first + node.idle++] = node.first + k - 1;
  }
  calendar_.reset(static_cast<uint32_t>(workers), mean_service_s_ * 1e9);
  devices_.clear();
  darcs_.clear();
  std::vector<double> means_s, ratios;
  for (const RackType& type : c.types) {
    means_s.push_back(type.service.mean());
    ratios.push_back(type.ratio);
  }
  for (const RackNode& node : nodes_) {
    if (discipline_ == Discipline::kPs) {
      devices_.emplace_back().reset(static_cast<int>(node.workers), kNoCap, node.speed);
    } else if (discipline_ == Discipline::kDarc) {
      darcs_.emplace_back(means_s, ratios, static_cast<int>(node.workers), c.darc_within, c.darc_shift,
                          c.darc_window);
    }
  }
}

// A shared server announces its next completion under its first worker.
void RackWorld::announce(uint32_t j) {
  const uint32_t worker = nodes_[j].first;
  calendar_.cancel(worker);
  const TimeNs at = devices_[j].next_finish(now_);
  if (at != core::kNever) calendar_.set(worker, at);
}

void RackWorld::enter_otherwise(uint32_t j, uint32_t slot) {
  RackNode& node = nodes_[j];
  RackTask& task = tasks_[slot];
  switch (discipline_) {
    case Discipline::kPs:
      devices_[j].start(slot, static_cast<double>(task.service_ns), now_);
      ++node.serving;
      return announce(j);
    case Discipline::kQuantum:
      task.left_ns = task.service_ns;
      if (node.idle > 0) return start_turn(j, idle_[node.first + --node.idle], slot, 0);
      node.line_ns += task.left_ns;
      return node.line.push_back(slot);
    case Discipline::kDarc: {
      if (kind_ == RackKind::kShaped && turned_away(slot)) return;
      const uint32_t core = task.clone ? darcs_[j].any_idle() : darcs_[j].place(slot, task.type);
      if (core != Darc::kNone) return begin_service(j, node.first + core, slot);
      node.line_ns += task.service_ns;
      return;
    }
    case Discipline::kFcfs:
      return;
  }
}

void RackWorld::done_otherwise(uint32_t worker) {
  const uint32_t j = server_of_[worker];
  switch (discipline_) {
    case Discipline::kPs:
      return shared_done(j);
    case Discipline::kQuantum:
      return turn_done(j, worker);
    case Discipline::kDarc:
      return reserved_done(j, worker);
    case Discipline::kFcfs:
      return;
  }
}

void RackWorld::shared_done(uint32_t j) {
  const uint32_t slot = devices_[j].finish(now_);
  --nodes_[j].serving;
  announce(j);
  end_service(j, slot);
}

// A worker turns to a task, after a switch; for a quantum of its own time or until the task is done.
void RackWorld::start_turn(uint32_t j, uint32_t worker, uint32_t slot, int64_t switch_ns) {
  RackNode& node = nodes_[j];
  const int64_t quantum = static_cast<int64_t>(static_cast<double>(quantum_ns_) * node.speed + 0.5);
  slice_[worker] = std::min(tasks_[slot].left_ns, std::max<int64_t>(quantum, 1));
  running_[worker] = slot;
  ++node.serving;
  const double time_ns = static_cast<double>(slice_[worker]) * node.pace;
  calendar_.set(worker, now_ + switch_ns + static_cast<TimeNs>(time_ns + 0.5));
}

// A task whose turn ends makes room when others wait, else it goes on.
void RackWorld::turn_done(uint32_t j, uint32_t worker) {
  RackNode& node = nodes_[j];
  const uint32_t slot = running_[worker];
  RackTask& task = tasks_[slot];
  --node.serving;
  task.left_ns -= slice_[worker];
  if (task.left_ns > 0) {
    if (node.line.empty() && node.retiring == 0) return start_turn(j, worker, slot, 0);
    ++preemptions_;
    node.line.push_back(slot);
    node.line_ns += task.left_ns;
    return next_turn(j, worker, switch_ns_);
  }
  end_service(j, slot);
  next_turn(j, worker, 0);
  if (may_steal_) consider_stealing(j);
}

void RackWorld::next_turn(uint32_t j, uint32_t worker, int64_t switch_ns) {
  RackNode& node = nodes_[j];
  if (node.retiring > 0) return retire(j);
  if (node.line.empty()) {
    idle_[node.first + node.idle++] = worker;
    return;
  }
  const uint32_t next = node.line.pop_front();
  node.line_ns -= tasks_[next].left_ns;
  start_turn(j, worker, next, switch_ns);
}

void RackWorld::reserved_done(uint32_t j, uint32_t worker) {
  RackNode& node = nodes_[j];
  const uint32_t slot = running_[worker];
  const uint32_t type = tasks_[slot].type;
  const double service_s = static_cast<double>(tasks_[slot].service_ns) * 1e-9;
  --node.serving;
  node.done_sum_ns -= now_;
  end_service(j, slot);
  const bool replanned = darcs_[j].completed(type, service_s);
  reserved_next(j, worker - node.first);
  if (replanned) offer_idle_cores(j);
  if (may_steal_) consider_stealing(j);
}

void RackWorld::reserved_next(uint32_t j, uint32_t core) {
  RackNode& node = nodes_[j];
  const uint32_t next = darcs_[j].next(core);
  if (next == Darc::kNone) return;
  node.line_ns -= tasks_[next].service_ns;
  begin_service(j, node.first + core, next);
}

// After a new plan an idle core may serve what it had to leave before.
void RackWorld::offer_idle_cores(uint32_t j) {
  for (uint32_t core = 0; core < nodes_[j].workers; ++core) {
    if (calendar_.time_of(nodes_[j].first + core) == core::kNever) reserved_next(j, core);
  }
}

// A worker that was to go is free, and goes.
void RackWorld::retire(uint32_t j) { --nodes_[j].retiring; }

void RackWorld::set_speed(uint32_t j, double speed) {
  RackNode& node = nodes_[j];
  const double ratio = node.speed / speed;
  node.speed = speed;
  node.pace = 1 / speed;
  if (discipline_ == Discipline::kPs) {
    devices_[j].set_speed(speed, now_);
    return announce(j);
  }
  for (uint32_t worker = node.first; worker < node.first + node.room; ++worker) {
    const TimeNs old = calendar_.time_of(worker);
    if (old == core::kNever) continue;
    const TimeNs done = now_ + static_cast<TimeNs>(static_cast<double>(old - now_) * ratio + 0.5);
    node.done_sum_ns += done - old;
    calendar_.cancel(worker);
    calendar_.set(worker, done);
  }
}

// Workers that go finish what they have; workers that come take what waits.
void RackWorld::set_workers(uint32_t j, uint32_t workers) {
  RackNode& node = nodes_[j];
  if (decider_) decider_->on_workers(static_cast<int>(j), workers);
  if (discipline_ == Discipline::kPs) {
    devices_[j].set_workers(static_cast<int>(workers), kNoCap, now_);
    node.workers = workers;
    return announce(j);
  }
  const uint32_t before = node.workers;
  node.workers = workers;
  if (discipline_ == Discipline::kDarc) {
    std::vector<uint8_t> idle(workers);
    for (uint32_t k = 0; k < workers; ++k) idle[k] = calendar_.time_of(node.first + k) == core::kNever;
    darcs_[j].set_cores(std::move(idle));
    return offer_idle_cores(j);
  }
  for (uint32_t k = workers; k < before; ++k) {
    if (node.idle > 0) {
      --node.idle;
    } else {
      ++node.retiring;
    }
  }
  for (uint32_t k = before; k < workers; ++k) {
    if (node.retiring > 0) {
      --node.retiring;
      continue;
    }
    uint32_t worker = node.first;  // one that is neither busy nor idle
    const auto listed = [&](uint32_t w) {
      for (uint32_t i = 0; i < node.idle; ++i)
        if (idle_[node.first + i] == w) return true;
      return false;
    };
    while (calendar_.time_of(worker) != core::kNever || running_[worker] == kHeld || listed(worker)) ++worker;
    if (discipline_ == Discipline::kFcfs) {
      free_worker(j, worker);
    } else {
      next_turn(j, worker, 0);
    }
  }
}

uint32_t RackWorld::waiting(uint32_t j) const {
  if (planned_) return nodes_[j].in_system - nodes_[j].serving;
  return discipline_ == Discipline::kDarc ? static_cast<uint32_t>(darcs_[j].waiting())
                                          : static_cast<uint32_t>(nodes_[j].line.size());
}

// Remaining work of server j over what its workers do in a second. [s]
double RackWorld::work_left_s(uint32_t j) const {
  const RackNode& node = nodes_[j];
  double work_ns = static_cast<double>(node.line_ns);
  if (planned_) {
    work_ns = static_cast<double>(plan_.left_ns(j, now_)) * node.speed;
  } else if (discipline_ == Discipline::kPs) {
    for (const Device::Job& job : devices_[j].jobs()) work_ns += devices_[j].remaining_ns(job, now_);
  } else if (discipline_ == Discipline::kQuantum) {
    for (uint32_t worker = node.first; worker < node.first + node.room; ++worker) {
      const TimeNs at = calendar_.time_of(worker);
      if (at == core::kNever) continue;
      work_ns += static_cast<double>(tasks_[running_[worker]].left_ns - slice_[worker]) +
                 static_cast<double>(at - now_) * node.speed;
    }
  } else {
    const int64_t served_ns = node.done_sum_ns - static_cast<int64_t>(node.serving) * now_;
    work_ns += static_cast<double>(served_ns) * node.speed;
  }
  return work_ns * 1e-9 / (node.workers * node.speed);
}

// Moving averages over completions, of the time that a worker spent.
void RackWorld::learn_rate(uint32_t j, const RackTask& task) {
  RackNode& node = nodes_[j];
  const double service_s = static_cast<double>(task.service_ns) * 1e-9 * node.pace;
  const double weight = config_->rate_ewma;
  node.mean_service_s += weight * (service_s - node.mean_service_s);
  if (service_s > 0) node.mean_inverse += weight * (1 / service_s - node.mean_inverse);
  if (decider_) decider_->on_completion(static_cast<int>(j), task.type, service_s);
}

double RackWorld::estimated_rate(uint32_t j) const {
  const RackNode& node = nodes_[j];
  return config_->rate_of_inverses ? node.workers * node.mean_inverse : node.workers / node.mean_service_s;
}

void RackWorld::fill_alias(core::AliasTable& table, const std::vector<double>& shares) {
  double total = 0;
  for (const double share : shares) total += share;
  std::vector<core::ServerId> members;
  std::vector<core::WeightQ16> weights;
  for (size_t k = 0; k < shares.size(); ++k) {
    members.push_back(static_cast<core::ServerId>(k));
    weights.push_back(static_cast<core::WeightQ16>(std::llround(shares[k] / total * 0x1p31)));
  }
  table.build(members, weights.data());
}

void RackWorld::set_split(const std::vector<double>& shares) {
  equal_split_ = std::all_of(shares.begin(), shares.end(), [&](double s) { return s == shares[0]; });
  fill_alias(origins_, shares);
}

void RackWorld::apply(const RackEvent& event) {
  switch (event.kind) {
    case RackEventKind::kSplit:
      return set_split(event.split);
    case RackEventKind::kArrivalScale:
      return arrivals_.scale(now_, event.value);
    case RackEventKind::kMix:
      mean_service_s_ = 0;
      for (size_t t = 0; t < event.split.size(); ++t)
        mean_service_s_ += event.split[t] * config_->types[t].service.mean();
      mean_service_s_ /= std::accumulate(event.split.begin(), event.split.end(), 0.0);
      return fill_alias(type_table_, event.split);
    case RackEventKind::kSpeed:
      for (const int j : event.targets)
        set_speed(static_cast<uint32_t>(j), config_->servers[j].speed * event.value);
      break;
    case RackEventKind::kWorkers:
      for (const int j : event.targets)
        set_workers(static_cast<uint32_t>(j), static_cast<uint32_t>(event.value));
      break;
  }
  if (!held_.empty()) send_held();
}

}  // namespace steelyard::sim
