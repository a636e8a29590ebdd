// What is measured of a rack: latencies and slowdowns in histograms of bounded relative error, load
// imbalance, messages.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "native/core/lanes.h"
#include "native/core/types.h"

namespace steelyard::sim {

// Counts of numbers >= 0, of which only the whole part matters, in buckets no wider than 1/1024 of their
// value.
class LogHistogram {
 public:
  static constexpr uint32_t kBatch = 32;
  using Batch = std::array<double, kBatch>;
  // The first `count` of them.
  void add(const Batch& values, uint32_t count);
  void add(const LogHistogram& other);
  void clear() { counts_.clear(); }
  uint64_t count() const;
  // Linear within a bucket; NaN when empty.
  double quantile(double q) const;

 private:
  static constexpr int kBits = 10;

  static core::i32x4 buckets_of(core::f64x4 values);
  static double lower_edge(size_t bucket);

  std::vector<uint32_t> counts_;
};

inline constexpr std::array<double, 4> kRackQuantiles{0.5, 0.9, 0.99, 0.999};

struct LatencyStats {
  uint64_t tasks = 0;
  double mean_us = 0;
  std::array<double, 4> quantile_us{};  // kRackQuantiles
  double slowdown_mean = 0;
  std::array<double, 4> slowdown{};
};

struct RackStats {
  LatencyStats all;
  std::vector<LatencyStats> by_type;
  uint64_t migrations = 0, steals = 0, steal_requests = 0, messages = 0, preemptions = 0;
  uint64_t clones = 0, clones_dropped = 0, bounced = 0, plans = 0;  // pallas
  uint64_t arrived = 0, events = 0;
  double imbalance_mean_us = 0;  // of I = 1/(N-1) sum_jk |x_j - x_k|, x = tasks / true service rate
  double busy_mean = 0;          // share of workers that serve
};

// Loads at one moment.
struct RackMoment {
  double t_s;
  std::vector<float> tasks;    // (N,) in the server
  std::vector<float> wait_us;  // (N,) x = tasks / true service rate
};

class RackMetrics {
 public:
  void reset(core::TimeNs warmup, core::TimeNs horizon, size_t types, bool timeline);

  bool measures(core::TimeNs arrived) const { return arrived >= warmup_ && arrived < horizon_; }
  void task_arrived(core::TimeNs arrived) { outstanding_ += measures(arrived) ? 1 : 0; }
  // `alone_ns`: its service at speed 1, alone.
  void task_done(core::TimeNs arrived, core::TimeNs latency, int64_t alone_ns, uint32_t type) {
    if (measures(arrived)) measured_task_done(latency, alone_ns, type);
  }
  void measured_task_done(core::TimeNs latency, int64_t alone_ns, uint32_t type) {
    --outstanding_;
    Class& c = classes_[type];
    c.latency_ns[c.kept] = latency;
    c.alone_ns[c.kept] = alone_ns;
    if (++c.kept == kBatch) [[unlikely]]
      c.count_kept();
  }
  // Loads in units of expected waiting x_j [us], tasks in each server, share of busy workers.
  void sample(core::TimeNs now, std::span<const float> wait_us, std::span<const float> tasks, double busy);

  bool keeps_timeline() const { return keep_timeline_; }
  void keep_timeline(bool keep) { keep_timeline_ = keep; }
  std::vector<RackMoment>& timeline() { return timeline_; }
  uint64_t outstanding() const { return outstanding_; }
  uint64_t measured() const;
  // Mean latency [us] of the tasks that are done; NaN when there is none.
  double running_latency_us() const;
  void summarise(RackStats& stats) const;

 private:
  static constexpr double kSlowdownUnit = 4096;
  static constexpr uint32_t kBatch = LogHistogram::kBatch;

  struct Class {
    void count_kept();

    uint64_t tasks = 0;  // without those kept
    double sum_ns = 0, slowdown_sum = 0;
    LogHistogram latency, slowdown;
    // Tasks are counted many at a time, since each alone would wait for its own division and its own buckets.
    uint32_t kept = 0;
    std::array<int64_t, kBatch> latency_ns{}, alone_ns{};
  };
  static LatencyStats stats_of(const Class& c);

  core::TimeNs warmup_ = 0, horizon_ = 0;
  bool keep_timeline_ = false;
  uint64_t outstanding_ = 0, samples_ = 0;
  double imbalance_sum_ = 0, busy_sum_ = 0;
  std::vector<Class> classes_;
  std::vector<RackMoment> timeline_;
};

// 1/(N-1) sum_jk |x_j - x_k| over ordered pairs (Malcolm, Sec. 4.2.4); 0 for one server.
double load_imbalance(std::span<const float> x);

}  // namespace steelyard::sim
