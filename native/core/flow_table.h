// The balancer's finite flow table: `buckets` buckets of `ways` entries, found by the flow's hash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/core/huge_pages.h"
#include "native/core/prefetch.h"
#include "native/core/types.h"

namespace steelyard::core {

struct FlowEntry {
  uint32_t tag = 0;     // upper half of the flow's hash
  int16_t server = -1;  // kNoServer: the entry is free
  uint16_t acked = 0;   // 1 after the first ACK
  TimeNs opened = 0;
};

// Buckets are kept in pages that exist only while a flow lives in them: the table of a mostly idle
// balancer stays in cache and copies cheaply. With `preallocate` no page is ever taken from the heap.
class FlowTable {
 public:
  // `buckets` a power of two in [1, 2^24], `ways` in [1, 64].
  FlowTable(int buckets, int ways, bool preallocate);

  // Registers a flow; nullptr when its bucket is full (the flow is then forwarded but not counted).
  FlowEntry* open(uint64_t hash, ServerId server, TimeNs now) {
    uint32_t& page = directory_[page_of(hash)];
    if (page == kNoPage) page = take_page();
    FlowEntry* entry = bucket(page, hash);
    for (const FlowEntry* end = entry + ways_; entry != end; ++entry) {
      if (entry->server != kNoServer) continue;
      *entry = FlowEntry{static_cast<uint32_t>(hash >> 32), static_cast<int16_t>(server), 0, now};
      ++page_live_[page];
      ++live_;
      return entry;
    }
    return nullptr;
  }
  // The live entry of a flow; nullptr when it has none.
  FlowEntry* find(uint64_t hash) {
    const uint32_t page = directory_[page_of(hash)];
    if (page == kNoPage) return nullptr;
    const uint32_t tag = static_cast<uint32_t>(hash >> 32);
    FlowEntry* entry = bucket(page, hash);
    for (const FlowEntry* end = entry + ways_; entry != end; ++entry) {
      if (entry->tag == tag && entry->server != kNoServer) return entry;
    }
    return nullptr;
  }
  // Frees an entry that `find` or `open` returned for this hash.
  void close(uint64_t hash, FlowEntry* entry) {
    entry->server = kNoServer;
    --live_;
    uint32_t& page = directory_[page_of(hash)];
    if (--page_live_[page] != 0) return;
    free_pages_[num_free_++] = page;
    page = kNoPage;
  }
  void clear();
  // Brings the bucket of a hash nearer, in two steps: what the second reads, the first has asked for.
  void prefetch_page(uint64_t hash) const { prefetch(&directory_[page_of(hash)]); }
  void prefetch_bucket(uint64_t hash) const {
    const uint32_t page = directory_[page_of(hash)];
    if (page == kNoPage) return;
    const uint32_t within = static_cast<uint32_t>(hash) & mask_ & (kBucketsPerPage - 1);
    const FlowEntry* first = &entries_[(static_cast<size_t>(page) * kBucketsPerPage + within) * ways_];
    prefetch(first);
    if (ways_ > 4) prefetch(first + 4);
  }

  int live() const { return live_; }
  static constexpr int kBucketsPerPage = 16;

 private:
  static constexpr uint32_t kNoPage = UINT32_MAX;
  uint32_t page_of(uint64_t hash) const { return (static_cast<uint32_t>(hash) & mask_) / kBucketsPerPage; }
  FlowEntry* bucket(uint32_t page, uint64_t hash) {
    const uint32_t within = static_cast<uint32_t>(hash) & mask_ & (kBucketsPerPage - 1);
    return &entries_[(static_cast<size_t>(page) * kBucketsPerPage + within) * ways_];
  }
  uint32_t take_page() {
    if (num_free_ == 0) [[unlikely]]
      add_page();
    return free_pages_[--num_free_];
  }
  void add_page();

  uint32_t mask_;
  int ways_;
  int live_ = 0;
  std::vector<uint32_t> directory_;   // page of the table -> page of the pool
  std::vector<uint32_t> page_live_;   // live entries per page of the pool
  std::vector<uint32_t> free_pages_;  // the first num_free_ are pages of the pool without a flow
  uint32_t num_free_ = 0;
  std::vector<FlowEntry, HugePages<FlowEntry>> entries_;
};

}  // namespace steelyard::core
