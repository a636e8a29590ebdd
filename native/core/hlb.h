// HLB: one Kalman filter per server on normalised flow durations (seed 004 Sec. 6.3).
#pragma once

#include <span>
#include <vector>

#include "native/core/lanes.h"
#include "native/core/types.h"
#include "native/core/weights.h"

namespace steelyard::core {

class HlbFilter {
 public:
  static constexpr float kInitialMean = 0.5f;      // mu(0), Sec. 6.3
  static constexpr float kInitialVariance = 1.0f;  // P(0): the seed gives none; of the order of z
  static constexpr float kInitialNoise = 0.5f;     // R(0): the seed's HLB-FIX value
  static constexpr float kNoiseGain = 0.01f;       // alpha of R(n) = (1 - alpha) R(n-1) + alpha var(z)

  explicit HlbFilter(int num_servers = 0) : filters_(num_servers) {}

  // One step. mean[j], std[j]: moments of the flow durations [s] of server j; mean 0 means no sample yet, and
  // such a server keeps its estimate. Writes the weights exp(-mu), scaled so that they sum to the number of
  // members.
  void step(std::span<const ServerId> members, const float* mean, const float* std, WeightQ16* weight) {
    float sum = 0;
    int measured = 0;
    for (const ServerId j : members) {
      sum += mean[j];
      measured += mean[j] > 0 ? 1 : 0;
    }
    if (measured > 0) update(members, mean, std, sum / static_cast<float>(measured));
    float total = 0;
    for (const ServerId j : members) total += exp_minus(filters_[j].mu);
    for (const ServerId j : members) {
      weight[j] = weight_to_q16(exp_minus(filters_[j].mu) / total * static_cast<float>(members.size()));
    }
  }

  float estimate(ServerId server) const { return filters_[server].mu; }

 private:
  struct Filter {
    float mu = kInitialMean;
    float variance = kInitialVariance;
    float noise = kInitialNoise;
  };

  static float exp_minus(float x) { return exp2_scalar((x < 60.0f ? x : 60.0f) * -1.4426950408889634f); }

  void update(std::span<const ServerId> members, const float* mean, const float* std, float scale) {
    for (const ServerId j : members) {
      if (!(mean[j] > 0)) continue;
      Filter& f = filters_[j];
      const float spread = std[j] / scale;
      f.noise = (1.0f - kNoiseGain) * f.noise + kNoiseGain * spread * spread;
      const float gain = f.variance / (f.variance + f.noise);
      f.mu += gain * (mean[j] / scale - f.mu);
      f.variance *= 1.0f - gain;
    }
  }

  std::vector<Filter> filters_;
};

}  // namespace steelyard::core
