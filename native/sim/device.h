// One processor-sharing device: at most `cap` jobs in service, the rest wait in order of arrival.
//
// The speed of each job in service is speed * min(1, p / n), n jobs in service: seed 002 eq. (42). With
// cap = p this is FIFO over p workers; with p = 1 and no cap it is plain processor sharing (IO). Attained
// service per job is kept as a virtual time, so a job costs O(log n) whatever happens to the speed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "native/core/types.h"
#include "native/sim/event_queue.h"

namespace steelyard::sim {

inline constexpr uint32_t kNoSlot = UINT32_MAX;
inline constexpr int kNoCap = std::numeric_limits<int>::max();

class Device {
 public:
  struct Job {
    double finish;  // virtual time [ns of service] at which the job is done
    uint32_t slot;
  };

  void reset(int workers, int cap, double speed) {
    *this = Device();
    workers_ = workers;
    cap_ = cap;
    speed_ = speed;
  }

  bool has_room() const { return static_cast<int>(jobs_.size()) < cap_; }
  int in_service() const { return static_cast<int>(jobs_.size()); }
  const std::vector<Job>& jobs() const { return jobs_; }
  double remaining_ns(const Job& job, core::TimeNs now) const { return std::max(0.0, job.finish - virtual_at(now)); }
  int workers() const { return workers_; }
  int cap() const { return cap_; }
  double speed() const { return speed_; }
  uint32_t epoch() const { return epoch_; }

  void start(uint32_t slot, double work_ns, core::TimeNs now) {
    advance(now);
    jobs_.push_back({virtual_ + work_ns, slot});
    for (size_t i = jobs_.size() - 1; i > 0 && jobs_[i - 1].finish < jobs_[i].finish; --i) std::swap(jobs_[i - 1], jobs_[i]);
  }
  // Takes out the job that finishes first.
  uint32_t finish(core::TimeNs now) {
    advance(now);
    const uint32_t slot = jobs_.back().slot;
    virtual_ = std::max(virtual_, jobs_.back().finish);
    jobs_.pop_back();
    if (jobs_.empty()) virtual_ = 0;  // keeps the virtual time small, hence exact
    announced_finish_ = kIdle;
    return slot;
  }
  void set_speed(double speed, core::TimeNs now) {
    advance(now);
    speed_ = speed;
  }
  void set_workers(int workers, int cap, core::TimeNs now) {
    advance(now);
    workers_ = workers;
    cap_ = cap;
  }
  // When the first job will be done if nothing changes; kNever when idle or stopped.
  core::TimeNs next_finish(core::TimeNs now) const {
    if (jobs_.empty()) return core::kNever;
    const double wait_ns = std::max(0.0, jobs_.back().finish - virtual_at(now)) / rate();
    return wait_ns < 9e18 - static_cast<double>(now) ? now + static_cast<core::TimeNs>(wait_ns + 0.5) : core::kNever;
  }
  // True when a completion must be announced at *at; completions announced before are then stale (`epoch`).
  bool reschedule(core::TimeNs now, core::TimeNs* at) {
    const double first = jobs_.empty() ? kIdle : jobs_.back().finish;
    if (first == announced_finish_ && rate() == announced_rate_) return false;
    announced_finish_ = first;
    announced_rate_ = rate();
    epoch_ = (epoch_ + 1) & kEpochMask;
    *at = next_finish(now);
    return *at != core::kNever;
  }

 private:
  static constexpr double kIdle = -1;

  double rate() const {
    const int n = static_cast<int>(jobs_.size());
    return n <= workers_ ? speed_ : speed_ * workers_ / n;
  }
  double virtual_at(core::TimeNs now) const { return virtual_ + static_cast<double>(now - since_) * rate(); }
  void advance(core::TimeNs now) {
    if (!jobs_.empty()) virtual_ = virtual_at(now);
    since_ = now;
  }

  int workers_ = 1;
  int cap_ = 1;
  double speed_ = 1;
  double virtual_ = 0;
  core::TimeNs since_ = 0;
  double announced_finish_ = kIdle;
  double announced_rate_ = 0;
  uint32_t epoch_ = 0;
  std::vector<Job> jobs_;  // by finish, latest first
};

}  // namespace steelyard::sim
