// When busy workers are done: at most one time a worker, so the calendar is a ring of buckets linked through
// arrays, and nothing is allocated on the way (R. Brown, "Calendar queues", CACM 31 (1988)).
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "native/core/types.h"
#include "native/sim/event_queue.h"

namespace steelyard::sim {

class WorkerCalendar {
 public:
  // A worker is busy for about `mean_ns`, which sets the width of a bucket.
  void reset(uint32_t workers, double mean_ns) {
    // About four buckets from one time to the next, so that few share one; eight means in the ring.
    uint32_t buckets = 256;
    while (buckets < 32 * workers && buckets < 65536) buckets *= 2;
    const double gap_ns = mean_ns / workers / 4;
    shift_ = 0;
    while (shift_ < 40 && static_cast<double>(int64_t{1} << shift_) < gap_ns) ++shift_;
    mask_ = buckets - 1;
    head_.assign(buckets, kNone);
    filled_.assign(buckets / 64, 0);
    next_.assign(workers, kNone);
    time_.assign(workers, core::kNever);
    far_.clear();
    now_bucket_ = 0;
    next_time_ = core::kNever;
    next_worker_ = kNone;
  }

  // kNever when no worker is busy.
  core::TimeNs next_time() const { return next_time_; }
  // kNever when it is idle.
  core::TimeNs time_of(uint32_t worker) const { return time_[worker]; }

  // `worker` has no time yet; `at` is not before the last time popped.
  void set(uint32_t worker, core::TimeNs at) {
    time_[worker] = at;
    const int64_t bucket = at >> shift_;
    if (bucket - now_bucket_ > mask_) [[unlikely]] {
      far_.push(Event::make(at, 0, worker, 0));
    } else {
      const uint32_t b = static_cast<uint32_t>(bucket) & mask_;
      next_[worker] = head_[b];
      head_[b] = worker;
      filled_[b >> 6] |= uint64_t{1} << (b & 63);
    }
    if (at < next_time_ || (at == next_time_ && worker < next_worker_)) {
      next_time_ = at;
      next_worker_ = worker;
    }
  }

  // The worker that is done first, of equal times the one of least number; one must be busy.
  uint32_t pop() {
    const uint32_t worker = next_worker_;
    now_bucket_ = next_time_ >> shift_;
    remove(worker);
    find_next();
    return worker;
  }

  void cancel(uint32_t worker) {
    if (time_[worker] == core::kNever) return;
    remove(worker);
    if (worker == next_worker_) find_next();
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  void remove(uint32_t worker) {
    const uint32_t b = static_cast<uint32_t>(time_[worker] >> shift_) & mask_;
    uint32_t* link = &head_[b];
    while (*link != worker && *link != kNone) link = &next_[*link];
    if (*link == worker) {
      *link = next_[worker];
      if (head_[b] == kNone) filled_[b >> 6] &= ~(uint64_t{1} << (b & 63));
    }
    time_[worker] = core::kNever;  // an entry among the far ones is stale from here on
  }

  void find_next() {
    next_time_ = core::kNever;
    next_worker_ = kNone;
    const uint32_t start = static_cast<uint32_t>(now_bucket_) & mask_;
    const uint32_t words = (mask_ + 1) >> 6;
    uint32_t w = start >> 6;
    uint64_t word = filled_[w] & (~uint64_t{0} << (start & 63));
    for (uint32_t k = 0; word == 0 && k < words; ++k) {
      w = w + 1 == words ? 0 : w + 1;
      word = filled_[w];
    }
    if (word != 0) {
      const uint32_t b = (w << 6) + static_cast<uint32_t>(std::countr_zero(word));
      for (uint32_t worker = head_[b]; worker != kNone; worker = next_[worker]) look_at(worker);
    }
    while (far_.size() != 0 && far_.next_time() <= next_time_) {
      const uint32_t worker = far_.next().subject;
      if (time_[worker] == far_.next_time()) return look_at(worker);
      far_.pop();
    }
  }

  void look_at(uint32_t worker) {
    const core::TimeNs at = time_[worker];
    if (at > next_time_ || (at == next_time_ && worker > next_worker_)) return;
    next_time_ = at;
    next_worker_ = worker;
  }

  int shift_ = 0;
  uint32_t mask_ = 0;
  int64_t now_bucket_ = 0;
  core::TimeNs next_time_ = core::kNever;
  uint32_t next_worker_ = kNone;
  std::vector<uint32_t> head_, next_;
  std::vector<uint64_t> filled_;  // one bit a bucket
  std::vector<core::TimeNs> time_;
  EventQueue far_;  // beyond the ring
};

}  // namespace steelyard::sim
