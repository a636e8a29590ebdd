// NAT there and back, and what routers say of packets that went through it.
#include <gtest/gtest.h>

#include <tuple>

#include "deploy/vpp/adapter/hosts.h"

namespace steelyard::vpp {
namespace {

// Whether every checksum in a packet is right.
bool sound(const Packet& packet) {
  Headers headers;
  if (parse(packet.data, packet.size, &headers) != Parse::kOk) return false;
  std::vector<uint8_t> copy(packet.data, packet.data + packet.size);
  complete_checksum({copy.data(), packet.size, 0}, headers);
  return std::equal(copy.begin(), copy.end(), packet.data);
}

class Nat : public ::testing::TestWithParam<std::tuple<std::string, uint8_t>> {};

TEST_P(Nat, ThereAndBack) {
  const auto& [family, protocol] = GetParam();
  const bool v4 = family == "v4";
  const std::string vip = v4 ? "10.0.0.1" : "fd00::1", client = v4 ? "192.0.2.7" : "2001:db8::7";
  const std::string server = v4 ? "10.0.1.1" : "fd00::11";
  Host host(1, 1);
  EXPECT_EQ(run(host, "vip add web address " + vip + " port 80 target-port 8080 forwarding nat protocol " +
                          (protocol == kTcp ? "tcp" : "udp")),
            "");
  EXPECT_EQ(run(host, "server add web " + server), "");
  const auto process = [&](Frame& frame, Packet* packet) {
    *packet = frame.packet();
    Verdict verdict;
    host.process(0, {packet, 1}, 0, &verdict);
    return verdict;
  };
  Frame request = make_frame({.from = client, .to = vip, .protocol = protocol, .payload = 33});
  Packet out;
  Headers headers;
  ASSERT_EQ(process(request, &out), Verdict::kForward);
  EXPECT_TRUE(sound(out));
  ASSERT_EQ(parse(out.data, out.size, &headers), Parse::kOk);
  EXPECT_EQ(headers.source, address(client));
  EXPECT_EQ(headers.source_port, 40000);
  EXPECT_EQ(headers.destination, address(server));
  EXPECT_EQ(headers.destination_port, 8080);

  FrameSpec answer{.from = server, .to = client, .source_port = 8080, .port = 40000, .protocol = protocol};
  answer.flags = kSyn | kAck;
  answer.payload = 20;
  Frame reply = make_frame(answer);
  ASSERT_EQ(process(reply, &out), Verdict::kForward);
  EXPECT_TRUE(sound(out));
  ASSERT_EQ(parse(out.data, out.size, &headers), Parse::kOk);
  EXPECT_EQ(headers.source, address(vip));
  EXPECT_EQ(headers.source_port, 80);
  EXPECT_EQ(headers.destination, address(client));

  answer.source_port = 8081;  // something else that the server serves
  Frame other = make_frame(answer);
  EXPECT_EQ(process(other, &out), Verdict::kPass);
}

INSTANTIATE_TEST_SUITE_P(Families, Nat,
                         ::testing::Combine(::testing::Values("v4", "v6"), ::testing::Values(kTcp, kUdp)));

// An ICMP error for the VIP whose quoted packet came from it.
Frame make_error(bool v4, const std::string& vip, const std::string& client) {
  Frame quoted = make_frame({.from = vip, .to = client, .source_port = 80, .port = 40000, .flags = kAck});
  const uint32_t ip_size = v4 ? kIpv4Size : kIpv6Size;
  const auto inner = static_cast<uint32_t>(quoted.size() - kEthernetSize);
  Frame frame = make_frame(
      {.from = v4 ? "198.51.100.1" : "2001:db8::1", .to = vip, .protocol = kUdp, .payload = inner});
  uint8_t* ip = frame.packet().data + kEthernetSize;
  uint8_t* icmp = ip + ip_size;
  ip[v4 ? 9 : 6] = v4 ? kIcmp4 : kIcmp6;
  icmp[0] = v4 ? 3 : 2;
  icmp[1] = v4 ? 4 : 0;
  std::fill_n(icmp + 2, 6, 0);
  std::copy_n(quoted.data() + kEthernetSize, inner, icmp + 8);
  if (v4) {
    store16(ip + 10, 0);
    store16(ip + 10, checksum_of(sum_words(ip, kIpv4Size)));
    store16(icmp + 2, checksum_of(sum_words(icmp, 8 + inner)));
  } else {
    store16(icmp + 2, checksum_of(sum_words(ip + 8, 32) + kIcmp6 + 8 + inner + sum_words(icmp, 8 + inner)));
  }
  return frame;
}

TEST(VppAdapter, NatTellsTheServerOfIcmpErrors) {
  for (const bool v4 : {true, false}) {
    const std::string vip = v4 ? "10.0.0.1" : "fd00::1", client = v4 ? "192.0.2.7" : "2001:db8::7";
    const std::string server = v4 ? "10.0.1.1" : "fd00::11";
    Host host(1, 1);
    EXPECT_EQ(run(host, "vip add web address " + vip + " port 80 target-port 8080 forwarding nat"), "");
    EXPECT_EQ(run(host, "server add web " + server), "");
    Frame frame = make_error(v4, vip, client);
    Packet packet = frame.packet();
    Verdict verdict;
    host.process(0, {&packet, 1}, 0, &verdict);
    ASSERT_EQ(verdict, Verdict::kForward);
    Headers headers, quoted;
    ASSERT_EQ(parse(packet.data, packet.size, &headers), Parse::kIcmp);
    ASSERT_TRUE(parse_quoted(packet.data, packet.size, headers, &quoted));
    EXPECT_EQ(headers.destination, address(server));
    EXPECT_EQ(quoted.source, address(server));
    EXPECT_EQ(quoted.source_port, 8080);
    EXPECT_EQ(quoted.destination_port, 40000);
    const uint8_t* ip = packet.data + kEthernetSize;
    const uint8_t* icmp = packet.data + headers.l4;
    const uint32_t size = packet.size - headers.l4;
    const uint64_t pseudo = v4 ? 0 : sum_words(ip + 8, 32) + kIcmp6 + size;
    EXPECT_EQ(checksum_of(pseudo + sum_words(icmp, size)), 0) << "ICMP";
    if (!v4) continue;
    EXPECT_EQ(checksum_of(sum_words(icmp + 8, kIpv4Size)), 0) << "quoted header";
  }
}

TEST(VppAdapter, TwoNatVipsCannotShareAServersPort) {
  Fixture f("forwarding nat target-port 8080");
  EXPECT_EQ(run(f.host, "vip add other address 10.0.0.2 port 80 forwarding nat target-port 8080"), "");
  EXPECT_NE(run(f.host, "server add other 10.0.1.1").find("behind the NAT of another VIP"),
            std::string::npos);
  EXPECT_EQ(run(f.host, "server add other 10.0.1.3"), "");
}

TEST(VppAdapter, RemovedServersOfNatKeepTheirConnections) {
  Fixture f("forwarding nat target-port 8080", 1);
  Frame syn = make_frame({});
  ASSERT_EQ(f.send(syn), Verdict::kForward);
  EXPECT_EQ(run(f.host, "server add web 10.0.1.2"), "");
  EXPECT_EQ(run(f.host, "server del web 10.0.1.1"), "");
  Frame data = make_frame({.flags = kAck});
  ASSERT_EQ(f.send(data), Verdict::kForward);
  EXPECT_EQ(f.sent().destination, address("10.0.1.1"));
  Frame answer =
      make_frame({.from = "10.0.1.1", .to = "192.0.2.7", .source_port = 8080, .port = 40000, .flags = kAck});
  ASSERT_EQ(f.send(answer), Verdict::kForward);
  EXPECT_EQ(f.sent().source, address("10.0.0.1"));
}

}  // namespace
}  // namespace steelyard::vpp
