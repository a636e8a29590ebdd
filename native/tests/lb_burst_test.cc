// A burst of frames has the fate of its frames one by one: the shorter way of plain packets decides, counts
// and writes what the whole way does.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "native/tests/lb_frames.h"

namespace steelyard::testing {
namespace {

struct Case {
  Forwarding forwarding;
  bool bare;
  friend void PrintTo(const Case& c, std::ostream* out) {
    *out << static_cast<int>(c.forwarding) << (c.bare ? ", bare" : "");
  }
};

// Four VIPs with little room, so that connections are evicted and run out of time; one in IPv6 is reached by
// IPv4 servers too where there are tunnels.
Config small_config(Forwarding forwarding) {
  Config config;
  config.link.mac = kOurs;
  config.link.address4 = test_link().address4;
  config.link.address6 = test_link().address6;
  for (const char* vip : {"10.0.0.1", "10.0.0.2", "fd00::1"}) {
    for (const uint8_t protocol : {kTcp, kUdp}) {
      VipConfig made = vip_config(3, "lsq", vip);
      made.name += protocol == kTcp ? " tcp" : " udp";
      made.protocol = protocol;
      made.forwarding = forwarding;
      made.connections = 64;
      made.timeouts = {.opening_s = 1, .established_s = 2, .closing_s = 1, .udp_s = 1};
      if (forwarding == Forwarding::kNat) {
        // Each VIP has servers of its own: answers tell by them where they belong.
        for (ServerConfig& server : made.servers) server.address.low += 16 * config.vips.size();
      }
      config.vips.push_back(made);
    }
  }
  return config;
}

Link small_link(bool bare) {
  Link link = test_link();
  link.bare = bare;
  return link;
}

class Frames {
 public:
  // `sound`: IPv4 headers keep a right checksum whatever happens to them.
  Frames(uint64_t seed, bool sound) : random_(seed), sound_(sound) {}

  size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

  Frame next() {
    static constexpr uint8_t kFlags[] = {kSyn,        kAck,        kAck, kAck, kAck | kPsh,
                                         kAck | 0x20, kFin | kAck, kRst, 0};
    static const std::string kTo[] = {"10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.2", "fd00::1", "10.9.9.9"};
    FrameSpec spec;
    spec.to = kTo[below(std::size(kTo))];
    spec.from = spec.to[0] == 'f' ? "2001:db8::7" : "192.0.2.7";
    spec.source_port = static_cast<uint16_t>(40000 + below(160));
    spec.port = below(20) == 0 ? 81 : 80;
    spec.protocol = below(4) == 0 ? kUdp : kTcp;
    spec.flags = kFlags[below(std::size(kFlags))];
    static constexpr uint32_t kMost = 1500 - 2 * kIpv4Size - 20 - kGreSize;  // that a tunnel takes
    spec.payload =
        below(10) == 0 ? kMost - 1 + static_cast<uint32_t>(below(60)) : static_cast<uint32_t>(below(40));
    if (below(12) == 0) {  // a server answers
      spec.from = "10.0.1.1";
      std::swap(spec.source_port, spec.port);
      spec.to = "192.0.2.7";
    }
    Frame frame = make_frame(spec);
    if (below(3) == 0) damage(&frame);
    return frame;
  }

 private:
  void damage(Frame* frame) {
    uint8_t* data = frame->packet().data;
    const bool v4 = load16(data + 12) == kEtherIpv4;
    if (below(4) == 0) {
      frame->bytes.resize(kHeadroom + below(frame->size() + 1));
    } else {
      data[below(std::min<size_t>(60, frame->size()))] ^= static_cast<uint8_t>(1u << below(8));
    }
    if (!v4 || frame->size() < kEthernetSize + kIpv4Size || !(sound_ || below(2) == 0)) return;
    uint8_t* ip = frame->packet().data + kEthernetSize;
    store16(ip + 10, 0);
    store16(ip + 10, checksum_of(sum_words(ip, kIpv4Size)));
  }

  std::mt19937_64 random_;
  bool sound_;
};

void expect_equal_state(const Forwarder& one, const Forwarder& other) {
  for (int v = 0; v < kVerdicts; ++v)
    EXPECT_EQ(one.verdicts(static_cast<Verdict>(v)), other.verdicts(static_cast<Verdict>(v))) << v;
  for (size_t i = 0; i < one.vips().size(); ++i) {
    const Vip &a = *one.vips()[i], &b = *other.vips()[i];
    EXPECT_EQ(a.table().live(), b.table().live());
    EXPECT_EQ(a.counters().evicted, b.counters().evicted);
    EXPECT_EQ(a.counters().adopted, b.counters().adopted);
    for (size_t j = 0; j < a.endpoints().size(); ++j) {
      EXPECT_EQ(a.endpoints()[j].packets, b.endpoints()[j].packets);
      EXPECT_EQ(a.endpoints()[j].bytes, b.endpoints()[j].bytes);
      EXPECT_EQ(a.endpoints()[j].opened, b.endpoints()[j].opened);
      EXPECT_EQ(a.endpoints()[j].completed, b.endpoints()[j].completed);
    }
  }
}

class Burst : public ::testing::TestWithParam<Case> {};

TEST_P(Burst, HasTheFateOfItsFrames) {
  const auto [forwarding, bare] = GetParam();
  const Config config = small_config(forwarding);
  const std::vector<PolicyArtefact> policies(config.vips.size());
  ASSERT_EQ(check_config(config), "");
  Forwarder alone(config, small_link(bare), policies), together(config, small_link(bare), policies);
  Frames frames(7, bare);
  std::map<Verdict, int> seen;
  TimeNs now = 0;
  for (int round = 0; round < 1500; ++round) {
    now += static_cast<TimeNs>(frames.below(20)) * kSecond / 200;
    std::vector<Frame> first(1 + frames.below(Forwarder::kBurst));
    for (Frame& frame : first) frame = frames.next();
    std::vector<Frame> second = first;
    std::vector<Packet> burst;
    for (Frame& frame : second) burst.push_back(frame.packet());
    std::vector<Verdict> verdicts(burst.size());
    together.process(burst, now, verdicts.data());
    for (size_t i = 0; i < first.size(); ++i) {
      Packet packet = first[i].packet();
      const Verdict verdict = alone.process(&packet, now);
      ++seen[verdict];
      ASSERT_EQ(text_of(verdicts[i]), text_of(verdict)) << round << ", " << i;
      ASSERT_EQ(burst[i].size, packet.size);
      ASSERT_EQ(burst[i].headroom, packet.headroom);
      ASSERT_EQ(second[i].bytes, first[i].bytes) << round << ", " << i;
    }
    alone.tick(now, [](std::span<const uint8_t>) {});
    together.tick(now, [](std::span<const uint8_t>) {});
  }
  expect_equal_state(alone, together);
  EXPECT_GT(seen[Verdict::kForward], 10000);
  EXPECT_GT(seen[Verdict::kPass], 1000);
  EXPECT_GT(alone.vips()[0]->counters().evicted + alone.vips()[0]->counters().adopted, 100u);
}

INSTANTIATE_TEST_SUITE_P(Ways, Burst,
                         ::testing::Values(Case{Forwarding::kL2Dsr, false}, Case{Forwarding::kL3Dsr, false},
                                           Case{Forwarding::kGre, false}, Case{Forwarding::kNat, false},
                                           Case{Forwarding::kL3Dsr, true}, Case{Forwarding::kGre, true},
                                           Case{Forwarding::kNat, true}));

TEST(PlainPacket, IsWhatParseSaysOfIt) {
  Frames frames(11, false);
  int plain_ones = 0, others = 0;
  for (int i = 0; i < 200000; ++i) {
    Frame frame = frames.next();
    PlainPacket plain;
    Headers headers;
    const Parse parsed = parse(frame.data(), frame.size(), &headers);
    const bool is_plain = read_plain(frame.data(), static_cast<uint32_t>(frame.size()), &plain) &&
                          sound_header(frame.data() + kEthernetSize);
    const bool expected = parsed == Parse::kOk && !headers.v6 && headers.protocol == kTcp &&
                          headers.l4 == kEthernetSize + kIpv4Size &&
                          (headers.flags & (kSyn | kFin | kRst | kAck)) == kAck;
    ASSERT_EQ(is_plain, expected) << i;
    (is_plain ? plain_ones : others)++;
    if (!is_plain) continue;
    ASSERT_EQ(Address::v4(plain.client_address()), headers.source);
    ASSERT_EQ(plain.service_address(), headers.destination);
    ASSERT_EQ(plain.client_port(), headers.source_port);
    ASSERT_EQ(plain.service_port(), headers.destination_port);
    ASSERT_EQ(plain.ip_bytes, headers.ip_bytes);
    ASSERT_EQ(plain.tos, frame.data()[kEthernetSize + 1]);
  }
  EXPECT_GT(plain_ones, 20000);
  EXPECT_GT(others, 20000);
}

}  // namespace
}  // namespace steelyard::testing
