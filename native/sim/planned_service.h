// First come, first served by workers that stay as they are: when a task will be done is known as soon as it
// enters (Kiefer and Wolfowitz, Trans. AMS 78 (1955): each takes the worker that is free first), so nothing
// has to happen when it is.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
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
    return with_lanes(server.lanes, [&](auto lanes) {
      i64x4 low = load(at);
      for (uint32_t k = kLanes; k < lanes; k += kLanes) low = less(load(at + k), low);
      low = less(__builtin_shufflevector(low, low, 2, 3, 0, 1), low);
      low = less(__builtin_shufflevector(low, low, 1, 0, 3, 2), low);
      const core::TimeNs free = low[0];
      server.starts.push_if(free > now, free);
      return at[place_of(at, lanes, low)] = std::max(now, free) + time_ns;
    });
  }

  // Tasks in server j that are not done at `t`, which is not before that of an earlier count; who would be
  // done or start at `t` is and has.
  Count count(uint32_t j, core::TimeNs t) {
    Server& server = servers_[j];
    const core::TimeNs* at = &free_at_[server.first];
    const uint32_t busy = with_lanes(server.lanes, [&](auto lanes) {
      uint32_t sum = 0;
      for (uint32_t from = 0; from < lanes; from += 32)
        sum += static_cast<uint32_t>(
            std::popcount(bits_of(at, from, lanes, [t](i64x4 lane) { return lane > t; })));
      return sum;
    });
    return {busy - server.spare, server.starts.count_after(t)};
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

  static i64x4 less(i64x4 a, i64x4 b) { return a < b ? a : b; }

  // Calls f with the number of lanes, as a constant where it is a usual one.
  template <typename F>
  [[gnu::always_inline]] static std::invoke_result_t<F, uint32_t> with_lanes(uint32_t lanes, F f) {
    if (lanes == 8) return f(std::integral_constant<uint32_t, 8>());
    if (lanes == 4) return f(std::integral_constant<uint32_t, 4>());
    return f(lanes);
  }

  // Bit k is set where truth holds for lane from + k, for up to 32 of them.
  template <typename Lanes, typename F>
  static uint32_t bits_of(const core::TimeNs* at, uint32_t from, Lanes lanes, F truth) {
    const uint32_t stop = std::min<uint32_t>(lanes, from + 32);
    uint32_t bits = 0;
    for (uint32_t k = from; k < stop; k += kLanes)
      bits |= core::bits_of_lanes(i64x4(truth(load(at + k)))) << (k - from);
    return bits;
  }

  // The first place of what all lanes of `what` are and one of `at` is. No jumps on where: that is random.
  template <typename Lanes>
  static uint32_t place_of(const core::TimeNs* at, Lanes lanes, i64x4 what) {
    for (uint32_t from = 0;; from += 32) {
      const uint32_t bits = bits_of(at, from, lanes, [what](i64x4 lane) { return lane == what; });
      if (lanes <= 32 || bits != 0) return from + static_cast<uint32_t>(std::countr_zero(bits));
    }
  }

  // When the tasks that wait will start, in their order; looked at four at a time and without jumps, since it
  // is random whether a task waits and how many have started.
  class Starts {
   public:
    void push_if(bool waits, core::TimeNs at) {
      if (end_ == last_) [[unlikely]]
        make_room();
      const uint32_t nowhere = last_ + kSpare - 1;
      times_[nowhere - (nowhere - end_) * waits] = at;  // no jump: it is random
      end_ += waits;
    }
    uint32_t count_after(core::TimeNs t) {
      uint32_t left;
      do {
        left = static_cast<uint32_t>(std::popcount(core::bits_of_lanes(load(&times_[begin_]) > t)));
        begin_ += kLanes - left;
      } while (left == 0);
      return end_ - begin_;
    }

   private:
    // What has not been counted away moves to the front, of twice the room if it takes half of it.
    [[gnu::noinline]] void make_room() {
      std::copy(times_.begin() + begin_, times_.begin() + end_, times_.begin());
      end_ -= begin_;
      begin_ = 0;
      if (2 * end_ > last_) times_.resize(2 * times_.size());
      std::fill(times_.begin() + end_, times_.end(), core::kNever);
      last_ = static_cast<uint32_t>(times_.size()) - kSpare;
    }

    // Beyond `last_` there is room to look at, and at the very end for what does not matter.
    static constexpr uint32_t kRoom = 64, kSpare = 2 * kLanes;
    std::vector<core::TimeNs> times_ = std::vector<core::TimeNs>(kRoom, core::kNever);  // beyond `end_` too
    uint32_t begin_ = 0, end_ = 0, last_ = kRoom - kSpare;
  };

  struct alignas(64) Server {
    uint32_t first = 0, lanes = 0;
    uint32_t spare = 0;  // lanes without a worker, never free
    Starts starts;
  };

  std::vector<Server> servers_;
  std::vector<core::TimeNs> free_at_;  // of each worker: when it is done with all it has been given
};

}  // namespace steelyard::sim
