// B worlds stepped together by a few threads; observations and rewards are written in place.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "native/sim/cluster.h"
#include "native/sim/payoff.h"

namespace steelyard::sim {

// The caller's buffers, C-contiguous, written by every step and reset.
struct BatchBuffers {
  float* observations = nullptr;  // (B, M, observation_size(N))
  float* rewards = nullptr;       // (B, M)
  uint8_t* truncated = nullptr;   // (B,) 1 when the horizon is reached
};

class ClusterBatch {
 public:
  // Throws std::invalid_argument for num_envs < 1 or threads < 1 and as Payoff does.
  ClusterBatch(std::shared_ptr<const ClusterConfig> config, int num_envs, int threads,
               std::string_view reward, std::string_view measure);
  ~ClusterBatch();
  ClusterBatch(const ClusterBatch&) = delete;
  ClusterBatch& operator=(const ClusterBatch&) = delete;

  void bind(const BatchBuffers& buffers) { buffers_ = buffers; }
  bool bound() const { return buffers_.observations != nullptr; }
  // seeds: (B,). Writes observations; rewards 0, truncated 0.
  void reset(const uint64_t* seeds);
  void reset_world(int index, uint64_t seed);
  // actions: (B, M, N) in [-1, 1]; `active` (B,) or null: worlds with 0 stay as they are.
  void step(const float* actions, const uint8_t* active);

  int num_envs() const { return static_cast<int>(worlds_.size()); }
  int num_agents() const { return config_->num_load_balancers; }
  int num_servers() const { return config_->num_servers(); }
  ClusterWorld& world(int index) { return *worlds_[index]; }

 private:
  void step_world(int index);
  void write(int index, bool with_reward);
  void work(int thread);
  void share(int thread);

  std::shared_ptr<const ClusterConfig> config_;
  std::vector<std::unique_ptr<ClusterWorld>> worlds_;
  std::vector<Payoff> payoffs_;
  BatchBuffers buffers_;
  const float* actions_ = nullptr;
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
