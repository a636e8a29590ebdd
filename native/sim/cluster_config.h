// What a cluster world is made of. Defaults live in envs/scenario.py; this struct holds what it is given.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/sim/arrival_config.h"
#include "native/sim/distribution.h"
#include "native/sim/trace.h"

namespace steelyard::sim {

enum class StageKind : uint8_t { kCpu, kIo };
enum class CpuMode : uint8_t { kFifo, kBlockedPs };

struct StageConfig {
  StageKind kind = StageKind::kCpu;
  Distribution demand;
};

struct ServerConfig {
  int workers = 1;     // c_j, CPU workers
  double speed = 1.0;  // work done per second and worker
  CpuMode cpu = CpuMode::kFifo;
  int ps_cap = 0;       // p_hat of blocked PS (seed 002 eq. 42); 0: no cap
  bool present = true;  // false: joins later by the timetable
};

enum class EventKind : uint8_t {
  kSpeed,
  kWorkers,
  kLeave,
  kJoin,
  kBalancerFail,
  kBalancerRecover,
  kArrivalScale
};

// One line of the timetable. Ranges are drawn per seed (domain randomisation); low == high is a fixed value.
struct EventConfig {
  EventKind kind = EventKind::kSpeed;
  double t_low_s = 0, t_high_s = 0;
  double value_low = 1,
         value_high = 1;     // speed factor on the configured speed, workers, or arrival-rate factor
  bool log_uniform = false;  // draw the value log-uniformly
  std::vector<int> targets;  // servers or balancers to choose from
  int count = -1;            // how many of the targets, drawn per seed; -1: all
  bool common_value = true;  // one value for all chosen targets, or one each
  double duration_s = 0;     // > 0: undone after that time (speed, workers, leave, fail, scale)
};

inline constexpr double kMaxDelaySteps = 1000;  // of the age of observations

struct ClusterConfig {
  int num_load_balancers = 1;
  std::vector<ServerConfig> servers;
  std::vector<StageConfig> stages;
  ArrivalConfig arrival;
  std::shared_ptr<const Trace> trace;
  int admission_limit = 64;  // a flow that finds more than this at its server is rejected
  double reject_sojourn_s = 40;
  double hop_low_s = 0, hop_high_s = 0;    // network hop, uniform
  double node_low_s = 0, node_high_s = 0;  // processing at a node, uniform
  int flow_table_buckets = 65536;
  int flow_table_ways = 4;
  bool features = true;  // reservoirs on
  int reservoir_size = 128;
  std::vector<std::string> hidden_features;  // families (core/feature_families.h) that agents read as 0
  double observation_delay_s = 0;            // age of what agents see
  double step_s = 0.5;
  double actuation_delay_s = 0;
  double horizon_s = 60;
  double warmup_s = 0;
  std::vector<EventConfig> events;

  int num_servers() const { return static_cast<int>(servers.size()); }
  // Throws std::invalid_argument with one line naming key, value and what is allowed.
  void prepare();
};

}  // namespace steelyard::sim
