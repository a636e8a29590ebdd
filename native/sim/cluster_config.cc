#include "native/sim/cluster_config.h"

#include <cmath>
#include <stdexcept>

#include "native/core/feature_families.h"
#include "native/core/reservoir.h"
#include "native/core/types.h"
#include "native/sim/checks.h"

namespace steelyard::sim {
namespace {

void check_servers(const std::vector<ServerConfig>& servers) {
  if (servers.empty() || servers.size() > static_cast<size_t>(core::kMaxServers)) {
    refuse("pool.servers", static_cast<double>(servers.size()),
           "1 to " + std::to_string(core::kMaxServers) + " servers");
  }
  for (size_t j = 0; j < servers.size(); ++j) {
    const std::string key = "pool.servers[" + std::to_string(j) + "].";
    in_range(key + "workers", servers[j].workers, 1, 1e6);
    positive(key + "speed", servers[j].speed);
    if (servers[j].ps_cap != 0) in_range(key + "ps_cap", servers[j].ps_cap, servers[j].workers, 1e9);
  }
}

void check_stages(std::vector<StageConfig>& stages, bool has_trace) {
  if (stages.empty() || stages.size() > 32)
    refuse("workload.stages", static_cast<double>(stages.size()), "1 to 32 stages");
  for (size_t s = 0; s < stages.size(); ++s) {
    const std::string key = "workload.stages[" + std::to_string(s) + "].demand";
    stages[s].demand.prepare(key);
    if (stages[s].demand.kind == DistributionKind::kTrace && !has_trace) {
      throw std::invalid_argument(key + ": kind \"trace\" needs a trace as arrival process");
    }
  }
}

void check_event(const EventConfig& e, const ClusterConfig& config, const std::string& key) {
  in_range(key + "t_s", e.t_low_s, 0, 1e9);
  in_range(key + "t_s", e.t_high_s, e.t_low_s, 1e9);
  positive(key + "value", e.value_low);
  in_range(key + "value", e.value_high, e.value_low, 1e9);
  in_range(key + "duration_s", e.duration_s, 0, 1e9);
  if (e.kind == EventKind::kWorkers && (e.value_low < 1 || e.value_high > 1e6))
    refuse(key + "value", e.value_low, "1 or more workers");
  if (e.kind == EventKind::kArrivalScale) {
    if (config.arrival.kind == ArrivalKind::kTrace)
      throw std::invalid_argument(key + "kind: a replayed trace has no arrival rate to scale");
    return;
  }
  const bool balancers = e.kind == EventKind::kBalancerFail || e.kind == EventKind::kBalancerRecover;
  const int limit = balancers ? config.num_load_balancers : config.num_servers();
  if (e.targets.empty())
    throw std::invalid_argument(key + (balancers ? "balancers" : "servers") + ": empty; name at least one");
  for (const int target : e.targets)
    in_range(key + (balancers ? "balancers" : "servers"), target, 0, limit - 1);
  if (e.count != -1) in_range(key + "count", e.count, 1, static_cast<double>(e.targets.size()));
}

}  // namespace

void ClusterConfig::prepare() {
  in_range("pool.balancers", num_load_balancers, 1, core::kMaxLoadBalancers);
  check_servers(servers);
  arrival.check("workload.arrival.", trace != nullptr);
  check_stages(stages, arrival.kind == ArrivalKind::kTrace && trace != nullptr);
  in_range("pool.admission_limit", admission_limit, 0, 60000);
  in_range("pool.reject_sojourn_s", reject_sojourn_s, 0, 1e6);
  in_range("latency.hop_low_s", hop_low_s, 0, 2);
  in_range("latency.hop_high_s", hop_high_s, hop_low_s, 2);
  in_range("latency.node_low_s", node_low_s, 0, 2);
  in_range("latency.node_high_s", node_high_s, node_low_s, 2);
  in_range("flow_table.buckets", flow_table_buckets, 1, 1 << 24);
  if ((flow_table_buckets & (flow_table_buckets - 1)) != 0)
    refuse("flow_table.buckets", flow_table_buckets, "a power of two");
  in_range("flow_table.ways", flow_table_ways, 1, 64);
  in_range("observation.reservoir_size", reservoir_size, 1, core::Reservoir::kMaxSize);
  for (const std::string& name : hidden_features) {
    if (!core::is_feature_family(name))
      throw std::invalid_argument("observation.hide: \"" + name +
                                  "\" is not known; see native.feature_families()");
  }
  in_range("control.step_s", step_s, 1e-6, 1e6);
  in_range("observation.delay_s", observation_delay_s, 0, kMaxDelaySteps * step_s);
  in_range("control.actuation_delay_s", actuation_delay_s, 0, step_s);
  in_range("episode.horizon_s", horizon_s, step_s, 1e7);
  in_range("episode.warmup_s", warmup_s, 0, horizon_s);
  for (size_t k = 0; k < events.size(); ++k)
    check_event(events[k], *this, "events[" + std::to_string(k) + "].");
}

}  // namespace steelyard::sim
