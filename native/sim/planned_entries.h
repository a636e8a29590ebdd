// Tasks that have been given to servers and have not entered them yet. They enter in the order of their
// times, but many together, when somebody looks: whether the next thing is an arrival or an entry is random,
// and a jump on it would be missed every second time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "native/core/types.h"

namespace steelyard::sim {

struct PlannedEntry {
  static constexpr uint32_t kUnmeasured = UINT32_MAX;

  core::TimeNs at = core::kNever;
  core::TimeNs since = 0;  // what its latency is counted from
  int64_t service_ns = 0;
  uint32_t server = 0;
  uint32_t type = 0;  // or kUnmeasured
};

class PlannedEntries {
 public:
  void reset(size_t servers) {
    due_.assign(servers, {});
    entries_.assign(2 * kLeastRoom, {});
    lines_ = {Line{0, 0, kLeastRoom - 1}, Line{kLeastRoom, kLeastRoom, 2 * kLeastRoom - 1}};
  }

  // Entries at once, and those that travel, which all take the same time.
  void push(const PlannedEntry& entry, bool travels) {
    Due& due = due_[entry.server];
    due.soonest = std::min(due.soonest, entry.at);
    ++due.count;
    Line& line = lines_[travels];
    entries_[line.end++] = entry;
    entries_[line.end].at = core::kNever;
    if (line.end == line.last) [[unlikely]]
      make_room();
  }

  // False: nobody enters server j until t.
  bool may_enter(uint32_t j, core::TimeNs t) const { return due_[j].soonest <= t; }

  // Calls `enter` for each that enters until t, of equal times first for those that travelled; how many did.
  template <typename F>
  uint64_t take_until(core::TimeNs t, F enter) {
    const PlannedEntry* const entries = entries_.data();
    uint32_t at_once = lines_[0].begin, travelled = lines_[1].begin;
    for (;;) {
      const uint32_t second = entries[travelled].at <= entries[at_once].at ? 1 : 0;
      const PlannedEntry& entry = entries[at_once + (travelled - at_once) * second];  // no jump
      if (entry.at > t) break;
      Due& due = due_[entry.server];
      due.soonest = --due.count > 0 ? t + 1 : core::kNever;  // or later
      enter(entry);
      travelled += second;
      at_once += 1 - second;
    }
    const uint32_t count = travelled - lines_[1].begin;
    lines_[0].begin = at_once;
    lines_[1].begin = travelled;
    return count;
  }

 private:
  static constexpr uint32_t kLeastRoom = 64;

  // Places in `entries_`, each line in its half: in the order of their times, and then one that never comes.
  struct Line {
    uint32_t begin = 0, end = 0, last = 0;  // `last`: of its half
  };
  struct Due {
    core::TimeNs soonest = core::kNever;  // no entry comes before
    uint32_t count = 0;
  };

  // What is left moves to the front of its half, of twice the room if it takes half of it.
  [[gnu::noinline]] void make_room() {
    const size_t most = std::max(lines_[0].end - lines_[0].begin, lines_[1].end - lines_[1].begin);
    size_t room = entries_.size() / 2;
    if (2 * most > room) room *= 2;
    spare_.resize(2 * room);
    for (Line& line : lines_) {
      const size_t first = &line == &lines_[0] ? 0 : room;
      std::copy(&entries_[line.begin], &entries_[line.end] + 1, &spare_[first]);  // with what never comes
      const size_t end = first + line.end - line.begin;
      line = {static_cast<uint32_t>(first), static_cast<uint32_t>(end),
              static_cast<uint32_t>(first + room - 1)};
    }
    std::swap(entries_, spare_);
  }

  std::vector<PlannedEntry> entries_, spare_;
  std::array<Line, 2> lines_{};
  std::vector<Due> due_;  // per server
};

}  // namespace steelyard::sim
