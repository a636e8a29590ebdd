// Small cluster worlds and plain statistics for the tests of the simulator.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/core/rng.h"
#include "native/core/rule.h"
#include "native/sim/cluster.h"

namespace steelyard::testing {

inline constexpr double kStandardErrors = 4.0;  // the only tolerance against theory

// Running mean and standard error of independent samples.
class Sample {
 public:
  void add(double x) {
    ++n_;
    const double delta = x - mean_;
    mean_ += delta / n_;
    squares_ += delta * (x - mean_);
  }
  double mean() const { return mean_; }
  double variance() const { return squares_ / (n_ - 1); }
  double error() const { return std::sqrt(variance() / n_); }
  bool agrees_with(double expected) const {
    return std::abs(mean_ - expected) <= kStandardErrors * error() + 1e-12;
  }

 private:
  double n_ = 0, mean_ = 0, squares_ = 0;
};

// True when counts fit the expected ones: the chi-square statistic is within six standard deviations.
inline bool fits(const std::vector<uint64_t>& counts, const std::vector<double>& weights) {
  double total = 0, weight = 0, statistic = 0;
  for (const uint64_t count : counts) total += static_cast<double>(count);
  for (const double w : weights) weight += w;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = total * weights[i] / weight;
    statistic +=
        (static_cast<double>(counts[i]) - expected) * (static_cast<double>(counts[i]) - expected) / expected;
  }
  const double freedom = static_cast<double>(counts.size()) - 1;
  return statistic <= freedom + 6 * std::sqrt(2 * freedom);
}

inline uint64_t word(uint64_t key) { return core::draw(0x7465737473ULL, key); }

inline sim::StageConfig stage(sim::StageKind kind, double mean_s,
                              sim::DistributionKind law = sim::DistributionKind::kExponential) {
  sim::StageConfig made;
  made.kind = kind;
  made.demand.kind = law;
  made.demand.a = {mean_s};
  return made;
}

// Servers of one worker each, a Poisson stream, one exponential CPU stage of mean 1 s; no latency.
inline sim::ClusterConfig cluster(int servers, int balancers, double rate, double horizon_s) {
  sim::ClusterConfig config;
  config.num_load_balancers = balancers;
  config.servers.resize(servers);
  config.stages = {stage(sim::StageKind::kCpu, 1.0)};
  config.arrival.rate = rate;
  config.horizon_s = horizon_s;
  config.admission_limit = 60000;
  return config;
}

inline std::shared_ptr<const sim::ClusterConfig> prepared(sim::ClusterConfig config) {
  config.prepare();
  return std::make_shared<const sim::ClusterConfig>(std::move(config));
}

inline core::RuleConfig rule(const std::string& name, std::vector<double> weights = {}) {
  core::RuleConfig made;
  made.traits = core::find_rule(name);
  made.weights = std::move(weights);
  return made;
}

inline core::TimeNs seconds(double s) { return static_cast<core::TimeNs>(std::llround(s * 1e9)); }

}  // namespace steelyard::testing
