// Time of publishing, of taking and reducing a snapshot, and of an action's way back, by number of servers.
#include <benchmark/benchmark.h>

#include "native/core/schema.h"
#include "native/tests/shm_samples.h"

namespace steelyard::shm {
namespace {

// Every reservoir is full, and all have changed in each of the frames.
void publish(benchmark::State& state) {
  const int n = static_cast<int>(state.range(0));
  const TestPath path;
  core::LoadBalancer balancer = balancer_of(n);
  for (uint64_t i = 0; i < static_cast<uint64_t>(n) * 1000; ++i) {
    balancer.open(core::mix64(i), balancer.choose(core::mix64(i), 0, nullptr), 0);
    balancer.close(core::mix64(i), true, 1000);
  }
  auto publisher = publisher_at(path, {.num_servers = n});
  const std::vector<ServerCounters> counters(n);
  for (auto _ : state) {
    publisher->forget();
    publisher->publish(balancer, counters, 1);
  }
}
BENCHMARK(publish)->Arg(8)->Arg(64)->Arg(1024)->Unit(benchmark::kMicrosecond);

void publish_without_traffic(benchmark::State& state) {
  const int n = static_cast<int>(state.range(0));
  const TestPath path;
  const core::LoadBalancer balancer = balancer_of(n);
  auto publisher = publisher_at(path, {.num_servers = n});
  const std::vector<ServerCounters> counters(n);
  for (auto _ : state) publisher->publish(balancer, counters, 1);
}
BENCHMARK(publish_without_traffic)->Arg(8)->Arg(64)->Arg(1024)->Unit(benchmark::kMicrosecond);

void snapshot_and_observation(benchmark::State& state) {
  const int n = static_cast<int>(state.range(0));
  const TestPath path;
  core::LoadBalancer balancer = balancer_of(n);
  for (uint64_t i = 0; i < static_cast<uint64_t>(n) * 1000; ++i) {
    balancer.open(core::mix64(i), balancer.choose(core::mix64(i), 0, nullptr), 0);
    balancer.close(core::mix64(i), true, 1000);
  }
  auto publisher = publisher_at(path, {.num_servers = n});
  publisher->publish(balancer, std::vector<ServerCounters>(n), 1);
  auto reader = reader_at(path);
  Snapshot snapshot(reader->layout());
  Observer observer(reader->layout());
  std::vector<float> out(core::observation_size(n));
  for (auto _ : state) {
    benchmark::DoNotOptimize(reader->read(&snapshot));
    observer.observe(snapshot, out.data());
  }
}
BENCHMARK(snapshot_and_observation)->Arg(8)->Arg(64)->Arg(1024)->Unit(benchmark::kMicrosecond);

void act_and_poll(benchmark::State& state) {
  const int n = static_cast<int>(state.range(0));
  const TestPath path;
  const core::LoadBalancer balancer = balancer_of(n);
  auto publisher = publisher_at(path, {.num_servers = n});
  publisher->publish(balancer, std::vector<ServerCounters>(n), 1);
  auto agent = reader_at(path, Reader::As::kAgent);
  const Snapshot snapshot = snapshot_of(*agent);
  const std::vector<double> action(n, 0.5);
  for (auto _ : state) {
    agent->write(STEELYARD_SHM_KIND_ACTION, action, snapshot.head(), 1);
    benchmark::DoNotOptimize(publisher->poll(1, kSecond).usable());
  }
}
BENCHMARK(act_and_poll)->Arg(8)->Arg(64)->Arg(1024)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace steelyard::shm
