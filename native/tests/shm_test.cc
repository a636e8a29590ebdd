// The shared memory between a dataplane and an agent: what is published is what was measured, and actions
// come back as they were meant. Each test of a fault names the one that it excludes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <numeric>

#include "native/core/schema.h"
#include "native/tests/shm_samples.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define STEELYARD_COUNTS_ALLOCATIONS
namespace {
size_t allocations = 0;
}
void* operator new(size_t size) {
  ++allocations;
  if (void* at = std::malloc(size == 0 ? 1 : size)) return at;
  throw std::bad_alloc();
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete(void* at, size_t) noexcept { std::free(at); }
#endif

namespace steelyard::shm {
namespace {

constexpr core::TimeNs kMaxAge = kSecond;

// Sizes on both sides of a word of the bitmap, and one server.
class Sizes : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Shm, Sizes, testing::Values(1, 2, 8, 63, 64, 65, 128, 1024));

TEST_P(Sizes, TheReaderComputesTheBalancersObservation) {
  const int n = GetParam();
  const TestPath path;
  core::LoadBalancer balancer = balancer_of(n);
  const std::vector<ServerCounters> counters(n);
  auto publisher = publisher_at(path, {.num_servers = n});
  auto reader = reader_at(path);
  Observer observer(reader->layout());
  std::vector<float> action(n);
  for (int j = 0; j < n; ++j) action[j] = static_cast<float>(j % 7) / 10.0f - 0.3f;
  const auto size = static_cast<size_t>(core::observation_size(n));
  for (uint64_t step = 0; step < 5; ++step) {
    if (step > 0) send_flows(balancer, 700 * (step - 1), 700 * step);
    if (step == 2) balancer.set_action(action.data());
    const core::TimeNs now = static_cast<core::TimeNs>(step) * 700'000'000;
    publisher->publish(balancer, counters, now);
    std::vector<float> expected(size), found(size);
    balancer.observe(now, expected.data());
    observer.observe(snapshot_of(*reader), found.data());
    ASSERT_EQ(expected, found) << "step " << step;
    ASSERT_EQ(step > 0, std::accumulate(found.begin(), found.end() - n, 0.0f) > 0);
  }
}

TEST_P(Sizes, ActiveServersAreThoseOfTheBitmap) {
  const int n = GetParam();
  const TestPath path;
  core::LoadBalancer balancer = balancer_of(n);
  auto publisher = publisher_at(path, {.num_servers = n});
  auto reader = reader_at(path);
  std::vector<core::ServerId> members;
  for (int j = 0; j < n; ++j) {
    if (j % 3 == 0 || j == n - 1) members.push_back(j);
  }
  balancer.set_members(members);
  publisher->publish(balancer, std::vector<ServerCounters>(n), 1);
  const Snapshot snapshot = snapshot_of(*reader);
  EXPECT_EQ(snapshot.head().num_active, members.size());
  for (int j = 0; j < n; ++j) EXPECT_EQ(snapshot.is_active(j), j % 3 == 0 || j == n - 1) << j;
  for (int j = n; j < 2 * n + 70; ++j) EXPECT_FALSE(snapshot.is_active(j)) << j;
}

TEST(Shm, CountersOfEachServer) {
  const TestPath path;
  core::LoadBalancer balancer = balancer_of(3);
  auto publisher = publisher_at(path, {.num_servers = 3, .pool_id = 99});
  auto reader = reader_at(path);
  balancer.open(core::mix64(1), 2, 5);
  publisher->publish(
      balancer,
      std::vector<ServerCounters>{
          {1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12}, {uint64_t{1} << 40, 14, uint64_t{1} << 63, 16, 17, 18}},
      1234);
  const Snapshot snapshot = snapshot_of(*reader);
  EXPECT_EQ(snapshot.head().t_ns, 1234u);
  EXPECT_EQ(snapshot.head().pool_id, 99u);
  EXPECT_EQ(snapshot.head().publication, 1u);
  const steelyard_shm_server& last = snapshot.servers()[2];
  EXPECT_EQ(last.n_flow_on, 1u);
  EXPECT_EQ(last.flows_opened, uint64_t{1} << 40);
  EXPECT_EQ(last.flows_completed, 14u);
  EXPECT_EQ(last.packets, uint64_t{1} << 63);
  EXPECT_EQ(last.bytes, 16u);
  EXPECT_EQ(last.resets, 17u);
  EXPECT_EQ(last.collisions, 18u);
  EXPECT_EQ(last.weight_q16, core::kUnitWeight);
  EXPECT_EQ(snapshot.servers()[0].collisions, 6u);
  EXPECT_EQ(snapshot.servers()[1].flows_opened, 7u);
}

// Excludes: empty slots counted as zeros.
TEST(Shm, EmptySlotsAreAbsent) {
  const TestPath path;
  core::LoadBalancer balancer = balancer_of(2);
  auto publisher = publisher_at(path, {.num_servers = 2});
  auto reader = reader_at(path);
  for (uint64_t i = 0; i < 3; ++i) {
    balancer.open(core::mix64(i), 1, 0);
    balancer.close(core::mix64(i), true, 2 * kSecond);
  }
  publisher->publish(balancer, std::vector<ServerCounters>(2), 3 * kSecond);
  const Snapshot snapshot = snapshot_of(*reader);
  EXPECT_EQ(snapshot.samples(steelyard_shm_fct(0)).size(), 0u);
  const auto samples = snapshot.samples(steelyard_shm_fct(1));
  ASSERT_EQ(samples.size(), static_cast<size_t>(balancer.completions()[1].filled()));
  for (const steelyard_shm_sample& sample : samples) {
    EXPECT_EQ(sample.t_ns, static_cast<uint64_t>(2 * kSecond));
    EXPECT_EQ(steelyard_shm_double(sample.value), 2.0);
  }
  std::vector<float> out(core::observation_size(2));
  Observer(reader->layout()).observe(snapshot, out.data());
  EXPECT_EQ(out[core::kServerFeatures + 1 + core::kReducedScalars], 2.0f) << "the mean is of samples alone";
}

// Excludes: seconds as float32, which have steps of 128 s since 1970 and of milliseconds after hours.
TEST(Shm, TimesKeepTheirNanoseconds) {
  const TestPath path;
  core::LoadBalancer balancer = balancer_of(1);
  auto publisher = publisher_at(path, {.num_servers = 1});
  auto reader = reader_at(path);
  const core::TimeNs now = 1'700'000'000'123'456'789;
  balancer.open(1, 0, now - 1);
  balancer.close(1, true, now);
  publisher->publish(balancer, std::vector<ServerCounters>(1), now + 1);
  const Snapshot snapshot = snapshot_of(*reader);
  EXPECT_EQ(snapshot.head().t_ns, static_cast<uint64_t>(now + 1));
  EXPECT_EQ(snapshot.samples(steelyard_shm_fct(0))[0].t_ns, static_cast<uint64_t>(now));
}

// Excludes: no publish without traffic.
TEST(Shm, PublishesWithoutTraffic) {
  const TestPath path;
  const core::LoadBalancer balancer = balancer_of(2);
  auto publisher = publisher_at(path, {.num_servers = 2});
  auto reader = reader_at(path);
  Snapshot snapshot(reader->layout());
  EXPECT_EQ(reader->read(&snapshot), STEELYARD_SHM_NONE);
  for (uint64_t k = 1; k <= 10; ++k) {
    publisher->publish(balancer, std::vector<ServerCounters>(2), static_cast<core::TimeNs>(k) * 1000);
    ASSERT_EQ(reader->read(&snapshot), STEELYARD_SHM_USABLE);
    EXPECT_EQ(snapshot.head().publication, k);
    EXPECT_EQ(snapshot.head().t_ns, k * 1000);
  }
}

TEST(Shm, ABalancerWithoutFeaturesObservesTheSame) {
  const TestPath path;
  core::LoadBalancer balancer = balancer_of(4, 128, false);
  auto publisher = publisher_at(path, {.num_servers = 4});
  auto reader = reader_at(path);
  send_flows(balancer, 0, 300);
  publisher->publish(balancer, std::vector<ServerCounters>(4), kSecond);
  std::vector<float> expected(core::observation_size(4)), found(expected.size());
  balancer.observe(kSecond, expected.data());
  Observer(reader->layout()).observe(snapshot_of(*reader), found.data());
  EXPECT_EQ(expected, found);
}

TEST(Shm, SmallReservoirsAndAForgottenBalancer) {
  const TestPath path;
  core::LoadBalancer balancer = balancer_of(2, 16);
  auto publisher = publisher_at(path, {.num_servers = 2, .reservoir_size = 16});
  auto reader = reader_at(path);
  Observer observer(reader->layout());
  std::vector<float> expected(core::observation_size(2)), found(expected.size());
  const auto check = [&] {
    for (int frame = 0; frame < 4; ++frame) {
      publisher->publish(balancer, std::vector<ServerCounters>(2), kSecond);
      balancer.observe(kSecond, expected.data());
      observer.observe(snapshot_of(*reader), found.data());
      EXPECT_EQ(expected, found);
    }
  };
  send_flows(balancer, 0, 900);
  check();
  balancer.restart(8);  // as many samples as before, others
  send_flows(balancer, 3, 903);
  check();
  balancer = balancer_of(2, 16);
  send_flows(balancer, 5, 905);
  publisher->forget();
  check();
}

#ifdef STEELYARD_COUNTS_ALLOCATIONS
TEST(Shm, NothingIsAllocatedAfterTheStart) {
  const TestPath path;
  core::LoadBalancer balancer = balancer_of(8);
  auto publisher = publisher_at(path, {.num_servers = 8});
  auto agent = reader_at(path, Reader::As::kAgent);
  const std::vector<ServerCounters> counters(8);
  const std::vector<double> action(8, 0.5);
  publisher->publish(balancer, counters, kSecond);
  Snapshot snapshot = snapshot_of(*agent);
  Observer observer(agent->layout());
  std::vector<float> out(core::observation_size(8));
  const size_t before = allocations;
  for (uint64_t k = 0; k < 1000; ++k) {
    publisher->publish(balancer, counters, kSecond);
    ASSERT_EQ(agent->read(&snapshot), STEELYARD_SHM_USABLE);
    observer.observe(snapshot, out.data());
    agent->write(STEELYARD_SHM_KIND_ACTION, action, snapshot.head(), kSecond);
    const ActionView& view = publisher->poll(kSecond, kMaxAge);
    ASSERT_TRUE(view.usable());
    view.apply_to(balancer);
  }
  EXPECT_EQ(before, allocations);
}
#endif

}  // namespace
}  // namespace steelyard::shm
