#include "native/sim/rewards.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "native/sim/metrics.h"

namespace steelyard::sim {
namespace {

using F = RewardForm;

constexpr std::array kRewards = {
    RewardTraits{"vbf", F::kVbf, false, "-variance"},
    RewardTraits{"log_vbf", F::kLogVbf, false, "-log(variance + 1e-6)"},
    RewardTraits{"vbf+log_vbf", F::kVbfPlusLog, false, "vbf + log_vbf"},
    RewardTraits{"pbf", F::kPbf, false, "product of l_j / max l, also called G"},
    RewardTraits{"jain", F::kJain, false, "(sum l)^2 / (N sum l^2)"},
    RewardTraits{"makespan", F::kMakespan, false, "-max l"},
    RewardTraits{"log_makespan", F::kLogMakespan, false, "-log(max l + 1e-6)"},
    RewardTraits{"cv", F::kCv, false, "-standard deviation / mean"},
    RewardTraits{"team_vbf", F::kVbf, true, "vbf of the global vector, shared"},
    RewardTraits{"team_log_vbf", F::kLogVbf, true, "log_vbf of the global vector, shared"},
    RewardTraits{"team_vbf+log_vbf", F::kVbfPlusLog, true, "vbf+log_vbf of the global vector, shared"},
    RewardTraits{"team_pbf", F::kPbf, true, "pbf of the global vector, shared"},
    RewardTraits{"team_jain", F::kJain, true, "jain of the global vector, shared"},
    RewardTraits{"team_makespan", F::kMakespan, true, "makespan of the global vector, shared"},
    RewardTraits{"team_log_makespan", F::kLogMakespan, true, "log_makespan of the global vector, shared"},
    RewardTraits{"team_cv", F::kCv, true, "cv of the global vector, shared"},
    RewardTraits{"marginal_vbf", F::kMarginalVbf, false,
                 "F(l) - F(l without my flows): exact potential at the stage"},
};

double mean_of(std::span<const double> l) {
  double sum = 0;
  for (const double x : l) sum += x;
  return sum / static_cast<double>(l.size());
}

double variance(std::span<const double> l) {
  const double mean = mean_of(l);
  double squares = 0;
  for (const double x : l) squares += (x - mean) * (x - mean);
  return squares / static_cast<double>(l.size());
}

double product_fairness(std::span<const double> l) {
  const double largest = *std::max_element(l.begin(), l.end());
  double product = 1;
  for (const double x : l) product *= largest > 0 ? x / largest : 1.0;
  return product;
}

}  // namespace

std::span<const RewardTraits> all_rewards() { return kRewards; }

const RewardTraits* find_reward(std::string_view name) {
  for (const RewardTraits& reward : kRewards) {
    if (reward.name == name) return &reward;
  }
  return nullptr;
}

double fairness(RewardForm form, std::span<const double> l) {
  switch (form) {
    case F::kVbf:
      return -variance(l);
    case F::kLogVbf:
      return -std::log(variance(l) + kLogEpsilon);
    case F::kVbfPlusLog:
      return -variance(l) - std::log(variance(l) + kLogEpsilon);
    case F::kPbf:
      return product_fairness(l);
    case F::kJain:
      return jain_index(l);
    case F::kMakespan:
      return -*std::max_element(l.begin(), l.end());
    case F::kLogMakespan:
      return -std::log(*std::max_element(l.begin(), l.end()) + kLogEpsilon);
    case F::kCv: {
      const double mean = mean_of(l);
      return mean > 0 ? -std::sqrt(variance(l)) / mean : 0.0;
    }
    case F::kMarginalVbf:
      break;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

double marginal_vbf(std::span<const double> own, std::span<const double> others) {
  const double own_mean = mean_of(own);
  const double others_mean = mean_of(others);
  double sum = 0;
  for (size_t j = 0; j < own.size(); ++j) {
    const double d = own[j] - own_mean;
    sum += d * (d + 2 * (others[j] - others_mean));
  }
  return -sum / static_cast<double>(own.size());
}

}  // namespace steelyard::sim
