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
  bool owns(const Address& address) const;

 private:
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
  // The same for each of up to kBurst frames, in their order. verdicts: one for each.
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
    const VipTable::Entry* entry = nullptr;  // of the VIP that it is for
    uint64_t hash = 0;
  };
  // `last`: of a packet before it, most likely of the same VIP; or null.
  void look(const Packet& packet, const VipTable::Entry* last, Seen* seen) const;
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
  bool announced_ = false;
};

// Empty when the configuration can be run; else one line: key, value, what is allowed.
std::string check_config(const Config& config);
// Empty when a running balancer can be given `next`; else one line.
std::string check_reload(const Config& running, const Config& next);

}  // namespace steelyard::dataplane
