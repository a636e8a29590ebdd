// Link addresses of the next hops, by ARP (RFC 826) and neighbour discovery (RFC 4861), and answers for
// virtual addresses that the balancer owns on its link.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "native/core/types.h"
#include "native/dataplane/packet.h"

namespace steelyard::dataplane {

using core::TimeNs;

// Where the balancer stands on its link.
struct Link {
  Mac mac{};
  Address address4, address6;  // none(): it has none of the family
  int prefix4 = 24, prefix6 = 64;
  Address gateway4, gateway6;
  uint32_t mtu = 1500;
  // Another host does links: what lies before an IP header is neither read nor of use, and IPv4 headers have
  // passed its checks.
  bool bare = false;

  const Address& address(bool v4) const { return v4 ? address4 : address6; }
  // Who takes packets for `destination`: itself on the link, else the gateway; none() if there is none.
  Address next_hop(const Address& destination) const;
};

using Send = std::function<void(std::span<const uint8_t>)>;

inline constexpr uint32_t kArpSize = 42;
inline constexpr uint32_t kSolicitationSize = kEthernetSize + kIpv6Size + 32;

struct Binding {
  Address address;
  Mac mac;
};

// What an ARP frame, or a neighbour solicitation or advertisement, says of its sender. False: nothing.
bool read_binding(const uint8_t* frame, size_t size, Binding* out);
// The address that it asks for. False: it asks for none.
bool read_question(const uint8_t* frame, size_t size, Address* asked);
// The frame that asks for `target`; returns its size.
uint32_t write_question(const Link& link, const Address& target, std::span<uint8_t, 128> out);
// The answer to a question that read_question has read, in its place: `asked` is at link.mac.
void make_answer(Packet* packet, const Address& asked, const Mac& mac);
// Tells the whole link that `address` is at link.mac; returns the size.
uint32_t write_announcement(const Link& link, const Address& address, std::span<uint8_t, 128> out);

// The next hops that are asked for again and again.
class Neighbours {
 public:
  static constexpr TimeNs kRetry = core::kNanosPerSecond;
  static constexpr TimeNs kRefresh = 30 * core::kNanosPerSecond;

  struct Entry {
    Address address;
    Mac mac{};
    bool known = false;
    TimeNs asked = INT64_MIN / 2, heard = INT64_MIN / 2;
  };

  // Next hops from now on; what is known of those that stay is kept.
  void want(std::span<const Address> addresses);
  // Takes note of a binding. True when it is news.
  bool learn(const Binding& binding, TimeNs now);
  // Asks for what is not known, or was heard of long ago.
  void tick(const Link& link, TimeNs now, const Send& send);
  const Entry* find(const Address& address) const;
  std::span<const Entry> entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
};

}  // namespace steelyard::dataplane
