#include "native/dataplane/rewrite.h"

#include <algorithm>
#include <utility>

namespace steelyard::dataplane {
namespace {

constexpr uint32_t kQuoteV4 = 576, kQuoteV6 = 1280;  // whole ICMP error, at most (RFC 1812, RFC 4443)
constexpr uint16_t kDontFragment = 0x4000;

void prepend(Packet* packet, uint32_t bytes) {
  packet->data -= bytes;
  packet->size += bytes;
  packet->headroom -= bytes;
}

void write_v4(uint8_t* ip, uint8_t tos, uint32_t total, uint8_t protocol, const Address& source,
              const Address& destination) {
  // Summed before it is written: bytes that were just written one by one are slow to read as words.
  const uint32_t first = 0x4500'0000u | uint32_t{tos} << 16 | (total & 0xffff);
  const uint32_t third = uint32_t{kReplyHops} << 24 | uint32_t{protocol} << 16;
  const auto from = static_cast<uint32_t>(source.low), to = static_cast<uint32_t>(destination.low);
  const uint64_t sum = uint64_t{first} + kDontFragment + third + from + to;
  store64(ip, uint64_t{first} << 32 | kDontFragment);
  store64(ip + 8, uint64_t{third | checksum_of(sum)} << 32 | from);
  store32(ip + 16, to);
}

void write_v6(uint8_t* ip, uint8_t traffic_class, uint32_t flow, uint32_t payload, uint8_t protocol,
              const Address& source, const Address& destination) {
  store32(ip, 6u << 28 | uint32_t{traffic_class} << 20 | (flow & 0xfffff));
  store16(ip + 4, static_cast<uint16_t>(payload));
  ip[6] = protocol;
  ip[7] = kReplyHops;
  source.write_v6(ip + 8);
  destination.write_v6(ip + 24);
}

uint8_t traffic_class(const Packet& packet, const Headers& headers) {
  const uint8_t* ip = packet.data + kEthernetSize;
  return headers.v6 ? static_cast<uint8_t>(load32(ip) >> 20) : ip[1];
}

// Words that a transport checksum covers of the network header (RFC 793, RFC 8200 Sec. 8.1).
uint64_t pseudo_header(const uint8_t* ip, bool v6, uint8_t protocol, uint32_t length) {
  const uint64_t addresses = v6 ? sum_words(ip + 8, 32) : sum_words(ip + 12, 8);
  return addresses + protocol + length;
}

uint8_t* transport_checksum(const Packet& packet, const Headers& headers) {
  uint8_t* l4 = packet.data + headers.l4;
  if (headers.protocol == kTcp) return l4 + 16;
  if (headers.protocol == kUdp) return l4 + 6;
  return headers.protocol == kIcmp6 && headers.v6 ? l4 + 2 : nullptr;
}

void store_transport_checksum(uint8_t* at, const Headers& headers, uint16_t checksum) {
  store16(at, headers.protocol == kUdp && checksum == 0 ? 0xffff : checksum);
}

// Sums of the words that changed, before and after.
struct Change {
  uint64_t before = 0, after = 0;
  friend Change operator+(Change a, Change b) { return {a.before + b.before, a.after + b.after}; }
};

// Writes an address of the header at `ip`, and the checksum of an IPv4 header.
Change change_address(uint8_t* ip, bool v6, bool source, const Address& address) {
  const uint32_t bytes = v6 ? 16 : 4;
  uint8_t* at = ip + (v6 ? (source ? 8 : 24) : (source ? 12 : 16));
  Change change{.before = sum_words(at, bytes)};
  v6 ? address.write_v6(at) : address.write_v4(at);
  change.after = sum_words(at, bytes);
  if (!v6) store16(ip + 10, updated_checksum(load16(ip + 10), change.before, change.after));
  return change;
}

Change change_word(uint8_t* at, uint16_t word) {
  const Change change{load16(at), word};
  store16(at, word);
  return change;
}

void turn_round(const Packet& packet, const Mac& mac) {
  Mac sender;
  std::copy_n(packet.data + 6, 6, sender.begin());
  set_link(packet, mac, sender);
}

}  // namespace

void set_link(const Packet& packet, const Mac& source, const Mac& destination) {
  std::copy(destination.begin(), destination.end(), packet.data);
  std::copy(source.begin(), source.end(), packet.data + 6);
}

void set_destination(const Packet& packet, const Headers& headers, const Address& server, uint8_t dscp) {
  uint8_t* ip = packet.data + kEthernetSize;
  const uint32_t at = headers.v6 ? 24 : 16;
  const uint32_t bytes = headers.v6 ? 16 : 4;
  const uint64_t first_before = load16(ip);
  const uint64_t before = sum_words(ip + at, bytes);
  if (headers.v6) {
    const uint32_t ecn = load32(ip) & 0x00300000;
    store32(ip, (load32(ip) & 0xf00fffff) | uint32_t{dscp} << 22 | ecn);
    server.write_v6(ip + at);
  } else {
    ip[1] = static_cast<uint8_t>(dscp << 2 | (ip[1] & 3));
    server.write_v4(ip + at);
  }
  const uint64_t after = sum_words(ip + at, bytes);
  if (!headers.v6) {
    store16(ip + 10, updated_checksum(load16(ip + 10), first_before + before, load16(ip) + after));
  }
  uint8_t* checksum = transport_checksum(packet, headers);
  if (checksum == nullptr) return;
  if (headers.protocol == kUdp && load16(checksum) == 0) return;  // none was computed
  store_transport_checksum(checksum, headers, updated_checksum(load16(checksum), before, after));
}

void set_endpoint(const Packet& packet, const Headers& headers, bool source, const Address& address,
                  uint16_t port) {
  uint8_t* l4 = packet.data + headers.l4;
  const Change change = change_address(packet.data + kEthernetSize, headers.v6, source, address) +
                        change_word(l4 + (source ? 0 : 2), port);
  uint8_t* checksum = transport_checksum(packet, headers);
  if (headers.protocol == kUdp && load16(checksum) == 0) return;  // none was computed
  store_transport_checksum(checksum, headers,
                           updated_checksum(load16(checksum), change.before, change.after));
}

void set_quoted_endpoint(const Packet& packet, const Headers& icmp, const Address& server, uint16_t port) {
  Headers quoted;
  if (!parse_quoted(packet.data, packet.size, icmp, &quoted)) return;
  uint8_t* inner = packet.data + icmp.l4 + kIcmpSize;
  const uint16_t header_checksum = icmp.v6 ? 0 : load16(inner + 10);
  Change change = change_address(inner, icmp.v6, true, server);
  if (!icmp.v6) change = change + Change{header_checksum, load16(inner + 10)};
  change = change + change_word(packet.data + quoted.l4, port);
  const Change outer = change_address(packet.data + kEthernetSize, icmp.v6, false, server);
  if (icmp.v6) change = change + outer;  // ICMPv6 covers the addresses
  uint8_t* checksum = packet.data + icmp.l4 + 2;
  store16(checksum, updated_checksum(load16(checksum), change.before, change.after));
}

void encapsulate_v4(Packet* packet, uint16_t type, uint8_t tos, uint32_t bytes, const Address& source,
                    const Address& destination) {
  packet->size = kEthernetSize + bytes;
  prepend(packet, kIpv4Size + kGreSize);
  uint8_t* ip = packet->data + kEthernetSize;
  write_v4(ip, tos, kIpv4Size + kGreSize + bytes, kGre, source, destination);
  store32(ip + kIpv4Size, type);
  store16(packet->data + 12, kEtherIpv4);
}

void encapsulate_gre(Packet* packet, const Headers& headers, const Address& source,
                     const Address& destination, uint64_t flow) {
  const uint8_t tos = traffic_class(*packet, headers);
  const uint16_t type = headers.v6 ? kEtherIpv6 : kEtherIpv4;
  const uint32_t inner = headers.ip_bytes;
  if (destination.is_v4()) {
    encapsulate_v4(packet, type, tos, inner, source, destination);
    return;
  }
  packet->size = kEthernetSize + inner;
  prepend(packet, kIpv6Size + kGreSize);
  uint8_t* ip = packet->data + kEthernetSize;
  write_v6(ip, tos, static_cast<uint32_t>(flow), kGreSize + inner, kGre, source, destination);
  store32(ip + kIpv6Size, type);
  store16(packet->data + 12, kEtherIpv6);
}

void make_echo_reply(const Packet& packet, const Headers& headers, const Mac& mac) {
  uint8_t* ip = packet.data + kEthernetSize;
  uint8_t* icmp = packet.data + headers.l4;
  const uint32_t first = headers.v6 ? 8 : 12, bytes = headers.v6 ? 16 : 4;
  std::swap_ranges(ip + first, ip + first + bytes, ip + first + bytes);
  const uint16_t before = load16(icmp);
  icmp[0] = headers.v6 ? 129 : 0;
  store16(icmp + 2, updated_checksum(load16(icmp + 2), before, load16(icmp)));
  if (headers.v6) {
    ip[7] = kReplyHops;
  } else {
    ip[8] = kReplyHops;
    store16(ip + 10, 0);
    store16(ip + 10, checksum_of(sum_words(ip, headers.l4 - kEthernetSize)));
  }
  turn_round(packet, mac);
}

bool make_too_big(Packet* packet, const Headers& headers, uint32_t mtu, const Mac& mac) {
  const uint32_t header = headers.v6 ? kIpv6Size : kIpv4Size;
  if (!headers.v6 && (load16(packet->data + kEthernetSize + 6) & kDontFragment) == 0) return false;
  const uint32_t most = (headers.v6 ? kQuoteV6 : kQuoteV4) - header - kIcmpSize;
  const uint32_t quoted = std::min<uint32_t>(headers.ip_bytes, most);
  turn_round(*packet, mac);
  uint8_t link[kEthernetSize];
  std::copy_n(packet->data, kEthernetSize, link);
  packet->size = kEthernetSize + quoted;
  prepend(packet, header + kIcmpSize);
  std::copy_n(link, kEthernetSize, packet->data);
  uint8_t* ip = packet->data + kEthernetSize;
  uint8_t* icmp = ip + header;
  icmp[0] = headers.v6 ? 2 : 3;
  icmp[1] = headers.v6 ? 0 : 4;
  store16(icmp + 2, 0);
  store32(icmp + 4, mtu);
  const uint32_t length = kIcmpSize + quoted;
  uint64_t covered = sum_words(icmp, length);
  if (headers.v6) {
    write_v6(ip, 0, 0, length, kIcmp6, headers.destination, headers.source);
    covered += pseudo_header(ip, true, kIcmp6, length);
  } else {
    write_v4(ip, 0, kIpv4Size + length, kIcmp4, headers.destination, headers.source);
  }
  store16(icmp + 2, checksum_of(covered));
  return true;
}

void complete_checksum(const Packet& packet, const Headers& headers) {
  uint8_t* checksum = transport_checksum(packet, headers);
  if (checksum == nullptr) return;
  const uint8_t* ip = packet.data + kEthernetSize;
  const uint32_t length = kEthernetSize + headers.ip_bytes - headers.l4;
  store16(checksum, 0);
  const uint64_t sum = pseudo_header(ip, headers.v6, headers.protocol, length);
  store_transport_checksum(checksum, headers, checksum_of(sum_words(packet.data + headers.l4, length, sum)));
}

}  // namespace steelyard::dataplane
