#include "native/core/rule.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "native/core/prequal.h"
#include "native/core/schema.h"

namespace steelyard::core {
namespace {

using enum Sampling;
using S = Score;
using W = Weighting;

constexpr std::array kRules = {
    RuleTraits{"ecmp", S::kRandom, W::kNone, kHash, true, "uniformly by flow hash"},
    RuleTraits{"wcmp", S::kRandom, W::kConfigured, kWeightedHash, true,
               "by flow hash, in proportion to configured weights"},
    RuleTraits{"awcmp", S::kRandom, W::kProbed, kWeightedHash, true,
               "as wcmp, weights divided by probed occupancy + 1"},
    RuleTraits{"lsq", S::kLocal, W::kNone, kAll, true, "fewest flows of this balancer"},
    RuleTraits{"lsq2", S::kLocal, W::kNone, kTwo, true, "lsq among two random servers"},
    RuleTraits{"gsq", S::kGlobal, W::kNone, kAll, true, "fewest flows of all balancers, exactly known"},
    RuleTraits{"gsq2", S::kGlobal, W::kNone, kTwo, true, "gsq among two random servers"},
    RuleTraits{"sed", S::kLocal, W::kConfigured, kAll, true,
               "shortest expected delay (q + 1) / w, configured weights"},
    RuleTraits{"sed2", S::kLocal, W::kConfigured, kTwo, true, "sed among two random servers"},
    RuleTraits{"hlb", S::kLocal, W::kKalman, kAll, true,
               "sed with weights from Kalman-filtered flow durations"},
    RuleTraits{"hlb2", S::kLocal, W::kKalman, kTwo, true, "hlb among two random servers"},
    RuleTraits{"charon_sapp", S::kPredicted, W::kNone, kTwo, true,
               "Charon: lower predicted load of two uniform candidates"},
    RuleTraits{"charon_wsapp", S::kPredicted, W::kProbed, kTwoWeighted, true,
               "Charon: candidates drawn by the alias method"},
    RuleTraits{"maglev", S::kRandom, W::kNone, kMaglev, true, "consistent hashing by a Maglev table"},
    RuleTraits{"rr", S::kRandom, W::kNone, kRoundRobin, true, "round robin"},
    RuleTraits{"least_load_noise", S::kNoisy, W::kNone, kAll, true, "gsq with uniform noise on every load"},
    RuleTraits{"oracle", S::kExact, W::kNone, kAll, true,
               "earliest completion of the new flow, all demands known"},
    RuleTraits{"oracle2", S::kExact, W::kNone, kTwo, true, "oracle among two random servers"},
    RuleTraits{"oracle_srt", S::kExact, W::kNone, kAll, false,
               "least remaining time (work over capacity), the new flow left out"},
    RuleTraits{
        "least_request", S::kLeastRequest, W::kConfigured, kTwo, true,
        "Envoy: fewest flows of two random servers; weights that differ make it a weighted round robin"},
    RuleTraits{"peak_ewma", S::kPeakEwma, W::kNone, kTwo, true,
               "Finagle, Linkerd: peak-sensitive latency average x (flows + 1), of two random servers"},
    RuleTraits{"c3", S::kC3, W::kNone, kAll, true,
               "C3: response time and cubed queue estimate, from what replies carry"},
    RuleTraits{"prequal", S::kProbed, W::kNone, kAll, true,
               "Prequal: least latency of the cold, else least flows, among answers to its own probes"},
    RuleTraits{"policy", S::kLocal, W::kPolicy, kAll, true, "sed with weights that an agent sets every step"},
};

void check_range(const char* key, double value, double low, double high) {
  if (value >= low && value <= high) return;
  char text[160];
  std::snprintf(text, sizeof text, "%s: %g is not allowed; use a number in [%g, %g]", key, value, low, high);
  throw std::invalid_argument(text);
}

}  // namespace

std::span<const RuleTraits> all_rules() { return kRules; }

const RuleTraits* find_rule(std::string_view name) {
  for (const RuleTraits& rule : kRules) {
    if (rule.name == name) return &rule;
  }
  return nullptr;
}

void RuleConfig::check(int num_servers, int num_load_balancers) const {
  if (traits == nullptr) throw std::invalid_argument("rule: no rule was chosen; see native.rule_names()");
  if (!weights.empty() && weights.size() != static_cast<size_t>(num_servers)) {
    throw std::invalid_argument("rule.weights: " + std::to_string(weights.size()) +
                                " given, one for each of the " + std::to_string(num_servers) +
                                " servers is needed");
  }
  for (size_t j = 0; j < weights.size(); ++j) {
    if (!(weights[j] >= 1e-4 && weights[j] <= 65535.0)) {
      throw std::invalid_argument("rule.weights[" + std::to_string(j) + "]: " + std::to_string(weights[j]) +
                                  " is not allowed; use a number in [1e-4, 65535]");
    }
  }
  if (!(interval_s >= 0 && std::isfinite(interval_s))) {
    throw std::invalid_argument("rule.interval_s: " + std::to_string(interval_s) +
                                " is not allowed; use 0 or more seconds");
  }
  if (!(noise >= 0 && noise < 1e6)) {
    throw std::invalid_argument("rule.noise: " + std::to_string(noise) +
                                " is not allowed; use a number in [0, 1e6)");
  }
  check_range("rule.decay_s", decay_s, 1e-6, 1e6);
  check_range("rule.probes", probes, 0, ProbePool::kMaxProbes);
  check_range("rule.probe_age_s", probe_age_s, 0, 1e6);
  check_range("rule.rif_quantile", rif_quantile, 0, 1);
  if (policy) {
    const std::string why = check_policy_fits(*policy, observation_schema_hash(num_servers), num_servers,
                                              num_load_balancers, cycle_actors);
    if (!why.empty()) throw std::invalid_argument(why);
  }
}

}  // namespace steelyard::core
