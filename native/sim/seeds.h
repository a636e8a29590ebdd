// Work for each of many seeds, by a few threads, each with a world of its own; results in the order of the
// seeds.
#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace steelyard::sim {

// CPU time of the calling thread. [s]
inline double thread_cpu_s() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// `make(seed)` is a thread's world (a pointer), `run(world, seed)` a result. `stop` is polled between seeds;
// when it says true, the seeds not yet begun are left out of the result.
template <typename Result, typename Make, typename Run>
std::vector<Result> for_each_seed(const std::vector<uint64_t>& seeds, int threads,
                                  const std::function<bool()>& stop, Make make, Run run) {
  std::vector<Result> results(seeds.size());
  std::vector<uint8_t> done(seeds.size(), 0);
  std::atomic<size_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_lock;
  const auto work = [&](bool polls) {
    try {
      decltype(make(uint64_t{0})) world;
      for (size_t k = next++; k < seeds.size(); k = next++) {
        if (!world) world = make(seeds[k]);
        results[k] = run(*world, seeds[k]);
        done[k] = 1;
        if (polls && stop && stop()) next = seeds.size();
      }
    } catch (...) {
      const std::lock_guard<std::mutex> guard(failure_lock);
      failure = std::current_exception();
      next = seeds.size();
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads; ++i) helpers.emplace_back(work, false);
  work(true);
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
  std::vector<Result> finished;
  for (size_t k = 0; k < results.size(); ++k) {
    if (done[k]) finished.push_back(std::move(results[k]));
  }
  return finished;
}

}  // namespace steelyard::sim
