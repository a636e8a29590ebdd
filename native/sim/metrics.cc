#include "native/sim/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace steelyard::sim {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Quantiles in ascending order of q, with linear interpolation (NumPy's default). Each call leaves what is
// below its quantile in front, so the next one searches only the rest.
class AscendingQuantiles {
 public:
  explicit AscendingQuantiles(std::vector<float>& v) : v_(v) {}

  double operator()(double q) {
    const double at = q * static_cast<double>(v_.size() - 1);
    const auto low = v_.begin() + static_cast<std::ptrdiff_t>(at);
    std::nth_element(v_.begin() + from_, low, v_.end());
    from_ = low - v_.begin();
    if (low + 1 == v_.end()) return *low;
    const double above = *std::min_element(low + 1, v_.end());
    return *low + (at - static_cast<double>(from_)) * (above - *low);
  }

 private:
  std::vector<float>& v_;
  std::ptrdiff_t from_ = 0;
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
  AscendingQuantiles quantile(sojourns);
  s.sojourn_p50_s = quantile(0.5);
  s.sojourn_p90_s = quantile(0.9);
  s.sojourn_p95_s = quantile(0.95);
  s.sojourn_p99_s = quantile(0.99);
  s.sojourn_p999_s = quantile(0.999);
  return s;
}

}  // namespace steelyard::sim
