// The path of many frames at once, with a shorter way for plain packets: what comes of them is what comes of
// each alone.
#include <algorithm>

#include "native/dataplane/forwarder.h"

namespace steelyard::dataplane {
namespace {

Headers headers_of(const PlainPacket& plain) {
  Headers headers;
  headers.source = Address::v4(plain.client_address());
  headers.destination = plain.service_address();
  headers.source_port = plain.client_port();
  headers.destination_port = plain.service_port();
  headers.protocol = kTcp;
  headers.flags = kAck;
  headers.l4 = kEthernetSize + kIpv4Size;
  headers.ip_bytes = plain.ip_bytes;
  return headers;
}

}  // namespace

Forwarder::Way::Way(const Link& link) : bare(link.bare), mtu(link.mtu), source(link.address4) {}

// Three rounds over groups of packets, each a group behind the one before, so that the memory which one group
// needs comes while others are worked on.
[[gnu::flatten]] void Forwarder::process(std::span<Packet> burst, TimeNs now, Verdict* verdicts) {
  const size_t size = burst.size();
  const Way way(link_);
  LastVip last;
  for (size_t from = 0; from < size + 2 * kGroup; from += kGroup) {
    for (size_t i = from; i < std::min(from + kGroup, size); ++i)
      glance(burst[i], way, &last, &glances_[i], &seen_[i]);
    if (from < kGroup) continue;
    for (size_t i = from - kGroup; i < std::min(from, size); ++i) {
      Glance& glance = glances_[i];
      if (glance.vip == nullptr) continue;
      if (glance.is_plain) {
        glance.place = glance.vip->prefetch_data_more(glance.hash);
      } else {
        glance.vip->prefetch_more(glance.hash, seen_[i].headers.flags);
      }
    }
    if (from < 2 * kGroup) continue;
    for (size_t i = from - 2 * kGroup; i < std::min(from - kGroup, size); ++i) {
      const Glance& glance = glances_[i];
      verdicts[i] =
          glance.is_plain ? decide_plain(&burst[i], glance, way, now) : decide(&burst[i], seen_[i], now);
      ++verdicts_[static_cast<size_t>(verdicts[i])];
    }
  }
}

void Forwarder::glance(const Packet& packet, const Way& way, LastVip* last, Glance* out, Seen* seen) const {
  out->is_plain = glance_at_plain(packet, way, last, out);
  if (out->is_plain) return;
  look(packet, seen);
  out->vip = seen->vip;
  out->hash = seen->hash;
  if (out->vip != nullptr) out->vip->prefetch(out->hash, seen->headers.flags);
}

bool Forwarder::glance_at_plain(const Packet& packet, const Way& way, LastVip* last, Glance* out) const {
  if (!read_plain(packet.data, packet.size, &out->plain)) return false;
  if (!way.bare && !(std::equal(link_.mac.begin(), link_.mac.end(), packet.data) &&
                     sound_header(packet.data + kEthernetSize))) {
    return false;
  }
  const PlainPacket& plain = out->plain;
  if (plain.service_word() != last->service) {
    const VipTable::Entry* entry = table_.find(plain.service_address(), plain.service_port(), kTcp);
    out->vip = nullptr;
    if (entry == nullptr) return returns_.empty() && !table_.owns(plain.service_address());
    *last = {plain.service_word(), entry->salt, vips_[entry->vip].get()};
  }
  out->vip = last->vip;
  out->hash = flow_hash({Address::v4(plain.client_address()), plain.client_port()}, last->salt);
  out->vip->prefetch_data(out->hash);
  return true;
}

Verdict Forwarder::decide_plain(Packet* packet, const Glance& glance, const Way& way, TimeNs now) {
  if (glance.vip == nullptr) return Verdict::kPass;
  const PlainPacket& plain = glance.plain;
  const FlowKey key{Address::v4(plain.client_address()), plain.client_port()};
  const int endpoint = glance.vip->route_data(key, glance.hash, glance.place, plain.ip_bytes, now);
  if (endpoint == Vip::kNoEndpoint) return decide_plain_otherwise(packet, glance, endpoint, now);
  const Endpoint& to = glance.vip->endpoints()[endpoint];
  const bool tunnel = to.plain_way == PlainWay::kTunnel;
  const uint32_t most = tunnel ? way.mtu - kIpv4Size - kGreSize : way.mtu;
  if (to.plain_way == PlainWay::kOther || plain.ip_bytes > most || !(way.bare || to.has_mac))
    return decide_plain_otherwise(packet, glance, endpoint, now);
  if (tunnel) encapsulate_v4(packet, kEtherIpv4, plain.tos, plain.ip_bytes, way.source, to.address);
  if (!way.bare) set_link(*packet, link_.mac, to.mac);
  return Verdict::kForward;
}

// endpoint: kNoEndpoint while it is not known.
[[gnu::noinline]] Verdict Forwarder::decide_plain_otherwise(Packet* packet, const Glance& glance,
                                                            int endpoint, TimeNs now) {
  const Headers headers = headers_of(glance.plain);
  const Segment segment{{headers.source, headers.source_port}, glance.hash, kAck, headers.ip_bytes};
  if (endpoint == Vip::kNoEndpoint) endpoint = glance.vip->route(segment, now);
  return forward(packet, headers, *glance.vip, endpoint, glance.hash);
}

}  // namespace steelyard::dataplane
