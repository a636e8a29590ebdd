// An exported policy inside the running rack: one player per server, in the place of the learners that it
// came from (malcolm_decider.h), fed by the same events.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "native/core/hosted_rack_policy.h"
#include "native/sim/rack_decider.h"

namespace steelyard::sim {

class RackPolicyDecider : public RackDecider {
 public:
  explicit RackPolicyDecider(std::shared_ptr<const core::LoadedRackPolicy> policy)
      : policy_(std::move(policy)) {}
  RackPolicyDecider(const RackPolicyDecider& other);
  RackPolicyDecider& operator=(const RackPolicyDecider&) = delete;

  std::unique_ptr<RackDecider> clone() const override { return std::make_unique<RackPolicyDecider>(*this); }
  void check(const RackConfig& config) const override;
  void reset(const RackConfig& config, uint64_t seed) override;
  int migrate(int i, uint32_t type, uint64_t word) override;
  int steal(int i, uint64_t word) override { return players_[i]->steal(word); }
  void on_window(core::TimeNs now) override;
  LoadReport on_broadcast(int i, const LoadReport& report) override;
  void on_load(int i, int j, const LoadReport& report) override;
  void on_accept(int i, uint32_t type) override { players_[i]->on_accept(type); }
  void on_completion(int i, uint32_t type, double service_s) override;
  void on_stolen(int i, uint32_t type) override { players_[i]->on_stolen(type); }
  void on_workers(int i, uint32_t workers) override { players_[i]->set_workers(workers); }

 private:
  std::shared_ptr<const core::LoadedRackPolicy> policy_;
  std::vector<std::unique_ptr<core::RackPlayer>> players_;
};

}  // namespace steelyard::sim
