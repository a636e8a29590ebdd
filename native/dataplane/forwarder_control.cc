// What is changed in a balancer while it runs.
#include <algorithm>
#include <bit>

#include "native/dataplane/forwarder.h"

namespace steelyard::dataplane {
namespace {

constexpr size_t kMostVips = 1024;
constexpr uint32_t kLeastMtu = 576;  // RFC 791: what every host accepts

bool same_service(const VipConfig& a, const VipConfig& b) {
  return a.address == b.address && a.port == b.port && a.protocol == b.protocol;
}

std::string named(const VipConfig& vip, const std::string& why) { return "vip \"" + vip.name + "\": " + why; }

// Which VIP a packet of a server belongs to must follow from its source.
std::string check_translations(const VipConfig& vip, const VipConfig& other) {
  if (vip.forwarding != Forwarding::kNat || other.forwarding != Forwarding::kNat) return "";
  if (vip.protocol != other.protocol || target_port(vip) != target_port(other)) return "";
  for (const ServerConfig& server : vip.servers) {
    for (const ServerConfig& another : other.servers) {
      if (server.address != another.address) continue;
      return named(vip, "server.address: " + text_of(server.address) + " has its port " +
                            std::to_string(target_port(vip)) + " behind the NAT of another VIP");
    }
  }
  return "";
}

std::string check_sources(const Config& config, const VipConfig& vip) {
  if (vip.forwarding != Forwarding::kGre) return "";
  for (const ServerConfig& server : vip.servers) {
    const bool v4 = server.address.is_v4();
    if (config.link.interface.empty() && !(v4 ? config.link.address4 : config.link.address6)) {
      return named(vip,
                   std::string("a tunnel needs link.") + (v4 ? "address" : "address6") + " as its source");
    }
  }
  return "";
}

}  // namespace

void VipTable::build(std::span<const std::unique_ptr<Vip>> vips, uint64_t hash_seed) {
  reset(2 * vips.size());
  for (size_t i = 0; i < vips.size(); ++i) {
    const VipConfig& vip = vips[i]->config();
    const uint64_t service = name_of(vip.address) ^ uint64_t { vip.port } << 8 ^ vip.protocol;
    add({vip.address, vip.port, vip.protocol, static_cast<int16_t>(i),
         Salt(core::stream_key(hash_seed, service))});
    if (!owns(vip.address)) add({vip.address, 0, kOwned, static_cast<int16_t>(i), Salt()});
  }
}

void VipTable::build_returns(std::span<const std::unique_ptr<Vip>> vips) {
  const auto translated = [](const Vip& vip) { return vip.config().forwarding == Forwarding::kNat; };
  size_t most = 0;
  for (const std::unique_ptr<Vip>& vip : vips) most += translated(*vip) ? vip->endpoints().size() : 0;
  reset(most);
  for (size_t i = 0; i < vips.size(); ++i) {
    const VipConfig& vip = vips[i]->config();
    if (!translated(*vips[i])) continue;
    for (const Endpoint& endpoint : vips[i]->endpoints()) {
      add({endpoint.address, target_port(vip), vip.protocol, static_cast<int16_t>(i), Salt()});
    }
  }
}

void VipTable::reset(size_t entries) {
  const size_t size = entries == 0 ? 1 : std::bit_ceil(2 * entries + 1);
  entries_.assign(size, Entry());
  mask_ = size - 1;
}

void VipTable::add(const Entry& entry) {
  uint64_t at = slot(entry.address, entry.port, entry.protocol);
  while (entries_[at & mask_].protocol != 0) ++at;
  entries_[at & mask_] = entry;
}

Forwarder::Forwarder(const Config& config, const Link& link, std::span<const PolicyArtefact> policies)
    : link_(link) {
  reconfigure(config, policies, 0);
}

void Forwarder::reconfigure(const Config& config, std::span<const PolicyArtefact> policies, TimeNs now) {
  std::vector<std::unique_ptr<Vip>> vips;
  for (size_t i = 0; i < config.vips.size(); ++i) {
    const VipConfig& wanted = config.vips[i];
    const auto running = std::find_if(vips_.begin(), vips_.end(), [&](const std::unique_ptr<Vip>& vip) {
      return vip && same_service(vip->config(), wanted);
    });
    if (running != vips_.end()) {
      vips.push_back(std::move(*running));
      vips.back()->reconfigure(wanted, policies[i], now);
      continue;
    }
    const uint64_t stream = core::stream_key(config.hash_seed + static_cast<uint64_t>(config.balancer),
                                             name_of(wanted.address) ^ wanted.port);
    vips.push_back(std::make_unique<Vip>(wanted, policies[i], config.balancer, config.num_balancers, stream));
  }
  vips_ = std::move(vips);
  config_ = config;
  table_.build(vips_, config.hash_seed);
  returns_.build_returns(vips_);
  announced_ = false;
  find_neighbours();
}

void Forwarder::find_neighbours() {
  if (link_.bare) return;
  std::vector<Address> hops;
  for (const std::unique_ptr<Vip>& vip : vips_) {
    for (const Endpoint& endpoint : vip->endpoints()) {
      if (!endpoint.fixed_mac) hops.push_back(link_.next_hop(endpoint.address));
    }
  }
  neighbours_.want(hops);
  set_macs();
}

void Forwarder::set_macs() {
  for (const std::unique_ptr<Vip>& vip : vips_) {
    for (Endpoint& endpoint : vip->endpoints()) {
      if (endpoint.fixed_mac) continue;
      const Neighbours::Entry* hop = neighbours_.find(link_.next_hop(endpoint.address));
      if (hop == nullptr || !hop->known) continue;
      endpoint.mac = hop->mac;
      endpoint.has_mac = true;
    }
  }
}

std::string check_config(const Config& config) {
  if (config.vips.empty() || config.vips.size() > kMostVips) {
    return "vip: " + std::to_string(config.vips.size()) + " given; use 1 to " + std::to_string(kMostVips);
  }
  if (config.link.mtu != 0 && config.link.mtu < kLeastMtu) {
    return "link.mtu: " + std::to_string(config.link.mtu) + " is not allowed; use 576 or more";
  }
  if (config.balancer < 0 || config.balancer >= config.num_balancers) {
    return "balancer: " + std::to_string(config.balancer) + " is not allowed; use 0 to num_balancers - 1";
  }
  for (const VipConfig& vip : config.vips) {
    if (std::string why = check_vip(vip); !why.empty()) return named(vip, why);
    if (std::string why = check_sources(config, vip); !why.empty()) return why;
    for (const VipConfig& other : config.vips) {
      if (&other != &vip && same_service(vip, other))
        return named(vip, "another VIP has its address and port");
      if (&other != &vip && vip.name == other.name) return named(vip, "its name is there twice");
      if (&other == &vip) continue;
      if (!vip.tape.empty() && vip.tape == other.tape)
        return named(vip, "tape: " + vip.tape + " is another VIP's too");
      if (std::string why = check_translations(vip, other); !why.empty()) return why;
    }
  }
  return "";
}

std::string check_reload(const Config& running, const Config& next) {
  const auto fixed = [](const char* key) {
    return std::string(key) + ": cannot change while the balancer runs";
  };
  if (!(running.link == next.link)) return fixed("link");
  if (!(running.transport == next.transport)) return fixed("transport");
  if (running.hash_seed != next.hash_seed) return fixed("hash_seed");
  if (running.balancer != next.balancer) return fixed("balancer");
  if (running.num_balancers != next.num_balancers) return fixed("num_balancers");
  if (running.log_file != next.log_file) return fixed("log_file");
  if (running.metrics_listen != next.metrics_listen) return fixed("metrics_listen");
  if (running.control_socket != next.control_socket) return fixed("control_socket");
  for (const VipConfig& vip : next.vips) {
    for (const VipConfig& old : running.vips) {
      if (!same_service(vip, old)) continue;
      if (std::string why = check_change(old, vip); !why.empty()) return named(vip, why);
    }
  }
  return "";
}

}  // namespace steelyard::dataplane
