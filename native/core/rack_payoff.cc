#include "native/core/rack_payoff.h"

#include "native/core/activations.h"

namespace steelyard::core {

float load_imbalance(const float* loads, uint32_t num_servers) {
  if (num_servers < 2) return 0.0F;
  const i32x8 lane = {0, 1, 2, 3, 4, 5, 6, 7};
  f32x8 sums = {};
  for (uint32_t k = 0; k < num_servers; k += 8) {
    const f32x8 x = load8(loads + k);
    f32x8 block = {};
    for (uint32_t j = 0; j < num_servers; ++j) {
      const f32x8 gap = x - loads[j];
      block += gap < 0.0F ? -gap : gap;
    }
    sums += lane + static_cast<int32_t>(k) < static_cast<int32_t>(num_servers) ? block : f32x8{};
  }
  return horizontal_sum(sums) / static_cast<float>(num_servers - 1);
}

float mean_squared_imbalance(const float* loads, uint32_t num_servers) {
  if (num_servers < 2) return 0.0F;
  float total = 0.0F;
  for (uint32_t j = 0; j < num_servers; ++j) total += loads[j];
  const float mean = total / static_cast<float>(num_servers);
  float squares = 0.0F;
  for (uint32_t j = 0; j < num_servers; ++j) squares += (loads[j] - mean) * (loads[j] - mean);
  return 2.0F * squares / static_cast<float>(num_servers - 1);
}

double rack_payoffs(const float* loads, uint32_t num_servers, const uint32_t* migrations,
                    const uint32_t* steals, const MoveCosts& costs, double* payoffs) {
  const double imbalance = static_cast<double>(load_imbalance(loads, num_servers));
  double all = 0;
  for (uint32_t i = 0; i < num_servers; ++i) {
    const double cost = static_cast<double>(costs.of(migrations[i], steals[i]));
    payoffs[i] = -imbalance - cost;
    all += cost;
  }
  return -imbalance - all;
}

}  // namespace steelyard::core
