// Connections: what each segment does to the state of its flow and to the core's counters; reload.
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "native/core/rng.h"
#include "native/tests/lb_frames.h"

namespace steelyard::testing {
namespace {

constexpr uint8_t kData = kAck | kPsh;

Vip make_vip(const VipConfig& config) { return Vip(config, PolicyArtefact(), 0, 1, 7); }

uint32_t flows_on(const Vip& vip) {
  const auto& flows = vip.core().flows_on();
  return std::accumulate(flows.begin(), flows.end(), 0u);
}

uint32_t bound(const Vip& vip) {
  uint32_t total = 0;
  for (const Endpoint& endpoint : vip.endpoints()) total += endpoint.bound;
  return total;
}

// The table, the states, the endpoints and the core agree on how many there are.
void expect_consistent(const Vip& vip) {
  uint32_t taken = 0, counted = 0;
  for (uint32_t place = 0; place < vip.table().places(); ++place) {
    if (!vip.table().taken(place)) continue;
    ++taken;
    counted += vip.table().at(place).counted ? 1 : 0;
  }
  uint32_t states = 0;
  for (int i = 0; i < kFlowStates; ++i) states += vip.in_state(static_cast<FlowState>(i));
  EXPECT_EQ(taken, vip.table().live());
  EXPECT_EQ(states, taken);
  EXPECT_EQ(bound(vip), taken);
  EXPECT_EQ(flows_on(vip), counted);
}

// Opens a flow and completes its handshake; its endpoint.
int open_flow(Vip& vip, uint16_t port, TimeNs now) {
  const int endpoint = vip.route(segment(port, kSyn), now);
  EXPECT_EQ(vip.route(segment(port, kAck), now), endpoint);
  return endpoint;
}

TEST(Vip, LsqSpreadsAndFlowsStick) {
  Vip vip = make_vip(vip_config(4));
  std::map<int, int> flows;
  for (uint16_t port = 1; port <= 400; ++port) {
    const int endpoint = open_flow(vip, port, port);
    ++flows[endpoint];
    EXPECT_EQ(vip.route(segment(port, kData), port), endpoint);
    EXPECT_EQ(vip.route(segment(port, kSyn), port), endpoint) << "a SYN again is of the same flow";
  }
  EXPECT_EQ(flows, (std::map<int, int>{{0, 100}, {1, 100}, {2, 100}, {3, 100}}));
  EXPECT_EQ(flows_on(vip), 400u);
  expect_consistent(vip);
}

TEST(Vip, FinEndsTheCountAndHalfCloseKeepsTheServer) {
  Vip vip = make_vip(vip_config(4));
  const int endpoint = open_flow(vip, 9, 0);
  EXPECT_EQ(vip.route(segment(9, kFin | kAck), kSecond), endpoint);
  EXPECT_EQ(flows_on(vip), 0u);
  EXPECT_EQ(vip.endpoints()[endpoint].completed, 1u);
  // The server goes on sending, the client acknowledging: longer than the closing timeout in all.
  for (int i = 1; i < 30; ++i) EXPECT_EQ(vip.route(segment(9, kAck), i * 5 * kSecond), endpoint);
  EXPECT_EQ(vip.endpoints()[endpoint].completed, 1u) << "counted once";
  EXPECT_EQ(vip.route(segment(9, kFin | kAck), 150 * kSecond), endpoint);
  EXPECT_EQ(vip.endpoints()[endpoint].completed, 1u);
  vip.tick(200 * kSecond);
  vip.tick(202 * kSecond);
  EXPECT_EQ(vip.table().live(), 0u);
  expect_consistent(vip);
}

TEST(Vip, RstEndsTheCountWithoutASample) {
  Vip vip = make_vip(vip_config(4));
  const int endpoint = open_flow(vip, 9, 0);
  vip.route(segment(9, kRst), kSecond);
  EXPECT_EQ(flows_on(vip), 0u);
  EXPECT_EQ(vip.endpoints()[endpoint].reset, 1u);
  EXPECT_EQ(vip.endpoints()[endpoint].completed, 0u);
  EXPECT_EQ(vip.core().completions()[endpoint].filled(), 0);
  // A forged RST did not end it: what follows still finds its server.
  EXPECT_EQ(vip.route(segment(9, kData), 2 * kSecond), endpoint);
  expect_consistent(vip);
}

TEST(Vip, SynOnAClosingOrSilentPlaceIsANewFlow) {
  Vip vip = make_vip(vip_config(2));
  const int first = open_flow(vip, 9, 0);
  open_flow(vip, 10, 0);  // on the other server
  vip.route(segment(9, kFin | kAck), 1);
  vip.route(segment(9, kSyn), 2);
  EXPECT_EQ(vip.counters().reused, 1u);
  EXPECT_EQ(vip.endpoints()[first].opened, 2u);
  EXPECT_EQ(flows_on(vip), 2u);
  const TimeNs late = 301 * kSecond;
  vip.route(segment(9, kSyn), late);
  EXPECT_EQ(vip.endpoints()[0].opened + vip.endpoints()[1].opened, 4u);
  expect_consistent(vip);
}

TEST(Vip, SilentConnectionsAreUncountedButNotForgotten) {
  Vip vip = make_vip(vip_config(4));
  const int endpoint = open_flow(vip, 9, 0);
  for (TimeNs now = 0; now < 320 * kSecond; now += kSecond / 2) vip.tick(now);
  EXPECT_EQ(flows_on(vip), 0u);
  EXPECT_EQ(vip.endpoints()[endpoint].timed_out, 1u);
  EXPECT_EQ(vip.in_state(FlowState::kIdle), 1u);
  EXPECT_EQ(vip.route(segment(9, kData), 400 * kSecond), endpoint);
  EXPECT_EQ(vip.in_state(FlowState::kAdopted), 1u);
  for (TimeNs now = 400 * kSecond; now < 5000 * kSecond; now += kSecond / 2) vip.tick(now);
  EXPECT_EQ(vip.table().live(), 0u) << "an hour is enough";
  expect_consistent(vip);
}

TEST(Vip, TwoBalancersAgreeOnFlowsThatTheyDoNotKnow) {
  VipConfig config = vip_config(5, "maglev");
  Vip one = make_vip(config), other(config, PolicyArtefact(), 1, 2, 99);
  std::set<int> used;
  for (uint16_t port = 1; port <= 500; ++port) {
    const int endpoint = open_flow(one, port, 0);
    EXPECT_EQ(other.route(segment(port, kData), 0), endpoint);
    used.insert(endpoint);
  }
  EXPECT_EQ(used.size(), 5u);
  EXPECT_EQ(other.counters().adopted, 500u);
  EXPECT_EQ(flows_on(other), 0u);
  expect_consistent(other);
}

// Consistent hashing goes by addresses: the order in the file does not matter, a removal moves few.
TEST(Vip, AgreementDoesNotNeedTheSameOrder) {
  VipConfig config = vip_config(5, "maglev");
  Vip one = make_vip(config);
  std::swap(config.servers[0], config.servers[4]);
  Vip swapped = make_vip(config);
  for (uint16_t port = 1; port <= 500; ++port) {
    const Address a = one.endpoints()[one.route(segment(port, kSyn), 0)].address;
    EXPECT_EQ(swapped.endpoints()[swapped.route(segment(port, kSyn), 0)].address, a);
  }
}

TEST(Vip, DrainAndRemovalKeepFlows) {
  VipConfig config = vip_config(3);
  Vip vip = make_vip(config);
  std::map<uint16_t, Address> where;
  for (uint16_t port = 1; port <= 90; ++port) where[port] = vip.endpoints()[open_flow(vip, port, 0)].address;
  const Address leaving = config.servers[1].address;
  config.servers[1].drain = true;
  vip.reconfigure(config, PolicyArtefact(), 1);
  expect_consistent(vip);
  EXPECT_EQ(flows_on(vip), 90u);
  for (uint16_t port = 100; port < 160; ++port) {
    EXPECT_NE(vip.endpoints()[open_flow(vip, port, 2)].address, leaving);
  }
  config.servers.erase(config.servers.begin() + 1);
  vip.reconfigure(config, PolicyArtefact(), 3);
  expect_consistent(vip);
  EXPECT_EQ(flows_on(vip), 120u) << "the core forgets flows of removed servers only";
  for (const auto& [port, server] : where) {
    EXPECT_EQ(vip.endpoints()[vip.route(segment(port, kData), 4)].address, server);
  }
  for (const auto& [port, server] : where) vip.route(segment(port, kFin | kAck), 5);
  EXPECT_EQ(flows_on(vip), 60u);
  // Back again, and a new one beside it: the old place is used again once nothing is bound to it.
  vip.tick(20 * kSecond);
  vip.tick(22 * kSecond);
  config.servers.push_back(vip_config(9).servers[7]);
  vip.reconfigure(config, PolicyArtefact(), 22 * kSecond);
  EXPECT_EQ(vip.endpoints().size(), 3u);
  EXPECT_EQ(vip.core().num_servers(), 3);
  expect_consistent(vip);
}

TEST(Vip, AnotherRuleKeepsFlowsAndCounts) {
  VipConfig config = vip_config(3);
  Vip vip = make_vip(config);
  std::map<uint16_t, int> where;
  for (uint16_t port = 1; port <= 60; ++port) where[port] = open_flow(vip, port, 0);
  config.rule = "sed";
  config.servers[0].weight = 4;
  vip.reconfigure(config, PolicyArtefact(), 1);
  EXPECT_EQ(flows_on(vip), 60u);
  for (const auto& [port, endpoint] : where) EXPECT_EQ(vip.route(segment(port, kData), 2), endpoint);
  // (q + 1) / 4 against q + 1: the heavy server gets flows until it has four times the others'.
  for (uint16_t port = 100; port < 130; ++port) EXPECT_EQ(open_flow(vip, port, 2), 0);
  for (const auto& [port, endpoint] : where) vip.route(segment(port, kFin | kAck), 3);
  EXPECT_EQ(flows_on(vip), 30u);
  expect_consistent(vip);
}

// 5000 SYNs a second from made-up clients, none of which ever answers, among real flows.
TEST(Vip, SynFloodDoesNotCorruptCounters) {
  VipConfig config = vip_config(4);
  config.timeouts.opening_s = 5;
  Vip vip = make_vip(config);
  std::map<uint16_t, int> real;
  for (uint16_t port = 1; port <= 100; ++port) real[port] = open_flow(vip, port, 0);
  uint64_t key = 0;
  for (TimeNs now = 0; now < 30 * kSecond; now += kSecond / 100) {
    for (int i = 0; i < 50; ++i, ++key) {
      Segment syn = segment(static_cast<uint16_t>(key), kSyn);
      syn.key.client = Address::v4(static_cast<uint32_t>(core::draw(5, key)));
      syn.hash = flow_hash(syn.key, dataplane::Salt(1));
      EXPECT_NE(vip.route(syn, now), Vip::kNoEndpoint);
    }
    vip.tick(now);
    for (const auto& [port, endpoint] : real) ASSERT_EQ(vip.route(segment(port, kData), now), endpoint);
  }
  expect_consistent(vip);
  EXPECT_LE(vip.in_state(FlowState::kOpening), config.connections / 4);
  EXPECT_GT(vip.counters().half_open_refused, 0u);
  // A client that comes during the flood is served by consistent hashing, and stays where it is.
  const int endpoint = vip.route(segment(5000, kSyn), 30 * kSecond);
  for (int i = 1; i < 60; ++i) EXPECT_EQ(vip.route(segment(5000, kData), (30 + i) * kSecond), endpoint);
  for (TimeNs now = 30 * kSecond; now < 45 * kSecond; now += kSecond / 100) vip.tick(now);
  EXPECT_EQ(flows_on(vip), 100u) << "what the flood opened is given back";
  expect_consistent(vip);
}

TEST(Vip, AFullBucketServesByConsistentHashing) {
  VipConfig config = vip_config(4);
  config.connections = 64;
  config.half_open = 1000;
  Vip vip = make_vip(config);
  std::map<uint16_t, int> where;
  for (uint16_t port = 1; port <= 500; ++port) where[port] = open_flow(vip, port, 0);
  EXPECT_GT(vip.counters().untracked_flows, 300u);
  for (const auto& [port, endpoint] : where) EXPECT_EQ(vip.route(segment(port, kData), 1), endpoint);
  EXPECT_LE(flows_on(vip), 64u);
  expect_consistent(vip);
}

TEST(Vip, UdpFlowsEndBySilence) {
  VipConfig config = vip_config(3);
  config.protocol = kUdp;
  Vip vip = make_vip(config);
  const int endpoint = vip.route(segment(9, 0), 0);
  for (int i = 1; i < 100; ++i) EXPECT_EQ(vip.route(segment(9, 0), i * 20 * kSecond), endpoint);
  EXPECT_EQ(flows_on(vip), 1u);
  for (TimeNs now = 1980 * kSecond; now < 2020 * kSecond; now += kSecond / 2) vip.tick(now);
  EXPECT_EQ(flows_on(vip), 0u);
  EXPECT_EQ(vip.table().live(), 0u);
  expect_consistent(vip);
}

TEST(Vip, WhatServersMustTellIsRefusedInOneLine) {
  for (const char* rule : {"gsq", "oracle", "c3", "prequal", "charon_sapp", "awcmp", "least_load_noise"}) {
    const std::string why = check_vip(vip_config(2, rule));
    EXPECT_NE(why.find("needs what only servers know"), std::string::npos) << rule;
    EXPECT_EQ(why.find('\n'), std::string::npos);
  }
  for (const char* rule : {"ecmp", "wcmp", "lsq", "lsq2", "sed", "sed2", "hlb", "hlb2", "maglev", "rr",
                           "least_request", "peak_ewma", "policy"}) {
    EXPECT_EQ(check_vip(vip_config(2, rule)), "") << rule;
  }
}

// Every rule, a thousand flows in random order of events: the counters come back to zero.
TEST(Vip, EveryRuleGivesBackWhatItCounted) {
  for (const char* rule : {"ecmp", "wcmp", "lsq", "lsq2", "sed", "hlb", "maglev", "rr", "least_request",
                           "peak_ewma", "policy"}) {
    Vip vip = make_vip(vip_config(7, rule));
    constexpr uint8_t kEvents[] = {kSyn, kAck, kData, kFin | kAck, kRst, kAck};
    for (uint64_t key = 0; key < 20000; ++key) {
      const uint64_t word = core::draw(11, key);
      vip.route(segment(static_cast<uint16_t>(word % 1000), kEvents[(word >> 20) % 6]),
                static_cast<TimeNs>(key) * 1'000'000);
      if (key % 100 == 0) vip.tick(static_cast<TimeNs>(key) * 1'000'000);
    }
    expect_consistent(vip);
    for (TimeNs now = 20 * kSecond; now < 330 * kSecond; now += kSecond / 2) vip.tick(now);
    EXPECT_EQ(flows_on(vip), 0u) << rule;
    expect_consistent(vip);
  }
}

}  // namespace
}  // namespace steelyard::testing
