#include "native/sim/rack_batch.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "native/sim/checks.h"

namespace steelyard::sim {

void WindowDecider::reset(const RackConfig& config, uint64_t seed) {
  CategoricalDecider::reset(config, seed);
  n_ = static_cast<size_t>(config.num_servers());
  heard_s_.assign(n_ * n_, 0.0F);
  begin_window();
}

void WindowDecider::begin_window() {
  migrations_.assign(n_ * n_, 0);
  requests_.assign(n_ * n_, 0);
}

int WindowDecider::migrate(int i, uint32_t type, uint64_t word) {
  const int j = CategoricalDecider::migrate(i, type, word);
  ++migrations_[static_cast<size_t>(i) * n_ + static_cast<size_t>(j)];
  return j;
}

int WindowDecider::steal(int i, uint64_t word) {
  const int j = CategoricalDecider::steal(i, word);
  if (j != i) ++requests_[static_cast<size_t>(i) * n_ + static_cast<size_t>(j)];
  return j;
}

void WindowDecider::on_load(int i, int j, const LoadReport& report) {
  heard_s_[static_cast<size_t>(i) * n_ + static_cast<size_t>(j)] =
      report.rate > 0 ? report.tasks / report.rate : 0.0F;
}

RackBatch::RackBatch(std::shared_ptr<const RackConfig> config, int num_envs, int threads,
                     const RackReward& reward)
    : config_(std::move(config)), reward_(reward) {
  in_range("num_envs", num_envs, 1, 1e6);
  in_range("threads", threads, 1, 1024);
  in_range("reward.migration_cost", static_cast<double>(reward.costs.migration), 0, 1e6);
  in_range("reward.steal_cost", static_cast<double>(reward.costs.steal), 0, 1e6);
  positive("reward.load_unit_s", reward.load_unit_s);
  RackRule rule;
  rule.traits = find_rack_rule("categorical");
  rule.decider = std::make_shared<WindowDecider>();
  rule.check(*config_);
  first_window_ = static_cast<core::TimeNs>(std::llround(config_->message_delay.constant_s * 1e9));
  for (int b = 0; b < num_envs; ++b) worlds_.push_back(std::make_unique<RackWorld>(config_, rule, 0));
  before_.resize(worlds_.size());
  const int workers = std::min(threads, num_envs);
  failures_.resize(static_cast<size_t>(workers));
  for (int i = 1; i < workers; ++i) threads_.emplace_back([this, i] { work(i); });
}

RackBatch::~RackBatch() {
  {
    const std::lock_guard<std::mutex> guard(lock_);
    closing_ = true;
    ++round_;
  }
  begin_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

WindowDecider& RackBatch::decider_of(int index) {
  return *static_cast<WindowDecider*>(worlds_[index]->decider());
}

const WindowDecider& RackBatch::decider(int index) { return decider_of(index); }

void RackBatch::reset(const uint64_t* seeds) {
  for (int b = 0; b < num_envs(); ++b) reset_world(b, seeds[b]);
}

void RackBatch::reset_world(int index, uint64_t seed) {
  RackWorld& world = *worlds_[index];
  world.reset(seed);
  if (world.next_window() <= first_window_) world.run_until(world.next_window());
  before_[index].clear();
  write(index, false);
}

void RackBatch::copy_world(int from, int to) {
  if (from == to) return;
  *worlds_[to] = *worlds_[from];
  before_[to] = before_[from];
  const size_t n = static_cast<size_t>(num_servers());
  const size_t size = n * static_cast<size_t>(rack_observation_size(num_servers()));
  const size_t source = static_cast<size_t>(from), target = static_cast<size_t>(to);
  std::copy_n(buffers_.observations + source * size, size, buffers_.observations + target * size);
  std::copy_n(buffers_.rewards + source * n, n, buffers_.rewards + target * n);
  buffers_.truncated[to] = buffers_.truncated[from];
}

// Index: meaning (unit). j < N: load of server j as server i knows it, its own as it is now (load_unit_s).
// N + 0 ... 8: own tasks, those that wait, idle workers, workers, mean service time of a worker as estimated
// (load_unit_s), and of the last window: tasks arrived, given away, requests for work, tasks served.
void RackBatch::observe(int index, uint32_t i, const RackTotals& before, float* out) {
  RackWorld& world = *worlds_[index];
  const WindowDecider& decider = decider_of(index);
  const size_t n = static_cast<size_t>(num_servers());
  const double unit = reward_.load_unit_s;
  const RackNode& node = world.node(static_cast<int>(i));
  const double rate = world.estimated_rate(i);
  for (size_t j = 0; j < n; ++j)
    out[j] = static_cast<float>(static_cast<double>(decider.heard_s()[i * n + j]) / unit);
  out[i] = static_cast<float>(node.in_system / rate / unit);
  const RackTotals& totals = world.totals(i);
  uint32_t requests = 0;
  for (size_t j = 0; j < n; ++j) requests += decider.requests()[i * n + j];
  float* own = out + n;
  own[0] = static_cast<float>(node.in_system);
  own[1] = static_cast<float>(world.waiting(i));
  own[2] = static_cast<float>(node.workers - std::min(node.serving, node.workers));
  own[3] = static_cast<float>(node.workers);
  own[4] = static_cast<float>(node.workers / rate / unit);
  own[5] = static_cast<float>(totals.arrivals - before.arrivals);
  own[6] = static_cast<float>(totals.migrations - before.migrations);
  own[7] = static_cast<float>(requests);
  own[8] = static_cast<float>(totals.completions - before.completions);
}

// x as it is at the end of the window, costs of what was done in it.
void RackBatch::pay(int index, float* rewards) {
  RackWorld& world = *worlds_[index];
  const WindowDecider& decider = decider_of(index);
  const size_t n = static_cast<size_t>(num_servers());
  std::vector<float> loads(n + 8, 0.0F);
  const auto waits_us = world.expected_waits_us();
  for (size_t j = 0; j < n; ++j)
    loads[j] = static_cast<float>(static_cast<double>(waits_us[j]) * 1e-6 / reward_.load_unit_s);
  std::vector<uint32_t> migrations(n), requests(n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      if (j == i) continue;
      migrations[i] += decider.migrations()[i * n + j];
      requests[i] += decider.requests()[i * n + j];
    }
  }
  std::vector<double> payoffs(n);
  const double phi = core::rack_payoffs(loads.data(), static_cast<uint32_t>(n), migrations.data(),
                                        requests.data(), reward_.costs, payoffs.data());
  for (size_t i = 0; i < n; ++i) rewards[i] = static_cast<float>(reward_.potential ? phi : payoffs[i]);
}

void RackBatch::write(int index, bool with_reward) {
  RackWorld& world = *worlds_[index];
  const size_t n = static_cast<size_t>(num_servers());
  const size_t size = static_cast<size_t>(rack_observation_size(num_servers()));
  float* observations = buffers_.observations + static_cast<size_t>(index) * n * size;
  float* rewards = buffers_.rewards + static_cast<size_t>(index) * n;
  std::vector<RackTotals>& before = before_[index];
  before.resize(n);
  for (uint32_t i = 0; i < n; ++i) {
    observe(index, i, before[i], observations + i * size);
    before[i] = world.totals(i);
  }
  std::fill_n(rewards, n, 0.0F);
  if (with_reward) pay(index, rewards);
  buffers_.truncated[index] = world.now() >= world.horizon_ns() ? 1 : 0;
}

void RackBatch::step_world(int index) {
  if (active_ != nullptr && active_[index] == 0) return;
  RackWorld& world = *worlds_[index];
  WindowDecider& decider = decider_of(index);
  const size_t square = static_cast<size_t>(num_servers()) * static_cast<size_t>(num_servers());
  const float* weights = weights_ + static_cast<size_t>(index) * 2 * square;
  decider.begin_window();
  decider.set({weights, square}, {weights + square, square});
  world.run_until(world.next_window());
  write(index, true);
}

// Static shares: which thread steps a world changes nothing, since worlds share no state.
void RackBatch::share(int thread) {
  try {
    for (int b = thread; b < num_envs(); b += static_cast<int>(failures_.size())) step_world(b);
  } catch (...) {
    failures_[static_cast<size_t>(thread)] = std::current_exception();
  }
}

void RackBatch::work(int thread) {
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

void RackBatch::step(const float* weights, const uint8_t* active) {
  {
    const std::lock_guard<std::mutex> guard(lock_);
    weights_ = weights;
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
