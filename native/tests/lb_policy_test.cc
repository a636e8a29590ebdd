// Where a VIP's weights come from, and that lsq goes on, bit for bit, when they do not come.
#include <gtest/gtest.h>

#include <cmath>

#include "native/core/schema.h"
#include "native/tests/lb_frames.h"
#include "native/tests/policy_samples.h"
#include "native/tests/shm_samples.h"

namespace steelyard::testing {
namespace {

using core::PolicyInput;
using core::PolicyOutput;
using shm::Reader;

constexpr int kServers = 4;
constexpr TimeNs kInterval = kSecond / 4;

core::PolicySpec spec_of(uint32_t servers, uint32_t central_agents = 0, uint32_t actors = 1) {
  return core::PolicyMaker(3).policy(servers, PolicyInput::kFlat, PolicyOutput::kTanh, 8, actors,
                                     central_agents);
}

PolicyArtefact artefact_of(const core::PolicySpec& spec) {
  const std::vector<uint8_t> blob = core::blob_of(spec);
  PolicyArtefact artefact;
  artefact.policy = core::load_policy_bytes(blob.data(), blob.size(), &artefact.error);
  artefact.digest = core::mix64(blob.size());
  return artefact;
}

// Ticks from now on, past the next update; the time afterwards.
TimeNs ticked(Vip& vip, TimeNs now) {
  for (const TimeNs end = now + 2 * kInterval; now < end; now += kSecond / 100) vip.tick(now);
  return now;
}

bool all_weights_are_one(const Vip& vip) {
  return vip.core().weights() == std::vector<core::WeightQ16>(kServers, core::kUnitWeight);
}

void expect_lsq(Vip& vip, TimeNs now) {
  Vip lsq(vip_config(kServers, "lsq"), PolicyArtefact(), 0, 1, 7);
  EXPECT_TRUE(all_weights_are_one(vip));
  for (uint16_t port = 1; port <= 200; ++port) {
    EXPECT_EQ(vip.route(segment(port, kSyn), now), lsq.route(segment(port, kSyn), now));
  }
}

TEST(LbPolicy, AHostedOneSetsTheWeightsOfItsAction) {
  const PolicyArtefact artefact = artefact_of(spec_of(kServers));
  ASSERT_TRUE(artefact.policy) << artefact.error;
  Vip vip(vip_config(kServers, "policy"), artefact, 0, 1, 7);
  vip.tick(0);
  core::LoadBalancer fresh(vip.balancer_config(), vip.rule_config());
  fresh.restart(1);
  std::vector<float> seen(core::observation_size(kServers)), action(kServers);
  fresh.observe(0, seen.data());
  ASSERT_TRUE(core::HostedPolicy(artefact.policy, 1).act(0, seen.data(), action.data()));
  EXPECT_EQ(vip.core().action(), action);
  for (int j = 0; j < kServers; ++j) {
    EXPECT_EQ(vip.core().weights()[j], core::weight_to_q16(core::weight_of_action(action[j])));
  }
  EXPECT_FALSE(all_weights_are_one(vip));
  EXPECT_TRUE(vip.policy().healthy());
  EXPECT_EQ(vip.policy().decisions(), 1u);
}

// An overflow that the blob's checks cannot see: all its numbers are finite, what it computes is not.
core::PolicySpec overflowing() {
  core::PolicySpec spec = core::PolicyMaker(3).policy(kServers, PolicyInput::kFlat, PolicyOutput::kTanh, 0);
  for (float& weight : spec.actors[0].layers[0].weight) weight = 3e38F;
  for (float& mean : spec.actors[0].mean) mean = -4.0F;
  for (size_t i = 0; i < spec.actors[0].layers[0].weight.size(); i += 2) {
    spec.actors[0].layers[0].weight[i] = -3e38F;
  }
  return spec;
}

TEST(LbPolicy, EveryOneThatDoesNotFitIsReplacedByLsq) {
  std::vector<uint8_t> other = core::blob_of(spec_of(kServers));
  other[24] ^= 1;
  core::seal(&other);
  PolicyArtefact other_schema;
  other_schema.policy = core::load_policy_bytes(other.data(), other.size(), &other_schema.error);
  PolicyArtefact unreadable;
  unreadable.error = "cannot open: No such file or directory";
  const struct {
    PolicyArtefact artefact;
    const char* why;
  } cases[] = {
      {unreadable, "cannot open"},
      {artefact_of(spec_of(3)), "policy is for 3 servers; this pool has 4"},
      {artefact_of(spec_of(kServers, 2)), "central"},
      {artefact_of(spec_of(kServers, 0, 3)), "actors"},
      {other_schema, "schema"},
      {artefact_of(overflowing()), "no finite action"},
      {PolicyArtefact(), "no policy_file and no shared_memory"},
  };
  for (const auto& [artefact, why] : cases) {
    Vip vip(vip_config(kServers, "policy"), artefact, 0, 1, 7);
    vip.tick(0);
    EXPECT_FALSE(vip.policy().healthy());
    EXPECT_NE(vip.policy().why().find(why), std::string::npos) << vip.policy().why();
    EXPECT_EQ(vip.policy().fallbacks(), 1u);
    EXPECT_TRUE(vip.policy().take_change());
    expect_lsq(vip, ticked(vip, 1));
    EXPECT_EQ(vip.policy().fallbacks(), 1u) << "it is said once";
    EXPECT_FALSE(vip.policy().take_change());
    vip.reconfigure(vip.config(), artefact_of(spec_of(kServers)), kSecond);
    vip.tick(kSecond);
    EXPECT_TRUE(vip.policy().healthy()) << vip.policy().why();
    EXPECT_TRUE(vip.policy().take_change());
    EXPECT_FALSE(all_weights_are_one(vip));
  }
}

TEST(LbPolicy, AReloadOfTheSameFileLeavesItRunning) {
  const PolicyArtefact artefact = artefact_of(spec_of(kServers));
  Vip vip(vip_config(kServers, "policy"), artefact, 0, 1, 7), twin(vip.config(), artefact, 0, 1, 7);
  TimeNs now = 0;
  for (int i = 0; i < 5; ++i, now += kInterval) {
    vip.tick(now);
    twin.tick(now);
    vip.reconfigure(vip.config(), artefact_of(spec_of(kServers)), now + kInterval);
    EXPECT_EQ(vip.core().action(), twin.core().action()) << i;
  }
  PolicyArtefact unreadable;
  unreadable.error = "cannot open";
  vip.reconfigure(vip.config(), unreadable, now);
  vip.tick(now);
  EXPECT_TRUE(vip.policy().healthy()) << "what runs goes on";
}

// A VIP that is told its weights, and its agent.
class LbAgent : public ::testing::Test {
 protected:
  LbAgent() : vip_(make()) { vip_->tick(now_); }
  std::unique_ptr<Vip> make() const {
    VipConfig config = vip_config(kServers, "policy");
    config.shared_memory = path_;
    return std::make_unique<Vip>(config, PolicyArtefact(), 0, 1, 7);
  }
  void start_agent() { agent_ = shm::reader_at(path_, Reader::As::kAgent); }
  void act(const std::vector<double>& values, uint64_t kind = STEELYARD_SHM_KIND_ACTION) {
    agent_->write(kind, values, shm::snapshot_of(*agent_).head(), now_);
    tick();
  }
  void tick() { vip_->tick(now_ += kInterval); }
  void expect_fallback(const std::string& why) {
    EXPECT_FALSE(vip_->policy().healthy()) << why;
    EXPECT_NE(vip_->policy().why().find(why), std::string::npos) << vip_->policy().why();
    EXPECT_TRUE(all_weights_are_one(*vip_)) << why;
  }
  void expect_health(core::WeightQ16 last) {
    EXPECT_TRUE(vip_->policy().healthy()) << vip_->policy().why();
    EXPECT_EQ(vip_->core().weights().back(), last);
  }

  const shm::TestPath path_;
  TimeNs now_ = 100 * kSecond;
  std::unique_ptr<Vip> vip_;
  std::unique_ptr<Reader> agent_;
};

TEST_F(LbAgent, SetsWeightsWhileTheyAreUsable) {
  expect_fallback("no agent has written yet");
  expect_lsq(*make(), now_);
  start_agent();
  const std::vector<double> good{0, 0, 0, 1};
  act(good);
  expect_health(4 * core::kUnitWeight);
  const struct {
    std::vector<double> values;
    uint64_t kind;
    const char* why;
  } bad[] = {
      {{0, 0, 0, std::nan("")}, STEELYARD_SHM_KIND_ACTION, "not finite"},
      {{0, 0, 0, 2}, STEELYARD_SHM_KIND_ACTION, "out of range"},
      {{0, 0, 0, 0}, STEELYARD_SHM_KIND_WEIGHT, "no active server has a weight above 0"},
      {{0, 0, 0, -1}, STEELYARD_SHM_KIND_WEIGHT, "out of range"},
      {{1, 1, 1, INFINITY}, STEELYARD_SHM_KIND_WEIGHT, "not finite"},
  };
  for (const auto& [values, kind, why] : bad) {
    act(values, kind);
    expect_fallback(why);
    act({1, 1, 1, 2.5}, STEELYARD_SHM_KIND_WEIGHT);
    expect_health(5 << 15);
  }
}

TEST_F(LbAgent, ThatIsGoneIsReplacedByLsqAndTheNextOneActsAtOnce) {
  start_agent();
  act({0, 0, 0, 1});
  expect_health(4 * core::kUnitWeight);
  agent_.reset();  // as a crash: no last word
  for (int i = 0; i < 5; ++i) tick();
  expect_fallback("stale: older than the limit");
  start_agent();
  act({0, 0, 0, -1});
  expect_health(core::kUnitWeight / 4);
  agent_->withdraw(now_);
  tick();
  expect_fallback("the agent has withdrawn");
}

TEST_F(LbAgent, DoesNotDecideForOtherServers) {
  start_agent();
  const steelyard_shm_state before = shm::snapshot_of(*agent_).head();
  VipConfig config = vip_->config();
  config.servers[2].address = address("10.9.9.9");
  vip_->reconfigure(config, PolicyArtefact(), now_);
  vip_->tick(now_);
  const std::vector<double> answer{0, 0, 0, 1};
  agent_->write(STEELYARD_SHM_KIND_ACTION, answer, before, now_);
  tick();
  expect_fallback("made for other servers");
  act(answer);
  expect_health(4 * core::kUnitWeight);
}

// Excludes: a server that takes a removed one's place inherits what was measured of that.
TEST(LbPolicy, AServerInTheOthersPlaceStartsAnew) {
  VipConfig config = vip_config(2);
  Vip vip(config, PolicyArtefact(), 0, 1, 7);
  for (uint16_t port = 1; port <= 20; ++port) {
    for (const uint8_t flags : {kSyn, kAck, uint8_t{kFin | kAck}}) vip.route(segment(port, flags), kSecond);
  }
  EXPECT_GT(vip.core().completions()[1].filled(), 0);
  ticked(vip, 20 * kSecond);
  config.servers[1].address = address("10.9.9.9");
  for (TimeNs now = 20 * kSecond; now < 24 * kSecond; now += kSecond / 100) vip.tick(now);
  vip.reconfigure(config, PolicyArtefact(), 24 * kSecond);
  EXPECT_EQ(vip.core().completions()[1].filled(), 0);
}

}  // namespace
}  // namespace steelyard::testing
