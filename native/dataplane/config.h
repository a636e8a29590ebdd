// What a balancer is told: plain data, from whatever file or face it came.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "native/core/types.h"
#include "native/dataplane/packet.h"

namespace steelyard::dataplane {

enum class Forwarding : uint8_t { kL2Dsr, kL3Dsr, kGre, kNat };

struct ServerConfig {
  std::string name;
  Address address;
  std::optional<Mac> mac;  // of the server, or of the router towards it; none: asked for by ARP or ND
  double weight = 1;
  bool drain = false;  // no new flows
  friend bool operator==(const ServerConfig&, const ServerConfig&) = default;
};

struct Timeouts {
  double opening_s = 10;       // from a SYN to the client's first ACK
  double established_s = 300;  // between packets of an established connection, or of an adopted one
  double closing_s = 10;       // after a FIN or RST, between packets
  double udp_s = 30;           // between datagrams
  friend bool operator==(const Timeouts&, const Timeouts&) = default;
};

struct VipConfig {
  std::string name;
  Address address;
  uint16_t port = 0;
  uint8_t protocol = kTcp;
  Forwarding forwarding = Forwarding::kL2Dsr;
  uint8_t dscp = 2;          // L3 DSR: which VIP, for the server's hook
  uint16_t target_port = 0;  // NAT: of the servers; 0: the VIP's
  std::string rule = "lsq";
  double interval_s = 0.25;  // between updates of weights: of a policy, of HLB, of features published
  bool answer_arp = false;   // the balancer owns the address on its link
  uint32_t connections = 65536;
  uint32_t half_open = 0;  // most flows that are counted before their first ACK; 0: a quarter of connections
  int reservoir_size = 128;
  std::string policy_file;  // rule "policy": hosted here
  bool follows = false;  // rule "policy": weights come by Vip::follow_..., from who hosts it for several VIPs
  std::string shared_memory;  // this VIP's file: features are published, weights are taken if no policy_file
  double max_age_s = 1;       // weights from shared memory older than this are not used
  std::string tape;           // decisions are recorded in this file (native/tape)
  double decay_s = 10;        // peak_ewma
  Timeouts timeouts;
  std::vector<ServerConfig> servers;
};

// NAT: where the servers listen.
constexpr uint16_t target_port(const VipConfig& vip) {
  return vip.target_port != 0 ? vip.target_port : vip.port;
}

struct LinkConfig {
  std::string interface;
  std::optional<Mac> mac;           // none: the interface's
  std::optional<Address> address4;  // none: the interface's first of the family
  std::optional<Address> address6;
  int prefix4 = 24, prefix6 = 64;  // what is on the link; the rest is behind the gateway
  std::optional<Address> gateway4, gateway6;
  uint32_t mtu = 0;  // 0: the interface's
  friend bool operator==(const LinkConfig&, const LinkConfig&) = default;
};

struct TransportConfig {
  std::string kind = "af_packet";  // or af_xdp
  uint32_t ring_frames = 4096;
  double spin_us = 0;                      // before it sleeps for packets
  std::optional<uint32_t> cpu_latency_us;  // within which processors are to wake while packets come
  friend bool operator==(const TransportConfig&, const TransportConfig&) = default;
};

struct Config {
  LinkConfig link;
  TransportConfig transport;
  uint64_t hash_seed = 0;  // the same on balancers that shall agree
  int balancer = 0;        // which of the balancers of these VIPs this one is
  int num_balancers = 1;
  std::string log_file;        // empty: standard error
  std::string metrics_listen;  // empty: no endpoint
  std::string control_socket;  // empty: none
  std::vector<VipConfig> vips;
};

}  // namespace steelyard::dataplane
