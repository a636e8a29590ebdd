// The timetable of the cluster world: capacity, membership, failures, arrival rate.
#include <algorithm>
#include <cmath>

#include "native/core/rng.h"
#include "native/sim/cluster.h"
#include "native/sim/streams.h"

namespace steelyard::sim {

void ClusterWorld::draw_timetable(uint64_t seed) {
  timetable_.clear();
  const uint64_t stream = core::stream_key(seed, kStreamTimetable);
  uint64_t key = 0;
  const auto uniform = [&](double low, double high) {
    return low + (high - low) * core::unit_open(core::draw(stream, key++));
  };
  for (const EventConfig& line : config_->events) {
    const double t_s = uniform(line.t_low_s, line.t_high_s);
    Change change{&line, line.targets, {}};
    const size_t count = line.count < 0 ? line.targets.size() : static_cast<size_t>(line.count);
    for (size_t i = 0; i < count && !line.targets.empty(); ++i) {  // Fisher-Yates, the first `count` places
      const size_t left = change.targets.size() - i;
      std::swap(change.targets[i],
                change.targets[i + core::below(core::draw(stream, key++), static_cast<uint32_t>(left))]);
    }
    if (!line.targets.empty()) change.targets.resize(count);
    for (size_t i = 0; i < std::max<size_t>(1, change.targets.size()); ++i) {
      if (i > 0 && line.common_value) {
        change.values.push_back(change.values.front());
      } else if (line.log_uniform) {
        change.values.push_back(std::exp(uniform(std::log(line.value_low), std::log(line.value_high))));
      } else {
        change.values.push_back(uniform(line.value_low, line.value_high));
      }
    }
    const uint32_t subject = static_cast<uint32_t>(timetable_.size());
    const core::TimeNs at = static_cast<core::TimeNs>(t_s * 1e9 + 0.5);
    queue_.push(Event::make(at, kTimetable, subject, 0));
    if (line.duration_s > 0) {
      queue_.push(
          Event::make(at + static_cast<core::TimeNs>(line.duration_s * 1e9 + 0.5), kUndo, subject, 0));
    }
    timetable_.push_back(std::move(change));
  }
}

void ClusterWorld::apply(const Change& change, bool undo) {
  for (size_t i = 0; i < std::max<size_t>(1, change.targets.size()); ++i) {
    const int target = change.targets.empty() ? 0 : change.targets[i];
    const double value = undo ? 1.0 : change.values[i];
    switch (change.line->kind) {
      case EventKind::kSpeed:
        set_speed(target, value);
        break;
      case EventKind::kWorkers:
        set_workers(target, undo ? config_->servers[target].workers : static_cast<int>(std::lround(value)));
        break;
      case EventKind::kLeave:
        set_member(target, undo);
        break;
      case EventKind::kJoin:
        set_member(target, !undo);
        break;
      case EventKind::kBalancerFail:
        set_up(target, undo);
        break;
      case EventKind::kBalancerRecover:
        set_up(target, !undo);
        break;
      case EventKind::kArrivalScale:
        arrivals_.scale(now_, value);
        break;
    }
  }
}

void ClusterWorld::set_speed(int server, double factor) {
  servers_[server].cpu.set_speed(config_->servers[server].speed * factor, now_);
  announce(static_cast<uint32_t>(server), false);
}

void ClusterWorld::set_workers(int server, int workers) {
  const ServerConfig& c = config_->servers[server];
  const int cap = c.cpu == CpuMode::kFifo ? workers : servers_[server].cpu.cap();
  servers_[server].cpu.set_workers(workers, cap, now_);
  admit_waiting(static_cast<uint32_t>(server));
  announce(static_cast<uint32_t>(server), false);
}

// A server that leaves serves what it has (drain); balancers send it nothing new.
void ClusterWorld::set_member(int server, bool member) {
  servers_[server].member = member;
  std::vector<core::ServerId> members;
  for (int j = 0; j < num_servers(); ++j) {
    if (servers_[j].member) members.push_back(j);
  }
  for (core::LoadBalancer& balancer : balancers_) balancer.set_members(members);
  if (tap_.log != nullptr) tap_.log->on_members(members, now_);
}

// A failed balancer loses all it knew; the edge router spreads new flows over the others. Flows that it had
// opened go on at their servers, as with direct server return.
void ClusterWorld::set_up(int balancer, bool up) {
  if (!up) {
    untracked_by_failed_ += balancers_[balancer].untracked();
    restart_balancer(balancer);
  }
  balancer_up_[balancer] = up ? 1 : 0;
  up_list_.clear();
  for (int i = 0; i < num_balancers(); ++i) {
    if (balancer_up_[i] != 0) up_list_.push_back(i);
  }
}

}  // namespace steelyard::sim
