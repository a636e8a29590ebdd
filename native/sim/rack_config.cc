#include "native/sim/rack_config.h"

#include <cmath>
#include <string>

#include "native/sim/checks.h"

namespace steelyard::sim {
namespace {

constexpr double kLongest = 1e6;  // [s]

void check_servers(const std::vector<RackServer>& servers) {
  if (servers.empty() || servers.size() > static_cast<size_t>(core::kMaxServers)) {
    refuse("rack.servers", static_cast<double>(servers.size()),
           "1 to " + std::to_string(core::kMaxServers) + " servers");
  }
  for (size_t j = 0; j < servers.size(); ++j) {
    const std::string key = "rack.servers[" + std::to_string(j) + "].";
    in_range(key + "workers", servers[j].workers, 1, 4096);
    positive(key + "speed", servers[j].speed);
  }
}

void check_types(std::vector<RackType>& types) {
  if (types.empty() || types.size() > 64)
    refuse("workload.types", static_cast<double>(types.size()), "1 to 64 types");
  for (size_t t = 0; t < types.size(); ++t) {
    const std::string key = "workload.types[" + std::to_string(t) + "].";
    positive(key + "ratio", types[t].ratio);
    if (types[t].service.kind == DistributionKind::kTrace)
      throw std::invalid_argument(key + "service: kind \"trace\" is not allowed in a rack");
    types[t].service.prepare(key + "service");
  }
}

void check_split(const std::string& key, const std::vector<double>& split, int origins) {
  if (split.size() != static_cast<size_t>(origins))
    refuse(key, static_cast<double>(split.size()), std::to_string(origins) + " shares, one each");
  double total = 0;
  for (const double share : split) {
    in_range(key, share, 0, 65535);
    total += share;
  }
  positive(key, total);
}

void check_delay(const std::string& key, RackDelay& delay) {
  in_range(key + ".constant_s", delay.constant_s, 0, kLongest);
  if (!delay.jitter) return;
  if (delay.jitter->kind == DistributionKind::kTrace)
    throw std::invalid_argument(key + ".jitter: kind \"trace\" is not allowed for a delay");
  delay.jitter->prepare(key + ".jitter");
}

void check_event(const RackEvent& e, const RackConfig& config, const std::string& key) {
  in_range(key + "t_s", e.t_s, 0, kLongest);
  switch (e.kind) {
    case RackEventKind::kSplit:
      return check_split(key + "split", e.split, config.num_deciders());
    case RackEventKind::kArrivalScale:
      if (config.arrival.kind == ArrivalKind::kTrace)
        throw std::invalid_argument(key + "kind: a replayed trace has no arrival rate to scale");
      return positive(key + "value", e.value);
    case RackEventKind::kMix:
      return check_split(key + "split", e.split, static_cast<int>(config.types.size()));
    case RackEventKind::kSpeed:
    case RackEventKind::kWorkers:
      break;
  }
  positive(key + "value", e.value);
  if (e.kind == RackEventKind::kWorkers) in_range(key + "value", e.value, 1, 4096);
  if (e.targets.empty()) throw std::invalid_argument(key + "servers: empty; name at least one");
  for (const int target : e.targets) in_range(key + "servers", target, 0, config.num_servers() - 1);
}

}  // namespace

double RackConfig::mean_service_s() const {
  double sum = 0, weight = 0;
  for (const RackType& type : types) {
    sum += type.ratio * type.service.mean();
    weight += type.ratio;
  }
  return sum / weight;
}

void RackConfig::prepare() {
  check_servers(servers);
  check_types(types);
  arrival.check("workload.arrival.", trace != nullptr);
  in_range("rack.dispatchers", dispatchers, 0, core::kMaxLoadBalancers);
  if (!split.empty()) check_split("workload.split", split, num_deciders());
  if (discipline == Discipline::kQuantum) positive("rack.quantum_s", quantum_s);
  in_range("rack.switch_s", switch_s, 0, kLongest);
  in_range("rack.darc_within", darc_within, 1, 1e9);
  positive("rack.darc_shift", darc_shift);
  in_range("rack.darc_window", darc_window, 1, 1e9);
  check_delay("network.task_delay", task_delay);
  check_delay("network.message_delay", message_delay);
  check_delay("network.reply_delay", reply_delay);
  check_delay("network.steal_delay", steal_delay);
  in_range("network.migration_work_s", migration_work_s, 0, kLongest);
  in_range("network.steal_work_s", steal_work_s, 0, kLongest);
  in_range("load.broadcast_period_s", broadcast_period_s, 1e-9, kLongest);
  in_range("rack.steal_threshold", steal_threshold, 0, 1e9);
  in_range("rack.steal_least", steal_least, 1, 1e9);
  if (!(rate_ewma > 0 && rate_ewma <= 1)) refuse("load.rate_ewma", rate_ewma, "a number in (0, 1]");
  positive("horizon_s", horizon_s);
  in_range("horizon_s", horizon_s, 1e-9, kLongest);
  if (!(warmup_s >= 0 && warmup_s < horizon_s)) refuse("warmup_s", warmup_s, "a number in [0, horizon_s)");
  for (size_t k = 0; k < events.size(); ++k)
    check_event(events[k], *this, "events[" + std::to_string(k) + "].");
}

}  // namespace steelyard::sim
