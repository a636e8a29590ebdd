// What the rack game pays (seed 000, Sec. 4.2.4 and eq. 4.1), over loads x: (N,).
#pragma once

#include <cstdint>

namespace steelyard::core {

// I(x) = 1 / (N - 1) sum over all ordered pairs of |x_j - x_k|; 0 for one server. `loads` must be followed
// by at least 7 readable floats.
float load_imbalance(const float* loads, uint32_t num_servers);

// Mean over pairs of (x_j - x_k)^2, which is 2 / (N - 1) sum_j (x_j - mean)^2; 0 for one server.
float mean_squared_imbalance(const float* loads, uint32_t num_servers);

// C_i(a) of what one server did in a window, linear in its migrations and steal requests.
struct MoveCosts {
  float migration = 0;
  float steal = 0;
  float of(uint32_t migrations, uint32_t steals) const {
    return migration * static_cast<float>(migrations) + steal * static_cast<float>(steals);
  }
};

// Payoffs of one window, u_i = -I(x) - C_i (N,), and the potential phi = -I(x) - sum_i C_i, which is
// returned.
double rack_payoffs(const float* loads, uint32_t num_servers, const uint32_t* migrations,
                    const uint32_t* steals, const MoveCosts& costs, double* payoffs);

}  // namespace steelyard::core
