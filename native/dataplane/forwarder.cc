// The path of a frame.
#include "native/dataplane/forwarder.h"

#include <algorithm>

namespace steelyard::dataplane {
namespace {

Verdict verdict_of(Parse parse) {
  switch (parse) {
    case Parse::kTruncated:
      return Verdict::kTruncated;
    case Parse::kBadHeader:
      return Verdict::kBadHeader;
    case Parse::kBadChecksum:
      return Verdict::kBadChecksum;
    case Parse::kFragment:
      return Verdict::kFragment;
    case Parse::kBadFlags:
      return Verdict::kBadFlags;
    default:
      return Verdict::kNoService;
  }
}

// Whether `headers` has the destination although parsing stopped.
bool knows_destination(Parse parse) { return parse == Parse::kFragment || parse == Parse::kBadFlags; }

}  // namespace

std::string_view text_of(Verdict verdict) {
  static constexpr std::array<std::string_view, kVerdicts> kText = {
      "forward",  "reply",     "pass",       "truncated", "bad_header",   "bad_checksum",
      "fragment", "bad_flags", "no_service", "no_server", "no_neighbour", "too_big"};
  return kText[static_cast<size_t>(verdict)];
}

Verdict Forwarder::process(Packet* packet, TimeNs now) {
  Seen seen;
  look(*packet, &seen);
  const Verdict verdict = decide(packet, seen, now);
  ++verdicts_[static_cast<size_t>(verdict)];
  return verdict;
}

void Forwarder::look(const Packet& packet, Seen* seen) const {
  *seen = {};
  seen->parsed = parse(packet.data, packet.size, &seen->headers);
  if (packet.size < kEthernetSize) return;
  seen->ours = link_.bare || std::equal(link_.mac.begin(), link_.mac.end(), packet.data);
  if (seen->parsed != Parse::kOk || !seen->ours) return;
  const Headers& headers = seen->headers;
  const VipTable::Entry* entry = table_.find(headers.destination, headers.destination_port, headers.protocol);
  if (entry == nullptr) return;
  seen->vip = vips_[entry->vip].get();
  seen->hash = flow_hash({headers.source, headers.source_port}, entry->salt);
}

Verdict Forwarder::decide(Packet* packet, const Seen& seen, TimeNs now) {
  return seen.vip != nullptr ? balance(packet, seen, now) : decide_otherwise(packet, seen, now);
}

Verdict Forwarder::balance(Packet* packet, const Seen& seen, TimeNs now) {
  const Headers& headers = seen.headers;
  const Segment segment{{headers.source, headers.source_port}, seen.hash, headers.flags, headers.ip_bytes};
  return forward(packet, headers, *seen.vip, seen.vip->route(segment, now), seen.hash);
}

[[gnu::noinline, gnu::cold]] Verdict Forwarder::decide_otherwise(Packet* packet, const Seen& seen,
                                                                 TimeNs now) {
  if (packet->size < kEthernetSize) return Verdict::kTruncated;
  if (!seen.ours && (packet->data[0] & 1) == 0) return Verdict::kPass;
  const Parse parsed = seen.parsed;
  if (parsed == Parse::kArp || (parsed == Parse::kIcmp && seen.headers.protocol == kIcmp6)) {
    const Verdict verdict = neighbour_message(packet, now);
    if (verdict != Verdict::kNoService) return verdict;
  }
  if (!seen.ours || parsed == Parse::kForeign || parsed == Parse::kArp) return Verdict::kPass;
  if (parsed == Parse::kIcmp) return control_message(packet, seen.headers, now);
  if (parsed == Parse::kOk) {
    const Verdict verdict = forward_return(packet, seen.headers);
    if (verdict != Verdict::kPass) return verdict;
  }
  const bool known = parsed == Parse::kOk || parsed == Parse::kOther || knows_destination(parsed);
  if (known && !table_.owns(seen.headers.destination)) return Verdict::kPass;
  return verdict_of(parsed);
}

Verdict Forwarder::forward(Packet* packet, const Headers& headers, const Vip& vip, int endpoint,
                           uint64_t hash) {
  if (endpoint == Vip::kNoEndpoint) return Verdict::kNoServer;
  const Endpoint& to = vip.endpoints()[endpoint];
  if (!to.has_mac && !link_.bare) return Verdict::kNoNeighbour;
  const Forwarding how = vip.config().forwarding;
  const uint32_t most = link_.mtu - (how == Forwarding::kGre ? gre_overhead(to.address) : 0);
  if (headers.ip_bytes > most) {
    const bool told = headers.protocol != kIcmp4 && headers.protocol != kIcmp6 &&
                      make_too_big(packet, headers, most, link_.mac);
    return told ? Verdict::kReply : Verdict::kTooBig;
  }
  if (how == Forwarding::kL3Dsr) {
    set_destination(*packet, headers, to.address, vip.config().dscp);
  } else if (how == Forwarding::kGre) {
    encapsulate_gre(packet, headers, link_.address(to.address.is_v4()), to.address, hash);
  } else if (how == Forwarding::kNat) {
    const bool icmp = headers.protocol == kIcmp4 || headers.protocol == kIcmp6;
    const uint16_t port = target_port(vip.config());
    icmp ? set_quoted_endpoint(*packet, headers, to.address, port)
         : set_endpoint(*packet, headers, false, to.address, port);
  }
  if (!link_.bare) set_link(*packet, link_.mac, to.mac);
  return Verdict::kForward;
}

// What a server behind NAT answers; kPass: it is nothing of the kind. The next hop is not ours to know.
Verdict Forwarder::forward_return(Packet* packet, const Headers& headers) const {
  const VipTable::Entry* entry = returns_.find(headers.source, headers.source_port, headers.protocol);
  if (entry == nullptr) return Verdict::kPass;
  const VipConfig& vip = vips_[entry->vip]->config();
  set_endpoint(*packet, headers, true, vip.address, vip.port);
  return Verdict::kForward;
}

Verdict Forwarder::control_message(Packet* packet, const Headers& headers, TimeNs) {
  if (!table_.owns(headers.destination)) return Verdict::kPass;
  if (is_echo_request(packet->data, headers)) {
    if (headers.source.multicast()) return Verdict::kBadHeader;
    make_echo_reply(*packet, headers, link_.mac);
    return Verdict::kReply;
  }
  Headers quoted;
  if (!parse_quoted(packet->data, packet->size, headers, &quoted)) return Verdict::kNoService;
  const VipTable::Entry* entry = table_.find(quoted.source, quoted.source_port, quoted.protocol);
  if (entry == nullptr || quoted.source != headers.destination) return Verdict::kNoService;
  const FlowKey key{quoted.destination, quoted.destination_port};
  const uint64_t hash = flow_hash(key, entry->salt);
  const Vip& vip = *vips_[entry->vip];
  return forward(packet, headers, vip, vip.route_related(key, hash), hash);
}

// kNoService: it was no such message.
Verdict Forwarder::neighbour_message(Packet* packet, TimeNs now) {
  Binding binding;
  Address asked;
  const bool told = read_binding(packet->data, packet->size, &binding);
  if (told && neighbours_.learn(binding, now)) set_macs();
  if (read_question(packet->data, packet->size, &asked)) {
    if (!answers_for(asked)) return Verdict::kPass;
    make_answer(packet, asked, link_.mac);
    return Verdict::kReply;
  }
  return told ? Verdict::kPass : Verdict::kNoService;
}

void Forwarder::tick(TimeNs now, const Send& send) {
  neighbours_.tick(link_, now, send);
  if (!announced_) announce(send);
  announced_ = true;
  for (const std::unique_ptr<Vip>& vip : vips_) vip->tick(now);
}

void Forwarder::announce(const Send& send) const {
  std::array<uint8_t, 128> frame;
  for (const std::unique_ptr<Vip>& vip : vips_) {
    if (!vip->config().answer_arp) continue;
    send({frame.data(), write_announcement(link_, vip->config().address, frame)});
  }
}

bool Forwarder::answers_for(const Address& address) const {
  return std::any_of(vips_.begin(), vips_.end(), [&](const std::unique_ptr<Vip>& vip) {
    return vip->config().answer_arp && vip->config().address == address;
  });
}

}  // namespace steelyard::dataplane
