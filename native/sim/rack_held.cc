// Stealing, and tasks that wait at their decider: bounded queues and late binding.
#include <algorithm>
#include <utility>

#include "native/core/rng.h"
#include "native/sim/choice.h"
#include "native/sim/rack.h"

namespace steelyard::sim {

using core::below;
using core::draw;
using core::TimeNs;

// After a completion: a server whose own line is short may ask another for work, one at a time.
void RackWorld::consider_stealing(uint32_t j) {
  RackNode& node = nodes_[j];
  if (node.stealing || waiting(j) > static_cast<uint32_t>(config_->steal_threshold)) return;
  const uint64_t word = draw(steal_stream_, steal_draws_++);
  const uint32_t n = static_cast<uint32_t>(nodes_.size());
  int victim = core::kNoServer;
  if (kind_ == RackKind::kDecider) {
    victim = decider_->steal(static_cast<int>(j), word);
  } else if (rule_.steal == StealBy::kRandom) {
    const uint32_t other = below(word, n - 1);
    victim = static_cast<int>(other < j ? other : other + 1);
  } else {
    victim = most_loaded(j);
  }
  if (victim == core::kNoServer || victim == static_cast<int>(j)) return;
  ++steal_requests_;
  ++messages_;
  node.stealing = true;
  const Message message{static_cast<uint16_t>(victim), static_cast<uint16_t>(j), 0, {}};
  const TimeNs delay = message_ns();
  if (delay == 0) return steal_asked(message);
  post(now_ + delay, kStealAsk, message);
}

// The request of a thief (from) reaches its victim (to).
void RackWorld::steal_asked(const Message& message) {
  const uint32_t j = message.to;
  RackNode& node = nodes_[j];
  ++messages_;
  Message answer{message.from, message.to, 0, {}};
  const uint32_t slot = waiting(j) >= static_cast<uint32_t>(config_->steal_least) ? take_waiting(j) : kNobody;
  if (slot == kNobody) {
    const TimeNs delay = message_ns();
    if (delay != 0) return post(now_ + delay, kStealRefused, answer);
    nodes_[message.from].stealing = false;
    return;
  }
  RackTask& task = tasks_[slot];
  node.line_ns -= discipline_ == Discipline::kQuantum ? task.left_ns : task.service_ns;
  --node.in_system;
  true_row_[j] -= 1;
  ++steals_;
  ++nodes_[message.from].steals;
  ++totals_[message.from].steals;
  if (decider_) decider_->on_stolen(static_cast<int>(j), task.type);
  answer.slot = slot;
  const TimeNs delay = config_->steal_delay.ns(draw(steal_stream_, ~steals_));
  if (count_early_) true_row_[message.from] += 1;
  if (delay == 0) return stolen(answer);
  post(now_ + delay, kStolen, answer);
}

void RackWorld::stolen(const Message& message) {
  nodes_[message.to].stealing = false;
  RackTask& task = tasks_[message.slot];
  task.server = message.to;
  task.remote = !at_servers_ || task.decider != message.to;
  task.service_ns += steal_work_ns_;
  enter_server(message.slot);
}

uint32_t RackWorld::take_waiting(uint32_t j) {
  const bool newest = config_->steal_from == StealFrom::kNewest;
  if (discipline_ == Discipline::kDarc) return darcs_[j].take_waiting(newest);
  Ring<uint32_t>& line = nodes_[j].line;
  return newest ? line.pop_back() : line.pop_front();
}

// The server of most load among the others, as j knows them; kNoServer when none has any.
int RackWorld::most_loaded(uint32_t j) {
  const float* row = row_of(at_servers_ ? j : 0);
  int best = core::kNoServer;
  for (uint32_t k = 0; k < nodes_.size(); ++k) {
    if (k == j || !(row[k] > 0)) continue;
    if (best == core::kNoServer || row[k] * scale_[k] > row[best] * scale_[best]) best = static_cast<int>(k);
  }
  return best;
}

// Bounded queues: the dispatcher sends a task where there is room, the least filled server first.
void RackWorld::hold_or_send(uint32_t slot) {
  held_.push_back(slot);
  if (held_.size() == 1) send_held();
}

void RackWorld::send_held() {
  while (!held_.empty()) {
    const uint32_t slot = held_.front();
    const int j = least_with_room(draw(choice_stream_, tasks_[slot].id));
    if (j == core::kNoServer) return;
    held_.pop_front();
    send(slot, j);
  }
}

int RackWorld::least_with_room(uint64_t word) {
  const uint32_t n = static_cast<uint32_t>(nodes_.size());
  for (uint32_t j = 0; j < n; ++j) {
    const uint32_t places = nodes_[j].workers * static_cast<uint32_t>(rule_.bound);
    scratch_[j] = rows_[j] < static_cast<float>(places) ? rows_[j] : kFull;
  }
  const float* scale = scale_.data();
  const int j = least_of(stride_, -1, rule_.first, word,
                         [&](uint32_t at) { return load_lanes(&scratch_[at]) * load_lanes(scale + at); });
  return scratch_[j] < kFull ? j : core::kNoServer;
}

// Late binding (Ousterhout et al., Sparrow, SOSP'13): a place in line at d servers; the first whose turn
// comes gets the task.
void RackWorld::reserve(uint32_t slot) {
  RackTask& task = tasks_[slot];
  const uint32_t n = static_cast<uint32_t>(nodes_.size());
  const uint32_t d = std::min(static_cast<uint32_t>(rule_.d), n);
  task.reservations = static_cast<uint16_t>(d);
  uint64_t word = draw(choice_stream_, task.id);
  for (uint32_t k = 0; k < d; ++k) {
    word = draw(word, k);
    std::swap(shuffled_[k], shuffled_[k + below(word, n - k)]);
  }
  for (uint32_t k = 0; k < d; ++k) {
    ++messages_;
    const Message message{shuffled_[k], task.decider, slot, {}};
    const TimeNs delay = message_ns();
    if (delay == 0) {
      reserved(message);
    } else {
      post(now_ + delay, kReserved, message);
    }
  }
}

// A reservation reaches its server.
void RackWorld::reserved(const Message& message) {
  RackNode& node = nodes_[message.to];
  if (node.idle == 0) return node.line.push_back(message.slot | kReservation);
  start_reservation(idle_[node.first + --node.idle], message.slot);
}

// The worker waits while its server asks for the task.
void RackWorld::start_reservation(uint32_t worker, uint32_t slot) {
  const TimeNs delay = message_ns();
  ++messages_;
  running_[worker] = kHeld;
  asking_[worker] = slot;
  if (delay == 0) return asked(worker);
  queue_.push(Event::make(now_ + delay, kAsk, worker, 0));
}

// The request of a worker reaches the decider, which gives the task to the first that asks.
void RackWorld::asked(uint32_t worker) {
  const uint32_t slot = asking_[worker];
  RackTask& task = tasks_[slot];
  --task.reservations;
  ++messages_;
  const bool given = !task.bound;
  TimeNs delay = message_ns();
  if (given) {
    task.bound = true;
    task.server = server_of_[worker];
    task.remote = true;
    digest_ = (digest_ ^ (task.id * core::kGolden + task.server + 1)) * 0x9fb21c651e98df25ULL;
    delay = config_->task_delay.ns(draw(delay_stream_, 2 * task.id));
  } else {
    asking_[worker] = kNobody;
    if (task.reservations == 0 && task.finished) free_slots_.push_back(slot);
  }
  if (delay == 0) return answered(worker);
  queue_.push(Event::make(now_ + delay, kAnswer, worker, 0));
}

void RackWorld::answered(uint32_t worker) {
  const uint32_t j = server_of_[worker];
  const uint32_t slot = asking_[worker];
  running_[worker] = kNobody;
  if (slot == kNobody) return free_worker(j, worker);
  ++nodes_[j].in_system;
  true_row_[j] += 1;
  begin_service(j, worker, slot);
}

}  // namespace steelyard::sim
