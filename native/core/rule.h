// The rules by which a balancer chooses a server, by name, and what each needs to know.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "native/core/hosted_policy.h"

namespace steelyard::core {

enum class Score : uint8_t {
  kLocal,      // flows that this balancer has on the server
  kGlobal,     // all flows in the server, exactly known
  kNoisy,      // as kGlobal, plus uniform noise
  kPredicted,  // Charon's score table
  // From here on the choice is not by a load over a weight.
  kRandom,        // no score: a candidate is the choice
  kLeastRequest,  // see least_request.h
  kPeakEwma,      // peak_ewma.h
  kC3,            // c3.h
  // From here on the host does more than to ask for a choice.
  kProbed,  // prequal.h: the host carries probes
  kExact,   // the host's prediction (oracle), made outside the core
};

enum class Weighting : uint8_t {
  kNone,        // all equal
  kConfigured,  // as configured
  kProbed,      // configured / (probed occupancy + 1), every interval
  kKalman,      // HLB
  kPolicy,      // an agent's actions
};

enum class Sampling : uint8_t { kAll, kTwo, kTwoWeighted, kHash, kWeightedHash, kMaglev, kRoundRobin };

struct RuleTraits {
  std::string_view name;
  Score score;
  Weighting weighting;
  Sampling sampling;
  bool own_work = true;  // oracle: the new flow's own demand counts
  std::string_view summary;
};

// All rules, in the order in which they are listed to people. Sources: seed 004 Sec. 6.4.3 (ecmp to oracle),
// ch. 4 (charon), ch. 6 (hlb), Eisenbud et al. NSDI'16 (maglev), Mitzenmacher 2001 (power of two), Finagle
// (peak_ewma), Envoy (least_request), Suresh et al. NSDI'15 (c3), Wydrowski et al. NSDI'24 (prequal).
std::span<const RuleTraits> all_rules();
// nullptr when there is no such rule.
const RuleTraits* find_rule(std::string_view name);

// A rule with its parameters.
struct RuleConfig {
  const RuleTraits* traits = nullptr;
  std::vector<double> weights;  // per server, > 0; empty: all 1
  double interval_s = 0;        // refresh of probed weights (awcmp) and alias weights (charon); 0: every step
  double noise = 0;             // least_load_noise: flows
  bool cycle_actors = false;    // a policy of K actors may serve any number of balancers, i by actor i mod K
  double decay_s = 10;          // peak_ewma: mean lifetime of its average
  double probes = 3;            // prequal: per flow
  double probe_age_s = 1;       // prequal: answers older than this are dropped
  double rif_quantile = 0.84;   // prequal: hot above it
  std::shared_ptr<const LoadedPolicy>
      policy;  // for Weighting::kPolicy hosted natively; null: weights come by set_action

  // Throws std::invalid_argument (one line: key, value, what is allowed).
  void check(int num_servers, int num_load_balancers) const;
};

}  // namespace steelyard::core
