// Demand and inter-arrival distributions: a draw is a pure function of a 64-bit random word.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "native/sim/exponential.h"

namespace steelyard::sim {

enum class DistributionKind : uint8_t {
  kExponential,       // a = {mean_s}
  kDeterministic,     // a = {value_s}
  kUniform,           // a = {low_s, high_s}
  kLognormal,         // a = {mean_s, sigma} with sigma the standard deviation of log(x)
  kPareto,            // a = {mean_s, alpha}, alpha > 1
  kDiscrete,          // a = values_s, b = probabilities: bimodal, trimodal, k-modal
  kHyperexponential,  // a = means_s, b = probabilities: exponential of a drawn type (k-modal with per-type
                      // means)
  kLognormalMixture,  // a = means_s then sigmas, b = probabilities: lognormal of a drawn type
  kEmpirical,         // a = samples_s, each equally likely
  kTrace,  // the service time in the trace row of the flow, times a[0]; b = class ids served (empty: all)
};

// One distribution. `prepare` checks the parameters and must run before `sample`.
struct Distribution {
  DistributionKind kind = DistributionKind::kExponential;
  std::vector<double> a;
  std::vector<double> b;

  // Throws std::invalid_argument that names `key`, the value and what is allowed.
  void prepare(const std::string& key);
  // A draw in seconds from one uniform 64-bit word. Not for kTrace.
  double sample(uint64_t word) const {
    // The one kind on the path of most simulations; the others take a call.
    return kind == DistributionKind::kExponential ? a[0] * unit_exponential(word) : sample_other(word);
  }
  // Expected value [s]; NaN for kTrace.
  double mean() const;

 private:
  double sample_other(uint64_t word) const;

  std::vector<double> cumulative_;
};

}  // namespace steelyard::sim
