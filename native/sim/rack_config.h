// What a rack world is made of: servers of workers, microsecond tasks, a network, and what servers say of
// their load. docs/rack.md tells what each choice means.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "native/core/types.h"
#include "native/sim/arrival_config.h"
#include "native/sim/distribution.h"
#include "native/sim/trace.h"

namespace steelyard::sim {

struct RackServer {
  int workers = 1;     // c_i
  double speed = 1.0;  // work done per second and worker
};

// A class of tasks; its number is in the task's header, where servers and dispatchers can read it.
struct RackType {
  double ratio = 1.0;  // share of arrivals, in proportion to the others'
  Distribution service;
};

// A network delay: a constant, and what `jitter` adds to it.
struct RackDelay {
  double constant_s = 0;
  std::optional<Distribution> jitter;

  bool is_zero() const { return constant_s == 0 && !jitter; }
  // From one uniform word.
  core::TimeNs ns(uint64_t word) const {
    const double s = jitter ? constant_s + jitter->sample(word) : constant_s;
    return static_cast<core::TimeNs>(s * 1e9 + 0.5);
  }
};

enum class Discipline : uint8_t {
  kFcfs,     // one line, any worker (cFCFS)
  kPs,       // processor sharing: each of n tasks at speed min(1, c / n)
  kQuantum,  // round robin: a worker turns to the next waiting task after a quantum and a switch
  kDarc,     // cores reserved by type (Demoulin et al., SOSP'21)
};

// How a decider comes to know the load of servers.
enum class LoadInfo : uint8_t {
  kExact,        // what it is at this instant
  kBroadcast,    // every server sends it every period, at a delay
  kPiggyback,    // with each reply to this decider
  kOutstanding,  // tasks that this decider sent and has no reply of
};

enum class LoadMeasure : uint8_t {
  kTasks,    // tasks in the server
  kWaiting,  // those that wait
  kWork,     // remaining work, over workers x speed [s]
};

// When servers broadcast within the period.
enum class BroadcastPhase : uint8_t { kTogether, kStaggered, kRandom };

enum class StealFrom : uint8_t { kOldest, kNewest };

enum class RackEventKind : uint8_t { kSplit, kArrivalScale, kSpeed, kWorkers, kMix };

struct RackEvent {
  RackEventKind kind = RackEventKind::kSpeed;
  double t_s = 0;
  double value = 1;           // factor on the configured rate or speed, or number of workers
  std::vector<int> targets;   // servers (kSpeed, kWorkers)
  std::vector<double> split;  // kSplit: the new shares of the origins; kMix: of the types
};

struct RackConfig {
  std::vector<RackServer> servers;
  std::vector<RackType> types;
  ArrivalConfig arrival;
  std::shared_ptr<const Trace> trace;  // of arrival times, for the kind that replays one
  int dispatchers = 0;                 // 0: tasks arrive at servers, which keep them or migrate them once
  std::vector<double> split;           // share of each origin (server or dispatcher); empty: equal

  Discipline discipline = Discipline::kFcfs;
  double quantum_s = 0;      // kQuantum
  double switch_s = 0;       // kQuantum: a worker's time lost at each preemption
  double darc_within = 1.2;  // DARC: types whose means are within this factor share a group
  double darc_shift = 0.1;   // DARC: plans anew when a group's share of demand moved by more
  int darc_window = 10000;   // DARC: completions of a server between looks at its demand

  RackDelay task_delay;             // a task from its decider to another server
  RackDelay message_delay;          // load broadcasts, requests for work, reservations
  RackDelay reply_delay;            // from a server to the decider of a task
  RackDelay steal_delay;            // a stolen task to the thief
  double migration_work_s = 0;      // added to the service of a task that its server gave away
  double steal_work_s = 0;          // added to the service of a stolen task
  bool latency_with_reply = false;  // latency ends with the reply at the decider, not with service

  LoadInfo load_info = LoadInfo::kBroadcast;
  LoadMeasure load_measure = LoadMeasure::kTasks;
  double broadcast_period_s = 100e-6;
  BroadcastPhase broadcast_phase = BroadcastPhase::kTogether;
  bool own_load_exact = true;   // a server knows its own load at any instant
  bool count_in_flight = true;  // kExact: tasks on their way count at their server

  int steal_threshold = 0;  // a server may steal when at most this many tasks wait there
  int steal_least = 1;      // and gets a task where at least this many wait
  StealFrom steal_from = StealFrom::kOldest;

  double rate_ewma = 0.05;        // weight of the newest service in a server's estimate of its rate
  bool rate_of_inverses = false;  // mean of 1/service (thesis), not 1/(mean of service)
  double horizon_s = 1;
  double warmup_s = 0;
  std::vector<RackEvent> events;

  int num_servers() const { return static_cast<int>(servers.size()); }
  int num_deciders() const { return dispatchers > 0 ? dispatchers : num_servers(); }
  // Over all types, at speed 1. [s]
  double mean_service_s() const;
  // Throws std::invalid_argument with one line naming key, value and what is allowed.
  void prepare();
};

}  // namespace steelyard::sim
