// Frames of any bytes: nothing outside the frame is read or written, and what goes out is sound. The first
// byte chooses how packets are forwarded.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "native/tests/lb_frames.h"

namespace {

using namespace steelyard::testing;

void require(bool condition) {
  if (!condition) std::abort();
}

Config make_config(Forwarding forwarding) {
  Config config;
  config.link.mac = kOurs;
  config.link.address4 = test_link().address4;
  config.link.address6 = test_link().address6;
  for (const char* vip : {"10.0.0.1", "fd00::1"}) {
    for (const uint8_t protocol : {kTcp, kUdp}) {
      VipConfig made = vip_config(3, "lsq", vip);
      made.name += protocol == kTcp ? " tcp" : " udp";
      made.protocol = protocol;
      made.forwarding = forwarding;
      made.answer_arp = true;
      made.connections = 64;
      config.vips.push_back(made);
    }
  }
  return config;
}

Forwarder& forwarder(Forwarding forwarding) {
  static const std::vector<PolicyArtefact> policies(4);
  static Forwarder all[] = {{make_config(Forwarding::kL2Dsr), test_link(), policies},
                            {make_config(Forwarding::kL3Dsr), test_link(), policies},
                            {make_config(Forwarding::kGre), test_link(), policies}};
  return all[static_cast<int>(forwarding)];
}

void check_sent(const Packet& packet, const Verdict verdict) {
  require(packet.size >= kEthernetSize);
  Headers headers;
  const Parse parsed = parse(packet.data, packet.size, &headers);
  require(parsed == Parse::kOk || parsed == Parse::kIcmp || parsed == Parse::kArp || parsed == Parse::kOther);
  if (verdict == Verdict::kForward) require(packet.data[4] == 1);  // to a server
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static TimeNs now = 0;
  if (size < 1) return 0;
  const auto forwarding = static_cast<Forwarding>(data[0] % 3);
  std::vector<uint8_t> buffer(kHeadroom + size - 1);
  std::copy(data + 1, data + size, buffer.begin() + kHeadroom);
  Packet packet{buffer.data() + kHeadroom, static_cast<uint32_t>(size - 1), kHeadroom};
  now += 1'000'000;
  const Verdict verdict = forwarder(forwarding).process(&packet, now);
  require(packet.data >= buffer.data() && packet.data + packet.size <= buffer.data() + buffer.size());
  if (sends(verdict)) check_sent(packet, verdict);
  forwarder(forwarding).tick(now, [](std::span<const uint8_t>) {});
  return 0;
}
