// What a balancer has counted, at one moment: for `steelyard lb stats` and for Prometheus.
#pragma once

#include <string>
#include <vector>

#include "native/dataplane/forwarder.h"
#include "native/dataplane/transport.h"

namespace steelyard::dataplane {

struct ServerReport {
  Endpoint endpoint;
  uint32_t flows_on = 0;
  double weight = 0;
};

struct VipReport {
  VipConfig config;
  VipCounters counters;
  std::array<uint32_t, kFlowStates> in_state{};
  bool policy_wanted = false, policy_healthy = false;
  std::string policy_why;
  uint64_t decisions = 0, fallbacks = 0;
  bool taped = false;  // a tape runs
  uint64_t tape_records = 0, tape_decisions = 0, tape_digest = 0;
  std::vector<ServerReport> servers;  // removed ones that still have connections included
};

struct Report {
  std::array<uint64_t, kVerdicts> verdicts{};
  TransportCounters transport;
  uint32_t neighbours = 0, neighbours_unknown = 0;
  std::vector<VipReport> vips;
};

Report report_of(const Forwarder& forwarder, Transport& transport);
std::string json_of(const Report& report);
std::string_view text_of(FlowState state);

}  // namespace steelyard::dataplane
