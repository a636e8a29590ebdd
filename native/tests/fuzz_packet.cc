// Frames of any bytes: nothing outside the frame is read or written, what goes out is sound, and in a burst a
// frame has the same fate. The first byte chooses how packets are forwarded.
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

struct Twins {
  explicit Twins(Forwarding forwarding)
      : alone(make_config(forwarding), test_link(), std::vector<PolicyArtefact>(4)),
        in_bursts(make_config(forwarding), test_link(), std::vector<PolicyArtefact>(4)) {}
  Forwarder alone, in_bursts;
};

Twins& twins(Forwarding forwarding) {
  static Twins all[] = {Twins(Forwarding::kL2Dsr), Twins(Forwarding::kL3Dsr), Twins(Forwarding::kGre)};
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
  Twins& two = twins(forwarding);
  std::vector<uint8_t> buffer(kHeadroom + size - 1);
  std::copy(data + 1, data + size, buffer.begin() + kHeadroom);
  std::vector<uint8_t> copy = buffer;
  Packet packet{buffer.data() + kHeadroom, static_cast<uint32_t>(size - 1), kHeadroom};
  Packet other{copy.data() + kHeadroom, packet.size, kHeadroom};
  now += 1'000'000;
  const Verdict verdict = two.alone.process(&packet, now);
  require(packet.data >= buffer.data() && packet.data + packet.size <= buffer.data() + buffer.size());
  if (sends(verdict)) check_sent(packet, verdict);
  Verdict in_burst;
  two.in_bursts.process({&other, 1}, now, &in_burst);
  require(in_burst == verdict && other.size == packet.size && copy == buffer);
  for (Forwarder* forwarder : {&two.alone, &two.in_bursts})
    forwarder->tick(now, [](std::span<const uint8_t>) {});
  return 0;
}
