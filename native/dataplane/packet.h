// Frames as they come from a wire: Ethernet II, IPv4 or IPv6, TCP, UDP, ICMP. Parsing trusts no length.
#pragma once

#include <cstddef>
#include <cstdint>

#include "native/dataplane/address.h"

namespace steelyard::dataplane {

inline constexpr uint32_t kEthernetSize = 14;
inline constexpr uint32_t kIpv4Size = 20;
inline constexpr uint32_t kIpv6Size = 40;
inline constexpr uint32_t kGreSize = 4;
inline constexpr uint32_t kIcmpSize = 8;
inline constexpr uint32_t kHeadroom = 64;  // before a frame: the greatest header put before it is 48 bytes

inline constexpr uint16_t kEtherIpv4 = 0x0800;
inline constexpr uint16_t kEtherArp = 0x0806;
inline constexpr uint16_t kEtherIpv6 = 0x86dd;

inline constexpr uint8_t kIcmp4 = 1;
inline constexpr uint8_t kTcp = 6;
inline constexpr uint8_t kUdp = 17;
inline constexpr uint8_t kGre = 47;
inline constexpr uint8_t kIcmp6 = 58;

inline constexpr uint8_t kFin = 1, kSyn = 2, kRst = 4, kPsh = 8, kAck = 16;

// A frame in a buffer that may be written, with `headroom` bytes before it.
struct Packet {
  uint8_t* data;
  uint32_t size;
  uint32_t headroom;
};

enum class Parse : uint8_t {
  kOk,         // TCP or UDP, all fields set
  kIcmp,       // ICMP or ICMPv6, ports not set
  kOther,      // another protocol over IP, ports not set
  kArp,        // only the Ethernet header was read
  kForeign,    // neither IP nor ARP
  kTruncated,  // shorter than its headers say
  kBadHeader,  // version, lengths, addresses that no sender may use
  kBadChecksum,
  kFragment,
  kBadFlags,  // TCP flags that no stack sends (SYN with FIN or RST, or none)
};

// What is needed of a packet to forward it.
struct Headers {
  Address source, destination;
  uint16_t source_port = 0, destination_port = 0;
  uint8_t protocol = 0;
  uint8_t flags = 0;      // of TCP
  uint32_t l4 = 0;        // where the transport header starts in the frame
  uint16_t ip_bytes = 0;  // of the IP packet, without padding of the link
  bool v6 = false;
};

Parse parse(const uint8_t* frame, size_t size, Headers* out);

// The packet that an ICMP error speaks of, read from its first bytes: `source`, `destination`, ports,
// protocol, l4. False if it is no error, or shows no TCP or UDP ports.
bool parse_quoted(const uint8_t* frame, size_t size, const Headers& icmp, Headers* quoted);

// ICMP errors that concern one flow: unreachable (with "fragmentation needed"), source quench, time exceeded,
// parameter problem, and packet too big.
bool is_icmp_error(const uint8_t* frame, const Headers& icmp);
bool is_echo_request(const uint8_t* frame, const Headers& icmp);

}  // namespace steelyard::dataplane
