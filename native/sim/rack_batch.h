// B racks stepped together, a window at a time, by a few threads: what agents play that live outside the
// simulator. Observations and rewards are written in place.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "native/core/rack_payoff.h"
#include "native/sim/categorical_decider.h"
#include "native/sim/rack.h"

namespace steelyard::sim {

// Draws as the CategoricalDecider does, counts what it drew in this window, and keeps the loads that each
// server has heard of.
class WindowDecider : public CategoricalDecider {
 public:
  std::unique_ptr<RackDecider> clone() const override { return std::make_unique<WindowDecider>(*this); }
  void reset(const RackConfig& config, uint64_t seed) override;
  int migrate(int i, uint32_t type, uint64_t word) override;
  int steal(int i, uint64_t word) override;
  void on_load(int i, int j, const LoadReport& report) override;

  void begin_window();
  // Row i of each (N, N): tasks that server i kept (own column) or gave away; its requests for work.
  std::span<const uint32_t> migrations() const { return migrations_; }
  std::span<const uint32_t> requests() const { return requests_; }
  // Row i of (N, N): tasks / estimated rate of each server as i last heard it [s]; its own column is 0.
  std::span<const float> heard_s() const { return heard_s_; }

 private:
  size_t n_ = 0;
  std::vector<uint32_t> migrations_, requests_;
  std::vector<float> heard_s_;
};

// What a window pays (core/rack_payoff.h), over x = tasks / true rate in units of load_unit_s.
struct RackReward {
  bool potential = false;  // phi for every server, not u_i
  core::MoveCosts costs;   // of migrations and of requests for work
  double load_unit_s = 100e-6;
};

// Numbers of one server's observation: N loads and 9 of its own. rack_batch.cc and docs/rack-scenarios.md
// say which.
inline constexpr int kRackOwnFeatures = 9;
constexpr int rack_observation_size(int num_servers) { return num_servers + kRackOwnFeatures; }

// The caller's buffers, C-contiguous, written by every step and reset.
struct RackBuffers {
  float* observations = nullptr;  // (B, N, rack_observation_size(N))
  float* rewards = nullptr;       // (B, N)
  uint8_t* truncated = nullptr;   // (B,) 1 when the horizon is reached
};

class RackBatch {
 public:
  // `config` must be prepared. Throws std::invalid_argument for num_envs < 1, threads < 1, a rack with
  // dispatchers, costs or a unit out of range.
  RackBatch(std::shared_ptr<const RackConfig> config, int num_envs, int threads, const RackReward& reward);
  ~RackBatch();
  RackBatch(const RackBatch&) = delete;
  RackBatch& operator=(const RackBatch&) = delete;

  void bind(const RackBuffers& buffers) { buffers_ = buffers; }
  bool bound() const { return buffers_.observations != nullptr; }
  // seeds: (B,). To the first window; rewards 0, truncated 0.
  void reset(const uint64_t* seeds);
  void reset_world(int index, uint64_t seed);
  // World `to` becomes what world `from` is; its buffers too.
  void copy_world(int from, int to);
  // weights: (B, 2, N, N), of migration then stealing, row i of server i, own column: keeps the task, asks
  // nobody; not negative, no row of zeros. `active` (B,) or null: worlds with 0 stay as they are.
  void step(const float* weights, const uint8_t* active);

  int num_envs() const { return static_cast<int>(worlds_.size()); }
  int num_servers() const { return config_->num_servers(); }
  RackWorld& world(int index) { return *worlds_[index]; }
  // Of the last window.
  const WindowDecider& decider(int index);

 private:
  WindowDecider& decider_of(int index);
  void step_world(int index);
  void write(int index, bool with_reward);
  void observe(int index, uint32_t i, const RackTotals& before, float* out);
  void pay(int index, float* rewards);
  void work(int thread);
  void share(int thread);

  std::shared_ptr<const RackConfig> config_;
  RackReward reward_;
  core::TimeNs first_window_ = 0;
  std::vector<std::unique_ptr<RackWorld>> worlds_;
  std::vector<std::vector<RackTotals>> before_;  // at the begin of the window
  RackBuffers buffers_;
  const float* weights_ = nullptr;
  const uint8_t* active_ = nullptr;

  std::vector<std::thread> threads_;
  std::vector<std::exception_ptr> failures_;
  std::mutex lock_;
  std::condition_variable begin_, end_;
  uint64_t round_ = 0;
  int busy_ = 0;
  bool closing_ = false;
};

}  // namespace steelyard::sim
