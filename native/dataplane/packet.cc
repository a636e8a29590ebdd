#include "native/dataplane/packet.h"

namespace steelyard::dataplane {
namespace {

constexpr int kMaxExtensions = 8;

constexpr uint8_t kHopByHop = 0, kRouting = 43, kFragmentHeader = 44, kDestinationOptions = 60;

// Bytes at hand from the start of the IP header on.
struct Bytes {
  const uint8_t* data;
  size_t size;
};

Parse parse_ports(const uint8_t* l4, size_t size, Headers* out) {
  if (out->protocol == kTcp) {
    if (size < 20) return Parse::kTruncated;
    const uint32_t header = (l4[12] >> 4) * 4u;
    if (header < 20) return Parse::kBadHeader;
    if (header > size) return Parse::kTruncated;
    out->flags = l4[13] & 0x3f;
    const uint8_t kind = out->flags & (kSyn | kFin | kRst | kAck);
    if (kind == 0 || ((kind & kSyn) != 0 && (kind & (kFin | kRst)) != 0)) return Parse::kBadFlags;
  } else if (out->protocol == kUdp) {
    if (size < 8) return Parse::kTruncated;
    const uint16_t length = load16(l4 + 4);
    if (length < 8) return Parse::kBadHeader;
    if (length > size) return Parse::kTruncated;
  } else if (out->protocol == (out->v6 ? kIcmp6 : kIcmp4)) {
    return size < kIcmpSize ? Parse::kTruncated : Parse::kIcmp;
  } else {
    return Parse::kOther;
  }
  out->source_port = load16(l4);
  out->destination_port = load16(l4 + 2);
  return Parse::kOk;
}

[[gnu::noinline]] uint64_t sum_long_header(Bytes ip, uint32_t header) { return sum_words(ip.data, header); }

Parse parse_v4(Bytes ip, Headers* out) {
  if (ip.size < kIpv4Size) return Parse::kTruncated;
  const uint32_t header = (ip.data[0] & 0xf) * 4u;
  if (ip.data[0] >> 4 != 4 || header < kIpv4Size) return Parse::kBadHeader;
  const uint16_t total = load16(ip.data + 2);
  if (total < header) return Parse::kBadHeader;
  if (total > ip.size) return Parse::kTruncated;
  const uint64_t sum = header == kIpv4Size ? sum_words(ip.data, kIpv4Size) : sum_long_header(ip, header);
  if (checksum_of(sum) != 0) return Parse::kBadChecksum;
  out->v6 = false;
  out->source = Address::read_v4(ip.data + 12);
  out->destination = Address::read_v4(ip.data + 16);
  out->protocol = ip.data[9];
  out->ip_bytes = total;
  out->l4 = kEthernetSize + header;
  if (out->source.multicast()) return Parse::kBadHeader;
  if ((load16(ip.data + 6) & 0x3fff) != 0) return Parse::kFragment;  // more fragments, or an offset
  return parse_ports(ip.data + header, total - header, out);
}

// Walks extension headers; `at` is moved behind them. A fragment header of a whole packet (RFC 6946) is
// skipped.
Parse skip_extensions(Bytes ip, uint8_t* next, uint32_t* at) {
  for (int i = 0; i < kMaxExtensions; ++i) {
    const bool options = *next == kHopByHop || *next == kRouting || *next == kDestinationOptions;
    if (!options && *next != kFragmentHeader) return Parse::kOk;
    if (ip.size < *at + 8) return Parse::kTruncated;
    const uint8_t* header = ip.data + *at;
    if (*next == kFragmentHeader && (load16(header + 2) & 0xfff9) != 0) return Parse::kFragment;
    *next = header[0];
    *at += options ? (header[1] + 1u) * 8 : 8;
    if (ip.size < *at) return Parse::kTruncated;
  }
  return Parse::kBadHeader;
}

[[gnu::noinline]] Parse parse_v6(Bytes ip, Headers* out) {
  if (ip.size < kIpv6Size) return Parse::kTruncated;
  if (ip.data[0] >> 4 != 6) return Parse::kBadHeader;
  const uint32_t total = kIpv6Size + load16(ip.data + 4);
  if (total > ip.size) return Parse::kTruncated;
  if (total > UINT16_MAX) return Parse::kBadHeader;
  out->v6 = true;
  out->source = Address::read_v6(ip.data + 8);
  out->destination = Address::read_v6(ip.data + 24);
  // On a wire no address has this form; here it would pass for IPv4.
  if (out->source.is_v4() || out->destination.is_v4() || out->source.multicast()) return Parse::kBadHeader;
  out->ip_bytes = static_cast<uint16_t>(total);
  uint8_t next = ip.data[6];
  uint32_t at = kIpv6Size;
  const Parse skipped = skip_extensions({ip.data, total}, &next, &at);
  out->protocol = next;
  out->l4 = kEthernetSize + at;
  return skipped == Parse::kOk ? parse_ports(ip.data + at, total - at, out) : skipped;
}

}  // namespace

Parse parse(const uint8_t* frame, size_t size, Headers* out) {
  if (size < kEthernetSize) return Parse::kTruncated;
  const Bytes ip{frame + kEthernetSize, size - kEthernetSize};
  switch (load16(frame + 12)) {
    case kEtherIpv4:
      return parse_v4(ip, out);
    case kEtherIpv6:
      return parse_v6(ip, out);
    case kEtherArp:
      return Parse::kArp;
    default:
      return Parse::kForeign;
  }
}

bool is_echo_request(const uint8_t* frame, const Headers& icmp) {
  return frame[icmp.l4] == (icmp.v6 ? 128 : 8) && frame[icmp.l4 + 1] == 0;
}

bool is_icmp_error(const uint8_t* frame, const Headers& icmp) {
  const uint8_t type = frame[icmp.l4];
  return icmp.v6 ? type >= 1 && type <= 4 : type == 3 || type == 4 || type == 11 || type == 12;
}

bool parse_quoted(const uint8_t* frame, size_t size, const Headers& icmp, Headers* quoted) {
  if (!is_icmp_error(frame, icmp)) return false;
  const size_t end = kEthernetSize + size_t{icmp.ip_bytes};  // within the frame, as parse has seen
  const size_t start = icmp.l4 + kIcmpSize;
  if (end > size || start >= end) return false;
  const Bytes ip{frame + start, end - start};
  uint32_t at;
  quoted->v6 = icmp.v6;
  if (icmp.v6) {
    if (ip.size < kIpv6Size || ip.data[0] >> 4 != 6) return false;
    quoted->source = Address::read_v6(ip.data + 8);
    quoted->destination = Address::read_v6(ip.data + 24);
    at = kIpv6Size;
    quoted->protocol = ip.data[6];
    if (skip_extensions(ip, &quoted->protocol, &at) != Parse::kOk) return false;
  } else {
    if (ip.size < kIpv4Size || ip.data[0] >> 4 != 4 || (load16(ip.data + 6) & 0x1fff) != 0) return false;
    quoted->source = Address::read_v4(ip.data + 12);
    quoted->destination = Address::read_v4(ip.data + 16);
    at = (ip.data[0] & 0xf) * 4u;
    quoted->protocol = ip.data[9];
    if (at < kIpv4Size) return false;
  }
  if ((quoted->protocol != kTcp && quoted->protocol != kUdp) || ip.size < at + 4) return false;
  quoted->l4 = static_cast<uint32_t>(start) + at;
  quoted->source_port = load16(ip.data + at);
  quoted->destination_port = load16(ip.data + at + 2);
  return true;
}

}  // namespace steelyard::dataplane
