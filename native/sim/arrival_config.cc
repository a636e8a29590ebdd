#include "native/sim/arrival_config.h"

#include "native/sim/checks.h"

namespace steelyard::sim {

void ArrivalConfig::check(const std::string& prefix, bool has_trace) const {
  switch (kind) {
    case ArrivalKind::kPoisson:
      positive(prefix + "rate", rate);
      return;
    case ArrivalKind::kDiurnal:
      positive(prefix + "rate", rate);
      positive(prefix + "period_s", diurnal_period_s);
      if (!(diurnal_amplitude >= 0 && diurnal_amplitude < 1))
        refuse(prefix + "amplitude", diurnal_amplitude, "a number in [0, 1)");
      in_range(prefix + "phase", diurnal_phase, 0, 1);
      return;
    case ArrivalKind::kMmpp:
      if (mmpp_rates.empty() || mmpp_rates.size() != mmpp_mean_s.size()) {
        refuse(prefix + "rates", static_cast<double>(mmpp_rates.size()),
               "one rate and one mean_s for each state");
      }
      for (const double state_rate : mmpp_rates) positive(prefix + "rates", state_rate);
      for (const double mean_s : mmpp_mean_s) positive(prefix + "mean_s", mean_s);
      return;
    case ArrivalKind::kTrace:
      if (!has_trace) throw std::invalid_argument(prefix + "trace: no trace given; name a trace file");
      positive(prefix + "time_scale", time_scale);
      return;
  }
}

}  // namespace steelyard::sim
