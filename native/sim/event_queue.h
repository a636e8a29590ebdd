// The calendar: a 4-ary heap of 16-byte events. Equal times leave in a fixed order that depends only on
// the order in which they were pushed and popped, so a world is a pure function of its seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/core/types.h"

namespace steelyard::sim {

struct Event {
  core::TimeNs time = 0;
  uint32_t subject = 0;        // flow slot, server, balancer or timetable line
  uint32_t kind_epoch = 0;     // kind in the low 8 bits, epoch above: an event whose epoch has passed is stale

  static Event make(core::TimeNs time, uint8_t kind, uint32_t subject, uint32_t epoch) {
    return {time, subject, (epoch << 8) | kind};
  }
  uint8_t kind() const { return static_cast<uint8_t>(kind_epoch); }
  uint32_t epoch() const { return kind_epoch >> 8; }  // 24 bits
};
inline constexpr uint32_t kEpochMask = (1u << 24) - 1;

class EventQueue {
 public:
  bool empty() const { return heap_.empty(); }
  core::TimeNs next_time() const { return heap_.empty() ? core::kNever : heap_.front().time; }
  size_t size() const { return heap_.size(); }
  void clear() { heap_.clear(); }

  void push(const Event& event) {
    size_t hole = heap_.size();
    heap_.push_back(event);
    while (hole > 0) {
      const size_t parent = (hole - 1) >> 2;
      if (heap_[parent].time <= event.time) break;
      heap_[hole] = heap_[parent];
      hole = parent;
    }
    heap_[hole] = event;
  }

  Event pop() {
    const Event top = heap_.front();
    const Event last = heap_.back();
    heap_.pop_back();
    const size_t n = heap_.size();
    if (n == 0) return top;
    size_t hole = 0;
    for (size_t child = 1; child < n; child = 4 * hole + 1) {
      const size_t end = child + 4 < n ? child + 4 : n;
      size_t least = child;
      for (size_t c = child + 1; c < end; ++c) least = heap_[c].time < heap_[least].time ? c : least;
      if (heap_[least].time >= last.time) break;
      heap_[hole] = heap_[least];
      hole = least;
    }
    heap_[hole] = last;
    return top;
  }

 private:
  std::vector<Event> heap_;
};

}  // namespace steelyard::sim
