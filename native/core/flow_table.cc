#include "native/core/flow_table.h"

namespace steelyard::core {

FlowTable::FlowTable(int buckets, int ways, bool preallocate)
    : mask_(static_cast<uint32_t>(buckets) - 1), ways_(ways) {
  const int pages = (buckets + kBucketsPerPage - 1) / kBucketsPerPage;
  directory_.assign(pages, kNoPage);
  if (!preallocate) return;
  entries_.resize(static_cast<size_t>(pages) * kBucketsPerPage * ways);
  page_live_.assign(pages, 0);
  for (int page = pages - 1; page >= 0; --page) free_pages_.push_back(static_cast<uint32_t>(page));
  num_free_ = static_cast<uint32_t>(pages);
}

void FlowTable::add_page() {
  const uint32_t page = static_cast<uint32_t>(page_live_.size());
  page_live_.push_back(0);
  free_pages_.push_back(0);  // one place for every page: giving one back never allocates
  entries_.resize(entries_.size() + static_cast<size_t>(kBucketsPerPage) * ways_);
  free_pages_[num_free_++] = page;
}

void FlowTable::clear() {
  for (uint32_t& page : directory_) {
    if (page == kNoPage) continue;
    FlowEntry* entry = &entries_[static_cast<size_t>(page) * kBucketsPerPage * ways_];
    for (int i = 0; i < kBucketsPerPage * ways_; ++i) entry[i].server = kNoServer;
    page_live_[page] = 0;
    free_pages_[num_free_++] = page;
    page = kNoPage;
  }
  live_ = 0;
}

}  // namespace steelyard::core
