#include "deploy/vpp/adapter/report.h"

#include <cinttypes>
#include <cstdarg>
#include <cstdio>

namespace steelyard::vpp {
namespace {

using dataplane::Forwarding;

[[gnu::format(printf, 1, 2)]] std::string format(const char* text, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, text);
  std::vsnprintf(line, sizeof line, text, arguments);
  va_end(arguments);
  return line;
}

const char* text_of(Forwarding forwarding) {
  switch (forwarding) {
    case Forwarding::kGre:
      return "gre";
    case Forwarding::kL3Dsr:
      return "l3-dsr";
    case Forwarding::kNat:
      return "nat";
    default:
      return "l2-dsr";
  }
}

std::string policy_line(const Pool& pool) {
  const dataplane::PolicyHost& policy = pool.policy();
  const std::string& file = pool.config().policy_file;
  std::string line = "  policy " + (file.empty() ? "of an agent" : file) + ": ";
  line += policy.healthy() ? "followed" : "not followed (lsq): " + policy.why();
  return line +
         format(", %" PRIu64 " decisions, %" PRIu64 " fallbacks", policy.decisions(), policy.fallbacks());
}

void show_servers(const Pool& pool, const std::function<void(const std::string& line)>& tell) {
  tell(format("  %-24s %-8s %8s %10s %10s %10s %8s %12s %14s", "server", "state", "weight", "flows on",
              "opened", "completed", "reset", "packets", "bytes"));
  const Totals& totals = pool.totals();
  for (size_t j = 0; j < pool.config().servers.size(); ++j) {
    const ServerConfig& server = pool.config().servers[j];
    const shm::ServerCounters& counters = totals.servers[j];
    tell(format("  %-24s %-8s %8.4f %10u %10" PRIu64 " %10" PRIu64 " %8" PRIu64 " %12" PRIu64 " %14" PRIu64,
                server.name.c_str(), server.drain ? "draining" : "active", totals.weights[j],
                totals.flows_on[j], counters.flows_opened, counters.flows_completed, counters.resets,
                counters.packets, counters.bytes));
  }
}

void show_vip(const Host& host, const VipConfig& vip,
              const std::function<void(const std::string& line)>& tell) {
  tell(format("vip %s: %s port %u %s, %s, rule %s, every %g s", vip.name.c_str(),
              text_of(vip.address).c_str(), vip.port, vip.protocol == dataplane::kTcp ? "tcp" : "udp",
              text_of(vip.forwarding), vip.rule.c_str(), vip.interval_s));
  const Pool* pool = host.pool_of(vip.name);
  if (pool == nullptr) return tell("  no server: its packets pass");
  if (pool->policy().wanted()) tell(policy_line(*pool));
  if (!vip.shared_memory.empty()) {
    const std::string& error = pool->policy().share_error();
    tell("  shared memory " + vip.shared_memory + (error.empty() ? "" : ": " + error));
  }
  const dataplane::VipCounters& c = pool->totals().vip;
  tell(format("  connections %u of %u a thread; fallback packets %" PRIu64 ", untracked %" PRIu64
              ", half-open refused %" PRIu64 ", adopted %" PRIu64 ", evicted %" PRIu64,
              pool->totals().connections, vip.connections, c.fallback_packets, c.untracked_flows,
              c.half_open_refused, c.adopted, c.evicted));
  show_servers(*pool, tell);
}

void vip_metrics(const VipConfig& vip, const Pool& pool, const Metric& tell) {
  const std::string name = vip.name + "/";
  const Totals& totals = pool.totals();
  tell(name + "connections", totals.connections);
  tell(name + "fallback_packets", totals.vip.fallback_packets);
  tell(name + "untracked_flows", totals.vip.untracked_flows);
  tell(name + "half_open_refused", totals.vip.half_open_refused);
  tell(name + "reused", totals.vip.reused);
  tell(name + "adopted", totals.vip.adopted);
  tell(name + "evicted", totals.vip.evicted);
  tell(name + "no_server", totals.vip.no_server);
  tell(name + "policy_healthy", pool.policy().healthy() ? 1 : 0);
  tell(name + "policy_decisions", pool.policy().decisions());
  tell(name + "policy_fallbacks", pool.policy().fallbacks());
  for (size_t j = 0; j < vip.servers.size(); ++j) {
    const std::string server = name + vip.servers[j].name + "/";
    const shm::ServerCounters& counters = totals.servers[j];
    tell(server + "flows_on", totals.flows_on[j]);
    tell(server + "weight_thousandths", static_cast<uint64_t>(totals.weights[j] * 1000));
    tell(server + "opened", counters.flows_opened);
    tell(server + "completed", counters.flows_completed);
    tell(server + "reset", counters.resets);
    tell(server + "packets", counters.packets);
    tell(server + "bytes", counters.bytes);
  }
}

}  // namespace

void each_metric(const Host& host, const Metric& tell) {
  for (const VipConfig& vip : host.vips()) {
    const Pool* pool = host.pool_of(vip.name);
    if (pool != nullptr) vip_metrics(vip, *pool, tell);
  }
}

void show(const Host& host, const std::function<void(const std::string& line)>& tell) {
  const dataplane::LinkConfig& link = host.config().link;
  tell("source " + (link.address4 ? dataplane::text_of(*link.address4) : "none") + ", " +
       (link.address6 ? dataplane::text_of(*link.address6) : "none") +
       format("; mtu %u; balancer %d of %d; %d threads", link.mtu != 0 ? link.mtu : 1500,
              host.config().balancer, host.config().num_balancers, host.threads()));
  for (int i = 0; i < dataplane::kVerdicts; ++i) {
    uint64_t packets = 0;
    const auto verdict = static_cast<dataplane::Verdict>(i);
    for (int thread = 0; thread < host.threads(); ++thread)
      packets += host.forwarder(thread).verdicts(verdict);
    if (packets != 0) tell(format("  %-14s %" PRIu64, std::string(text_of(verdict)).c_str(), packets));
  }
  for (const VipConfig& vip : host.vips()) show_vip(host, vip, tell);
}

}  // namespace steelyard::vpp
