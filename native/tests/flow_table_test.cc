// The flow table against a map of buckets: what it finds, when it is full, and that nothing is lost.
#include "native/core/flow_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "native/tests/worlds.h"

namespace steelyard::core {
namespace {

using testing::word;

TEST(FlowTable, FindsWhatWasOpenedUntilItIsClosed) {
  FlowTable table(1024, 4, false);
  EXPECT_EQ(table.find(word(1)), nullptr);
  FlowEntry* opened = table.open(word(1), 7, 123);
  ASSERT_NE(opened, nullptr);
  FlowEntry* found = table.find(word(1));
  ASSERT_EQ(found, opened);
  EXPECT_EQ(found->server, 7);
  EXPECT_EQ(found->opened, 123);
  EXPECT_EQ(found->acked, 0);
  EXPECT_EQ(table.live(), 1);
  found->acked = 1;
  table.close(word(1), found);
  EXPECT_EQ(table.find(word(1)), nullptr);
  EXPECT_EQ(table.live(), 0);
  EXPECT_EQ(table.open(word(1), 3, 456)->acked, 0);
}

TEST(FlowTable, AFullBucketRefusesAndOthersDoNot) {
  FlowTable table(2, 3, false);
  std::vector<uint64_t> even;
  for (uint64_t key = 0; even.size() < 4; ++key) {
    if ((word(key) & 1) == 0) even.push_back(word(key));
  }
  for (int i = 0; i < 3; ++i) EXPECT_NE(table.open(even[i], i, 0), nullptr);
  EXPECT_EQ(table.open(even[3], 3, 0), nullptr);
  EXPECT_EQ(table.find(even[3]), nullptr);
  EXPECT_NE(table.open(even[3] | 1, 3, 0), nullptr);
  table.close(even[1], table.find(even[1]));
  EXPECT_NE(table.open(even[3], 3, 0), nullptr);
  EXPECT_EQ(table.live(), 4);
}

using Shape = std::tuple<int, int, bool>;  // buckets, ways, preallocate

class FlowTableShape : public ::testing::TestWithParam<Shape> {};

// Random opens and closes; the model is a list of hashes per bucket.
TEST_P(FlowTableShape, BehavesAsAMapOfBuckets) {
  const auto [buckets, ways, preallocate] = GetParam();
  FlowTable table(buckets, ways, preallocate);
  std::map<uint32_t, std::vector<uint64_t>> model;
  std::vector<uint64_t> live;
  int refused = 0;
  for (uint64_t step = 0; step < 20000; ++step) {
    const uint64_t coin = word(2 * step);
    if (live.empty() || coin % 100 < 52) {
      const uint64_t hash = word(2 * step + 1);
      std::vector<uint64_t>& bucket = model[static_cast<uint32_t>(hash) & (buckets - 1)];
      const bool fits = bucket.size() < static_cast<size_t>(ways);
      const auto now = static_cast<TimeNs>(step);
      ASSERT_EQ(table.open(hash, static_cast<ServerId>(hash % 4096), now) != nullptr, fits);
      if (fits) {
        bucket.push_back(hash);
        live.push_back(hash);
      } else {
        ++refused;
        ASSERT_EQ(table.find(hash), nullptr);
      }
    } else {
      const size_t pick = (coin >> 8) % live.size();
      const uint64_t hash = live[pick];
      FlowEntry* entry = table.find(hash);
      ASSERT_NE(entry, nullptr);
      ASSERT_EQ(entry->server, static_cast<ServerId>(hash % 4096));
      table.close(hash, entry);
      std::erase(model[static_cast<uint32_t>(hash) & (buckets - 1)], hash);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(pick));
    }
    ASSERT_EQ(table.live(), static_cast<int>(live.size()));
  }
  EXPECT_EQ(refused > 0, buckets < 65536);
  for (const uint64_t hash : live) ASSERT_NE(table.find(hash), nullptr);
  table.clear();
  EXPECT_EQ(table.live(), 0);
  for (const uint64_t hash : live) EXPECT_EQ(table.find(hash), nullptr);
  for (const uint64_t hash : live) EXPECT_NE(table.open(hash, 1, 0), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Shapes, FlowTableShape,
                         ::testing::Values(Shape{1, 1, false}, Shape{1, 64, true}, Shape{8, 2, false},
                                           Shape{16, 4, true}, Shape{64, 1, false}, Shape{256, 4, true},
                                           Shape{65536, 4, false}));

TEST(FlowTable, ACopyIsItsOwn) {
  FlowTable table(64, 2, false);
  table.open(word(1), 1, 0);
  FlowTable copy = table;
  copy.open(word(2), 2, 0);
  copy.close(word(1), copy.find(word(1)));
  EXPECT_NE(table.find(word(1)), nullptr);
  EXPECT_EQ(table.find(word(2)), nullptr);
  EXPECT_EQ(table.live(), 1);
  EXPECT_EQ(copy.live(), 1);
}

}  // namespace
}  // namespace steelyard::core
