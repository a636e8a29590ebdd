// Time of one packet in the balancer, without I/O: parse, look up, choose, count, rewrite.
//   steelyard_bench --benchmark_filter=Packet
// Ecmp and Maglev are the baseline of the same frames: parse, look up in a table by hash, rewrite; no flow is
// kept. Ratios to them are what compares between machines.
//   steelyard_bench --benchmark_filter=HostedTick
// One update of a VIP's weights by the policy that it hosts, a GRU of 64: observe, infer, apply, and the
// share of the connection table that is looked through meanwhile.
#include <benchmark/benchmark.h>

#include <array>
#include <span>
#include <vector>

#include "native/core/rng.h"
#include "native/tests/lb_frames.h"
#include "native/tests/policy_samples.h"

namespace steelyard::testing {
namespace {

constexpr int kServers = 64;
constexpr int kMostFlows = 1 << 14;  // the argument is how many are open at once

// A frame per flow, all sound.
std::vector<Frame> frames_with(uint8_t flags, int flows) {
  std::vector<Frame> frames;
  for (int i = 0; i < flows; ++i) {
    FrameSpec spec{.source_port = static_cast<uint16_t>(1024 + i), .flags = flags};
    spec.from = text_of(Address::v4(0xc0000200u + static_cast<uint32_t>(core::draw(1, i) % 200)));
    frames.push_back(make_frame(spec));
  }
  return frames;
}

VipConfig big_vip(const char* rule) {
  VipConfig config = vip_config(kServers, rule);
  config.connections = 4 * kMostFlows;
  config.half_open = 4 * kMostFlows;
  return config;
}

Forwarder make_forwarder(const char* rule) {
  static const PolicyArtefact none;
  return Forwarder(config_of(big_vip(rule)), test_link(), {&none, 1});
}

constexpr int kBurst = 32;

// Frames in bursts, as a transport gives them; the link's header is set anew, as it would come.
struct Bursts {
  Bursts(uint8_t flags, const benchmark::State& state)
      : frames(frames_with(flags, static_cast<int>(state.range(0)))) {}
  std::span<Packet> next() {
    for (int i = 0; i < kBurst; ++i) {
      burst[i] = frames[at + i].packet();
      std::copy(kOurs.begin(), kOurs.end(), burst[i].data);
    }
    at = (at + kBurst) % static_cast<int>(frames.size());
    return burst;
  }
  void pass_all(Forwarder& forwarder, TimeNs now) {
    do forwarder.process(next(), now, verdicts.data());
    while (at != 0);
  }
  std::vector<Frame> frames;
  std::array<Packet, kBurst> burst;
  std::array<Verdict, kBurst> verdicts;
  int at = 0;
};

void PacketEstablished(benchmark::State& state, const char* rule) {
  Forwarder forwarder = make_forwarder(rule);
  Bursts(kSyn, state).pass_all(forwarder, 1);
  Bursts(kAck, state).pass_all(forwarder, 1);
  Bursts data(kAck | kPsh, state);
  TimeNs now = 2;
  while (state.KeepRunningBatch(kBurst)) {
    forwarder.process(data.next(), now += 1000, data.verdicts.data());
    benchmark::ClobberMemory();
  }
}

// A SYN of a new flow each time. What was opened is ended by RST outside the time.
void PacketNewFlow(benchmark::State& state, const char* rule) {
  Forwarder forwarder = make_forwarder(rule);
  Bursts opening(kSyn, state), ending(kRst, state);
  TimeNs now = 2;
  while (state.KeepRunningBatch(kBurst)) {
    forwarder.process(opening.next(), now += 1000, opening.verdicts.data());
    benchmark::ClobberMemory();
    if (opening.at != 0) continue;
    state.PauseTiming();
    ending.pass_all(forwarder, now);
    state.ResumeTiming();
  }
}

template <class Choose>
void baseline(benchmark::State& state, const Choose& choose) {
  const VipConfig config = big_vip("ecmp");
  std::vector<std::unique_ptr<Vip>> vips;
  vips.push_back(std::make_unique<Vip>(config, PolicyArtefact(), 0, 1, 1));
  VipTable table;
  table.build(vips, 0);
  std::vector<Frame> frames = frames_with(kAck | kPsh, static_cast<int>(state.range(0)));
  size_t at = 0;
  for (auto _ : state) {
    Packet packet = frames[at].packet();
    Headers headers;
    benchmark::DoNotOptimize(parse(packet.data, packet.size, &headers));
    const VipTable::Entry* entry =
        table.find(headers.destination, headers.destination_port, headers.protocol);
    const uint64_t hash = flow_hash({headers.source, headers.source_port}, entry->salt);
    set_link(packet, kOurs, vips[0]->endpoints()[choose(core::LoadBalancer::choice_word(hash))].mac);
    at = at + 1 == frames.size() ? 0 : at + 1;
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

void HostedTick(benchmark::State& state) {
  const auto servers = static_cast<int>(state.range(0));
  const std::vector<uint8_t> blob = core::blob_of(core::PolicyMaker(1).policy(
      static_cast<uint32_t>(servers), core::PolicyInput::kFlat, core::PolicyOutput::kTanh, 64));
  PolicyArtefact artefact;
  artefact.policy = core::load_policy_bytes(blob.data(), blob.size(), &artefact.error);
  VipConfig config = vip_config(servers, "policy");
  config.connections = 65536;
  config.interval_s = 0.001;
  Vip vip(config, artefact, 0, 1, 7);
  TimeNs now = 0;
  for (int flow = 0; flow < 200 * servers; ++flow, now += 100'000) {
    const auto port = static_cast<uint16_t>(1024 + flow % 60000);
    for (const uint8_t flags : {kSyn, kAck, uint8_t{kFin | kAck}}) vip.route(segment(port, flags), now);
  }
  for (auto _ : state) vip.tick(now += 1'000'000);
  if (!vip.policy().healthy()) state.SkipWithError(vip.policy().why().c_str());
}

BENCHMARK(HostedTick)->Arg(8)->Arg(64);
BENCHMARK(PacketBaselineEcmp)->Arg(1 << 10)->Arg(kMostFlows);
BENCHMARK(PacketBaselineMaglev)->Arg(1 << 10)->Arg(kMostFlows);
BENCHMARK_CAPTURE(PacketEstablished, lsq, "lsq")->Arg(1 << 10)->Arg(kMostFlows);
BENCHMARK_CAPTURE(PacketEstablished, sed, "sed")->Arg(1 << 10)->Arg(kMostFlows);
BENCHMARK_CAPTURE(PacketNewFlow, ecmp, "ecmp")->Arg(1 << 10)->Arg(kMostFlows);
BENCHMARK_CAPTURE(PacketNewFlow, maglev, "maglev")->Arg(1 << 10)->Arg(kMostFlows);
BENCHMARK_CAPTURE(PacketNewFlow, lsq, "lsq")->Arg(1 << 10)->Arg(kMostFlows);
BENCHMARK_CAPTURE(PacketNewFlow, sed, "sed")->Arg(1 << 10)->Arg(kMostFlows);
BENCHMARK_CAPTURE(PacketNewFlow, policy, "policy")->Arg(1 << 10)->Arg(kMostFlows);

}  // namespace
}  // namespace steelyard::testing
