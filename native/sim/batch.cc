#include "native/sim/batch.h"

#include <cmath>
#include <stdexcept>

namespace steelyard::sim {

ClusterBatch::ClusterBatch(std::shared_ptr<const ClusterConfig> config, int num_envs, int threads,
                           std::string_view reward, std::string_view measure)
    : config_(std::move(config)) {
  if (num_envs < 1)
    throw std::invalid_argument("num_envs: " + std::to_string(num_envs) + " is not allowed; use 1 or more");
  if (threads < 1)
    throw std::invalid_argument("threads: " + std::to_string(threads) + " is not allowed; use 1 or more");
  core::RuleConfig rule;
  rule.traits = core::find_rule("policy");
  for (int b = 0; b < num_envs; ++b) {
    worlds_.push_back(std::make_unique<ClusterWorld>(config_, rule, 0));
    payoffs_.emplace_back(reward, measure);
  }
  const int workers = threads < num_envs ? threads : num_envs;
  failures_.resize(workers);
  for (int i = 1; i < workers; ++i) threads_.emplace_back([this, i] { work(i); });
}

ClusterBatch::~ClusterBatch() {
  {
    const std::lock_guard<std::mutex> guard(lock_);
    closing_ = true;
    ++round_;
  }
  begin_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ClusterBatch::reset(const uint64_t* seeds) {
  for (int b = 0; b < num_envs(); ++b) reset_world(b, seeds[b]);
}

void ClusterBatch::reset_world(int index, uint64_t seed) {
  worlds_[index]->reset(seed);
  write(index, false);
}

void ClusterBatch::write(int index, bool with_reward) {
  ClusterWorld& world = *worlds_[index];
  const int m = num_agents();
  const int size = core::observation_size(num_servers());
  float* rewards = buffers_.rewards + static_cast<size_t>(index) * m;
  for (int i = 0; i < m; ++i) {
    world.observe(i, buffers_.observations + (static_cast<size_t>(index) * m + i) * size);
    rewards[i] = 0;
  }
  if (with_reward) payoffs_[index](world, rewards);
  buffers_.truncated[index] = world.now() >= world.horizon_ns() ? 1 : 0;
}

void ClusterBatch::step_world(int index) {
  if (active_ != nullptr && active_[index] == 0) return;
  ClusterWorld& world = *worlds_[index];
  const int m = num_agents();
  for (int i = 0; i < m; ++i) world.act(i, actions_ + (static_cast<size_t>(index) * m + i) * num_servers());
  world.run_until(world.now() + world.step_ns());
  write(index, true);
}

// Static shares: which thread steps a world changes nothing, since worlds share no state.
void ClusterBatch::share(int thread) {
  try {
    for (int b = thread; b < num_envs(); b += static_cast<int>(failures_.size())) step_world(b);
  } catch (...) {
    failures_[thread] = std::current_exception();
  }
}

void ClusterBatch::work(int thread) {
  uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock<std::mutex> guard(lock_);
      begin_.wait(guard, [&] { return round_ != seen; });
      seen = round_;
      if (closing_) return;
    }
    share(thread);
    {
      const std::lock_guard<std::mutex> guard(lock_);
      --busy_;
    }
    end_.notify_one();
  }
}

void ClusterBatch::step(const float* actions, const uint8_t* active) {
  for (int k = 0; k < num_envs() * num_agents() * num_servers(); ++k) {
    if (std::isfinite(actions[k])) continue;
    throw std::invalid_argument("actions: " + std::to_string(actions[k]) + " at world " +
                                std::to_string(k / (num_agents() * num_servers())) + ", agent " +
                                std::to_string(k / num_servers() % num_agents()) + ", server " +
                                std::to_string(k % num_servers()) +
                                " is not allowed; use finite numbers in [-1, 1]");
  }
  {
    const std::lock_guard<std::mutex> guard(lock_);
    actions_ = actions;
    active_ = active;
    busy_ = static_cast<int>(threads_.size());
    for (std::exception_ptr& failure : failures_) failure = nullptr;
    ++round_;
  }
  begin_.notify_all();
  share(0);
  {
    std::unique_lock<std::mutex> guard(lock_);
    end_.wait(guard, [&] { return busy_ == 0; });
  }
  for (const std::exception_ptr& failure : failures_) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace steelyard::sim
