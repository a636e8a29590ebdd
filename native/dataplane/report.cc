#include "native/dataplane/report.h"

#include "native/dataplane/log.h"
#include "native/tape/recorder.h"

namespace steelyard::dataplane {
namespace {

VipReport report_of(const Vip& vip) {
  VipReport report;
  report.config = vip.config();
  report.counters = vip.counters();
  for (int i = 0; i < kFlowStates; ++i) report.in_state[i] = vip.in_state(static_cast<FlowState>(i));
  report.policy_wanted = vip.policy().wanted();
  report.policy_healthy = vip.policy().healthy();
  report.policy_why = vip.policy().why();
  report.decisions = vip.policy().decisions();
  report.fallbacks = vip.policy().fallbacks();
  if (const auto* tape = dynamic_cast<const tape::Recorder*>(vip.log()); tape != nullptr) {
    report.taped = tape->recording();
    report.tape_records = tape->records();
    report.tape_decisions = tape->decisions();
    report.tape_digest = tape->digest();
  }
  for (const Endpoint& endpoint : vip.endpoints()) {
    const bool removed = endpoint.server == core::kNoServer;
    if (removed && endpoint.bound == 0) continue;
    ServerReport& server = report.servers.emplace_back();
    server.endpoint = endpoint;
    if (removed) continue;
    server.flows_on = vip.core().flows_on()[endpoint.server];
    server.weight = static_cast<double>(vip.core().weights()[endpoint.server]) / core::kUnitWeight;
  }
  return report;
}

std::string json_of(const ServerReport& server) {
  const Endpoint& endpoint = server.endpoint;
  const bool removed = endpoint.server == core::kNoServer;
  return Json()
      .add("name", endpoint.name)
      .add("address", text_of(endpoint.address))
      .add("mac", endpoint.has_mac ? text_of(endpoint.mac) : "")
      .add("state", removed             ? "removed"
                    : endpoint.draining ? "draining"
                                        : "active")
      .add("flows_on", uint64_t{server.flows_on})
      .add("weight", server.weight)
      .add("bound", uint64_t{endpoint.bound})
      .add("packets", endpoint.packets)
      .add("bytes", endpoint.bytes)
      .add("opened", endpoint.opened)
      .add("completed", endpoint.completed)
      .add("reset", endpoint.reset)
      .add("timed_out", endpoint.timed_out)
      .text();
}

std::string json_of(const VipReport& vip) {
  Json states, policy, tape;
  for (int i = 0; i < kFlowStates; ++i) {
    states.add(text_of(static_cast<FlowState>(i)), uint64_t{vip.in_state[i]});
  }
  policy.add("wanted", vip.policy_wanted).add("healthy", vip.policy_healthy).add("why", vip.policy_why);
  policy.add("decisions", vip.decisions).add("fallbacks", vip.fallbacks);
  tape.add("recording", vip.taped).add("records", vip.tape_records);
  tape.add("decisions", vip.tape_decisions).add("digest", hex_of(vip.tape_digest));
  std::deque<std::string> servers;
  for (const ServerReport& server : vip.servers) servers.push_back(json_of(server));
  return Json()
      .add("name", vip.config.name)
      .add("address", text_of(vip.config.address))
      .add("port", int{vip.config.port})
      .add("protocol", vip.config.protocol == kTcp ? "tcp" : "udp")
      .add("rule", vip.config.rule)
      .add_raw("policy", policy.text())
      .add_raw("tape", vip.config.tape.empty() ? "null" : tape.text())
      .add_raw("connections", states.text())
      .add("fallback_packets", vip.counters.fallback_packets)
      .add("untracked_flows", vip.counters.untracked_flows)
      .add("half_open_refused", vip.counters.half_open_refused)
      .add("reused", vip.counters.reused)
      .add("adopted", vip.counters.adopted)
      .add("evicted", vip.counters.evicted)
      .add("no_server", vip.counters.no_server)
      .add_raw("servers", json_list(servers))
      .text();
}

}  // namespace

std::string_view text_of(FlowState state) {
  static constexpr std::array<std::string_view, kFlowStates> kText = {"opening", "established", "closing",
                                                                      "adopted", "idle"};
  return kText[static_cast<size_t>(state)];
}

Report report_of(const Forwarder& forwarder, Transport& transport) {
  Report report;
  for (int i = 0; i < kVerdicts; ++i) report.verdicts[i] = forwarder.verdicts(static_cast<Verdict>(i));
  report.transport = transport.counters();
  for (const Neighbours::Entry& entry : forwarder.neighbours().entries()) {
    ++(entry.known ? report.neighbours : report.neighbours_unknown);
  }
  for (const std::unique_ptr<Vip>& vip : forwarder.vips()) report.vips.push_back(report_of(*vip));
  return report;
}

std::string json_of(const Report& report) {
  Json verdicts, transport;
  for (int i = 0; i < kVerdicts; ++i) verdicts.add(text_of(static_cast<Verdict>(i)), report.verdicts[i]);
  transport.add("received", report.transport.received)
      .add("received_bytes", report.transport.received_bytes)
      .add("sent", report.transport.sent)
      .add("sent_bytes", report.transport.sent_bytes)
      .add("receive_dropped", report.transport.receive_dropped)
      .add("send_dropped", report.transport.send_dropped);
  std::deque<std::string> vips;
  for (const VipReport& vip : report.vips) vips.push_back(json_of(vip));
  return Json()
      .add_raw("packets", verdicts.text())
      .add_raw("transport", transport.text())
      .add("neighbours", uint64_t{report.neighbours})
      .add("neighbours_unknown", uint64_t{report.neighbours_unknown})
      .add_raw("vips", json_list(vips))
      .text();
}

}  // namespace steelyard::dataplane
