#include "deploy/vpp/adapter/host.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace steelyard::vpp {
namespace {

using dataplane::Config;
using dataplane::Forwarder;
using dataplane::Forwarding;
using dataplane::Link;
using dataplane::PolicyArtefact;
using dataplane::Vip;

constexpr size_t kMostEvents = 64;  // kept for the host to take

// VPP does the links; what is left is the source of tunnels and the room that they have.
Link link_of(const dataplane::LinkConfig& config) {
  Link link;
  link.bare = true;
  if (config.address4) link.address4 = *config.address4;
  if (config.address6) link.address6 = *config.address6;
  if (config.mtu != 0) link.mtu = config.mtu;
  return link;
}

template <class Vips>
auto find_vip(Vips& vips, const std::string& name) {
  return std::find_if(vips.begin(), vips.end(), [&](const VipConfig& vip) { return vip.name == name; });
}

auto find_server(std::vector<ServerConfig>& servers, const Address& address) {
  return std::find_if(servers.begin(), servers.end(),
                      [&](const ServerConfig& server) { return server.address == address; });
}

std::string unknown_vip(const std::string& name) { return "vip: \"" + name + "\" is not there"; }

std::string check_forwarding(const Config& config, const VipConfig& vip) {
  if (vip.forwarding == Forwarding::kL2Dsr)
    return "forwarding: l2-dsr is not for VPP; use gre, l3-dsr or nat";
  if (vip.forwarding != Forwarding::kGre) return "";
  for (const ServerConfig& server : vip.servers) {
    const bool v4 = server.address.is_v4();
    if (v4 ? config.link.address4 : config.link.address6) continue;
    return "vip \"" + vip.name + "\": tunnels to " + text_of(server.address) +
           " need a source: steelyard source " + (v4 ? "IPV4-ADDRESS" : "IPV6-ADDRESS");
  }
  return "";
}

}  // namespace

Host::Host(int threads, int workers) : workers_(workers) {
  forwarders_.resize(threads);
  rebuild();
}

void Host::rebuild() {
  for (std::unique_ptr<Forwarder>& forwarder : forwarders_) {
    forwarder =
        std::make_unique<Forwarder>(served_, link_of(config_.link), std::span<const PolicyArtefact>());
  }
}

void Host::tick_thread(int thread, TimeNs now) {
  forwarders_[thread]->tick(now, [](std::span<const uint8_t>) {});
  for (size_t i = 0; i < pools_.size(); ++i) pools_[i]->serve(thread, *forwarders_[thread]->vips()[i], now);
}

void Host::tick(TimeNs now) {
  for (const std::unique_ptr<Pool>& pool : pools_) {
    pool->tick(now);
    dataplane::PolicyHost& policy = pool->policy();
    if (!policy.take_change() || events_.size() == kMostEvents) continue;
    events_.push_back("vip \"" + pool->config().name + "\": " +
                      (policy.healthy() ? "follows its policy" : "falls back to lsq: " + policy.why()));
  }
}

std::vector<std::string> Host::take_events() { return std::exchange(events_, {}); }

std::string Host::add_vip(const VipConfig& vip, TimeNs now) {
  if (find(vip.name) != nullptr) return "vip: \"" + vip.name + "\" is there already";
  Config next = config_;
  next.vips.push_back(vip);
  return apply(std::move(next), vip.name, Policy::kRead, now);
}

std::string Host::change_vip(const VipConfig& vip, TimeNs now) {
  Config next = config_;
  const auto running = find_vip(next.vips, vip.name);
  if (running == next.vips.end()) return unknown_vip(vip.name);
  *running = vip;
  return apply(std::move(next), vip.name, Policy::kRead, now);
}

std::string Host::remove_vip(const std::string& name, TimeNs now) {
  Config next = config_;
  const auto running = find_vip(next.vips, name);
  if (running == next.vips.end()) return unknown_vip(name);
  next.vips.erase(running);
  return apply(std::move(next), name, Policy::kKeep, now);
}

std::string Host::set_server(const std::string& vip, const ServerConfig& server, TimeNs now) {
  Config next = config_;
  const auto running = find_vip(next.vips, vip);
  if (running == next.vips.end()) return unknown_vip(vip);
  const auto known = find_server(running->servers, server.address);
  if (known != running->servers.end()) {
    *known = server;
  } else {
    running->servers.push_back(server);
  }
  return apply(std::move(next), vip, Policy::kKeep, now);
}

std::string Host::remove_server(const std::string& vip, const Address& server, TimeNs now) {
  Config next = config_;
  const auto running = find_vip(next.vips, vip);
  if (running == next.vips.end()) return unknown_vip(vip);
  const auto known = find_server(running->servers, server);
  if (known == running->servers.end()) return "server: " + text_of(server) + " is not there";
  running->servers.erase(known);
  return apply(std::move(next), vip, Policy::kKeep, now);
}

// A VIP without servers is not served: its packets pass, as if it were not there.
std::string Host::check(const Config& next) const {
  for (const VipConfig& vip : next.vips) {
    if (std::string why = check_forwarding(next, vip); !why.empty()) return why;
    if (!vip.servers.empty()) continue;
    VipConfig complete = vip;  // all but the servers is checked at once
    complete.servers.push_back({.name = "any", .address = vip.address, .mac = {}});
    if (std::string why = check_vip(complete); !why.empty()) return why;
  }
  return "";
}

std::string Host::read_policy(const VipConfig& vip, PolicyArtefact* out) const {
  if (vip.rule != "policy" || vip.policy_file.empty()) return "";
  out->policy = core::load_policy_file(vip.policy_file, &out->error);
  if (out->policy == nullptr) return "policy: " + vip.policy_file + ": " + out->error;
  return "";
}

// Only the pool of the VIP that was changed begins anew. A policy that cannot be read is refused; one that
// does not fit the pool, as while its servers are being added, is not followed until it does.
std::string Host::apply(Config next, const std::string& changed, Policy policy, TimeNs now) {
  if (std::string why = check(next); !why.empty()) return why;
  Config served = next;
  std::erase_if(served.vips, [](const VipConfig& vip) { return vip.servers.empty(); });
  if (!served.vips.empty()) {
    if (std::string why = check_config(served); !why.empty()) return why;
    if (std::string why = check_reload(served_, served); !why.empty()) return why;
  }
  PolicyArtefact artefact;
  if (const auto vip = find_vip(next.vips, changed); vip == next.vips.end()) {
    policies_.erase(changed);
  } else if (policy == Policy::kRead) {
    if (std::string why = read_policy(*vip, &artefact); !why.empty()) return why;
    policies_[changed] = artefact;
  } else {
    artefact = policies_[changed];
  }
  std::vector<std::unique_ptr<Pool>> pools;
  Config of_thread = served;
  for (VipConfig& vip : of_thread.vips) {
    const auto running = std::find_if(pools_.begin(), pools_.end(), [&](const std::unique_ptr<Pool>& pool) {
      return pool != nullptr && pool->config().name == vip.name;
    });
    pools.push_back(running != pools_.end() ? std::move(*running)
                                            : std::make_unique<Pool>(threads(), workers_));
    if (vip.name == changed)
      pools.back()->configure(vip, artefact, served.balancer, served.num_balancers, now);
    vip = pools.back()->for_thread();
  }
  pools_ = std::move(pools);
  const std::vector<PolicyArtefact> none(of_thread.vips.size());
  for (const std::unique_ptr<Forwarder>& forwarder : forwarders_)
    forwarder->reconfigure(of_thread, none, now);
  config_ = std::move(next);
  served_ = std::move(served);
  end_lost_tapes();
  return "";
}

std::string Host::set_link(const dataplane::LinkConfig& link, const char* key) {
  if (!config_.vips.empty()) return std::string(key) + ": cannot change while there are VIPs";
  config_.link = served_.link = link;
  rebuild();
  return "";
}

std::string Host::set_source(const Address& source) {
  dataplane::LinkConfig link = config_.link;
  if (source.none() || source.multicast())
    return "source: " + text_of(source) + " is no address of a balancer";
  (source.is_v4() ? link.address4 : link.address6) = source;
  return set_link(link, "source");
}

std::string Host::set_mtu(uint32_t mtu) {
  dataplane::LinkConfig link = config_.link;
  link.mtu = mtu;
  return set_link(link, "mtu");
}

std::string Host::set_seed(uint64_t seed) {
  if (!config_.vips.empty()) return "seed: cannot change while there are VIPs";
  config_.hash_seed = served_.hash_seed = seed;
  return "";
}

std::string Host::set_place(int balancer, int num_balancers) {
  if (!config_.vips.empty()) return "balancer: cannot change while there are VIPs";
  config_.balancer = served_.balancer = balancer;
  config_.num_balancers = served_.num_balancers = num_balancers;
  return "";
}

const VipConfig* Host::find(const std::string& name) const {
  const auto vip = find_vip(config_.vips, name);
  return vip == config_.vips.end() ? nullptr : &*vip;
}

const Pool* Host::pool_of(const std::string& name) const {
  for (const std::unique_ptr<Pool>& pool : pools_) {
    if (pool->config().name == name) return pool.get();
  }
  return nullptr;
}

Vip* Host::vip_of(int thread, const std::string& name) {
  for (const std::unique_ptr<Vip>& vip : forwarders_[thread]->vips()) {
    if (vip->config().name == name) return vip.get();
  }
  return nullptr;
}

std::string Host::start_tape(const std::string& name, const std::string& path, TimeNs now) {
  if (pool_of(name) == nullptr) return "vip: \"" + name + "\" is not there or has no server";
  if (tapes_.contains(name)) return "tape: \"" + name + "\" is being recorded already";
  Tape tape;
  for (int i = 0; i < threads(); ++i) {
    const Vip& vip = *vip_of(i, name);
    if (vip.table().live() != 0)
      return "tape: \"" + name + "\" has connections; add the VIP anew to record it";
    std::string error;
    const std::string file = threads() == 1 ? path : path + "." + std::to_string(i);
    const auto index = static_cast<uint32_t>(config_.balancer);
    tape.push_back(std::make_unique<tape::Recorder>());
    if (!tape.back()->open(file, tape::header_of(vip.balancer_config(), vip.rule_config(), index), &error)) {
      return "tape: " + error;
    }
  }
  for (int i = 0; i < threads(); ++i) vip_of(i, name)->set_log(tape[i].get(), now);
  tapes_[name] = std::move(tape);
  return "";
}

std::string Host::stop_tape(const std::string& name, std::string* summary) {
  const auto found = tapes_.find(name);
  if (found == tapes_.end()) return "tape: \"" + name + "\" is not being recorded";
  for (int i = 0; i < threads(); ++i) {
    tape::Recorder& recorder = *found->second[i];
    if (Vip* vip = vip_of(i, name); vip != nullptr && vip->log() == &recorder) vip->set_log(nullptr, 0);
    const bool whole = recorder.close();
    char digest[20];
    std::snprintf(digest, sizeof digest, "%016lx", static_cast<unsigned long>(recorder.digest()));
    *summary += "thread " + std::to_string(i) + ": " + std::to_string(recorder.decisions()) +
                " decisions, digest " + digest +
                (whole ? "" : std::string(", broken off: ") + recorder.failure()) + "\n";
  }
  tapes_.erase(found);
  return "";
}

// A tape is of one rule and one list of servers: a change of those has detached it.
void Host::end_lost_tapes() {
  std::erase_if(tapes_, [&](auto& named) {
    for (int i = 0; i < threads(); ++i) {
      const Vip* vip = vip_of(i, named.first);
      if (vip != nullptr && vip->log() == named.second[i].get()) return false;
    }
    for (const std::unique_ptr<tape::Recorder>& recorder : named.second) recorder->close();
    events_.push_back("vip \"" + named.first + "\": its tape ends with the change");
    return true;
  });
}

}  // namespace steelyard::vpp
