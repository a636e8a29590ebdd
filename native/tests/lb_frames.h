// Frames and small balancers for the tests of the dataplane.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "native/dataplane/forwarder.h"

namespace steelyard::testing {

using namespace steelyard::dataplane;

inline constexpr Mac kOurs = {0x02, 0, 0, 0, 0, 1};
inline constexpr Mac kClientMac = {0x02, 0, 0, 0, 0, 2};
inline Mac server_mac(int j) { return {0x02, 0, 0, 0, 1, static_cast<uint8_t>(j)}; }
inline Address address(const std::string& text) { return *parse_address(text); }

// A frame in a buffer with headroom.
struct Frame {
  std::vector<uint8_t> bytes;
  Packet packet() {
    return {bytes.data() + kHeadroom, static_cast<uint32_t>(bytes.size()) - kHeadroom, kHeadroom};
  }
  const uint8_t* data() const { return bytes.data() + kHeadroom; }
  size_t size() const { return bytes.size() - kHeadroom; }
};

struct FrameSpec {
  std::string from = "192.0.2.7", to = "10.0.0.1";
  uint16_t source_port = 40000, port = 80;
  uint8_t protocol = kTcp;
  uint8_t flags = kSyn;
  uint32_t payload = 0;
};

// A sound frame to the balancer.
inline Frame make_frame(const FrameSpec& spec) {
  const Address from = address(spec.from), to = address(spec.to);
  const bool v4 = to.is_v4();
  const uint32_t ip_size = v4 ? kIpv4Size : kIpv6Size;
  const uint32_t l4_size = (spec.protocol == kTcp ? 20 : 8) + spec.payload;
  Frame frame;
  frame.bytes.assign(kHeadroom + kEthernetSize + ip_size + l4_size, 0);
  Packet packet = frame.packet();
  set_link(packet, kClientMac, kOurs);
  store16(packet.data + 12, v4 ? kEtherIpv4 : kEtherIpv6);
  uint8_t* ip = packet.data + kEthernetSize;
  if (v4) {
    ip[0] = 0x45;
    store16(ip + 2, static_cast<uint16_t>(ip_size + l4_size));
    store16(ip + 6, 0x4000);
    ip[8] = 61;
    ip[9] = spec.protocol;
    from.write_v4(ip + 12);
    to.write_v4(ip + 16);
    store16(ip + 10, checksum_of(sum_words(ip, kIpv4Size)));
  } else {
    store32(ip, 6u << 28);
    store16(ip + 4, static_cast<uint16_t>(l4_size));
    ip[6] = spec.protocol;
    ip[7] = 61;
    from.write_v6(ip + 8);
    to.write_v6(ip + 24);
  }
  uint8_t* l4 = ip + ip_size;
  store16(l4, spec.source_port);
  store16(l4 + 2, spec.port);
  if (spec.protocol == kTcp) {
    l4[12] = 0x50;
    l4[13] = spec.flags;
  } else {
    store16(l4 + 4, static_cast<uint16_t>(l4_size));
  }
  for (uint32_t i = 0; i < spec.payload; ++i)
    packet.data[packet.size - spec.payload + i] = static_cast<uint8_t>(i);
  Headers headers;
  if (parse(packet.data, packet.size, &headers) == Parse::kOk) complete_checksum(packet, headers);
  return frame;
}

inline VipConfig vip_config(int servers, const std::string& rule = "lsq",
                            const std::string& vip = "10.0.0.1") {
  VipConfig config;
  config.name = vip;
  config.address = address(vip);
  config.port = 80;
  config.rule = rule;
  config.connections = 4096;
  for (int j = 0; j < servers; ++j) {
    ServerConfig server;
    server.name = text_of(server_mac(j));
    server.address = config.address.is_v4() ? Address::v4(0x0a000100u + static_cast<uint32_t>(j) + 1)
                                            : Address{0xfd00'0000'0000'0001, static_cast<uint64_t>(j) + 1};
    server.mac = server_mac(j);
    config.servers.push_back(server);
  }
  return config;
}

inline Link test_link() {
  Link link;
  link.mac = kOurs;
  link.address4 = address("10.0.0.9");
  link.address6 = address("fd00::9");
  return link;
}

inline Config config_of(const VipConfig& vip) {
  Config config;
  config.link.mac = kOurs;
  config.vips = {vip};
  return config;
}

inline Segment segment(uint16_t port, uint8_t flags, const std::string& from = "192.0.2.7") {
  Segment made;
  made.key = {address(from), port};
  made.hash = flow_hash(made.key, dataplane::Salt(1));
  made.flags = flags;
  made.bytes = 60;
  return made;
}

inline constexpr TimeNs kSecond = core::kNanosPerSecond;

}  // namespace steelyard::testing
