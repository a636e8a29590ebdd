// What happens to a frame: the whole balancer without its sockets, files and clock.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "native/dataplane/config.h"
#include "native/dataplane/neighbour.h"
#include "native/dataplane/plain_packet.h"
#include "native/dataplane/rewrite.h"
#include "native/dataplane/vip.h"

namespace steelyard::dataplane {

enum class Verdict : uint8_t {
  kForward,  // to a server; the frame has been rewritten
  kReply,    // an answer of the balancer's own; the frame is it
  kPass,     // not for a virtual address: left to the kernel
  // Dropped, and why:
  kTruncated,
  kBadHeader,
  kBadChecksum,
  kFragment,
  kBadFlags,
  kNoService,    // a virtual address, but no such port or protocol
  kNoServer,     // the pool is empty
  kNoNeighbour,  // the link address of the next hop is not known yet
  kTooBig,       // for the link, and the sender may not be told or was told before
};
inline constexpr int kVerdicts = static_cast<int>(Verdict::kTooBig) + 1;
std::string_view text_of(Verdict verdict);
constexpr bool sends(Verdict verdict) { return verdict == Verdict::kForward || verdict == Verdict::kReply; }

// By what the hashes of one VIP's flows differ from those of others.
struct Salt {
  explicit Salt(uint64_t word = 0) : word(word), mixed(core::mix64(word)) {}
  uint64_t word;
  uint64_t mixed;  // with the high half of an IPv4 address, which is 0
};

// The hash of a flow: the same on all balancers with the same seed. By it a flow is found and placed.
inline uint64_t flow_hash(const FlowKey& key, const Salt& salt) {
  const uint64_t high = key.client.high == 0 ? salt.mixed : core::mix64(salt.word + key.client.high);
  return core::mix64(high ^ (key.client.low + uint64_t{key.port} * core::kGolden));
}

// Which VIP has an address, port and protocol.
class VipTable {
 public:
  struct Entry {
    Address address;
    uint16_t port = 0;
    uint8_t protocol = 0;  // 0: the entry is free
    int16_t vip = 0;
    Salt salt;  // of hashes of its flows
    bool is(const Address& of, uint16_t at, uint8_t by) const {
      return address == of && port == at && protocol == by;
    }
  };
  void build(std::span<const std::unique_ptr<Vip>> vips, uint64_t hash_seed);
  // By what packets of servers behind NAT say of their source; a removed one too while it has connections.
  void build_returns(std::span<const std::unique_ptr<Vip>> vips);
  // nullptr: there is none.
  const Entry* find(const Address& address, uint16_t port, uint8_t protocol) const {
    for (uint64_t at = slot(address, port, protocol);; ++at) {
      const Entry& entry = entries_[at & mask_];
      if (entry.protocol == 0) return nullptr;
      if (entry.is(address, port, protocol)) return &entry;
    }
  }
  bool owns(const Address& address) const { return find(address, 0, kOwned) != nullptr; }
  bool empty() const { return mask_ == 0; }

 private:
  static constexpr uint8_t kOwned = 255;  // no protocol: the entry of an address

  static uint64_t slot(const Address& address, uint16_t port, uint8_t protocol) {
    return core::mix64(address.high ^ address.low ^ uint64_t{port} << 48 ^ protocol);
  }
  void reset(size_t entries);
  void add(const Entry& entry);

  std::vector<Entry> entries_ = std::vector<Entry>(1);
  uint64_t mask_ = 0;
};

class Forwarder {
 public:
  static constexpr size_t kBurst = 64;

  // `policies`: one for each of config.vips. `config` has passed check_config.
  Forwarder(const Config& config, const Link& link, std::span<const PolicyArtefact> policies);

  // Gives a running balancer another configuration, that has passed check_config and check_reload.
  void reconfigure(const Config& config, std::span<const PolicyArtefact> policies, TimeNs now);

  // Decides about a frame and rewrites it; it needs kHeadroom. sends(verdict): the frame is to go out.
  Verdict process(Packet* packet, TimeNs now);
  // The same for each of up to kBurst frames, in their order, with a shorter way for plain packets. verdicts:
  // one for each.
  void process(std::span<Packet> burst, TimeNs now, Verdict* verdicts);
  // The periodic part, about every 10 ms: timeouts, weights, neighbours.
  void tick(TimeNs now, const Send& send);

  const Config& config() const { return config_; }
  const Link& link() const { return link_; }
  std::span<const std::unique_ptr<Vip>> vips() const { return vips_; }
  const Neighbours& neighbours() const { return neighbours_; }
  uint64_t verdicts(Verdict verdict) const { return verdicts_[static_cast<size_t>(verdict)]; }

 private:
  // What is read of a frame before anything is decided.
  struct Seen {
    Headers headers;
    Parse parsed = Parse::kTruncated;
    bool ours = false;
    Vip* vip = nullptr;  // that it is for
    uint64_t hash = 0;
  };
  // The same of a packet in a burst, in one cache line: what is plain needs no more.
  struct alignas(64) Glance {
    Vip* vip;
    uint64_t hash;
    uint32_t place;  // that the flow may have
    bool is_plain;
    PlainPacket plain;
  };
  // The VIP of the plain packet before, since the next one is most likely of the same.
  struct LastVip {
    uint64_t service = 0;  // PlainPacket::service_word; 0: there is none
    Salt salt;
    Vip* vip = nullptr;
  };
  // What of the link plain packets need.
  struct Way {
    explicit Way(const Link& link);
    bool bare;
    uint32_t mtu;
    Address source;
  };
  static constexpr size_t kGroup = 8;  // packets worked on at a time

  void glance(const Packet& packet, const Way& way, LastVip* last, Glance* out, Seen* seen) const;
  bool glance_at_plain(const Packet& packet, const Way& way, LastVip* last, Glance* out) const;
  Verdict decide_plain(Packet* packet, const Glance& glance, const Way& way, TimeNs now);
  Verdict decide_plain_otherwise(Packet* packet, const Glance& glance, int endpoint, TimeNs now);
  void look(const Packet& packet, Seen* seen) const;
  Verdict decide(Packet* packet, const Seen& seen, TimeNs now);
  Verdict balance(Packet* packet, const Seen& seen, TimeNs now);
  Verdict decide_otherwise(Packet* packet, const Seen& seen, TimeNs now);
  Verdict forward_return(Packet* packet, const Headers& headers) const;
  Verdict control_message(Packet* packet, const Headers& headers, TimeNs now);
  Verdict neighbour_message(Packet* packet, TimeNs now);
  Verdict forward(Packet* packet, const Headers& headers, const Vip& vip, int endpoint, uint64_t hash);
  bool answers_for(const Address& address) const;
  void find_neighbours();
  void set_macs();
  void announce(const Send& send) const;

  Config config_;
  Link link_;
  std::vector<std::unique_ptr<Vip>> vips_;
  VipTable table_, returns_;
  Neighbours neighbours_;
  std::array<uint64_t, kVerdicts> verdicts_{};
  std::array<Glance, kBurst> glances_;  // of the burst at hand
  std::array<Seen, kBurst> seen_;       // where a glance is not enough
  bool announced_ = false;
};

// Empty when the configuration can be run; else one line: key, value, what is allowed.
std::string check_config(const Config& config);
// Empty when a running balancer can be given `next`; else one line.
std::string check_reload(const Config& running, const Config& next);

}  // namespace steelyard::dataplane
