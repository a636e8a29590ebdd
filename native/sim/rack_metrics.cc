#include "native/sim/rack_metrics.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace steelyard::sim {
namespace {

using core::f64x4;
using core::i32x4;
using core::i64x4;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Of 0 <= x < 2^52.
f64x4 as_doubles(i64x4 x) {
  constexpr double kWhole = 0x1p52;
  return std::bit_cast<f64x4>(x | std::bit_cast<int64_t>(kWhole)) - kWhole;
}

template <typename Lanes>
Lanes load(const void* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

// Those of a few by counting who stands before whom, since a sort would jump on what is random.
void sort_into(std::span<const float> x, std::vector<float>& sorted) {
  sorted.assign(x.begin(), x.end());
  if (x.size() > 64) return std::sort(sorted.begin(), sorted.end());
  for (size_t k = 0; k < x.size(); ++k) {
    uint32_t before = 0;
    for (size_t j = 0; j < x.size(); ++j) before += (x[j] < x[k]) | ((x[j] == x[k]) & (j < k));
    sorted[before] = x[k];
  }
}

}  // namespace

// Numbers below 2^kBits are their own buckets. Of the others it is the exponent and the kBits after the
// leading one, which stand side by side in a double, less what makes the bucket of 2^kBits number 2^kBits.
inline i32x4 LogHistogram::buckets_of(f64x4 values) {
  constexpr int kShift = 52 - kBits;
  constexpr uint64_t kBias = (std::bit_cast<uint64_t>(double{1 << kBits}) >> kShift) - (1 << kBits);
  const i32x4 large = __builtin_convertvector((std::bit_cast<core::u64x4>(values) >> kShift) - kBias, i32x4);
  return large < 1 << kBits ? __builtin_convertvector(values, i32x4) : large;
}

void LogHistogram::add(const Batch& values, uint32_t count) {
  std::array<int32_t, kBatch> buckets;
  i32x4 most{};
  for (uint32_t k = 0; k < kBatch; k += 4) {
    const i32x4 four = buckets_of(load<f64x4>(&values[k]));
    std::memcpy(&buckets[k], &four, sizeof four);
    most = four > most ? four : most;
  }
  const size_t last = static_cast<size_t>(std::max(std::max(most[0], most[1]), std::max(most[2], most[3])));
  if (last >= counts_.size()) [[unlikely]]
    counts_.resize(last + last / 2 + 1024);
#pragma GCC unroll 8
  for (uint32_t k = 0; k < count; ++k) ++counts_[static_cast<size_t>(buckets[k])];
}

void LogHistogram::add(const LogHistogram& other) {
  if (counts_.size() < other.counts_.size()) counts_.resize(other.counts_.size());
  for (size_t b = 0; b < other.counts_.size(); ++b) counts_[b] += other.counts_[b];
}

uint64_t LogHistogram::count() const {
  uint64_t total = 0;
  for (const uint32_t c : counts_) total += c;
  return total;
}

double LogHistogram::lower_edge(size_t bucket) {
  if (bucket < (size_t{2} << kBits)) return static_cast<double>(bucket);
  const int exponent = static_cast<int>(bucket >> kBits) - 1;
  const size_t mantissa = (bucket & ((size_t{1} << kBits) - 1)) + (size_t{1} << kBits);
  return std::ldexp(static_cast<double>(mantissa), exponent);
}

double LogHistogram::quantile(double q) const {
  const uint64_t total = count();
  if (total == 0) return kNan;
  const double rank = q * static_cast<double>(total);
  double below = 0;
  for (size_t b = 0; b < counts_.size(); ++b) {
    const double here = counts_[b];
    if (here > 0 && below + here >= rank) {
      const double low = lower_edge(b);
      return low + (lower_edge(b + 1) - low) * (rank - below) / here;
    }
    below += here;
  }
  return kNan;
}

void RackMetrics::reset(core::TimeNs warmup, core::TimeNs horizon, size_t types, bool timeline) {
  warmup_ = warmup;
  horizon_ = horizon;
  keep_timeline_ = timeline;
  outstanding_ = samples_ = 0;
  imbalance_sum_ = busy_sum_ = 0;
  classes_.resize(types);
  for (Class& c : classes_) {
    c.tasks = c.kept = 0;
    c.sum_ns = c.slowdown_sum = 0;
    c.latency.clear();
    c.slowdown.clear();
  }
  timeline_.clear();
}

void RackMetrics::sample(core::TimeNs now, std::span<const float> wait_us, std::span<const float> tasks,
                         double busy) {
  if (now < warmup_ || now > horizon_) return;
  ++samples_;
  imbalance_sum_ += load_imbalance(wait_us);
  busy_sum_ += busy;
  if (keep_timeline_)
    timeline_.push_back(
        {static_cast<double>(now) * 1e-9, {tasks.begin(), tasks.end()}, {wait_us.begin(), wait_us.end()}});
}

void RackMetrics::Class::count_kept() {
  LogHistogram::Batch ns, ratio, units;
  for (uint32_t k = 0; k < kBatch; k += 4) {
    const i64x4 alone = load<i64x4>(&alone_ns[k]);
    const f64x4 latencies = as_doubles(load<i64x4>(&latency_ns[k]));
    const f64x4 slowdowns = alone > 0 ? latencies / as_doubles(alone) : f64x4{} + 1;
    const f64x4 whole = slowdowns * kSlowdownUnit;
    std::memcpy(&ns[k], &latencies, sizeof latencies);
    std::memcpy(&ratio[k], &slowdowns, sizeof slowdowns);
    std::memcpy(&units[k], &whole, sizeof whole);
  }
  latency.add(ns, kept);
  slowdown.add(units, kept);
#pragma GCC unroll 8
  for (uint32_t k = 0; k < kept; ++k) {
    sum_ns += ns[k];
    slowdown_sum += ratio[k];
  }
  tasks += kept;
  kept = 0;
}

uint64_t RackMetrics::measured() const {
  uint64_t total = 0;
  for (const Class& c : classes_) total += c.tasks + c.kept;
  return total;
}

double RackMetrics::running_latency_us() const {
  double sum = 0;
  for (const Class& c : classes_) {
    sum += c.sum_ns;
    for (uint32_t k = 0; k < c.kept; ++k) sum += static_cast<double>(c.latency_ns[k]);
  }
  const uint64_t total = measured();
  return total > 0 ? sum * 1e-3 / static_cast<double>(total) : kNan;
}

LatencyStats RackMetrics::stats_of(const Class& c) {
  LatencyStats s;
  s.tasks = c.tasks;
  const double n = static_cast<double>(c.tasks);
  s.mean_us = c.tasks > 0 ? c.sum_ns * 1e-3 / n : kNan;
  s.slowdown_mean = c.tasks > 0 ? c.slowdown_sum / n : kNan;
  for (size_t k = 0; k < kRackQuantiles.size(); ++k) {
    s.quantile_us[k] = c.latency.quantile(kRackQuantiles[k]) * 1e-3;
    s.slowdown[k] = c.slowdown.quantile(kRackQuantiles[k]) / kSlowdownUnit;
  }
  return s;
}

void RackMetrics::summarise(RackStats& stats) const {
  Class all;
  stats.by_type.clear();
  for (Class c : classes_) {
    c.count_kept();
    stats.by_type.push_back(stats_of(c));
    all.tasks += c.tasks;
    all.sum_ns += c.sum_ns;
    all.slowdown_sum += c.slowdown_sum;
    all.latency.add(c.latency);
    all.slowdown.add(c.slowdown);
  }
  stats.all = stats_of(all);
  const double samples = static_cast<double>(samples_);
  stats.imbalance_mean_us = samples_ > 0 ? imbalance_sum_ / samples : kNan;
  stats.busy_mean = samples_ > 0 ? busy_sum_ / samples : kNan;
}

double load_imbalance(std::span<const float> x) {
  if (x.size() < 2) return 0;
  thread_local std::vector<float> sorted;  // sum_j<k (x_(k) - x_(j)) = sum_k (2k - N + 1) x_(k)
  sort_into(x, sorted);
  const double n = static_cast<double>(x.size());
  double sum = 0;
  for (size_t k = 0; k < sorted.size(); ++k) sum += (2 * static_cast<double>(k) - n + 1) * sorted[k];
  return 2 * sum / (n - 1);
}

}  // namespace steelyard::sim
