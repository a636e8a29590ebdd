// What a VIP records is decided again by a replay, to the last decision; a tape that ends changes nothing.
#include <gtest/gtest.h>
#include <unistd.h>

#include "native/core/rng.h"
#include "native/dataplane/tapes.h"
#include "native/tape/replay.h"
#include "native/tests/lb_frames.h"
#include "native/tests/policy_samples.h"
#include "native/tests/shm_samples.h"

namespace steelyard::testing {
namespace {

class LbTape : public ::testing::Test {
 protected:
  LbTape() : path_(::testing::TempDir() + "steelyard_lb_tape_" + std::to_string(getpid())) {}
  ~LbTape() override { unlink(path_.c_str()); }

  Forwarder forwarder(VipConfig config, const PolicyArtefact& policy = {}) const {
    config.tape = path_;
    Config whole = config_of(config);
    whole.num_balancers = 2;
    whole.balancer = 1;
    return Forwarder(whole, test_link(), {&policy, 1});
  }
  tape::Replay replayed(std::shared_ptr<const core::LoadedPolicy> policy = nullptr) const {
    std::vector<uint8_t> bytes;
    std::string error;
    tape::Tape tape;
    tape::Replay found;
    EXPECT_TRUE(tape::read_file(path_, &bytes, &error)) << error;
    EXPECT_TRUE(tape::read_tape(bytes.data(), bytes.size(), &tape, &error)) << error;
    EXPECT_TRUE(tape::replay(tape, std::move(policy), &found, &error)) << error;
    EXPECT_EQ(found.digest, tape.digest);
    return found;
  }

  const std::string path_;
};

const Send kNoSend = [](std::span<const uint8_t>) {};

// Frames of a thousand clients in random order of events, from `first` on, a millisecond apart.
void live(Forwarder& forwarder, uint64_t first, uint64_t end) {
  constexpr uint8_t kEvents[] = {kSyn, kAck, kAck | kPsh, kFin | kAck, kRst, kSyn};
  for (uint64_t key = first; key < end; ++key) {
    const uint64_t word = core::draw(11, key);
    Frame frame = make_frame({.source_port = static_cast<uint16_t>(1 + word % 1000),
                              .flags = kEvents[(word >> 20) % std::size(kEvents)]});
    Packet packet = frame.packet();
    const auto now = static_cast<TimeNs>(key + 1) * 1'000'000;
    forwarder.process(&packet, now);
    if (key % 10 == 0) forwarder.tick(now, kNoSend);
  }
}

TEST_F(LbTape, IsReplayedUnderEveryRule) {
  for (const char* rule : {"ecmp", "wcmp", "lsq", "lsq2", "sed", "sed2", "hlb", "hlb2", "maglev", "rr",
                           "least_request", "peak_ewma"}) {
    VipConfig config = vip_config(7, rule);
    config.servers[1].weight = 3;
    Forwarder balancer = forwarder(config);
    Tapes tapes;
    tapes.start(&balancer, 1);
    live(balancer, 0, 4000);
    Config drained = balancer.config();
    drained.vips[0].servers[4].drain = true;
    const PolicyArtefact none;
    balancer.reconfigure(drained, {&none, 1}, 4 * kSecond);
    live(balancer, 4000, 8000);
    EXPECT_TRUE(tapes.ended(&balancer).empty()) << "a drain is on the tape";
    const std::vector<Tapes::Ended> ended = tapes.finish(&balancer);
    ASSERT_EQ(ended.size(), 1u);
    EXPECT_EQ(ended[0].why, "");
    const tape::Replay found = replayed();
    EXPECT_EQ(found.digest, ended[0].digest) << rule;
    EXPECT_EQ(found.decisions, ended[0].decisions);
    EXPECT_EQ(found.different, 0u);
    EXPECT_GT(found.decisions, 1000u);
  }
}

TEST_F(LbTape, OfAHostedPolicyIsReplayedWithIt) {
  const std::vector<uint8_t> blob = core::blob_of(
      core::PolicyMaker(3).policy(5, core::PolicyInput::kPerServer, core::PolicyOutput::kTanh, 8));
  PolicyArtefact artefact;
  artefact.policy = core::load_policy_bytes(blob.data(), blob.size(), &artefact.error);
  artefact.digest = 77;
  Forwarder balancer = forwarder(vip_config(5, "policy"), artefact);
  Tapes tapes;
  tapes.start(&balancer, 1);
  live(balancer, 0, 4000);
  const Config same = balancer.config();
  balancer.reconfigure(same, {&artefact, 1}, 4 * kSecond);
  live(balancer, 4000, 8000);
  const std::vector<Tapes::Ended> ended = tapes.finish(&balancer);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].why, "");
  EXPECT_EQ(replayed(artefact.policy).digest, ended[0].digest);
}

TEST_F(LbTape, OfAnAgentHoldsItsActions) {
  const shm::TestPath memory;
  VipConfig config = vip_config(5, "policy");
  config.shared_memory = memory;
  Forwarder balancer = forwarder(config);
  Tapes tapes;
  tapes.start(&balancer, 1);
  balancer.tick(1, kNoSend);
  const auto agent = shm::reader_at(memory, shm::Reader::As::kAgent);
  for (uint64_t part = 0; part < 8; ++part) {
    const auto now = static_cast<TimeNs>(part) * kSecond;
    const std::vector<double> values = {0.1 * static_cast<double>(part), 1, 0.5, 0.25, 0};
    const uint64_t kind = part % 2 == 0 ? STEELYARD_SHM_KIND_ACTION : STEELYARD_SHM_KIND_WEIGHT;
    if (part != 5) agent->write(kind, values, shm::snapshot_of(*agent).head(), now);  // once it is late
    live(balancer, part * 1000, part * 1000 + 1000);
  }
  EXPECT_GT(balancer.vips()[0]->policy().decisions(), 10u);
  EXPECT_GT(balancer.vips()[0]->policy().fallbacks(), 0u);
  const std::vector<Tapes::Ended> ended = tapes.finish(&balancer);
  EXPECT_EQ(replayed().digest, ended[0].digest);
}

TEST_F(LbTape, EndsWhereTheRuleOrTheServersChange) {
  Forwarder balancer = forwarder(vip_config(3));
  Tapes tapes;
  tapes.start(&balancer, 1);
  live(balancer, 0, 1000);
  Config other = balancer.config();
  other.vips[0].servers.pop_back();
  const PolicyArtefact none;
  balancer.reconfigure(other, {&none, 1}, kSecond);
  live(balancer, 1000, 2000);
  const std::vector<Tapes::Ended> ended = tapes.ended(&balancer);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_NE(ended[0].why, "");
  EXPECT_EQ(replayed().decisions, ended[0].decisions) << "what is on it is whole";
  EXPECT_TRUE(tapes.ended(&balancer).empty());
  EXPECT_TRUE(tapes.finish(&balancer).empty());
}

TEST_F(LbTape, OfAVipThatCameBackStartsAnew) {
  Forwarder balancer = forwarder(vip_config(3));
  Tapes tapes;
  tapes.start(&balancer, 1);
  const Config with = balancer.config();
  Config without = with;
  without.vips[0] = vip_config(3, "lsq", "10.0.0.2");
  const PolicyArtefact none;
  balancer.reconfigure(without, {&none, 1}, 1);
  tapes.start(&balancer, 1);
  EXPECT_EQ(tapes.ended(&balancer).size(), 1u);
  balancer.reconfigure(with, {&none, 1}, 2);
  tapes.start(&balancer, 2);
  live(balancer, 0, 1000);
  const std::vector<Tapes::Ended> ended = tapes.finish(&balancer);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_GT(ended[0].decisions, 100u);
  EXPECT_EQ(replayed().digest, ended[0].digest);
}

TEST(LbTapes, AFullDiskEndsTheTapeAlone) {
  VipConfig config = vip_config(3);
  config.tape = "/dev/full";
  const PolicyArtefact none;
  Forwarder balancer(config_of(config), test_link(), {&none, 1}),
      twin(config_of(config), test_link(), {&none, 1});
  Tapes tapes;
  tapes.start(&balancer, 1);
  const std::vector<Tapes::Ended> ended = tapes.ended(&balancer);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_NE(ended[0].why.find("No space left"), std::string::npos) << ended[0].why;
  live(balancer, 0, 2000);
  live(twin, 0, 2000);
  EXPECT_EQ(balancer.vips()[0]->core().flows_on(), twin.vips()[0]->core().flows_on());
}

}  // namespace
}  // namespace steelyard::testing
