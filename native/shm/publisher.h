// The dataplane's side of the shared memory (steelyard_shm.h): tells the agent what the balancer has
// measured, and takes back what the agent wants.
#pragma once

#include <time.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "native/core/load_balancer.h"
#include "native/shm/steelyard_shm_file.h"

namespace steelyard::shm {

// What a host counts of each server beside what its LoadBalancer knows. Totals since the host's start.
struct ServerCounters {
  uint64_t flows_opened = 0;
  uint64_t flows_completed = 0;  // by FIN
  uint64_t packets = 0;
  uint64_t bytes = 0;
  uint64_t resets = 0;      // flows ended by RST
  uint64_t collisions = 0;  // flows that found no room in the flow table and went here
};

struct PoolSpec {
  int num_servers = 0;
  int reservoir_size = core::Reservoir::kMaxSize;  // at least that of the LoadBalancer
  uint64_t pool_id = 0;                            // see pool_id_of
  uint64_t clock_id = CLOCK_MONOTONIC;             // what `now` is read from
};

// Identity of the servers in their order: a hash of their names or addresses. An action for others is
// refused.
uint64_t pool_id_of(std::span<const std::string> servers);

// The agent's last message, judged at one moment. What to do without a usable one is the host's decision.
struct ActionView {
  uint64_t status = STEELYARD_SHM_NONE;  // STEELYARD_SHM_USABLE, or why the rest is not to be used
  uint64_t generation = 0;               // of the message; 0: there is none
  uint64_t kind = STEELYARD_SHM_KIND_WITHDRAWN;
  uint64_t publication = 0;         // of the state that it answers
  core::TimeNs age = 0;             // since it was written
  std::span<const float> action;    // (N,) in [-1, 1], of kind ACTION
  std::span<const double> weights;  // (N,) >= 0, of kind WEIGHT

  bool usable() const { return status == STEELYARD_SHM_USABLE; }
  const char* why() const { return steelyard_shm_status_text(status); }
  // Sets the balancer's weights, by its one door to fixed point; needs a usable view.
  void apply_to(core::LoadBalancer& balancer) const;
};

// Nothing here allocates, blocks or throws after `open`; all of it from one thread.
class Publisher {
 public:
  // Goes on with the predecessor's file, or makes one (mode 0600). Null and a one-line *error when the path
  // is taken by a living dataplane or by anything that is not such a file.
  static std::unique_ptr<Publisher> open(const std::string& path, const PoolSpec& spec, std::string* error);
  ~Publisher();
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  // Call on a timer, with traffic or without. counters: (N,).
  void publish(const core::LoadBalancer& balancer, std::span<const ServerCounters> counters,
               core::TimeNs now);
  // The agent's last message, at most max_age old; copied, so it stays as it is until the next call. Judged
  // for the members of the last publish: publish once before. The next publish tells the agent the verdict.
  const ActionView& poll(core::TimeNs now, core::TimeNs max_age);
  // After the servers have changed: actions that answer an earlier state are refused.
  void set_pool_id(uint64_t pool_id) { pool_id_ = pool_id; }
  // After another LoadBalancer has been assigned to the published one: every reservoir is written anew.
  void forget() { balancer_ = nullptr; }

  uint64_t publications() const { return publication_; }
  // Dataplanes that have published in this file, this one included.
  uint64_t generation() const { return generation_; }
  bool agent_lives() const { return steelyard_shm_agent_lives(&file_) != 0; }
  const std::string& path() const { return path_; }

 private:
  Publisher(const steelyard_shm_file& file, const PoolSpec& spec);
  void write_head(uint64_t* frame, const core::LoadBalancer& balancer, core::TimeNs now);
  void write_servers(uint64_t* frame, const core::LoadBalancer& balancer,
                     std::span<const ServerCounters> counters);
  void write_reservoirs(uint64_t* frame, const core::LoadBalancer& balancer);
  void write_reservoir(uint64_t* frame, uint64_t reservoir, const core::Reservoir& from);

  steelyard_shm_file file_;
  std::string path_;
  steelyard_shm_layout layout_;  // never read from the file, to which the agent can write
  steelyard_shm_channel states_, actions_;
  uint64_t schema_hash_, pool_id_;
  uint64_t publication_, generation_;
  uint64_t taken_ = 0;  // generation of the last usable action
  const core::LoadBalancer* balancer_ = nullptr;
  std::vector<uint64_t> active_;   // bitmap
  std::vector<uint64_t> written_;  // by frame and reservoir: 1 + version of what it holds; 0: unknown
  std::vector<uint64_t> message_;
  std::vector<float> action_;
  std::vector<double> weights_;
  ActionView view_;
};

}  // namespace steelyard::shm
