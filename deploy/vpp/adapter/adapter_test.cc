// The balancer inside VPP without VPP: the C face, commands, threads of one pool, tapes.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <numeric>
#include <thread>

#include "deploy/vpp/adapter/hosts.h"
#include "deploy/vpp/adapter/steelyard_vpp.h"
#include "native/tape/replay.h"

namespace steelyard::vpp {
namespace {

TEST(VppAdapter, CommandsSayWhatIsWrongAndChangeNothing) {
  Fixture f("rule lsq");
  const std::map<std::string, std::string> wrong = {
      {"vips", "vips: is not known; use vip, server, tape, source, mtu, seed, balancer, interface"},
      {"vip add web address 10.0.0.7 port 80", "vip: \"web\" is there already"},
      {"vip add x port 80", "address is missing"},
      {"vip add x address 10.0.0.7", "port is missing"},
      {"vip add x address 10.0.0 port 80", "address: 10.0.0 is not allowed; use an IPv4 or IPv6 address"},
      {"vip add x address 10.0.0.7 port 0", "port: 0 is not allowed; use 1 to 65535"},
      {"vip add x address 10.0.0.7 port 80 rule", "rule is missing"},
      {"vip add x address 10.0.0.7 port 80 colour red", "colour: is not known"},
      {"vip add x address 10.0.0.7 port 80 forwarding l2-dsr",
       "forwarding: l2-dsr is not allowed; use gre, l3-dsr, nat"},
      {"vip set web port 81", "port: cannot change; delete the VIP and add it anew"},
      {"vip set web interval 0", "interval: 0 is not allowed; use 0.001 to 3600"},
      {"vip set web policy /nowhere", "policy: /nowhere: "},
      {"vip del x", "vip: \"x\" is not there"},
      {"server add web 10.0.1.1", "server: 10.0.1.1 is there already"},
      {"server set web 10.0.1.9 weight 2", "server: 10.0.1.9 is not there"},
      {"server set web 10.0.1.1 weight 0", "weight: 0 is not allowed; use 0.0001 to 65535"},
      {"server set web 10.0.1.1 drain maybe", "drain: maybe is not allowed; use off, on"},
      {"server add web fd00::1",
       "vip \"web\": tunnels to fd00::1 need a source: steelyard source IPV6-ADDRESS"},
      {"source 10.0.0.10", "source: cannot change while there are VIPs"},
      {"balancer 2 of 2", "balancer: 2 is not allowed; use 0 to N - 1"},
      {"tape web off", "tape: \"web\" is not being recorded"},
      {"mtu 1500 now", "now: nothing was expected here"},
  };
  for (const auto& [line, why] : wrong) {
    const std::string answer = run(f.host, line);
    EXPECT_TRUE(answer.starts_with("refused: " + why)) << line << "\n" << answer;
    EXPECT_EQ(answer.find('\n'), std::string::npos);
  }
  EXPECT_EQ(run(f.host, "vip set web rule gsq")
                .find("refused: vip \"web\": rule: gsq needs what only servers know"),
            0u);
  EXPECT_EQ(f.host.vips().size(), 1u);
  EXPECT_EQ(f.host.find("web")->rule, "lsq");
  EXPECT_EQ(f.host.find("web")->servers.size(), 2u);
}

TEST(VppAdapter, AVipWithoutServersLetsItsPacketsPass) {
  Fixture f("rule lsq", 0);
  Frame frame = make_frame({});
  EXPECT_EQ(f.send(frame), Verdict::kPass);
  EXPECT_EQ(run(f.host, "server add web 10.0.1.1"), "");
  EXPECT_EQ(f.send(frame), Verdict::kForward);
  Frame again = make_frame({});
  EXPECT_EQ(run(f.host, "server del web 10.0.1.1"), "");
  EXPECT_EQ(f.send(again), Verdict::kPass);
}

TEST(VppAdapter, PacketsNeedNoLinkHeader) {
  Fixture f("rule lsq");
  Frame frame = make_frame({});
  std::fill_n(frame.packet().data, 12, 0xff);  // what lies before an IP header in VPP is anything
  ASSERT_EQ(f.send(frame), Verdict::kForward);
  EXPECT_EQ(f.out.size, frame.size() + gre_overhead(address("10.0.1.1")));
  const uint8_t* outer = f.out.data + kEthernetSize;
  EXPECT_EQ(Address::read_v4(outer + 12), address("10.0.0.9"));
  EXPECT_EQ(Address::read_v4(outer + 16).low >> 8, address("10.0.1.0").low >> 8);
}

TEST(VppAdapter, ATunnelHasRoomForWhatTheMtuLeaves) {
  Host host(1, 1);
  EXPECT_EQ(run(host, "source 10.0.0.9"), "");
  EXPECT_EQ(run(host, "mtu 600"), "");
  EXPECT_EQ(run(host, "vip add web address 10.0.0.1 port 80"), "");
  EXPECT_EQ(run(host, "server add web 10.0.1.1"), "");
  for (const auto& [payload, expected] :
       {std::pair{536u, Verdict::kForward}, std::pair{537u, Verdict::kReply}}) {
    Frame frame = make_frame({.flags = kAck, .payload = payload});
    Packet packet = frame.packet();
    Verdict verdict;
    host.process(0, {&packet, 1}, 0, &verdict);
    EXPECT_EQ(verdict, expected) << payload;
  }
}

// Flows over several threads, as a device spreads them.
void open_flows(Fixture& f, int flows, TimeNs now) {
  for (int i = 0; i < flows; ++i) {
    const int thread = f.host.threads() == 1 ? 0 : 1 + i % (f.host.threads() - 1);
    const auto port = static_cast<uint16_t>(1000 + i);
    for (const uint8_t flags : {kSyn, kAck}) {
      Frame frame = make_frame({.source_port = port, .flags = flags});
      ASSERT_EQ(f.send(frame, now + i * kMillisecond, thread), Verdict::kForward);
    }
  }
}

TEST(VppAdapter, ThePoolIsTheSumOfItsThreads) {
  Fixture f("rule policy shared-memory none", 4, 3);
  open_flows(f, 64, 0);
  f.tick(kSecond);
  const Totals& totals = f.host.pool_of("web")->totals();
  EXPECT_EQ(std::accumulate(totals.flows_on.begin(), totals.flows_on.end(), 0u), 64u);
  for (const shm::ServerCounters& server : totals.servers) {
    EXPECT_EQ(server.flows_opened, 16u) << "lsq in each thread";
    EXPECT_EQ(server.packets, 32u);
  }
  EXPECT_EQ(totals.connections, 64u);
}

TEST(VppAdapter, OneThreadIsObservedAsItIs) {
  Fixture f("rule policy", 4);
  open_flows(f, 60, 0);
  f.tick(kSecond);
  Pool& pool = const_cast<Pool&>(*f.host.pool_of("web"));
  core::LoadBalancer alone = f.host.forwarder(0).vips()[0]->core();
  std::vector<float> expected(core::observation_size(4));
  alone.observe(2 * kSecond, expected.data());
  EXPECT_EQ(pool.observe(2 * kSecond), expected);
}

TEST(VppAdapter, GapsBetweenArrivalsAreThoseOfThePool) {
  Fixture one("rule policy", 2), three("rule policy", 2, 4);
  for (Fixture* f : {&one, &three}) {
    open_flows(*f, 120, 0);
    f->tick(kSecond);
  }
  const auto mean_gap = [](Fixture& f) {
    return const_cast<Pool&>(*f.host.pool_of("web")).observe(kSecond)[2 * core::kServerFeatures];
  };
  EXPECT_NEAR(mean_gap(one), 0.001, 1e-6);
  EXPECT_NEAR(mean_gap(three), 0.001, 1e-5);
}

TEST(VppAdapter, WithoutAPolicyTheRuleIsLsqAndSaysWhy) {
  Fixture f("policy agent", 2);
  f.tick(kSecond);
  EXPECT_EQ(f.host.take_events(),
            std::vector<std::string>{"vip \"web\": falls back to lsq: no policy_file and no shared_memory"});
  EXPECT_TRUE(f.host.take_events().empty()) << "told once";
  const std::vector<core::WeightQ16> equal(2, core::kUnitWeight);
  EXPECT_EQ(f.host.forwarder(0).vips()[0]->core().weights(), equal);
}

TEST(VppAdapter, AChangeKeepsConnectionsInEveryThread) {
  Fixture f("rule lsq", 3, 3);
  open_flows(f, 30, 0);
  for (const char* change : {"vip set web rule maglev", "server set web 10.0.1.2 drain on",
                             "server add web 10.0.1.9", "vip set web established 20 interval 0.1"}) {
    EXPECT_EQ(run(f.host, change, kSecond), "");
    uint32_t live = 0;
    for (int i = 0; i < 3; ++i) live += f.host.forwarder(i).vips()[0]->table().live();
    EXPECT_EQ(live, 30u) << change;
  }
}

TEST(VppAdapter, PacketsAndTicksOfOtherThreadsNeverMeet) {
  Fixture f("rule policy interval 0.001", 8, 3);
  std::vector<std::thread> workers;
  std::atomic<bool> stop = false;
  for (int thread = 1; thread < 3; ++thread) {
    workers.emplace_back([&, thread] {
      for (int i = 0; i < 4000; ++i) {
        const auto port = static_cast<uint16_t>(i % 500 + thread * 1000);
        const uint8_t flags = i % 5 == 0 ? kSyn : i % 5 == 4 ? kFin | kAck : kAck;
        Frame frame = make_frame({.source_port = port, .flags = flags});
        Packet packet = frame.packet();
        Verdict verdict;
        f.host.process(thread, {&packet, 1}, i * kMillisecond, &verdict);
        if (i % 3 == 0) f.host.tick_thread(thread, i * kMillisecond);
      }
    });
  }
  std::thread main([&] {
    for (TimeNs now = 0; !stop; now += 1'000'000) {
      f.host.tick_thread(0, now);
      f.host.tick(now);
    }
  });
  for (std::thread& worker : workers) worker.join();
  stop = true;
  main.join();
  f.tick(100 * kSecond);
  uint64_t packets = 0;
  for (const shm::ServerCounters& server : f.host.pool_of("web")->totals().servers) packets += server.packets;
  EXPECT_EQ(packets, 8000u);
}

TEST(VppAdapter, TheTapeOfEachThreadIsMadeAgain) {
  Fixture f("policy agent interval 0.05", 4, 3);
  const std::string path = ::testing::TempDir() + "vpp_adapter_tape";
  ASSERT_EQ(run(f.host, "tape web " + path), "");
  open_flows(f, 200, 0);
  f.tick(kSecond);
  EXPECT_NE(run(f.host, "tape web " + path).find("being recorded already"), std::string::npos);
  const std::string summary = run(f.host, "tape web off");
  for (int i = 0; i < 3; ++i) {
    std::vector<uint8_t> bytes;
    std::string error;
    tape::Tape tape;
    tape::Replay result;
    const std::string file = path + "." + std::to_string(i);
    ASSERT_TRUE(tape::read_file(file, &bytes, &error)) << error;
    ASSERT_TRUE(tape::read_tape(bytes.data(), bytes.size(), &tape, &error)) << error;
    ASSERT_TRUE(tape::replay(tape, nullptr, &result, &error)) << error;
    EXPECT_EQ(result.decisions, i == 0 ? 0u : 100u);
    EXPECT_EQ(result.digest, tape.digest);
    char digest[20];
    std::snprintf(digest, sizeof digest, "%016lx", static_cast<unsigned long>(tape.digest));
    EXPECT_NE(summary.find(digest), std::string::npos);
    std::filesystem::remove(file);
  }
  EXPECT_NE(run(f.host, "tape web " + path).find("has connections"), std::string::npos);
}

TEST(VppFace, AddsServesAndTells) {
  steelyard_vpp* self = steelyard_vpp_new(1, 1);
  char answer[128];
  ASSERT_EQ(steelyard_vpp_command(self, "source 10.0.0.9", 0, answer, sizeof answer), 0) << answer;
  steelyard_vpp_vip vip{};
  vip.name = "web";
  vip.address = {{10, 0, 0, 1}, 0};
  vip.protocol = kTcp;
  EXPECT_EQ(steelyard_vpp_vip_add(self, &vip, 0, answer, sizeof answer), -1);
  EXPECT_STREQ(answer, "port is missing");
  vip.port = 80;
  ASSERT_EQ(steelyard_vpp_vip_add(self, &vip, 0, answer, sizeof answer), 0) << answer;
  steelyard_vpp_server server{};
  server.vip = "web";
  server.address = {{10, 0, 1, 1}, 0};
  ASSERT_EQ(steelyard_vpp_server_set(self, &server, 0, answer, sizeof answer), 0) << answer;
  Frame frame = make_frame({});
  const Packet in = frame.packet();
  steelyard_vpp_packet packet{in.data, in.size, in.headroom};
  uint8_t verdict = 255;
  steelyard_vpp_process(self, 0, &packet, 1, 0, &verdict);
  EXPECT_EQ(verdict, STEELYARD_VPP_FORWARD);
  EXPECT_EQ(packet.size, in.size + 24);
  for (int i = 0; i < 2; ++i) {
    steelyard_vpp_tick_thread(self, 0, kSecond);
    steelyard_vpp_tick(self, kSecond);
  }
  std::map<std::string, uint64_t> metrics;
  steelyard_vpp_each_metric(
      self,
      [](void* context, const char* name, uint64_t value) {
        (*static_cast<std::map<std::string, uint64_t>*>(context))[name] = value;
      },
      &metrics);
  EXPECT_EQ(metrics.at("web/10.0.1.1/packets"), 1u);
  EXPECT_EQ(metrics.at("web/10.0.1.1/flows_on"), 1u);
  std::string page;
  steelyard_vpp_show(
      self, [](void* context, const char* line) { *static_cast<std::string*>(context) += line; }, &page);
  EXPECT_NE(page.find("vip web: 10.0.0.1 port 80 tcp, gre, rule lsq"), std::string::npos) << page;
  server.drain = 1;
  ASSERT_EQ(steelyard_vpp_server_set(self, &server, 0, answer, sizeof answer), 0) << answer;
  int drained = 0;
  steelyard_vpp_each_server(
      self,
      [](void* context, const steelyard_vpp_server_state* state) {
        *static_cast<int*>(context) += state->drain;
      },
      &drained);
  EXPECT_EQ(drained, 1);
  EXPECT_STREQ(steelyard_vpp_verdict_text(STEELYARD_VPP_DROP), "truncated");
  steelyard_vpp_free(self);
}

}  // namespace
}  // namespace steelyard::vpp
