// What a balancer does to a frame: new link addresses, a new destination, a tunnel, an answer of its own.
// All work in place; what is put before a frame takes of its headroom.
#pragma once

#include <cstdint>

#include "native/dataplane/packet.h"

namespace steelyard::dataplane {

inline constexpr uint8_t kReplyHops = 64;  // TTL or hop limit of packets that start here

void set_link(const Packet& packet, const Mac& source, const Mac& destination);

// L3 DSR: `server` becomes the destination and `dscp` (0 to 63) tells the server which address to restore.
// The checksums that cover the destination follow it.
void set_destination(const Packet& packet, const Headers& headers, const Address& server, uint8_t dscp);

// NAT: `address` and `port` become the source, or else the destination, of a TCP or UDP packet.
void set_endpoint(const Packet& packet, const Headers& headers, bool source, const Address& address,
                  uint16_t port);
// NAT: an ICMP error for a VIP goes to `server`, and speaks of a packet that `server` has sent from `port`.
[[gnu::noinline, gnu::cold]] void set_quoted_endpoint(const Packet& packet, const Headers& icmp,
                                                      const Address& server, uint16_t port);

// Bytes that a tunnel to a server adds.
constexpr uint32_t gre_overhead(const Address& server) {
  return (server.is_v4() ? kIpv4Size : kIpv6Size) + kGreSize;
}
// GRE (RFC 2784) over the family of `destination`; the link's header must be set anew afterwards. `flow`
// gives the flow label of IPv6 (RFC 6438). Needs gre_overhead() bytes of headroom.
void encapsulate_gre(Packet* packet, const Headers& headers, const Address& source,
                     const Address& destination, uint64_t flow);

// The same over IPv4, of a packet whose Ethernet type, TOS and bytes of IP are known.
void encapsulate_v4(Packet* packet, uint16_t type, uint8_t tos, uint32_t bytes, const Address& source,
                    const Address& destination);

// The echo request becomes its reply, sent back to where it came from by `mac`.
void make_echo_reply(const Packet& packet, const Headers& headers, const Mac& mac);

// "Fragmentation needed" or "packet too big" to the sender of `packet`, with the greatest size that it may
// send. False when the standard allows none: IPv4 that may be fragmented.
[[gnu::noinline, gnu::cold]] bool make_too_big(Packet* packet, const Headers& headers, uint32_t mtu,
                                               const Mac& mac);

// Computes the checksum of TCP, UDP or ICMPv6, for frames that a kernel left to its device to finish.
void complete_checksum(const Packet& packet, const Headers& headers);

}  // namespace steelyard::dataplane
