// First come, first served by workers that stay as they are: when a task will be done is known as soon as it
// enters (Kiefer and Wolfowitz, Trans. AMS 78 (1955): each takes the worker that is free first), so nothing
// has to happen when it is.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "native/core/lanes.h"
#include "native/core/types.h"

namespace steelyard::sim {

class PlannedService {
 public:
  struct Count {
    uint32_t serving, waiting;
  };

  // `workers` of each server; all are free from time 0 on.
  void reset(std::span<const uint32_t> workers) {
    servers_.assign(workers.size(), {});
    free_at_.clear();
    for (size_t j = 0; j < workers.size(); ++j) {
      Server& server = servers_[j];
      server.first = static_cast<uint32_t>(free_at_.size());
      server.lanes = (workers[j] + kLanes - 1) / kLanes * kLanes;
      server.spare = server.lanes - workers[j];
      free_at_.resize(free_at_.size() + workers[j], 0);
      free_at_.resize(free_at_.size() + server.spare, core::kNever);
    }
  }

  // A task that takes `time_ns` enters server j: when it will be done. `now` is not before that of other
  // calls for j.
  core::TimeNs enter(uint32_t j, core::TimeNs now, int64_t time_ns) {
    Server& server = servers_[j];
    core::TimeNs* at = &free_at_[server.first];
    i64x4 low = load(at);
    for (uint32_t k = kLanes; k < server.lanes; k += kLanes) {
      const i64x4 next = load(at + k);
      low = next < low ? next : low;
    }
    const i64x4 halves = __builtin_shufflevector(low, low, 2, 3, 0, 1);
    low = halves < low ? halves : low;
    const core::TimeNs free = std::min<core::TimeNs>(low[0], low[1]);
    server.starts.push_if(free > now, free);
    return at[place_of(at, server.lanes, free)] = std::max(now, free) + time_ns;
  }

  // Tasks in server j that are not done at `t`, which is not before that of an earlier count; who would be
  // done or start at `t` is and has.
  Count count(uint32_t j, core::TimeNs t) {
    Server& server = servers_[j];
    const core::TimeNs* at = &free_at_[server.first];
    int busy = 0;
    for (uint32_t k = 0; k < server.lanes; k += kLanes)
      busy += std::popcount(core::bits_of_lanes(load(at + k) > t));
    return {static_cast<uint32_t>(busy) - server.spare, server.starts.count_after(t)};
  }

  // Time that the workers of server j have still to work for what is there at `t`. [ns]
  int64_t left_ns(uint32_t j, core::TimeNs t) const {
    const Server& server = servers_[j];
    int64_t sum = 0;
    for (uint32_t k = 0; k < server.lanes - server.spare; ++k)
      sum += std::max<core::TimeNs>(free_at_[server.first + k] - t, 0);
    return sum;
  }

 private:
  using i64x4 = core::i64x4;
  static constexpr uint32_t kLanes = 4;

  static i64x4 load(const core::TimeNs* at) {
    i64x4 lanes;
    std::memcpy(&lanes, at, sizeof lanes);
    return lanes;
  }

  // The first place of `what`, which is there.
  static uint32_t place_of(const core::TimeNs* at, uint32_t lanes, core::TimeNs what) {
    uint32_t from = 0;
    for (; lanes - from > 32; from += kLanes) {
      if (const uint32_t bits = core::bits_of_lanes(load(at + from) == what))
        return from + std::countr_zero(bits);
    }
    uint32_t bits = 0;  // no jumps: where it is, is random
    for (uint32_t k = from; k < lanes; k += kLanes)
      bits |= core::bits_of_lanes(load(at + k) == what) << (k - from);
    return from + static_cast<uint32_t>(std::countr_zero(bits));
  }

  // When the tasks that wait will start, in their order; looked at four at a time and without jumps, since it
  // is random whether a task waits and how many have started.
  class Starts {
   public:
    void push_if(bool waits, core::TimeNs at) {
      if (end_ + 2 * kLanes > times_.size()) [[unlikely]]
        make_room();
      times_[end_] = waits ? at : core::kNever;
      end_ += waits;
    }
    uint32_t count_after(core::TimeNs t) {
      uint32_t started;
      do {
        started = static_cast<uint32_t>(std::popcount(core::bits_of_lanes(load(&times_[begin_]) <= t)));
        begin_ += started;
      } while (started == kLanes);
      return end_ - begin_;
    }

   private:
    // What has not been counted away moves to the front, of twice the room if it takes half of it.
    [[gnu::noinline]] void make_room() {
      std::copy(times_.begin() + begin_, times_.begin() + end_, times_.begin());
      end_ -= begin_;
      begin_ = 0;
      if (2 * end_ > times_.size()) times_.resize(2 * times_.size());
      std::fill(times_.begin() + end_, times_.end(), core::kNever);
    }

    std::vector<core::TimeNs> times_ = std::vector<core::TimeNs>(64, core::kNever);  // beyond `end_` too
    uint32_t begin_ = 0, end_ = 0;
  };

  struct Server {
    uint32_t first = 0, lanes = 0;
    uint32_t spare = 0;  // lanes without a worker, never free
    Starts starts;
  };

  std::vector<Server> servers_;
  std::vector<core::TimeNs> free_at_;  // of each worker: when it is done with all it has been given
};

}  // namespace steelyard::sim
