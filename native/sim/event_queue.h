// The calendar. The soonest events stand sorted in a short array, since most events are announced for the
// near future and land close to its front; later ones wait in a 4-ary heap. Equal times leave in a fixed
// order that depends only on the order of pushes and pops, so a world is a pure function of its seed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/core/types.h"

namespace steelyard::sim {

struct Event {
  core::TimeNs time = 0;
  uint32_t subject = 0;     // flow slot, server, balancer or timetable line
  uint32_t kind_epoch = 0;  // kind in the low 8 bits, epoch above: an event whose epoch has passed is stale

  static Event make(core::TimeNs time, uint8_t kind, uint32_t subject, uint32_t epoch) {
    return {time, subject, (epoch << 8) | kind};
  }
  uint8_t kind() const { return static_cast<uint8_t>(kind_epoch); }
  uint32_t epoch() const { return kind_epoch >> 8; }  // 24 bits
};
inline constexpr uint32_t kEpochMask = (1u << 24) - 1;

class EventQueue {
 public:
  // kNever when empty.
  core::TimeNs next_time() const { return near_[near_size_].time; }
  // The soonest event, left in place; the queue must not be empty.
  const Event& next() const { return near_[near_size_]; }
  size_t size() const { return near_size_ + far_.size(); }
  void clear() {
    near_size_ = 0;
    far_.clear();
    far_from_ = core::kNever;
  }

  void push(Event event) {
    if (event.time >= far_from_ || near_size_ == kNear) [[unlikely]]
      return push_slowly(event);
    push_near(event);
  }

  // The soonest event; the queue must not be empty.
  Event pop() {
    const Event soonest = near_[near_size_--];
    if (near_size_ == 0) [[unlikely]]
      refill();
    return soonest;
  }

 private:
  static constexpr size_t kNear = 64;
  static constexpr size_t kRefill = 32;

  void push_near(Event event) {
    Event* hole = &near_[++near_size_];
    for (; hole[-1].time <= event.time; --hole) hole[0] = hole[-1];
    *hole = event;
  }

  // Apart, so that `push` needs no frame.
  [[gnu::noinline, gnu::cold]] void push_slowly(Event event) {
    if (event.time >= far_from_) return push_far(event);
    push_far(near_[1]);  // makes room
    for (size_t i = 1; i < kNear; ++i) near_[i] = near_[i + 1];
    --near_size_;
    if (event.time >= far_from_) return push_far(event);
    push_near(event);
  }

  [[gnu::noinline, gnu::cold]] void refill() {
    near_size_ = far_.size() < kRefill ? far_.size() : kRefill;
    for (size_t i = near_size_; i > 0; --i) near_[i] = pop_far();
    far_from_ = far_.empty() ? core::kNever : far_.front().time;
  }

  void push_far(Event event) {
    size_t hole = far_.size();
    far_.push_back(event);
    while (hole > 0) {
      const size_t parent = (hole - 1) >> 2;
      if (far_[parent].time <= event.time) break;
      far_[hole] = far_[parent];
      hole = parent;
    }
    far_[hole] = event;
    far_from_ = far_.front().time;
  }

  Event pop_far() {
    const Event top = far_.front();
    const Event last = far_.back();
    far_.pop_back();
    const size_t n = far_.size();
    if (n == 0) return top;
    size_t hole = 0;
    for (size_t child = 1; child < n; child = 4 * hole + 1) {
      const size_t end = child + 4 < n ? child + 4 : n;
      size_t least = child;
      for (size_t c = child + 1; c < end; ++c) least = far_[c].time < far_[least].time ? c : least;
      if (far_[least].time >= last.time) break;
      far_[hole] = far_[least];
      hole = least;
    }
    far_[hole] = last;
    return top;
  }

  size_t near_size_ = 0;
  core::TimeNs far_from_ = core::kNever;  // time of the first far event
  std::array<Event, kNear + 1> near_{
      Event{core::kNever, 0, 0}};  // from place 1, latest first; place 0 stops every search
  std::vector<Event> far_;         // no earlier than anything near
};

}  // namespace steelyard::sim
