// The pool of one VIP as its policy or agent sees it, merged of what the threads of a host have measured:
// each thread has a Vip of its own, and shares nothing with others while packets come.
//
// The main thread asks, each thread answers on its next tick, the main thread merges and decides, each thread
// takes the decision on its next tick. A thread never waits: who finds the other side busy comes back a tick
// later.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/dataplane/vip.h"

namespace steelyard::vpp {

using core::TimeNs;

struct Totals {
  std::vector<uint32_t> flows_on;  // by server
  std::vector<shm::ServerCounters> servers;
  dataplane::VipCounters vip;
  std::vector<double> weights;  // that act in the first thread
  uint32_t connections = 0;
};

class Pool {
 public:
  // `workers` of `threads` share the load: each keeps its share of the samples.
  Pool(int threads, int workers);

  // [control] The configuration of the whole pool. Every thread measures and follows anew.
  void configure(const dataplane::VipConfig& config, const dataplane::PolicyArtefact& artefact, int balancer,
                 int num_balancers, TimeNs now);
  // What a thread's Vip is made of.
  dataplane::VipConfig for_thread() const;

  // [thread]
  void serve(int thread, dataplane::Vip& vip, TimeNs now);
  // [main]
  void tick(TimeNs now);

  const dataplane::VipConfig& config() const { return config_; }
  const Totals& totals() const { return totals_; }
  dataplane::PolicyHost& policy() { return policy_; }
  const dataplane::PolicyHost& policy() const { return policy_; }
  // The observation that the policy sees of what was merged last, for tests. (observation_size(N),)
  std::vector<float> observe(TimeNs now);

 private:
  // Of one thread, under `busy`.
  struct Part {
    std::atomic_flag busy;
    std::atomic<uint64_t> answered = 0;
    uint64_t followed = 0;  // of the thread alone
    std::vector<core::Reservoir> durations, completions;
    core::Reservoir inter_arrival;
    Totals totals;
  };
  struct Decision {
    std::atomic_flag busy;
    std::atomic<uint64_t> number = 0;
    std::vector<float> action;  // empty: `weights` hold
    std::vector<double>
        weights;  // Q16.16 never leaves the core: they enter it by the same door in every thread
  };

  static void answer(const dataplane::Vip& vip, Part* part);
  void follow(Part& part, dataplane::Vip& vip, TimeNs now);
  bool all_answered() const;
  void merge();
  void merge_reservoirs(size_t server);
  void decide(TimeNs now);

  int workers_;
  dataplane::VipConfig config_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::atomic<uint64_t> asked_ = 0;
  uint64_t merged_ = 0;
  TimeNs asked_at_ = 0, next_ = 0;
  Decision decision_;
  Totals totals_;
  std::unique_ptr<core::LoadBalancer> core_;  // gets no flows
  std::vector<core::Reservoir> durations_, completions_;
  core::Reservoir inter_arrival_;
  dataplane::PolicyHost policy_;
};

}  // namespace steelyard::vpp
