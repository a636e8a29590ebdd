#include "native/core/flow_table.h"

namespace steelyard::core {

FlowTable::FlowTable(int buckets, int ways, bool preallocate) : mask_(static_cast<uint32_t>(buckets) - 1), ways_(ways) {
  const int pages = (buckets + kBucketsPerPage - 1) / kBucketsPerPage;
  directory_.assign(pages, kNoPage);
  if (!preallocate) return;
  entries_.resize(static_cast<size_t>(pages) * kBucketsPerPage * ways);
  page_live_.assign(pages, 0);
  free_pages_.reserve(pages);
  for (int page = pages - 1; page >= 0; --page) free_pages_.push_back(static_cast<uint32_t>(page));
}

uint32_t FlowTable::take_page() {
  if (free_pages_.empty()) {
    page_live_.push_back(0);
    entries_.resize(entries_.size() + static_cast<size_t>(kBucketsPerPage) * ways_);
    return static_cast<uint32_t>(page_live_.size() - 1);
  }
  const uint32_t page = free_pages_.back();
  free_pages_.pop_back();
  return page;
}

FlowEntry* FlowTable::open(uint64_t hash, ServerId server, TimeNs now) {
  uint32_t& page = directory_[page_of(hash)];
  if (page == kNoPage) page = take_page();
  FlowEntry* entry = bucket(page, hash);
  for (int way = 0; way < ways_; ++way, ++entry) {
    if (entry->server != kNoServer) continue;
    *entry = FlowEntry{static_cast<uint32_t>(hash >> 32), static_cast<int16_t>(server), 0, now};
    ++page_live_[page];
    ++live_;
    return entry;
  }
  return nullptr;
}

FlowEntry* FlowTable::find(uint64_t hash) {
  const uint32_t page = directory_[page_of(hash)];
  if (page == kNoPage) return nullptr;
  const uint32_t tag = static_cast<uint32_t>(hash >> 32);
  FlowEntry* entry = bucket(page, hash);
  for (int way = 0; way < ways_; ++way, ++entry) {
    if (entry->server != kNoServer && entry->tag == tag) return entry;
  }
  return nullptr;
}

void FlowTable::close(uint64_t hash, FlowEntry* entry) {
  uint32_t& page = directory_[page_of(hash)];
  entry->server = kNoServer;
  --live_;
  if (--page_live_[page] == 0) {
    free_pages_.push_back(page);
    page = kNoPage;
  }
}

void FlowTable::clear() {
  for (uint32_t& page : directory_) {
    if (page == kNoPage) continue;
    FlowEntry* entry = &entries_[static_cast<size_t>(page) * kBucketsPerPage * ways_];
    for (int i = 0; i < kBucketsPerPage * ways_; ++i) entry[i].server = kNoServer;
    page_live_[page] = 0;
    free_pages_.push_back(page);
    page = kNoPage;
  }
  live_ = 0;
}

}  // namespace steelyard::core
