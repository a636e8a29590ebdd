#include "native/dataplane/neighbour.h"

#include <algorithm>

namespace steelyard::dataplane {
namespace {

constexpr uint8_t kSolicitation = 135, kAdvertisement = 136;
constexpr uint8_t kHops = 255;  // RFC 4861: nobody has forwarded it
constexpr uint8_t kSourceLinkOption = 1, kTargetLinkOption = 2;
constexpr uint32_t kDiscovery = kEthernetSize + kIpv6Size;  // where its ICMPv6 header starts
constexpr uint32_t kSolicited = 0x60000000, kOverride = 0x20000000;
constexpr Address kAllNodes{0xff02'0000'0000'0000, 1};

void copy(const Mac& mac, uint8_t* to) { std::copy(mac.begin(), mac.end(), to); }

Mac read_mac(const uint8_t* p) {
  Mac mac;
  std::copy_n(p, mac.size(), mac.begin());
  return mac;
}

bool is_arp(const uint8_t* frame, size_t size) {
  return size >= kArpSize && load16(frame + 12) == kEtherArp && load32(frame + 14) == 0x00010800 &&
         load16(frame + 18) == 0x0604;
}

// A solicitation or advertisement whose fixed part is whole and whose checksum is right.
bool is_discovery(const uint8_t* frame, size_t size, uint8_t type) {
  if (size < kDiscovery + 24 || load16(frame + 12) != kEtherIpv6) return false;
  const uint8_t* ip = frame + kEthernetSize;
  const uint32_t length = load16(ip + 4);
  if (ip[6] != kIcmp6 || ip[7] != kHops || length < 24 || kDiscovery + length > size) return false;
  const uint8_t* icmp = ip + kIpv6Size;
  return icmp[0] == type && icmp[1] == 0 &&
         checksum_of(sum_words(icmp, length, sum_words(ip + 8, 32) + kIcmp6 + length)) == 0;
}

bool find_option(const uint8_t* frame, uint8_t option, Mac* mac) {
  const uint32_t end = kDiscovery + load16(frame + kEthernetSize + 4);
  for (uint32_t at = kDiscovery + 24; at + 8 <= end;) {
    if (frame[at + 1] == 0) return false;
    if (frame[at] == option) {
      *mac = read_mac(frame + at + 2);
      return true;
    }
    at += frame[at + 1] * 8u;
  }
  return false;
}

void write_arp(uint8_t* frame, uint16_t operation, const Binding& sender, const Binding& target,
               const Mac& destination) {
  copy(destination, frame);
  copy(sender.mac, frame + 6);
  store16(frame + 12, kEtherArp);
  store32(frame + 14, 0x00010800);  // Ethernet, IPv4
  store16(frame + 18, 0x0604);
  store16(frame + 20, operation);
  copy(sender.mac, frame + 22);
  sender.address.write_v4(frame + 28);
  copy(target.mac, frame + 32);
  target.address.write_v4(frame + 38);
}

struct Discovery {
  uint8_t type;
  uint32_t flags;
  Address target;
  uint8_t option;
};

void write_discovery(uint8_t* frame, const Discovery& what, const Binding& sender, const Binding& to) {
  copy(to.mac, frame);
  copy(sender.mac, frame + 6);
  store16(frame + 12, kEtherIpv6);
  uint8_t* ip = frame + kEthernetSize;
  store32(ip, 6u << 28);
  store16(ip + 4, 32);
  ip[6] = kIcmp6;
  ip[7] = kHops;
  sender.address.write_v6(ip + 8);
  to.address.write_v6(ip + 24);
  uint8_t* icmp = ip + kIpv6Size;
  icmp[0] = what.type;
  icmp[1] = 0;
  store16(icmp + 2, 0);
  store32(icmp + 4, what.flags);
  what.target.write_v6(icmp + 8);
  icmp[24] = what.option;
  icmp[25] = 1;
  copy(sender.mac, icmp + 26);
  store16(icmp + 2, checksum_of(sum_words(icmp, 32, sum_words(ip + 8, 32) + kIcmp6 + 32)));
}

Mac multicast_mac(const Address& address) {
  const auto low = static_cast<uint32_t>(address.low);
  Mac mac = {0x33, 0x33};
  store32(&mac[2], low);
  return mac;
}

uint64_t top_bits(uint64_t word, int bits) { return bits <= 0 ? 0 : bits >= 64 ? word : word >> (64 - bits); }

bool same_prefix(const Address& a, const Address& b, int bits) {
  if (a.is_v4()) return top_bits(a.low << 32, bits) == top_bits(b.low << 32, bits);
  return top_bits(a.high, bits) == top_bits(b.high, bits) &&
         top_bits(a.low, bits - 64) == top_bits(b.low, bits - 64);
}

}  // namespace

Address Link::next_hop(const Address& destination) const {
  const bool v4 = destination.is_v4();
  const Address& own = address(v4);
  const Address& gateway = v4 ? gateway4 : gateway6;
  if (gateway.none() || own.none()) return destination;
  return same_prefix(own, destination, v4 ? prefix4 : prefix6) ? destination : gateway;
}

bool read_binding(const uint8_t* frame, size_t size, Binding* out) {
  if (is_arp(frame, size)) {
    *out = {Address::read_v4(frame + 28), read_mac(frame + 22)};
    return (out->address.low & 0xffffffff) != 0;
  }
  if (is_discovery(frame, size, kAdvertisement)) {
    out->address = Address::read_v6(frame + kDiscovery + 8);
    return find_option(frame, kTargetLinkOption, &out->mac);
  }
  if (is_discovery(frame, size, kSolicitation)) {
    out->address = Address::read_v6(frame + kEthernetSize + 8);
    return !out->address.none() && find_option(frame, kSourceLinkOption, &out->mac);
  }
  return false;
}

bool read_question(const uint8_t* frame, size_t size, Address* asked) {
  if (is_arp(frame, size)) {
    *asked = Address::read_v4(frame + 38);
    return load16(frame + 20) == 1;
  }
  if (!is_discovery(frame, size, kSolicitation)) return false;
  *asked = Address::read_v6(frame + kDiscovery + 8);
  return true;
}

uint32_t write_question(const Link& link, const Address& target, std::span<uint8_t, 128> out) {
  if (target.is_v4()) {
    const Address own = link.address4.none() ? Address::v4(0) : link.address4;
    write_arp(out.data(), 1, {own, link.mac}, {target, Mac{}}, kBroadcast);
    return kArpSize;
  }
  const Address group{0xff02'0000'0000'0000, 0x0000'0001'ff00'0000 | (target.low & 0xffffff)};
  write_discovery(out.data(), {kSolicitation, 0, target, kSourceLinkOption}, {link.address6, link.mac},
                  {group, multicast_mac(group)});
  return kSolicitationSize;
}

void make_answer(Packet* packet, const Address& asked, const Mac& mac) {
  uint8_t* frame = packet->data;
  const Mac asker_mac = read_mac(frame + 6);
  if (asked.is_v4()) {
    const Binding asker{Address::read_v4(frame + 28), read_mac(frame + 22)};
    write_arp(frame, 2, {asked, mac}, asker, asker_mac);
    packet->size = kArpSize;
    return;
  }
  const Address asker = Address::read_v6(frame + kEthernetSize + 8);
  // Who has no address yet is answered through all nodes (RFC 4861 Sec. 7.2.4).
  const Binding to = asker.none() ? Binding{kAllNodes, multicast_mac(kAllNodes)} : Binding{asker, asker_mac};
  if (packet->size < kSolicitationSize) {  // asked without an option: the answer is 8 bytes longer
    packet->data -= kSolicitationSize - packet->size;
    packet->headroom -= kSolicitationSize - packet->size;
  }
  packet->size = kSolicitationSize;
  const uint32_t flags = asker.none() ? kOverride : kSolicited;
  write_discovery(packet->data, {kAdvertisement, flags, asked, kTargetLinkOption}, {asked, mac}, to);
}

uint32_t write_announcement(const Link& link, const Address& address, std::span<uint8_t, 128> out) {
  if (address.is_v4()) {
    write_arp(out.data(), 1, {address, link.mac}, {address, Mac{}}, kBroadcast);
    return kArpSize;
  }
  write_discovery(out.data(), {kAdvertisement, kOverride, address, kTargetLinkOption}, {address, link.mac},
                  {kAllNodes, multicast_mac(kAllNodes)});
  return kSolicitationSize;
}

void Neighbours::want(std::span<const Address> addresses) {
  std::vector<Entry> entries;
  for (const Address& address : addresses) {
    const auto same = [&](const Entry& entry) { return entry.address == address; };
    if (std::any_of(entries.begin(), entries.end(), same)) continue;
    const Entry* known = find(address);
    if (known != nullptr) {
      entries.push_back(*known);
    } else {
      entries.emplace_back().address = address;
    }
  }
  entries_ = std::move(entries);
}

bool Neighbours::learn(const Binding& binding, TimeNs now) {
  if ((binding.mac[0] & 1) != 0) return false;  // a group is nobody's address
  for (Entry& entry : entries_) {
    if (entry.address != binding.address) continue;
    const bool news = !entry.known || entry.mac != binding.mac;
    entry.mac = binding.mac;
    entry.known = true;
    entry.heard = now;
    return news;
  }
  return false;
}

void Neighbours::tick(const Link& link, TimeNs now, const Send& send) {
  std::array<uint8_t, 128> frame;
  for (Entry& entry : entries_) {
    if (now - entry.asked < kRetry || (entry.known && now - entry.heard < kRefresh)) continue;
    entry.asked = now;
    send({frame.data(), write_question(link, entry.address, frame)});
  }
}

const Neighbours::Entry* Neighbours::find(const Address& address) const {
  for (const Entry& entry : entries_) {
    if (entry.address == address) return &entry;
  }
  return nullptr;
}

}  // namespace steelyard::dataplane
