// What happens to one load balancer, told by its host as it happens, in the order in which the host called
// the balancer: all that its decisions follow from. A tape (native/tape) writes it down.
#pragma once

#include <cstdint>
#include <span>

#include "native/core/types.h"

namespace steelyard::core {

class BalancerLog {
 public:
  virtual ~BalancerLog() = default;
  // LoadBalancer::restart; before anything else.
  virtual void on_restart(uint64_t stream) = 0;
  // choose and open of a new flow; `server` is where it goes, or kNoServer.
  virtual void on_open(uint64_t hash, ServerId server, TimeNs now) = 0;
  virtual void on_first_ack(uint64_t hash, TimeNs now) = 0;
  virtual void on_close(uint64_t hash, bool completed, TimeNs now) = 0;
  virtual void on_load(ServerId server, uint32_t load, TimeNs now) = 0;                   // learn_load
  virtual void on_reply(uint64_t hash, uint32_t queue, float service_s, TimeNs now) = 0;  // learn_reply
  virtual void on_probe(ServerId server, uint32_t rif, float latency_s, TimeNs now) = 0;  // learn_probe
  virtual void on_members(std::span<const ServerId> members, TimeNs now) = 0;             // set_members
  virtual void on_names(std::span<const uint64_t> names, TimeNs now) = 0;                 // set_names
  virtual void on_tick(std::span<const uint32_t> probed_load, TimeNs now) = 0;            // tick
  // The hosted policy sees the observation of now and gives the action; weights act from on_apply on.
  virtual void on_policy(TimeNs now) = 0;
  // An action from elsewhere: set_action.
  virtual void on_action(std::span<const float> action, TimeNs now) = 0;
  virtual void on_apply(TimeNs now) = 0;                                     // apply_action
  virtual void on_weights(std::span<const double> weights, TimeNs now) = 0;  // set_weights
};

}  // namespace steelyard::core
