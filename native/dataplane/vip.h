// One virtual address: its servers, its connections, and the core that chooses among them. Nothing here knows
// packets, clocks or files: any dataplane that can read a 5-tuple hosts it. No heap on the path of a packet.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "native/core/balancer_log.h"
#include "native/core/load_balancer.h"
#include "native/dataplane/config.h"
#include "native/dataplane/connection_table.h"
#include "native/dataplane/policy_host.h"

namespace steelyard::dataplane {

// How plain packets (plain_packet.h) reach a server.
enum class PlainWay : uint8_t {
  kOther,   // as all others do
  kAsIs,    // with another link header
  kTunnel,  // in GRE over IPv4
};

// A server as connections know it. Its place in the list never changes while a connection is bound to it, so
// a removed server stays until its last connection has gone.
struct alignas(64) Endpoint {
  // What every packet needs stands in one cache line.
  Address address;
  uint64_t packets = 0;
  Mac mac{};
  bool has_mac = false;
  PlainWay plain_way = PlainWay::kOther;
  uint64_t bytes = 0;
  bool fixed_mac = false;  // configured
  uint64_t opened = 0;
  core::ServerId server = core::kNoServer;  // index in the core; kNoServer: removed from the pool
  uint32_t bound = 0;                       // places of the connection table
  // The rest.
  uint64_t completed = 0, reset = 0, timed_out = 0;
  bool draining = false;
  std::string name;
};

// One packet of a flow as the connection table sees it.
struct Segment {
  FlowKey key;
  uint64_t hash = 0;
  uint8_t flags = 0;  // of TCP
  uint32_t bytes = 0;
};

// What happened beyond forwarding, counted.
struct VipCounters {
  uint64_t fallback_packets = 0;   // of flows without a place, by consistent hashing
  uint64_t untracked_flows = 0;    // that found no place
  uint64_t half_open_refused = 0;  // SYNs over the limit, sent by consistent hashing
  uint64_t reused = 0;             // a SYN on a closing or idle place
  uint64_t adopted = 0;            // flows whose beginning was not seen
  uint64_t evicted = 0;            // idle, closing or adopted places given to a new flow
  uint64_t no_server = 0;
};

class Vip {
 public:
  static constexpr int kNoEndpoint = -1;

  // `config` has passed check_vip. `balancer` of `num_balancers` share these servers.
  Vip(const VipConfig& config, const PolicyArtefact& policy, int balancer, int num_balancers,
      uint64_t stream);

  // Gives a running VIP another configuration, that has passed check_vip and check_change: servers, drains,
  // rule, timeouts. No connection is lost. Takes memory, and about 50 ns for each connection where the rule
  // or the list of servers has changed: features are then measured anew.
  void reconfigure(const VipConfig& config, const PolicyArtefact& policy, TimeNs now);

  // The endpoint of a packet; kNoEndpoint when the pool is empty.
  int route(const Segment& segment, TimeNs now) {
    const uint32_t place = table_.find(segment.key, segment.hash);
    const bool known = place != ConnectionTable::kNone && (segment.flags & kNotData) == 0;
    return known && established(place, now) ? carry(place, segment.bytes, now)
                                            : route_slowly(segment, place, now);
  }
  // The same for data of an established connection that has `place`, as prefetch_data_more said; else
  // kNoEndpoint: `route` knows more.
  int route_data(const FlowKey& key, uint64_t hash, uint32_t place, uint32_t bytes, TimeNs now) {
    const bool known = place != ConnectionTable::kNone && table_.has(place, key, hash);
    return known && established(place, now) ? carry(place, bytes, now) : kNoEndpoint;
  }
  // Of a packet that speaks of a flow (ICMP errors): nothing is changed.
  int route_related(const FlowKey& key, uint64_t hash) const;

  // The periodic part: a share of the table is looked through for timeouts, weights are renewed.
  void tick(TimeNs now);

  // For VipConfig::follows. action: (N,) in [-1, 1]; weights: (N,) >= 0.
  void follow_action(std::span<const float> action, TimeNs now);
  void follow_weights(std::span<const double> weights, TimeNs now);

  const VipConfig& config() const { return config_; }
  // What the core was made of, for tapes.
  core::BalancerConfig balancer_config() const;
  core::RuleConfig rule_config() const;
  std::vector<Endpoint>& endpoints() { return endpoints_; }
  const std::vector<Endpoint>& endpoints() const { return endpoints_; }
  const VipCounters& counters() const { return counters_; }
  const core::LoadBalancer& core() const { return *core_; }
  PolicyHost& policy() { return policy_; }
  const PolicyHost& policy() const { return policy_; }
  // Tells `log` from now on all that decisions follow from (native/tape); for a VIP without flows. A tape is
  // of one rule, one policy and one list of servers: a change of those detaches it. Null detaches it too.
  void set_log(core::BalancerLog* log, TimeNs now);
  core::BalancerLog* log() const { return log_; }
  const ConnectionTable& table() const { return table_; }
  uint32_t in_state(FlowState state) const { return in_state_[static_cast<size_t>(state)]; }
  // For hosts that see several packets coming: asks for the memory that their flows will need, in two steps.
  void prefetch(uint64_t hash, uint8_t flags) const {
    table_.prefetch_bucket(hash);
    if (udp_ || (flags & kNotData) != 0) core_->table().prefetch_page(hash);
  }
  void prefetch_more(uint64_t hash, uint8_t flags) const {
    const bool placed = table_.prefetch_place(hash) != ConnectionTable::kNone;
    if ((flags & kNotData) != 0 || (udp_ && !placed)) core_->table().prefetch_bucket(hash);
  }
  // The same for data of TCP; the second tells the place that the flow may have, or kNone.
  void prefetch_data(uint64_t hash) const { table_.prefetch_bucket(hash); }
  uint32_t prefetch_data_more(uint64_t hash) const { return table_.prefetch_place(hash); }

 private:
  static constexpr uint8_t kNotData = kSyn | kFin | kRst;
  int route_slowly(const Segment& segment, uint32_t place, TimeNs now);
  int new_flow(const Segment& segment, TimeNs now);
  int adopt(const Segment& segment, TimeNs now);
  int fallback(uint64_t hash) const;
  int fallback_counted(const Segment& segment);
  void advance(Connection& flow, uint8_t flags, TimeNs now);
  void uncount(Connection& flow, bool completed, TimeNs now);
  void set_state(Connection& flow, FlowState state);
  void expire(uint32_t place, TimeNs now);
  void forget(uint32_t place);
  void bind(const Segment& segment, uint32_t place, int endpoint, FlowState state, TimeNs now);
  void sweep(TimeNs now);
  bool established(uint32_t place, TimeNs now) const {
    return !table_.expired(place, now) && table_.at(place).state == FlowState::kEstablished;
  }
  int carry(uint32_t place, uint32_t bytes, TimeNs now) {
    table_.set_deadline(place, now + timeout_[static_cast<size_t>(FlowState::kEstablished)]);
    return count(table_.at(place).endpoint, bytes);
  }
  int count(int endpoint, uint32_t bytes) {
    ++endpoints_[endpoint].packets;
    endpoints_[endpoint].bytes += bytes;
    return endpoint;
  }

  bool place_endpoints();
  std::vector<uint64_t> names() const;
  void renew_core();
  void apply_members();
  void apply_limits();
  void host_policy(const PolicyArtefact& policy);

  VipConfig config_;
  int balancer_, num_balancers_;
  uint64_t stream_;
  bool udp_;
  uint32_t renewals_ = 0;
  uint64_t core_stream_ = 0;
  std::array<TimeNs, kFlowStates> timeout_{};
  uint32_t half_open_limit_ = 0;
  std::vector<Endpoint> endpoints_;
  std::vector<int> endpoint_of_;  // by server index of the core
  core::MaglevTable consistent_;
  bool has_consistent_ = false;
  std::unique_ptr<core::LoadBalancer> core_;
  core::BalancerLog* log_ = nullptr;
  ConnectionTable table_;
  std::array<uint32_t, kFlowStates> in_state_{};
  VipCounters counters_;
  PolicyHost policy_;
  std::vector<shm::ServerCounters> shared_;
  uint32_t sweep_at_ = 0;
  TimeNs swept_ = 0;
  TimeNs next_update_ = 0;
};

// Empty when the configuration can be run; else one line: key, value, what is allowed.
std::string check_vip(const VipConfig& config);
// Empty when a running VIP can be given `next`; else one line.
std::string check_change(const VipConfig& running, const VipConfig& next);

}  // namespace steelyard::dataplane
