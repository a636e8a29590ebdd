// Which connection goes where: exact keys, a bounded table, deadlines. A bucket is one cache line of eight
// tags and deadlines, and behind it the connections, which are read only where a tag matches: beside it, so
// that both have one page.
//
// The index of a bucket are the low bits of the flow's hash, as in core::FlowTable: with as many buckets and
// ways there, a flow that has a place here has one there.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "native/core/huge_pages.h"
#include "native/core/lanes.h"
#include "native/core/prefetch.h"
#include "native/core/types.h"
#include "native/dataplane/address.h"

namespace steelyard::dataplane {

using core::TimeNs;

// One client's end of a connection to a VIP.
struct FlowKey {
  Address client;
  uint16_t port = 0;
  friend bool operator==(const FlowKey&, const FlowKey&) = default;
};

enum class FlowState : uint8_t {
  kOpening,      // SYN seen, or one datagram
  kEstablished,  // the client has acknowledged, or sent a second datagram
  kClosing,      // FIN or RST seen: the binding stays for what still comes, the flow is no longer counted
  kAdopted,      // its beginning was not seen: bound to where consistent hashing sent it, not counted
  kIdle,         // its time ran out: still bound while its place is not needed, not counted
};
inline constexpr int kFlowStates = 5;

struct alignas(32) Connection {
  Address client;
  uint64_t hash = 0;
  uint16_t port = 0;
  uint16_t endpoint = 0;  // index into the VIP's endpoints
  FlowState state = FlowState::kOpening;
  bool counted = false;  // the core knows the flow
};

class ConnectionTable {
 public:
  static constexpr uint32_t kWays = 8;
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr int kTickShift = 20;  // deadlines are kept in units of 2^20 ns, about a millisecond
  static constexpr TimeNs kRemembered = 3600 * core::kNanosPerSecond;  // how long an idle place is kept

  // At most `buckets` * 8 connections; `buckets` a power of two in [1, 2^22].
  explicit ConnectionTable(uint32_t buckets);

  // Brings a flow's place nearer, in two steps: what the second reads, the first has asked for. The second
  // says which place the flow seems to have, or kNone.
  void prefetch_bucket(uint64_t hash) const { core::prefetch(&buckets_[index_of(hash)]); }
  uint32_t prefetch_place(uint64_t hash) const {
    const uint32_t index = index_of(hash);
    const uint32_t mine = ways_with(index, tag_of(hash));
    const uint32_t ways = mine != 0 ? mine : ways_with(index, 0);
    if (ways != 0) core::prefetch(&buckets_[index].connection[first_way(ways)]);
    return mine != 0 ? index * kWays + first_way(mine) : kNone;
  }
  // Whether a place is that of a flow.
  bool has(uint32_t place, const FlowKey& key, uint64_t hash) const {
    const Connection& connection = at(place);
    return buckets_[place / kWays].tag[place % kWays] == tag_of(hash) && connection.client == key.client &&
           connection.port == key.port;
  }
  // The place of a flow; kNone when it has none.
  uint32_t find(const FlowKey& key, uint64_t hash) const {
    const uint32_t index = index_of(hash);
    for (uint32_t ways = ways_with(index, tag_of(hash)); ways != 0; ways &= ways - 1) {
      const uint32_t way = first_way(ways);
      const Connection& connection = buckets_[index].connection[way];
      if (connection.client == key.client && connection.port == key.port) return index * kWays + way;
    }
    return kNone;
  }
  // A free place for a flow that has none; kNone when its bucket is full.
  uint32_t free_place(uint64_t hash) const {
    const uint32_t ways = ways_with(index_of(hash), 0);
    return ways == 0 ? kNone : index_of(hash) * kWays + first_way(ways);
  }
  // Of a full bucket: the place that was due first of those that are not counted, or are over their time; the
  // caller frees it. kNone when there is none.
  uint32_t oldest_place(uint64_t hash, TimeNs now) const;
  void take(uint32_t place, const Connection& connection, TimeNs deadline);
  void free(uint32_t place);

  Connection& at(uint32_t place) { return buckets_[place / kWays].connection[place % kWays]; }
  const Connection& at(uint32_t place) const { return buckets_[place / kWays].connection[place % kWays]; }
  bool taken(uint32_t place) const { return buckets_[place / kWays].tag[place % kWays] != 0; }
  bool expired(uint32_t place, TimeNs now) const {
    return static_cast<int32_t>(buckets_[place / kWays].deadline[place % kWays] - ticks(now)) < 0;
  }
  void set_deadline(uint32_t place, TimeNs deadline) {
    uint32_t& kept = buckets_[place / kWays].deadline[place % kWays];
    if (kept != ticks(deadline)) kept = ticks(deadline);
  }

  uint32_t places() const { return static_cast<uint32_t>(buckets_.size()) * kWays; }
  uint32_t live() const { return live_; }

 private:
  struct alignas(64) Bucket {
    uint32_t tag[kWays] = {};  // 0: free
    uint32_t deadline[kWays] = {};
    Connection connection[kWays];
  };

  using Tags = uint32_t __attribute__((vector_size(32)));
  // The ways of a bucket that have a tag, a bit each, all compared at once: which one it is cannot be
  // predicted.
  uint32_t ways_with(uint32_t index, uint32_t tag) const {
    Tags tags;
    std::memcpy(&tags, buckets_[index].tag, sizeof tags);
    return core::bits_of_lanes(tags == tag);
  }
  static uint32_t first_way(uint32_t ways) { return static_cast<uint32_t>(__builtin_ctz(ways)); }
  static uint32_t ticks(TimeNs time) { return static_cast<uint32_t>(time >> kTickShift); }
  static uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 32) | 1; }
  uint32_t index_of(uint64_t hash) const { return static_cast<uint32_t>(hash) & mask_; }

  uint32_t mask_;
  uint32_t live_ = 0;
  std::vector<Bucket, core::HugePages<Bucket>> buckets_;
};

}  // namespace steelyard::dataplane
