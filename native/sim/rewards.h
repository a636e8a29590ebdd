// Rewards: pure functions of a vector l of load per server (network-lb.md "Rewards"; seed 002 Sec. 3.2, App.
// E.2.1).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace steelyard::sim {

// What is summed up into one number.
enum class RewardForm : uint8_t {
  kVbf,
  kLogVbf,
  kVbfPlusLog,
  kPbf,
  kJain,
  kMakespan,
  kLogMakespan,
  kCv,
  kMarginalVbf
};

struct RewardTraits {
  std::string_view name;
  RewardForm form;
  bool team;  // over the global vector, the same for all agents
  std::string_view summary;
};

std::span<const RewardTraits> all_rewards();
// nullptr when there is no such reward.
const RewardTraits* find_reward(std::string_view name);

// Which vector l an agent is paid for.
enum class RewardMeasure : uint8_t {
  kDurations,  // weighted discounted mean flow duration per server, as the agent measured it [s]
  kTrue,       // true remaining time per server, all flows [s]
  kOwn,        // remaining time of the agent's own flows [s]
};

// Added inside logarithms: -log(variance + kLogEpsilon).
inline constexpr double kLogEpsilon = 1e-6;

// l: (N,), N >= 1, values >= 0. kMarginalVbf needs the others' load: see marginal_vbf.
double fairness(RewardForm form, std::span<const double> l);
// F(l) - F(l_-i) = -Var(l_i) - 2 Cov(l_i, l_-i), exact potential at the stage. Both (N,).
double marginal_vbf(std::span<const double> own, std::span<const double> others);

}  // namespace steelyard::sim
