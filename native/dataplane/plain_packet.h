// The packet that most are: TCP over IPv4, whole and sound, without IP options, that carries data of a
// connection. A few wide loads tell it from the rest; what they say is what `parse` would say.
#pragma once

#include "native/dataplane/packet.h"

namespace steelyard::dataplane {

// Words as they stand in the packet, in network byte order.
struct PlainPacket {
  uint32_t client, service;  // addresses
  uint32_t ports;            // the client's first
  uint16_t ip_bytes;         // a number
  uint8_t tos;

  uint32_t client_address() const { return __builtin_bswap32(client); }
  uint16_t client_port() const { return static_cast<uint16_t>(__builtin_bswap32(ports) >> 16); }
  Address service_address() const { return Address::v4(__builtin_bswap32(service)); }
  uint16_t service_port() const { return static_cast<uint16_t>(__builtin_bswap32(ports)); }
  // One word for service and port: equal for equal ones.
  uint64_t service_word() const { return uint64_t{service} << 16 | ports >> 16; }
};

// Bytes 12 to 27 of a frame: what of them is the same in all plain packets, and what that is.
using Bytes16 = uint8_t __attribute__((vector_size(16)));
using Words16 = uint64_t __attribute__((vector_size(16)));
inline constexpr Bytes16 kPlainMask = {0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0x3f, 0xff, 0, 0xff, 0, 0, 0, 0};
inline constexpr Bytes16 kPlainBytes = {
    kEtherIpv4 >> 8, kEtherIpv4 & 0xff, 0x45, 0, 0, 0, 0, 0, 0, 0, 0, kTcp, 0, 0, 0, 0};

// False: `parse` says what it is; `out` is undefined then. The header's checksum is left to sound_header.
inline bool read_plain(const uint8_t* frame, uint32_t size, PlainPacket* out) {
  constexpr uint32_t kTcpLeast = 20;
  if (size < kEthernetSize + kIpv4Size + kTcpLeast) return false;
  const uint8_t* ip = frame + kEthernetSize;
  Bytes16 start;  // Ethernet type, version, lengths, fragment, protocol, checksum
  std::memcpy(&start, frame + 12, sizeof start);
  const auto wrong = reinterpret_cast<Words16>((start ^ kPlainBytes) & kPlainMask);
  const uint8_t how = ip[kIpv4Size + 13];
  if ((wrong[0] | wrong[1]) != 0 || (how & (kAck | kSyn | kFin | kRst)) != kAck) return false;
  PlainPacket plain;
  std::memcpy(&plain.client, ip + 12, sizeof plain.client);
  std::memcpy(&plain.service, ip + 16, sizeof plain.service);
  std::memcpy(&plain.ports, ip + kIpv4Size, sizeof plain.ports);
  plain.ip_bytes = load16(ip + 2);
  plain.tos = ip[1];
  *out = plain;
  const uint32_t tcp_header = ip[kIpv4Size + 12] >> 4 << 2;
  return tcp_header >= kTcpLeast && plain.ip_bytes >= kIpv4Size + tcp_header &&
         kEthernetSize + plain.ip_bytes <= size && (plain.client & 0xe0) != 0xe0;
}

}  // namespace steelyard::dataplane
