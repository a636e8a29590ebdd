// How tasks arrive, in any world.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace steelyard::sim {

enum class ArrivalKind : uint8_t { kPoisson, kMmpp, kDiurnal, kTrace };

struct ArrivalConfig {
  ArrivalKind kind = ArrivalKind::kPoisson;
  double rate = 0;                  // [1/s]; for kDiurnal the mean rate
  std::vector<double> mmpp_rates;   // [1/s] per state
  std::vector<double> mmpp_mean_s;  // mean stay per state
  double diurnal_amplitude = 0;  // in [0, 1): rate(t) = rate (1 + amplitude sin(2 pi (t / period + phase)))
  double diurnal_period_s = 0;
  double diurnal_phase = 0;  // in periods
  double time_scale = 1;     // kTrace: recorded times are multiplied by this

  // Throws std::invalid_argument with one line; `prefix` stands before the name of the key.
  void check(const std::string& prefix, bool has_trace) const;
};

}  // namespace steelyard::sim
