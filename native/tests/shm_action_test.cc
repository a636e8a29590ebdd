// The way back: actions reach the balancer from the first on, across restarts of either side, and what cannot
// be used says why.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "native/core/schema.h"
#include "native/tests/shm_samples.h"

namespace steelyard::shm {
namespace {

constexpr core::TimeNs kNow = 100 * kSecond;
constexpr core::TimeNs kMaxAge = kSecond;

// A dataplane and an agent of four servers; either can be started anew.
class ShmAction : public testing::Test {
 protected:
  void SetUp() override {
    start_dataplane();
    start_agent();
  }
  void start_dataplane(uint64_t pool_id = 7) {
    publisher_.reset();
    publisher_ = publisher_at(path_, {.num_servers = 4, .pool_id = pool_id});
    publish();
  }
  void start_agent() {
    agent_.reset();
    agent_ = reader_at(path_, Reader::As::kAgent);
  }
  void publish() { publisher_->publish(balancer_, std::vector<ServerCounters>(4), kNow); }
  uint64_t act(const std::vector<double>& values, uint64_t kind = STEELYARD_SHM_KIND_ACTION,
               core::TimeNs when = kNow) {
    return agent_->write(kind, values, snapshot_of(*agent_).head(), when);
  }
  uint64_t status() { return publisher_->poll(kNow, kMaxAge).status; }

  const TestPath path_;
  core::LoadBalancer balancer_ = balancer_of(4);
  std::unique_ptr<Publisher> publisher_;
  std::unique_ptr<Reader> agent_;
};

const std::vector<double> kZeros(4, 0.0);

TEST_F(ShmAction, BecomesWeightsByTheOneDoor) {
  const std::vector<double> action{-1, -0.25, 0.3f, 1};
  EXPECT_EQ(act(action), 1u);
  const ActionView& view = publisher_->poll(kNow, kMaxAge);
  ASSERT_TRUE(view.usable()) << view.why();
  view.apply_to(balancer_);
  for (int j = 0; j < 4; ++j) {
    const auto a = static_cast<float>(action[j]);
    EXPECT_EQ(balancer_.weights()[j], core::weight_to_q16(core::weight_of_action(a)));
    EXPECT_EQ(balancer_.action()[j], a);
  }
  publish();
  const Snapshot snapshot = snapshot_of(*agent_);
  EXPECT_EQ(snapshot.servers()[3].weight_q16, 4u << 16);
  EXPECT_EQ(steelyard_shm_double(snapshot.servers()[1].action), -0.25);
  EXPECT_EQ(snapshot.head().action_generation, 1u);
  EXPECT_EQ(snapshot.head().action_status, STEELYARD_SHM_USABLE);
}

TEST_F(ShmAction, WeightsGoThroughTheSameDoor) {
  act({0, 1.5, 2, 1e9}, STEELYARD_SHM_KIND_WEIGHT);
  const ActionView& view = publisher_->poll(kNow, kMaxAge);
  ASSERT_TRUE(view.usable()) << view.why();
  view.apply_to(balancer_);
  EXPECT_EQ(balancer_.weights(), (std::vector<core::WeightQ16>{1, 3 << 15, 2 << 16, 65535u << 16}));
}

// Excludes: the first action, which the authors number 0, is ignored.
TEST_F(ShmAction, TheFirstCountsAndNoneIsNotZero) {
  EXPECT_EQ(status(), STEELYARD_SHM_NONE);
  EXPECT_EQ(publisher_->poll(kNow, kMaxAge).generation, 0u);
  act(kZeros);
  EXPECT_EQ(status(), STEELYARD_SHM_USABLE);
  EXPECT_EQ(publisher_->poll(kNow, kMaxAge).generation, 1u);
}

// Excludes: after a restart of the agent its actions are ignored until their numbers have caught up.
TEST_F(ShmAction, AnAgentsRestartNeedsNoCatchingUp) {
  for (int i = 0; i < 50; ++i) act(kZeros);
  EXPECT_EQ(publisher_->poll(kNow, kMaxAge).generation, 50u);
  start_agent();
  act({1, 1, 1, 0.5});
  const ActionView& view = publisher_->poll(kNow, kMaxAge);
  ASSERT_TRUE(view.usable());
  EXPECT_EQ(view.generation, 51u);
  EXPECT_EQ(view.action[3], 0.5f);
  EXPECT_EQ(agent_->header().agent_generation, 2u);
}

TEST_F(ShmAction, ADataplanesRestartKeepsTheActionAndGoesOnPublishing) {
  for (int i = 0; i < 10; ++i) publish();
  act({1, 1, 1, 0.5});
  start_dataplane();
  EXPECT_EQ(publisher_->generation(), 2u);
  const ActionView& view = publisher_->poll(kNow, kMaxAge);
  ASSERT_TRUE(view.usable());
  EXPECT_EQ(view.action[3], 0.5f);
  const Snapshot snapshot = snapshot_of(*agent_);
  EXPECT_EQ(snapshot.head().publication, 12u);
  EXPECT_EQ(snapshot.head().writer_generation, 2u);
  EXPECT_EQ(act(kZeros), 2u);
  EXPECT_EQ(publisher_->poll(kNow, kMaxAge).generation, 2u);
}

TEST_F(ShmAction, IsJudgedByItsAge) {
  act(kZeros, STEELYARD_SHM_KIND_ACTION, kNow - kMaxAge);
  EXPECT_EQ(status(), STEELYARD_SHM_USABLE);
  EXPECT_EQ(publisher_->poll(kNow, kMaxAge).age, kMaxAge);
  act(kZeros, STEELYARD_SHM_KIND_ACTION, kNow - kMaxAge - 1);
  EXPECT_EQ(status(), STEELYARD_SHM_STALE);
  act(kZeros, STEELYARD_SHM_KIND_ACTION, kNow + 1000);  // the dataplane's time was read before
  EXPECT_EQ(status(), STEELYARD_SHM_USABLE);
  act(kZeros, STEELYARD_SHM_KIND_ACTION, kNow + 10 * kSecond);
  EXPECT_EQ(status(), STEELYARD_SHM_FUTURE);
}

TEST_F(ShmAction, OfNoUseSaysWhy) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = HUGE_VAL;
  for (const double bad : {nan, -nan, inf, -inf}) {
    for (size_t j = 0; j < 4; ++j) {
      std::vector<double> values(4, 0.5);
      values[j] = bad;
      act(values);
      EXPECT_EQ(status(), STEELYARD_SHM_NOT_FINITE);
      act(values, STEELYARD_SHM_KIND_WEIGHT);
      EXPECT_EQ(status(), STEELYARD_SHM_NOT_FINITE);
    }
  }
  act({0, 0, 1.01, 0});
  EXPECT_EQ(status(), STEELYARD_SHM_OUT_OF_RANGE);
  act({0, 0, -1.01, 0});
  EXPECT_EQ(status(), STEELYARD_SHM_OUT_OF_RANGE);
  act({1, 1, -1, 1}, STEELYARD_SHM_KIND_WEIGHT);
  EXPECT_EQ(status(), STEELYARD_SHM_OUT_OF_RANGE);
  act(kZeros, 3);
  EXPECT_EQ(status(), STEELYARD_SHM_OUT_OF_RANGE);
  EXPECT_EQ(publisher_->poll(kNow, kMaxAge).action.size(), 0u);
  act(kZeros);
  EXPECT_EQ(status(), STEELYARD_SHM_USABLE);
}

TEST_F(ShmAction, ZeroSumIsOverActiveServers) {
  act(kZeros, STEELYARD_SHM_KIND_WEIGHT);
  EXPECT_EQ(status(), STEELYARD_SHM_ZERO_SUM);
  act({0, 0, 1, 0}, STEELYARD_SHM_KIND_WEIGHT);
  EXPECT_EQ(status(), STEELYARD_SHM_USABLE);
  balancer_.set_members(std::vector<core::ServerId>{0, 1, 3});
  publish();
  EXPECT_EQ(status(), STEELYARD_SHM_ZERO_SUM);
  act(kZeros);  // an action of 0 is a weight of 1
  EXPECT_EQ(status(), STEELYARD_SHM_USABLE);
}

TEST_F(ShmAction, ForOtherServersIsRefused) {
  act(kZeros);
  EXPECT_EQ(status(), STEELYARD_SHM_USABLE);
  publisher_->set_pool_id(8);
  EXPECT_EQ(status(), STEELYARD_SHM_OTHER_POOL);
  publish();
  act(kZeros);
  EXPECT_EQ(status(), STEELYARD_SHM_USABLE);
  start_dataplane(9);
  EXPECT_EQ(status(), STEELYARD_SHM_OTHER_POOL);
  const std::string ab[] = {"a", "b"}, ba[] = {"b", "a"}, joined[] = {"ab"};
  EXPECT_NE(pool_id_of(ab), pool_id_of(ba));
  EXPECT_NE(pool_id_of(ab), pool_id_of(joined));
}

TEST_F(ShmAction, WithdrawingTakesEffectAtOnce) {
  act(kZeros);
  agent_->withdraw(kNow);
  EXPECT_EQ(status(), STEELYARD_SHM_WITHDRAWN);
  publish();
  EXPECT_EQ(snapshot_of(*agent_).head().action_status, STEELYARD_SHM_WITHDRAWN);
}

// An agent that died while it wrote, at every word.
TEST_F(ShmAction, AHalfWrittenOneIsNotSeen) {
  steelyard_shm_file file;
  for (uint64_t died_at = 0; died_at < 40; ++died_at) {
    start_agent();
    const uint64_t whole = act({0, 0, 0, 0.25});
    agent_.reset();
    ASSERT_EQ(steelyard_shm_open(&file, path_.c_str(), STEELYARD_SHM_AGENT, 0), 0) << file.error;
    const steelyard_shm_channel channel = steelyard_shm_actions(file.map, &file.layout);
    uint64_t* frame = steelyard_shm_begin(&channel, whole + 1);
    for (uint64_t i = 1; i < std::min(died_at, channel.words); ++i)
      steelyard_shm_store(frame + i, ~uint64_t{0});
    steelyard_shm_close(&file);
    const ActionView& view = publisher_->poll(kNow, kMaxAge);
    ASSERT_TRUE(view.usable()) << view.why();
    EXPECT_EQ(view.generation, whole);
    EXPECT_EQ(view.action[3], 0.25f);
  }
}

// What C++ publishes a program in C reads, and what that writes comes back.
TEST_F(ShmAction, AConsumerInC) {
  send_flows(balancer_, 0, 900);
  balancer_.set_members(std::vector<core::ServerId>{1, 3});
  std::vector<ServerCounters> counters(4);
  counters[3].packets = 12345;
  publisher_->publish(balancer_, counters, kNow);
  agent_.reset();
  const std::string command = STEELYARD_SHM_CONSUMER " " + std::string(path_);
  FILE* consumer = popen(command.c_str(), "r");
  ASSERT_NE(consumer, nullptr);
  uint64_t server, on, packets, count, lines = 0;
  double mean;
  char first[80];
  ASSERT_NE(std::fgets(first, sizeof first, consumer), nullptr);
  EXPECT_STREQ(first, "publication 2 active 2\n");
  while (std::fscanf(consumer, "server %lu on %lu packets %lu fct %lf of %lu\n", &server, &on, &packets,
                     &mean, &count) == 5) {
    EXPECT_EQ(server, lines++ == 0 ? 1u : 3u);
    EXPECT_EQ(on, balancer_.flows_on()[server]);
    EXPECT_EQ(packets, server == 3 ? 12345u : 0u);
    const core::Reservoir& fct = balancer_.completions()[server];
    ASSERT_EQ(count, static_cast<uint64_t>(fct.filled()));
    double sum = 0;
    for (int i = 0; i < fct.filled(); ++i) sum += static_cast<double>(fct.value_at(i));
    EXPECT_DOUBLE_EQ(mean, sum / fct.filled());
  }
  EXPECT_EQ(pclose(consumer), 0);
  EXPECT_EQ(lines, 2u);
  const ActionView& view = publisher_->poll(kNow, kMaxAge);
  ASSERT_TRUE(view.usable()) << view.why();
  EXPECT_EQ(view.weights[3], 4.0);
}

TEST_F(ShmAction, EveryStatusHasItsWords) {
  for (uint64_t s = 0; s < STEELYARD_SHM_NUM_STATUS; ++s)
    EXPECT_STRNE(steelyard_shm_status_text(s), "unknown status");
  EXPECT_STREQ(steelyard_shm_status_text(99), "unknown status");
}

}  // namespace
}  // namespace steelyard::shm
