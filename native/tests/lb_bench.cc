// Time of one packet in the balancer, without I/O: parse, look up, choose, count, rewrite.
//   steelyard_bench --benchmark_filter=Packet
// Ecmp and Maglev are the baseline of the same frames: parse, look up in a table by hash, rewrite; no flow is
// kept. Ratios to them are what compares between machines.
#include <benchmark/benchmark.h>

#include <vector>

#include "native/core/rng.h"
#include "native/tests/lb_frames.h"

namespace steelyard::testing {
namespace {

constexpr int kServers = 64;
constexpr int kFlows = 1 << 14;

// A frame per flow, all sound.
std::vector<Frame> frames_with(uint8_t flags) {
  std::vector<Frame> frames;
  for (int i = 0; i < kFlows; ++i) {
    FrameSpec spec{.source_port = static_cast<uint16_t>(1024 + i), .flags = flags};
    spec.from = text_of(Address::v4(0xc0000200u + static_cast<uint32_t>(core::draw(1, i) % 200)));
    frames.push_back(make_frame(spec));
  }
  return frames;
}

VipConfig big_vip(const char* rule) {
  VipConfig config = vip_config(kServers, rule);
  config.connections = 8 * kFlows;
  config.half_open = 8 * kFlows;
  return config;
}

Forwarder make_forwarder(const char* rule) {
  static const PolicyArtefact none;
  return Forwarder(config_of(big_vip(rule)), test_link(), {&none, 1});
}

void PacketEstablished(benchmark::State& state, const char* rule) {
  Forwarder forwarder = make_forwarder(rule);
  for (const uint8_t flags : {kSyn, kAck}) {
    std::vector<Frame> opening = frames_with(flags);
    for (Frame& frame : opening) {
      Packet packet = frame.packet();
      forwarder.process(&packet, 1);
    }
  }
  std::vector<Frame> frames = frames_with(kAck | kPsh);
  size_t at = 0;
  TimeNs now = 2;
  for (auto _ : state) {
    Packet packet = frames[at].packet();
    packet.data[0] = 2;
    std::copy(kOurs.begin(), kOurs.end(), packet.data);
    benchmark::DoNotOptimize(forwarder.process(&packet, ++now));
    at = (at + 1) % kFlows;
  }
}

// A SYN of a new flow each time. What was opened a round before is ended by RST outside the time.
void PacketNewFlow(benchmark::State& state, const char* rule) {
  Forwarder forwarder = make_forwarder(rule);
  std::vector<Frame> opening = frames_with(kSyn), ending = frames_with(kRst);
  size_t at = 0;
  TimeNs now = 2;
  for (auto _ : state) {
    if (at == kFlows) {
      state.PauseTiming();
      for (Frame& frame : ending) {
        Packet packet = frame.packet();
        std::copy(kOurs.begin(), kOurs.end(), packet.data);
        forwarder.process(&packet, now);
      }
      at = 0;
      state.ResumeTiming();
    }
    Packet packet = opening[at++].packet();
    std::copy(kOurs.begin(), kOurs.end(), packet.data);
    benchmark::DoNotOptimize(forwarder.process(&packet, now += 1000));
  }
}

template <class Choose>
void baseline(benchmark::State& state, const Choose& choose) {
  const VipConfig config = big_vip("ecmp");
  std::vector<std::unique_ptr<Vip>> vips;
  vips.push_back(std::make_unique<Vip>(config, PolicyArtefact(), 0, 1, 1));
  VipTable table;
  table.build(vips, 0);
  std::vector<Frame> frames = frames_with(kAck | kPsh);
  size_t at = 0;
  for (auto _ : state) {
    Packet packet = frames[at].packet();
    Headers headers;
    benchmark::DoNotOptimize(parse(packet.data, packet.size, &headers));
    const VipTable::Entry* entry = table.find(headers.destination, headers.destination_port, headers.protocol);
    const uint64_t hash = flow_hash({headers.source, headers.source_port}, entry->salt);
    set_link(packet, kOurs, vips[0]->endpoints()[choose(core::LoadBalancer::choice_word(hash))].mac);
    at = (at + 1) % kFlows;
  }
}

void PacketBaselineEcmp(benchmark::State& state) {
  baseline(state, [](uint64_t word) { return core::below(word, kServers); });
}

void PacketBaselineMaglev(benchmark::State& state) {
  std::vector<core::ServerId> members(kServers);
  for (int j = 0; j < kServers; ++j) members[j] = j;
  core::MaglevTable maglev;
  maglev.build(members);
  baseline(state, [&](uint64_t word) { return maglev.lookup(word); });
}

BENCHMARK(PacketBaselineEcmp);
BENCHMARK(PacketBaselineMaglev);
BENCHMARK_CAPTURE(PacketEstablished, lsq, "lsq");
BENCHMARK_CAPTURE(PacketEstablished, sed, "sed");
BENCHMARK_CAPTURE(PacketNewFlow, ecmp, "ecmp");
BENCHMARK_CAPTURE(PacketNewFlow, maglev, "maglev");
BENCHMARK_CAPTURE(PacketNewFlow, lsq, "lsq");
BENCHMARK_CAPTURE(PacketNewFlow, sed, "sed");
BENCHMARK_CAPTURE(PacketNewFlow, policy, "policy");

}  // namespace
}  // namespace steelyard::testing
