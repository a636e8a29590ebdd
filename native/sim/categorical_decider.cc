#include "native/sim/categorical_decider.h"

#include "native/core/rng.h"
#include "native/sim/rack_config.h"

namespace steelyard::sim {
namespace {

std::vector<float> running_sums(std::span<const float> p, int n) {
  std::vector<float> sums(p.size());
  for (int i = 0; i < n; ++i) {
    float sum = 0;
    for (int j = 0; j < n; ++j) {
      sum += p[static_cast<size_t>(i * n + j)];
      sums[static_cast<size_t>(i * n + j)] = sum;
    }
  }
  return sums;
}

}  // namespace

void CategoricalDecider::set(std::span<const float> migrate, std::span<const float> steal) {
  migrate_ = running_sums(migrate, n_);
  steal_ = running_sums(steal, n_);
}

void CategoricalDecider::reset(const RackConfig& config, uint64_t seed) {
  (void)seed;
  n_ = config.num_servers();
  std::vector<float> stay(static_cast<size_t>(n_ * n_), 0.0F);
  for (int i = 0; i < n_; ++i) stay[static_cast<size_t>(i * n_ + i)] = 1;
  set(stay, stay);
}

int CategoricalDecider::draw_from(const std::vector<float>& sums, int i, uint64_t word) const {
  const float* row = &sums[static_cast<size_t>(i * n_)];
  const float at = static_cast<float>(core::unit_open(word)) * row[n_ - 1];
  int j = 0;
  for (int k = 0; k < n_ - 1; ++k) j += row[k] <= at ? 1 : 0;
  return j;
}

int CategoricalDecider::migrate(int i, uint32_t type, uint64_t word) {
  (void)type;
  return draw_from(migrate_, i, word);
}

int CategoricalDecider::steal(int i, uint64_t word) { return draw_from(steal_, i, word); }

}  // namespace steelyard::sim
