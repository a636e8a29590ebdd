// Tapes: what a recorder wrote is decided again, nothing damaged is let in, and a full disk stops a recorder
// and nobody else.
#include "native/tape/tape.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "native/core/blob_io.h"
#include "native/core/policy_blob.h"
#include "native/sim/cluster.h"
#include "native/tape/recorder.h"
#include "native/tape/replay.h"
#include "native/tests/policy_samples.h"
#include "native/tests/worlds.h"

namespace steelyard::tape {
namespace {

class Tapes : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = (std::filesystem::temp_directory_path() /
             ("steelyard_tape_" + std::to_string(getpid()) + "_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name()))
                .string();
  }
  void TearDown() override { std::remove(path_.c_str()); }

  std::vector<uint8_t> bytes() const {
    std::vector<uint8_t> found;
    std::string error;
    EXPECT_TRUE(read_file(path_, &found, &error)) << error;
    return found;
  }

  std::string path_;
};

core::RuleConfig rule_named(const char* name) {
  core::RuleConfig rule;
  rule.traits = core::find_rule(name);
  return rule;
}

core::BalancerConfig small_pool() {
  return {.num_servers = 3, .flow_table_buckets = 64, .flow_table_ways = 2, .reservoir_size = 16};
}

// A life of a balancer: flows that open, acknowledge and close, ticks, a server that leaves and comes back.
void live(core::LoadBalancer* balancer, core::BalancerLog* log, uint64_t flows) {
  balancer->restart(5);
  log->on_restart(5);
  const std::vector<core::ServerId> all = {0, 1, 2}, fewer = {0, 2};
  for (uint64_t k = 0; k < flows; ++k) {
    const auto now = static_cast<core::TimeNs>(1000 * k);
    if (k % 50 == 20 || k % 50 == 40) {
      const auto& members = k % 50 == 20 ? fewer : all;
      balancer->set_members(members);
      log->on_members(members, now);
    }
    const uint64_t hash = core::mix64(k + 1);
    const core::ServerId server = balancer->open(hash, balancer->choose(hash, now, nullptr), now);
    log->on_open(hash, server, now);
    if (k >= 3) {
      balancer->first_ack(core::mix64(k - 2), now + 10);
      log->on_first_ack(core::mix64(k - 2), now + 10);
    }
    if (k >= 5) {
      balancer->close(core::mix64(k - 4), k % 7 != 0, now + 20);
      log->on_close(core::mix64(k - 4), k % 7 != 0, now + 20);
    }
    if (k % 10 == 9) {
      balancer->tick(now + 30, nullptr);
      log->on_tick({}, now + 30);
    }
  }
}

TEST_F(Tapes, DecideAgainUnderEveryRuleThatATapeCanHold) {
  for (const core::RuleTraits& traits : core::all_rules()) {
    core::RuleConfig rule = rule_named(std::string(traits.name).c_str());
    if (traits.weighting == core::Weighting::kConfigured) rule.weights = {1, 2.5, 0.25};
    Recorder recorder;
    std::string error;
    if (!check_rule(rule).empty()) {
      EXPECT_FALSE(recorder.open(path_, header_of(small_pool(), rule, 0), &error)) << traits.name;
      continue;
    }
    ASSERT_TRUE(recorder.open(path_, header_of(small_pool(), rule, 0), &error, 7)) << error;
    core::LoadBalancer balancer(small_pool(), rule);
    live(&balancer, &recorder, 400);
    ASSERT_TRUE(recorder.close()) << recorder.failure();
    const std::vector<uint8_t> data = bytes();
    Tape tape;
    ASSERT_TRUE(read_tape(data.data(), data.size(), &tape, &error)) << error;
    EXPECT_EQ(tape.digest, recorder.digest());
    EXPECT_EQ(tape.header.rule.weights, rule.weights);
    Replay found;
    ASSERT_TRUE(replay(tape, nullptr, &found, &error)) << traits.name << ": " << error;
    EXPECT_EQ(found.digest, recorder.digest()) << traits.name;
    EXPECT_EQ(found.decisions, 400u);
    EXPECT_EQ(found.different, 0u);
  }
}

TEST_F(Tapes, OfTheSimulatorAreItsOwnDecisions) {
  auto config = std::make_shared<sim::ClusterConfig>(testing::cluster(4, 2, 3.0, 100.0));
  config->prepare();
  const core::RuleConfig rule = rule_named("hlb");
  Recorder recorder;
  std::string error;
  ASSERT_TRUE(recorder.open(path_, header_of({.num_servers = 4, .num_load_balancers = 2}, rule, 1), &error));
  sim::ClusterWorld world(config, rule, 3), silent(config, rule, 3);
  world.listen(1, &recorder);
  world.reset(3);
  sim::ClusterWorld copy = world;  // a copy tells nobody
  for (sim::ClusterWorld* one : {&world, &copy, &silent}) one->drain();
  EXPECT_EQ(world.digest(), silent.digest());
  EXPECT_EQ(copy.digest(), silent.digest());
  ASSERT_TRUE(recorder.close());
  EXPECT_GT(recorder.decisions(), 100u);
  const std::vector<uint8_t> data = bytes();
  Tape tape;
  Replay found;
  ASSERT_TRUE(read_tape(data.data(), data.size(), &tape, &error)) << error;
  ASSERT_TRUE(replay(tape, nullptr, &found, &error)) << error;
  EXPECT_EQ(found.digest, recorder.digest());
  EXPECT_EQ(found.different, 0u);
}

TEST_F(Tapes, OfAHostedPolicyNeedThatPolicy) {
  auto config = std::make_shared<sim::ClusterConfig>(testing::cluster(4, 2, 3.0, 100.0));
  config->hidden_features = {"fct", "p90"};
  config->actuation_delay_s = 0.01;
  config->prepare();
  const std::vector<uint8_t> blob =
      core::blob_of(core::PolicyMaker(3).policy(4, core::PolicyInput::kFlat, core::PolicyOutput::kTanh, 8));
  core::RuleConfig rule = rule_named("policy");
  std::string error;
  rule.policy = core::load_policy_bytes(blob.data(), blob.size(), &error);
  TapeHeader header = header_of({.num_servers = 4, .num_load_balancers = 2}, rule, 0);
  header.hidden = 1u << 2 | 1u << 6;
  Recorder recorder;
  ASSERT_TRUE(recorder.open(path_, header, &error)) << error;
  sim::ClusterWorld world(config, rule, 3);
  world.listen(0, &recorder);
  world.reset(3);
  world.drain();
  ASSERT_TRUE(recorder.close());
  const std::vector<uint8_t> data = bytes();
  Tape tape;
  Replay found;
  ASSERT_TRUE(read_tape(data.data(), data.size(), &tape, &error)) << error;
  EXPECT_FALSE(replay(tape, nullptr, &found, &error));
  EXPECT_EQ(error, "the tape's weights come from a hosted policy; give that policy");
  ASSERT_TRUE(replay(tape, rule.policy, &found, &error)) << error;
  EXPECT_EQ(found.digest, recorder.digest());
  const std::vector<uint8_t> other =
      core::blob_of(core::PolicyMaker(4).policy(4, core::PolicyInput::kFlat, core::PolicyOutput::kTanh, 8));
  ASSERT_TRUE(replay(tape, core::load_policy_bytes(other.data(), other.size(), &error), &found, &error));
  EXPECT_NE(found.digest, recorder.digest());
  EXPECT_GT(found.different, 0u);
}

TEST_F(Tapes, ThatAreDamagedAreRefusedInOneLine) {
  Recorder recorder;
  std::string error;
  ASSERT_TRUE(recorder.open(path_, header_of(small_pool(), rule_named("lsq"), 0), &error));
  core::LoadBalancer balancer(small_pool(), rule_named("lsq"));
  live(&balancer, &recorder, 30);
  ASSERT_TRUE(recorder.close());
  const std::vector<uint8_t> data = bytes();
  Tape tape;
  for (size_t size = 0; size < data.size(); size += 3) {
    EXPECT_FALSE(read_tape(data.data(), size, &tape, &error));
    EXPECT_EQ(error.find('\n'), std::string::npos);
    EXPECT_TRUE(error.starts_with("truncated tape") || error.starts_with("not a tape") ||
                error.starts_with("damaged tape"))
        << error;
  }
  for (size_t at = 0; at < data.size(); ++at) {
    std::vector<uint8_t> flipped = data;
    flipped[at] ^= 16;
    EXPECT_FALSE(read_tape(flipped.data(), flipped.size(), &tape, &error)) << at;
  }
}

TEST_F(Tapes, EndWithOneMessageOnAFullDisk) {
  const int full = open("/dev/full", O_WRONLY);
  if (full < 0) GTEST_SKIP() << "no /dev/full here";
  close(full);
  Recorder recorder;
  std::string error;
  EXPECT_FALSE(recorder.open("/dev/full", header_of(small_pool(), rule_named("lsq"), 0), &error));
  EXPECT_NE(error.find("No space left on device"), std::string::npos) << error;
  EXPECT_FALSE(recorder.recording());
  core::LoadBalancer balancer(small_pool(), rule_named("lsq"));
  live(&balancer, &recorder, 30);  // and decisions go on
  EXPECT_EQ(recorder.decisions(), 30u);
  EXPECT_NE(recorder.digest(), 0u);
  EXPECT_FALSE(recorder.close());
  EXPECT_FALSE(recorder.open("/nowhere/at/all", header_of(small_pool(), rule_named("lsq"), 0), &error));
  EXPECT_EQ(error, "cannot write: No such file or directory");
}

// The known answer: tapes that are kept with the sources, and the digests of their decisions.
TEST(TapeCorpus, DecidesAsItAlwaysDid) {
  const std::filesystem::path folder = STEELYARD_TAPES;
  std::ifstream list(folder / "digests.txt");
  std::string name, policy, stated;
  int found = 0;
  while (list >> name >> policy >> stated) {
    std::vector<uint8_t> data, blob;
    std::string error;
    ASSERT_TRUE(read_file((folder / name).string(), &data, &error)) << error;
    Tape tape;
    ASSERT_TRUE(read_tape(data.data(), data.size(), &tape, &error)) << error;
    const auto hosted = policy == "-" ? nullptr : core::load_policy_file((folder / policy).string(), &error);
    Replay result;
    ASSERT_TRUE(replay(tape, hosted, &result, &error)) << name << ": " << error;
    char digest[17];
    std::snprintf(digest, sizeof digest, "%016llx", static_cast<unsigned long long>(result.digest));
    EXPECT_EQ(digest, stated) << name;
    EXPECT_EQ(result.digest, tape.digest) << name;
    ++found;
  }
  EXPECT_GE(found, 2);
}

}  // namespace
}  // namespace steelyard::tape
