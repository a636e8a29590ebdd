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
    share();
  }

  bool has_room() const { return static_cast<int>(jobs_.size()) < cap_; }
  int in_service() const { return static_cast<int>(jobs_.size()); }
  const std::vector<Job>& jobs() const { return jobs_; }
  double remaining_ns(const Job& job, core::TimeNs now) const {
    return std::max(0.0, job.finish - virtual_at(now));
  }
  int workers() const { return workers_; }
  int cap() const { return cap_; }
  double speed() const { return speed_; }
  uint32_t epoch() const { return epoch_; }

  void start(uint32_t slot, double work_ns, core::TimeNs now) {
    advance(now);
    const Job job{virtual_ + work_ns, slot};
    jobs_.push_back(job);
    size_t place = jobs_.size() - 1;
    for (; place > 0 && jobs_[place - 1].finish < job.finish; --place) jobs_[place] = jobs_[place - 1];
    jobs_[place] = job;
    share();
  }
  // Takes out the job that finishes first.
  uint32_t finish(core::TimeNs now) {
    advance(now);
    const Job first = jobs_.back();
    jobs_.pop_back();
    virtual_ =
        jobs_.empty() ? 0 : std::max(virtual_, first.finish);  // restarting keeps it small, hence exact
    announced_finish_ = kIdle;
    share();
    return first.slot;
  }
  void set_speed(double speed, core::TimeNs now) {
    advance(now);
    speed_ = speed;
    share();
  }
  void set_workers(int workers, int cap, core::TimeNs now) {
    advance(now);
    workers_ = workers;
    cap_ = cap;
    share();
  }
  // When the first job will be done if nothing changes; kNever when idle or stopped.
  core::TimeNs next_finish(core::TimeNs now) const {
    return jobs_.empty() ? core::kNever : finish_time(virtual_at(now), now);
  }
  // To be called at the time `now` of a change. True when a completion must be announced at *at; completions
  // announced before are then stale (`epoch`).
  bool reschedule(core::TimeNs now, core::TimeNs* at) {
    const double first = jobs_.empty() ? kIdle : jobs_.back().finish;
    if (first == announced_finish_ && rate_ == announced_rate_) return false;
    announced_finish_ = first;
    announced_rate_ = rate_;
    epoch_ = (epoch_ + 1) & kEpochMask;
    *at = jobs_.empty() ? core::kNever : finish_time(virtual_, now);
    return *at != core::kNever;
  }

 private:
  static constexpr double kIdle = -1;

  // Sets the speed of each job after a change of their number, the workers or the speed.
  void share() {
    const int n = static_cast<int>(jobs_.size());
    rate_ = n <= workers_ ? speed_ : speed_ * workers_ / n;
  }
  // When the first job will be done, the virtual time being `attained` now.
  core::TimeNs finish_time(double attained, core::TimeNs now) const {
    const double work_ns = std::max(0.0, jobs_.back().finish - attained);
    const double wait_ns =
        rate_ == 1.0 ? work_ns : work_ns / rate_;  // the calendar waits for this: no needless division
    return wait_ns < 9e18 - static_cast<double>(now) ? now + static_cast<core::TimeNs>(wait_ns + 0.5)
                                                     : core::kNever;
  }
  double virtual_at(core::TimeNs now) const { return virtual_ + static_cast<double>(now - since_) * rate_; }
  void advance(core::TimeNs now) {
    if (!jobs_.empty()) virtual_ = virtual_at(now);
    since_ = now;
  }

  int workers_ = 1;
  int cap_ = 1;
  double speed_ = 1;
  double rate_ = 1;  // of each job
  double virtual_ = 0;
  core::TimeNs since_ = 0;
  double announced_finish_ = kIdle;
  double announced_rate_ = 0;
  uint32_t epoch_ = 0;
  std::vector<Job> jobs_;  // by finish, latest first
};

}  // namespace steelyard::sim
