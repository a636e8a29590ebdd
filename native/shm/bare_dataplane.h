// A dataplane without packets: a load balancer whose flows are told to it, published as a real one publishes.
// For agents' tests and for worlds that are simulated elsewhere.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "native/shm/publisher.h"

namespace steelyard::shm {

class BareDataplane {
 public:
  BareDataplane(core::LoadBalancer balancer, std::unique_ptr<Publisher> publisher)
      : balancer_(std::move(balancer)),
        publisher_(std::move(publisher)),
        counters_(balancer_.num_servers()) {}

  // Opens a flow; its server, or kNoServer when there is no member.
  core::ServerId open(uint64_t hash, core::TimeNs now) {
    const core::ServerId chosen = balancer_.choose(hash, now, nullptr);
    if (chosen == core::kNoServer) return chosen;
    const uint64_t untracked = balancer_.untracked();
    const core::ServerId server = balancer_.open(hash, chosen, now);
    ++counters_[server].flows_opened;
    counters_[server].collisions += balancer_.untracked() - untracked;
    return server;
  }
  // A packet of a flow of `server`.
  void count(core::ServerId server, uint64_t bytes) {
    ++counters_[server].packets;
    counters_[server].bytes += bytes;
  }
  void first_ack(uint64_t hash, core::TimeNs now) { balancer_.first_ack(hash, now); }
  // Ends a flow of `server`.
  void close(uint64_t hash, core::ServerId server, bool completed, core::TimeNs now) {
    balancer_.close(hash, completed, now);
    ++(completed ? counters_[server].flows_completed : counters_[server].resets);
  }
  void publish(core::TimeNs now) { publisher_->publish(balancer_, counters_, now); }
  // Takes over the agent's last action if it can be used; what there was of it.
  const ActionView& poll(core::TimeNs now, core::TimeNs max_age) {
    const ActionView& view = publisher_->poll(now, max_age);
    if (view.usable()) view.apply_to(balancer_);
    return view;
  }

  core::LoadBalancer& balancer() { return balancer_; }
  Publisher& publisher() { return *publisher_; }

 private:
  core::LoadBalancer balancer_;
  std::unique_ptr<Publisher> publisher_;
  std::vector<ServerCounters> counters_;
};

}  // namespace steelyard::shm
