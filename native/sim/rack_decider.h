// What decides in the place of a rule: learned policies implement this. One object plays all servers of a
// rack; whoever keeps them apart keeps one state a server.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "native/core/types.h"

namespace steelyard::sim {

struct RackConfig;

// What a server says of itself once a period.
struct LoadReport {
  float load = 0;           // in the measure of the configuration
  float tasks = 0;          // in the server
  float rate = 0;           // estimated service rate of the server [tasks/s]
  uint32_t migrations = 0;  // tasks given away since its last report
  uint32_t steals = 0;      // tasks stolen by it since its last report
  float workers = 0;        // of the server
};

class RackDecider {
 public:
  virtual ~RackDecider() = default;
  virtual std::unique_ptr<RackDecider> clone() const = 0;
  // Throws std::invalid_argument (one line) unless it can play this rack.
  virtual void check(const RackConfig& config) const { (void)config; }
  // Before the first task. `seed` is of the episode.
  virtual void reset(const RackConfig& config, uint64_t seed) = 0;

  // A task of this type has arrived at server i. The server that gets it; i keeps it.
  virtual int migrate(int i, uint32_t type, uint64_t word) = 0;
  // Server i may steal now. The server to ask; i or core::kNoServer: none.
  virtual int steal(int i, uint64_t word) = 0;
  // The reports of a period have come in; the next window begins.
  virtual void on_window(core::TimeNs now) = 0;

  // What server i says to all now; the answer is sent.
  virtual LoadReport on_broadcast(int i, const LoadReport& report) {
    (void)i;
    return report;
  }
  // A report of server j has reached server i != j.
  virtual void on_load(int i, int j, const LoadReport& report) { (void)i, (void)j, (void)report; }
  // At server i a task came in (kept, migrated, stolen), left served after `service_s` of a worker's time, or
  // was stolen.
  virtual void on_accept(int i, uint32_t type) { (void)i, (void)type; }
  virtual void on_completion(int i, uint32_t type, double service_s) { (void)i, (void)type, (void)service_s; }
  virtual void on_stolen(int i, uint32_t type) { (void)i, (void)type; }
  // Server i has this many workers from now on.
  virtual void on_workers(int i, uint32_t workers) { (void)i, (void)workers; }
};

}  // namespace steelyard::sim
