// What servers say of themselves in the cluster world: with their replies (Charon, C3), or when asked
// (Prequal, awcmp), and how many messages the asking takes.
#include "native/core/rng.h"
#include "native/sim/cluster.h"

namespace steelyard::sim {
namespace {

constexpr uint64_t kProbeKey = uint64_t{1} << 63;  // of a flow's probes, apart from the flow's own hops

}  // namespace

// The choices that take more than the balancer: an oracle's, and Prequal's, which asks servers for the sake
// of the flows to come. Its probes leave just before the flow's own packet.
core::ServerId ClusterWorld::choose_with_host(int balancer, uint64_t hash, const Arriving& arriving) {
  if (rule_.traits->score == core::Score::kExact) return choose_exact(hash, arriving);
  const core::ServerId chosen = balancers_[balancer].choose(hash, now_, in_system_.data());
  send_probes(balancer, hash, arriving.id);
  return chosen;
}

// The server is done with a flow: its reply takes what C3 wants with it, its own record keeps what Prequal's
// probes ask for. That record's latency runs from the flow's arrival at the server.
void ClusterWorld::note_completion(uint32_t slot) {
  Flow& flow = flows_[slot];
  if (rule_.traits->score == core::Score::kProbed) {
    const core::TimeNs stay = now_ - flow.opened - hops(2 * flow.id, 1);
    latencies_[flow.server].add(flow.reported_load - 1U, static_cast<float>(stay) * 1e-9F);
    return;
  }
  flow.reported_load = static_cast<uint16_t>(in_system_[flow.server]);
  queue_.push(Event::make(now_ + flow.reply_ns, kReply, slot, flow.epoch));
}

void ClusterWorld::hear_reply(const Flow& flow) {
  core::LoadBalancer& balancer = balancers_[flow.balancer];
  core::BalancerLog* log = log_of(flow.balancer);
  if (rule_.traits->score == core::Score::kPredicted) {
    balancer.learn_load(flow.server, flow.reported_load, now_);
    if (log != nullptr) log->on_load(flow.server, flow.reported_load, now_);
  } else {
    balancer.learn_reply(flow.hash, flow.reported_load, flow.service_s, now_);
    if (log != nullptr) log->on_reply(flow.hash, flow.reported_load, flow.service_s, now_);
  }
}

void ClusterWorld::send_probes(int balancer, uint64_t hash, uint64_t flow_id) {
  core::ServerId targets[core::ProbePool::kMaxProbes];
  const int count = balancers_[balancer].probe_targets(hash, targets);
  for (int k = 0; k < count; ++k) {
    const uint64_t key = kProbeKey | (flow_id * core::ProbePool::kMaxProbes + static_cast<uint64_t>(k));
    const core::TimeNs there = hops(key, 1), both = hops(key, 2);
    uint32_t slot = static_cast<uint32_t>(probes_.size());
    if (free_probes_.empty()) {
      probes_.emplace_back();
    } else {
      slot = free_probes_.back();
      free_probes_.pop_back();
    }
    probes_[slot] = {.back_ns = both - there,
                     .server = static_cast<int16_t>(targets[k]),
                     .balancer = static_cast<uint16_t>(balancer)};
    queue_.push(Event::make(now_ + there, kProbe, slot, 0));
    ++messages_;
  }
}

void ClusterWorld::answer_probe(uint32_t slot) {
  Probe& probe = probes_[slot];
  probe.rif = in_system_[probe.server];
  probe.latency_s = latencies_[probe.server].estimate(probe.rif);
  queue_.push(Event::make(now_ + probe.back_ns, kAnswer, slot, 0));
  ++messages_;
}

// Nobody hears an answer to a balancer that has failed meanwhile.
void ClusterWorld::hear_answer(uint32_t slot) {
  const Probe& probe = probes_[slot];
  if (balancer_up_[probe.balancer] != 0) {
    balancers_[probe.balancer].learn_probe(probe.server, probe.rif, probe.latency_s, now_);
    if (core::BalancerLog* log = log_of(probe.balancer))
      log->on_probe(probe.server, probe.rif, probe.latency_s, now_);
  }
  free_probes_.push_back(slot);
}

}  // namespace steelyard::sim
