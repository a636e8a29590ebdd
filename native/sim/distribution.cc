#include "native/sim/distribution.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <stdexcept>

#include "native/core/rng.h"

namespace steelyard::sim {
namespace {

using core::unit_open;

[[noreturn]] void refuse(const std::string& key, const std::string& why) {
  throw std::invalid_argument(key + ": " + why);
}

void need(const std::string& key, const std::vector<double>& a, size_t count, const char* names) {
  if (a.size() != count) refuse(key, std::to_string(a.size()) + " parameters given, needs " + names);
}

void need_positive(const std::string& key, const char* name, double value) {
  if (!(value > 0 && std::isfinite(value)))
    refuse(key, std::string(name) + " = " + std::to_string(value) +
                    " is not allowed; use a finite number above 0");
}

// A standard normal from one word (Box and Muller 1958), its second uniform mixed from the first word.
double standard_normal(uint64_t word) {
  const double radius = std::sqrt(-2.0 * std::log(unit_open(word)));
  return radius * std::cos(2.0 * std::numbers::pi * unit_open(core::mix64(word + core::kGolden)));
}

size_t pick(const std::vector<double>& cumulative, double u) {
  const auto at = std::upper_bound(cumulative.begin(), cumulative.end(), u);
  return std::min<size_t>(at - cumulative.begin(), cumulative.size() - 1);
}

void prepare_mixture(const std::string& key, const std::vector<double>& values,
                     const std::vector<double>& b) {
  if (values.empty() || values.size() != b.size()) {
    refuse(key, std::to_string(values.size()) + " values and " + std::to_string(b.size()) +
                    " probabilities given; give one probability per value");
  }
  for (const double v : values) need_positive(key, "value_s", v);
  double total = 0;
  for (const double p : b) {
    if (!(p >= 0 && p <= 1)) refuse(key, "probability " + std::to_string(p) + " is not in [0, 1]");
    total += p;
  }
  if (std::abs(total - 1) > 1e-6)
    refuse(key, "probabilities sum to " + std::to_string(total) + ", must sum to 1");
}

void prepare_lognormals(const std::string& key, const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != 2 * b.size())
    refuse(key, std::to_string(a.size()) + " parameters given, needs a mean_s and a sigma per probability");
  const auto sigmas = a.begin() + static_cast<std::ptrdiff_t>(b.size());
  prepare_mixture(key, {a.begin(), sigmas}, b);
  for (auto sigma = sigmas; sigma != a.end(); ++sigma) need_positive(key, "sigma", *sigma);
}

double lognormal(double mean_s, double sigma, uint64_t word) {
  return mean_s * std::exp(sigma * standard_normal(word) - 0.5 * sigma * sigma);
}

}  // namespace

void Distribution::prepare(const std::string& key) {
  switch (kind) {
    case DistributionKind::kExponential:
    case DistributionKind::kDeterministic:
      need(key, a, 1, "{mean_s} or {value_s}");
      need_positive(key, "mean_s", a[0]);
      break;
    case DistributionKind::kUniform:
      need(key, a, 2, "{low_s, high_s}");
      if (!(a[0] >= 0 && a[1] > a[0] && std::isfinite(a[1])))
        refuse(key, "low_s, high_s must satisfy 0 <= low_s < high_s");
      break;
    case DistributionKind::kLognormal:
      need(key, a, 2, "{mean_s, sigma}");
      need_positive(key, "mean_s", a[0]);
      need_positive(key, "sigma", a[1]);
      break;
    case DistributionKind::kPareto:
      need(key, a, 2, "{mean_s, alpha}");
      need_positive(key, "mean_s", a[0]);
      if (!(a[1] > 1 && std::isfinite(a[1])))
        refuse(key,
               "alpha = " + std::to_string(a[1]) + " is not allowed; the mean exists only for alpha > 1");
      break;
    case DistributionKind::kDiscrete:
    case DistributionKind::kHyperexponential:
      prepare_mixture(key, a, b);
      break;
    case DistributionKind::kLognormalMixture:
      prepare_lognormals(key, a, b);
      break;
    case DistributionKind::kEmpirical:
      if (a.empty()) refuse(key, "empirical needs at least one sample");
      for (const double v : a) need_positive(key, "sample_s", v);
      break;
    case DistributionKind::kTrace:
      if (a.empty()) a.push_back(1.0);
      need_positive(key, "service_scale", a[0]);
      break;
  }
  cumulative_.resize(b.size());
  if (kind != DistributionKind::kTrace) std::partial_sum(b.begin(), b.end(), cumulative_.begin());
}

double Distribution::sample_other(uint64_t word) const {
  switch (kind) {
    case DistributionKind::kDeterministic:
      return a[0];
    case DistributionKind::kUniform:
      return a[0] + (a[1] - a[0]) * unit_open(word);
    case DistributionKind::kLognormal:
      return lognormal(a[0], a[1], word);
    case DistributionKind::kPareto:
      return a[0] * (a[1] - 1) / a[1] * std::pow(unit_open(word), -1.0 / a[1]);
    case DistributionKind::kDiscrete:
      return a[pick(cumulative_, unit_open(word))];
    case DistributionKind::kHyperexponential:
      return a[pick(cumulative_, unit_open(word))] * unit_exponential(core::mix64(word + core::kGolden));
    case DistributionKind::kLognormalMixture: {
      const size_t type = pick(cumulative_, unit_open(word));
      return lognormal(a[type], a[b.size() + type], core::mix64(word + core::kGolden));
    }
    case DistributionKind::kEmpirical:
      return a[core::below(word, static_cast<uint32_t>(a.size()))];
    case DistributionKind::kExponential:
    case DistributionKind::kTrace:
      break;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

double Distribution::mean() const {
  switch (kind) {
    case DistributionKind::kUniform:
      return 0.5 * (a[0] + a[1]);
    case DistributionKind::kDiscrete:
    case DistributionKind::kHyperexponential:
    case DistributionKind::kLognormalMixture:
      return std::inner_product(b.begin(), b.end(), a.begin(), 0.0);
    case DistributionKind::kEmpirical:
      return std::accumulate(a.begin(), a.end(), 0.0) / static_cast<double>(a.size());
    case DistributionKind::kTrace:
      return std::numeric_limits<double>::quiet_NaN();
    default:
      return a[0];
  }
}

}  // namespace steelyard::sim
