// Servers that draw where tasks go, and whom to steal from, from distributions that someone else sets: what
// an environment's agents play by.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "native/sim/rack_decider.h"

namespace steelyard::sim {

class CategoricalDecider : public RackDecider {
 public:
  // Row i of each (N, N): the probabilities of server i, non-negative, with a positive sum. Its own column:
  // keeps the task; does not steal.
  void set(std::span<const float> migrate, std::span<const float> steal);

  std::unique_ptr<RackDecider> clone() const override { return std::make_unique<CategoricalDecider>(*this); }
  // Every server keeps its tasks and steals from nobody.
  void reset(const RackConfig& config, uint64_t seed) override;
  int migrate(int i, uint32_t type, uint64_t word) override;
  int steal(int i, uint64_t word) override;
  void on_window(core::TimeNs now) override { (void)now; }

 private:
  int draw_from(const std::vector<float>& sums, int i, uint64_t word) const;

  int n_ = 0;
  std::vector<float> migrate_, steal_;  // (N, N) running sums of each row
};

}  // namespace steelyard::sim
