#include "native/sim/metrics.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

namespace steelyard::sim {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Quantiles of numbers >= 0, with linear interpolation (NumPy's default). The numbers are dealt to ordered
// buckets by their bits, which rise with the number; only a bucket that is asked for gets sorted.
class Quantiles {
 public:
  // `values` is not empty.
  explicit Quantiles(const std::vector<float>& values) : dealt_(values.size()) {
    uint32_t low = UINT32_MAX, high = 0;
    for (const float value : values) {
      low = std::min(low, std::bit_cast<uint32_t>(value));
      high = std::max(high, std::bit_cast<uint32_t>(value));
    }
    const int shift = std::max(0, static_cast<int>(std::bit_width(high - low)) - kBits);
    const auto bucket = [&](float value) { return (std::bit_cast<uint32_t>(value) - low) >> shift; };
    for (const float value : values) ++end_[bucket(value) + 1];
    std::partial_sum(end_.begin(), end_.end(), end_.begin());
    for (const float value : values) dealt_[end_[bucket(value)]++] = value;
  }

  double operator()(double q) {
    const double at = q * static_cast<double>(dealt_.size() - 1);
    const size_t rank = static_cast<size_t>(at);
    const double low = of_rank(rank);
    if (rank + 1 == dealt_.size()) return low;
    return low + (at - static_cast<double>(rank)) * (of_rank(rank + 1) - low);
  }

 private:
  static constexpr int kBits = 10;

  double of_rank(size_t rank) {
    const auto end = std::upper_bound(end_.begin(), end_.end(), rank);
    const size_t first = end == end_.begin() ? 0 : *(end - 1);
    std::sort(dealt_.begin() + static_cast<std::ptrdiff_t>(first), dealt_.begin() + *end);
    return dealt_[rank];
  }

  std::array<uint32_t, (1 << kBits) + 1> end_{};  // where each bucket ends, once dealt
  std::vector<float> dealt_;
};

}  // namespace

double jain_index(std::span<const double> l) {
  double sum = 0, squares = 0;
  for (const double x : l) {
    sum += x;
    squares += x * x;
  }
  return squares > 0 ? sum * sum / (static_cast<double>(l.size()) * squares) : 1.0;
}

void Metrics::reset(core::TimeNs warmup, core::TimeNs horizon, bool timeline) {
  warmup_ = warmup;
  horizon_ = horizon;
  keep_timeline_ = timeline;
  outstanding_ = events_ = rejected_ = samples_ = 0;
  sojourn_sum_ = jain_sum_ = makespan_sum_ = overprovision_sum_ = 0;
  flows_.clear();
  timeline_.clear();
}

void Metrics::flow_rejected(core::TimeNs opened, core::TimeNs at, double penalty_s) {
  if (!measures(opened)) return;
  --outstanding_;
  ++rejected_;
  sojourn_sum_ += penalty_s;
  flows_.push_back({static_cast<float>(static_cast<double>(opened) * 1e-9), static_cast<float>(penalty_s),
                    0.0f, true, at <= horizon_});
}

void Metrics::sample_loads(core::TimeNs now, std::span<const double> loads) {
  if (now < warmup_ || now > horizon_) return;
  const double largest = *std::max_element(loads.begin(), loads.end());
  double sum = 0;
  for (const double l : loads) sum += l;
  ++samples_;
  jain_sum_ += jain_index(loads);
  makespan_sum_ += largest;
  overprovision_sum_ += sum > 0 ? largest * static_cast<double>(loads.size()) / sum : 1.0;
}

double Metrics::running_sojourn_s() const {
  return flows_.empty() ? kNan : sojourn_sum_ / static_cast<double>(flows_.size());
}

double Metrics::running_jain() const {
  return samples_ == 0 ? kNan : jain_sum_ / static_cast<double>(samples_);
}

EpisodeStats Metrics::summarise(Convention convention) const {
  EpisodeStats s;
  std::vector<float> sojourns;
  sojourns.reserve(flows_.size());
  double sum = 0, slowdown = 0, waiting = 0;
  for (const FlowRecord& flow : flows_) {
    if (convention == Convention::kPeer && !flow.by_horizon) continue;
    sojourns.push_back(flow.sojourn_s);
    sum += flow.sojourn_s;
    s.rejected += flow.rejected ? 1 : 0;
    if (flow.rejected) continue;
    waiting += flow.sojourn_s - flow.service_s;
    slowdown += flow.service_s > 0 ? flow.sojourn_s / flow.service_s : 1.0;
  }
  s.flows = sojourns.size();
  s.events = events_;
  const double samples = static_cast<double>(samples_);
  s.jain_mean = samples_ > 0 ? jain_sum_ / samples : kNan;
  s.makespan_mean = samples_ > 0 ? makespan_sum_ / samples : kNan;
  s.overprovision_mean = samples_ > 0 ? overprovision_sum_ / samples : kNan;
  const double served = static_cast<double>(s.flows - s.rejected);
  s.waiting_mean_s = served > 0 ? waiting / served : kNan;
  s.slowdown_mean = served > 0 ? slowdown / served : kNan;
  if (sojourns.empty()) {
    s.sojourn_mean_s = s.sojourn_p50_s = s.sojourn_p90_s = s.sojourn_p95_s = s.sojourn_p99_s =
        s.sojourn_p999_s = kNan;
    return s;
  }
  s.sojourn_mean_s = sum / static_cast<double>(s.flows);
  Quantiles quantile(sojourns);
  s.sojourn_p50_s = quantile(0.5);
  s.sojourn_p90_s = quantile(0.9);
  s.sojourn_p95_s = quantile(0.95);
  s.sojourn_p99_s = quantile(0.99);
  s.sojourn_p999_s = quantile(0.999);
  return s;
}

}  // namespace steelyard::sim
