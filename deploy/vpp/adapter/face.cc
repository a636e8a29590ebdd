// The C face over the host: nothing but translation.
#include <cstdio>
#include <cstring>
#include <exception>

#include "deploy/vpp/adapter/command.h"
#include "deploy/vpp/adapter/report.h"
#include "deploy/vpp/adapter/steelyard_vpp.h"

struct steelyard_vpp {
  steelyard::vpp::Host host;
};

namespace {

using namespace steelyard;
using namespace steelyard::vpp;
using dataplane::Forwarding;
using dataplane::Packet;
using dataplane::Verdict;

static_assert(sizeof(steelyard_vpp_packet) == sizeof(Packet));
static_assert(offsetof(steelyard_vpp_packet, data) == offsetof(Packet, data));
static_assert(offsetof(steelyard_vpp_packet, size) == offsetof(Packet, size));
static_assert(offsetof(steelyard_vpp_packet, headroom) == offsetof(Packet, headroom));
static_assert(STEELYARD_VPP_BURST == dataplane::Forwarder::kBurst);
static_assert(STEELYARD_VPP_HEADROOM == dataplane::kHeadroom);
static_assert(STEELYARD_VPP_LINK_BYTES == dataplane::kEthernetSize);
static_assert(STEELYARD_VPP_PASS == static_cast<int>(Verdict::kPass));
static_assert(STEELYARD_VPP_DROP == static_cast<int>(Verdict::kTruncated));
static_assert(sizeof(Verdict) == 1);

constexpr Forwarding kForwardings[] = {Forwarding::kGre, Forwarding::kL3Dsr, Forwarding::kNat};

int tell(const std::string& why, char* answer, size_t size) {
  if (size > 0) std::snprintf(answer, size, "%s", why.c_str());
  return why.empty() ? 0 : -1;
}

// No exception leaves: what memory or files refuse is an answer.
template <class Body>
int guarded(char* answer, size_t size, const Body& body) {
  try {
    return tell(body(), answer, size);
  } catch (const std::exception& error) {
    return tell(error.what(), answer, size);
  }
}

Address address_of(const steelyard_vpp_address& given) {
  return given.is_v6 != 0 ? Address::read_v6(given.bytes) : Address::read_v4(given.bytes);
}

steelyard_vpp_address face_of(const Address& address) {
  steelyard_vpp_address out{};
  out.is_v6 = address.is_v4() ? 0 : 1;
  address.is_v4() ? address.write_v4(out.bytes) : address.write_v6(out.bytes);
  return out;
}

uint8_t face_of(Forwarding forwarding) {
  for (uint8_t i = 0; i < std::size(kForwardings); ++i) {
    if (kForwardings[i] == forwarding) return i;
  }
  return 0;
}

const char* text(const char* given) { return given == nullptr ? "" : given; }

std::string vip_of(const steelyard_vpp_vip& given, VipConfig* vip) {
  vip->name = text(given.name);
  vip->address = address_of(given.address);
  vip->port = given.port;
  vip->target_port = given.target_port;
  if (vip->name.empty()) return "name is missing";
  if (vip->port == 0) return "port is missing";
  if (given.protocol != dataplane::kTcp && given.protocol != dataplane::kUdp) {
    return "protocol: " + std::to_string(given.protocol) + " is not allowed; use 6 (tcp) or 17 (udp)";
  }
  if (given.forwarding >= std::size(kForwardings)) return "forwarding: use 0 (gre), 1 (l3-dsr) or 2 (nat)";
  vip->protocol = given.protocol;
  vip->forwarding = kForwardings[given.forwarding];
  if (given.dscp > 63) return "dscp: " + std::to_string(given.dscp) + " is not allowed; use 0 to 63";
  if (given.dscp != 0) vip->dscp = given.dscp;
  if (*text(given.rule) != 0) vip->rule = given.rule;
  if (*text(given.policy_file) != 0) {
    vip->policy_file = given.policy_file;
    vip->rule = "policy";
  }
  vip->shared_memory = text(given.shared_memory);
  if (!(given.interval_s >= 0 && given.interval_s <= 3600)) return "interval: use 0.001 to 3600";
  if (!(given.max_age_s >= 0 && given.max_age_s <= 3600)) return "max_age: use 0.001 to 3600";
  if (given.interval_s != 0) vip->interval_s = std::max(given.interval_s, 0.001);
  if (given.max_age_s != 0) vip->max_age_s = given.max_age_s;
  if (given.connections != 0) vip->connections = given.connections;
  return "";
}

}  // namespace

uint32_t steelyard_vpp_verdicts(void) { return dataplane::kVerdicts; }

const char* steelyard_vpp_verdict_text(uint32_t verdict) {
  return verdict < dataplane::kVerdicts ? text_of(static_cast<Verdict>(verdict)).data() : "";
}

steelyard_vpp* steelyard_vpp_new(uint32_t threads, uint32_t workers) {
  try {
    return new steelyard_vpp{Host(static_cast<int>(threads), static_cast<int>(workers))};
  } catch (const std::exception&) {
    return nullptr;
  }
}

void steelyard_vpp_free(steelyard_vpp* self) { delete self; }

void steelyard_vpp_process(steelyard_vpp* self, uint32_t thread, steelyard_vpp_packet* packets,
                           uint32_t count, int64_t now_ns, uint8_t* verdicts) {
  self->host.process(static_cast<int>(thread), {reinterpret_cast<Packet*>(packets), count}, now_ns,
                     reinterpret_cast<Verdict*>(verdicts));
}

void steelyard_vpp_tick_thread(steelyard_vpp* self, uint32_t thread, int64_t now_ns) {
  self->host.tick_thread(static_cast<int>(thread), now_ns);
}

void steelyard_vpp_tick(steelyard_vpp* self, int64_t now_ns) { self->host.tick(now_ns); }

int steelyard_vpp_command(steelyard_vpp* self, const char* line, int64_t now_ns, char* answer, size_t size) {
  std::string reply;
  bool done = false;
  guarded(answer, size, [&] {
    done = run_command(&self->host, line, now_ns, &reply);
    return reply;
  });
  return done ? 0 : -1;
}

int steelyard_vpp_vip_add(steelyard_vpp* self, const steelyard_vpp_vip* given, int64_t now_ns, char* answer,
                          size_t size) {
  return guarded(answer, size, [&] {
    VipConfig vip;
    const std::string why = vip_of(*given, &vip);
    return why.empty() ? self->host.add_vip(vip, now_ns) : why;
  });
}

int steelyard_vpp_server_set(steelyard_vpp* self, const steelyard_vpp_server* given, int64_t now_ns,
                             char* answer, size_t size) {
  return guarded(answer, size, [&]() -> std::string {
    ServerConfig server;
    server.address = address_of(given->address);
    server.name = text_of(server.address);
    server.drain = given->drain != 0;
    if (!(given->weight >= 0 && given->weight <= 65535)) return "weight: use 0.0001 to 65535";
    if (given->weight != 0) server.weight = given->weight;
    return self->host.set_server(text(given->vip), server, now_ns);
  });
}

int steelyard_vpp_server_del(steelyard_vpp* self, const steelyard_vpp_server* given, int64_t now_ns,
                             char* answer, size_t size) {
  return guarded(answer, size, [&] {
    return self->host.remove_server(text(given->vip), address_of(given->address), now_ns);
  });
}

void steelyard_vpp_each_vip(const steelyard_vpp* self, void (*tell)(void*, const steelyard_vpp_vip_state*),
                            void* context) {
  for (const VipConfig& vip : self->host.vips()) {
    const Pool* pool = self->host.pool_of(vip.name);
    steelyard_vpp_vip_state state{};
    state.name = vip.name.c_str();
    state.rule = vip.rule.c_str();
    state.why = pool == nullptr ? "" : pool->policy().why().c_str();
    state.address = face_of(vip.address);
    state.port = vip.port;
    state.target_port = dataplane::target_port(vip);
    state.protocol = vip.protocol;
    state.forwarding = face_of(vip.forwarding);
    state.servers = static_cast<uint32_t>(vip.servers.size());
    if (pool != nullptr) {
      state.healthy = pool->policy().healthy() ? 1 : 0;
      state.connections = pool->totals().connections;
      state.decisions = pool->policy().decisions();
      state.fallbacks = pool->policy().fallbacks();
    }
    tell(context, &state);
  }
}

void steelyard_vpp_each_server(const steelyard_vpp* self,
                               void (*tell)(void*, const steelyard_vpp_server_state*), void* context) {
  for (const VipConfig& vip : self->host.vips()) {
    const Pool* pool = self->host.pool_of(vip.name);
    for (size_t j = 0; pool != nullptr && j < vip.servers.size(); ++j) {
      const Totals& totals = pool->totals();
      const shm::ServerCounters& counters = totals.servers[j];
      const steelyard_vpp_server_state state{.vip = vip.name.c_str(),
                                             .address = face_of(vip.servers[j].address),
                                             .drain = vip.servers[j].drain,
                                             .flows_on = totals.flows_on[j],
                                             .weight = totals.weights[j],
                                             .opened = counters.flows_opened,
                                             .completed = counters.flows_completed,
                                             .reset = counters.resets,
                                             .packets = counters.packets,
                                             .bytes = counters.bytes};
      tell(context, &state);
    }
  }
}

void steelyard_vpp_each_metric(const steelyard_vpp* self, void (*tell)(void*, const char*, uint64_t),
                               void* context) {
  each_metric(self->host,
              [&](const std::string& name, uint64_t value) { tell(context, name.c_str(), value); });
}

void steelyard_vpp_each_event(steelyard_vpp* self, void (*tell)(void*, const char*), void* context) {
  for (const std::string& line : self->host.take_events()) tell(context, line.c_str());
}

void steelyard_vpp_show(const steelyard_vpp* self, void (*tell)(void*, const char*), void* context) {
  show(self->host, [&](const std::string& line) { tell(context, line.c_str()); });
}
