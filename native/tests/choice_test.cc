// Choices on rows of eight lanes against plain loops.
#include "native/sim/choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace steelyard::sim {
namespace {

TEST(Choice, BitsOfLanes) {
  for (uint32_t pattern = 0; pattern < 256; ++pattern) {
    i32x8 lanes;
    core::i64x4 wide;
    for (int k = 0; k < 8; ++k) lanes[k] = (pattern >> k & 1) != 0 ? -1 : 0;
    for (int k = 0; k < 4; ++k) wide[k] = (pattern >> k & 1) != 0 ? -1 : 0;
    ASSERT_EQ(core::bits_of_lanes(lanes), pattern);
    ASSERT_EQ(core::bits_of_lanes(wide), pattern & 15);
  }
}

TEST(Choice, PlaceOfABit) {
  for (const uint32_t bits : {0x1U, 0x80000000U, 0x12345678U, 0xffffffffU}) {
    uint32_t skip = 0;
    for (int place = 0; place < 32; ++place) {
      if ((bits >> place & 1) == 0) continue;
      EXPECT_EQ(place_of(bits, skip++), place);
    }
  }
}

// Every number of servers, few different loads so that many are least.
TEST(Choice, TheLeastByALoop) {
  for (uint32_t servers = 1; servers <= 70; ++servers) {
    for (uint64_t trial = 0; trial < 60; ++trial) {
      const uint64_t word = core::draw(servers, trial);
      const uint32_t end = (servers + 7) / 8 * 8;
      std::vector<float> row(end, std::numeric_limits<float>::infinity());
      for (uint32_t k = 0; k < servers; ++k)
        row[k] = static_cast<float>(core::below(core::draw(word, k), 1 + trial % 5));
      const float least = *std::min_element(row.begin(), row.end());
      std::vector<int> places;
      for (uint32_t k = 0; k < servers; ++k)
        if (row[k] == least) places.push_back(static_cast<int>(k));
      const auto keys = [&](uint32_t at) { return load_lanes(&row[at]); };
      EXPECT_EQ(least_of(end, -1, true, word, keys), places.front());
      EXPECT_EQ(least_of(end, -1, false, word, keys),
                places[core::below(word, static_cast<uint32_t>(places.size()))]);
      const int own = static_cast<int>(trial % servers);
      const bool kept = row[static_cast<size_t>(own)] == least;
      EXPECT_EQ(least_of(end, own, true, word, keys), kept ? own : places.front());
    }
  }
}

}  // namespace
}  // namespace steelyard::sim
