#include "native/sim/arrivals.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "native/core/rng.h"
#include "native/sim/streams.h"

namespace steelyard::sim {

using core::draw;

ArrivalProcess::ArrivalProcess(std::shared_ptr<const ArrivalConfig> config,
                               std::shared_ptr<const Trace> trace, uint64_t seed)
    : config_(std::move(config)),
      trace_(std::move(trace)),
      gaps_(core::stream_key(seed, kStreamGap)),
      state_stream_(core::stream_key(seed, kStreamArrivalState)) {
  if (config_->kind == ArrivalKind::kTrace) {
    const Trace& trace = *trace_;
    row_ = core::below(draw(state_stream_, 0), static_cast<uint32_t>(trace.size()));
    turn_start_s_ = -trace.arrival_s()[row_] * config_->time_scale;
    next_ = 0;
    return;
  }
  if (config_->kind == ArrivalKind::kPoisson) mean_gap_s_ = 1 / config_->rate;
  advance();
}

void ArrivalProcess::advance_unevenly() {
  if (config_->kind == ArrivalKind::kTrace) {
    next_trace_row();
    return;
  }
  schedule(next_s_, gaps_.at(count_++) / scale_);
}

void ArrivalProcess::schedule(double from_s, double area) {
  next_s_ = time_after(from_s, area);
  next_ = in_ns(next_s_);
}

void ArrivalProcess::next_trace_row() {
  const Trace& trace = *trace_;
  const double time_scale = config_->time_scale;
  if (++row_ == trace.size()) {
    row_ = 0;
    turn_start_s_ += trace.period_s() * time_scale;
  }
  next_s_ = turn_start_s_ + trace.arrival_s()[row_] * time_scale;
  next_ = static_cast<core::TimeNs>(next_s_ * 1e9 + 0.5);
}

void ArrivalProcess::scale(core::TimeNs now, double factor) {
  const double now_s = static_cast<double>(now) * 1e-9;
  const double left = area_between(now_s, next_s_) * scale_;
  scale_ = factor;
  if (mean_gap_s_ != 0) mean_gap_s_ = 1 / (config_->rate * factor);
  schedule(now_s, left / factor);
}

double ArrivalProcess::mean_rate() const {
  if (config_->kind != ArrivalKind::kMmpp) return config_->rate * scale_;
  double arrivals = 0, time_s = 0;
  for (size_t k = 0; k < config_->mmpp_rates.size(); ++k) {
    arrivals += config_->mmpp_rates[k] * config_->mmpp_mean_s[k];
    time_s += config_->mmpp_mean_s[k];
  }
  return arrivals / time_s * scale_;
}

// Integral of the diurnal rate from 0 to t, up to a constant.
double ArrivalProcess::diurnal_area(double t_s) const {
  const ArrivalConfig& a = *config_;
  const double omega = 2 * std::numbers::pi / a.diurnal_period_s;
  return a.rate *
         (t_s - a.diurnal_amplitude / omega * std::cos(omega * t_s + 2 * std::numbers::pi * a.diurnal_phase));
}

double ArrivalProcess::area_between(double from_s, double to_s) {
  switch (config_->kind) {
    case ArrivalKind::kDiurnal:
      return diurnal_area(to_s) - diurnal_area(from_s);
    case ArrivalKind::kMmpp: {
      double area = 0;
      while (from_s < to_s) {
        const Segment segment = segment_at(from_s);
        const double end_s = std::min(segment.end_s, to_s);
        area += (end_s - from_s) * segment.rate;
        from_s = end_s;
      }
      return area;
    }
    default:
      return (to_s - from_s) * config_->rate;
  }
}

// The segment that holds t, drawing the chain further when it ends before.
const ArrivalProcess::Segment& ArrivalProcess::segment_at(double t_s) {
  const ArrivalConfig& a = *config_;
  while (segments_.empty() || segments_.back().end_s <= t_s) {
    const uint64_t k = segments_.size();
    const size_t state =
        (core::below(draw(state_stream_, 0), static_cast<uint32_t>(a.mmpp_rates.size())) + k) %
        a.mmpp_rates.size();
    const double start_s = segments_.empty() ? 0 : segments_.back().end_s;
    const double stay_s = a.mmpp_mean_s[state] * unit_exponential(draw(state_stream_, k + 1));
    segments_.push_back({start_s, start_s + stay_s, a.mmpp_rates[state]});
  }
  while (segment_ > 0 && segments_[segment_].start_s > t_s) --segment_;
  while (segments_[segment_].end_s <= t_s) ++segment_;
  return segments_[segment_];
}

// The time by which the integrated rate has grown by `area` since from_s.
double ArrivalProcess::time_after(double from_s, double area) {
  const ArrivalConfig& a = *config_;
  if (a.kind == ArrivalKind::kPoisson) return from_s + area / a.rate;
  if (a.kind == ArrivalKind::kDiurnal) {
    const double goal = diurnal_area(from_s) + area;
    double low = from_s + area / (a.rate * (1 + a.diurnal_amplitude));
    double high = from_s + area / (a.rate * (1 - a.diurnal_amplitude));
    for (int i = 0; i < 60 && high - low > 1e-10; ++i) {
      const double middle = 0.5 * (low + high);
      (diurnal_area(middle) < goal ? low : high) = middle;
    }
    return 0.5 * (low + high);
  }
  for (;;) {
    const Segment segment = segment_at(from_s);
    const double here = (segment.end_s - from_s) * segment.rate;
    if (area < here) return from_s + area / segment.rate;
    area -= here;
    from_s = segment.end_s;
  }
}

}  // namespace steelyard::sim
