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

#include "native/core/types.h"
#include "native/sim/ring.h"

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

  // A task that takes `time_ns` enters server j: when it will be done. `now` is not before that of other calls
  // for j.
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
    const uint32_t worker = place_of(at, server.lanes, free);
    if (free > now) server.starts.push_back(free);
    return at[worker] = std::max(now, free) + time_ns;
  }

  // Tasks in server j that are not done at `t`, which is not before that of an earlier count; who would be done
  // or start at `t` is and has.
  Count count(uint32_t j, core::TimeNs t) {
    Server& server = servers_[j];
    while (!server.starts.empty() && server.starts.front() <= t) server.starts.pop_front();
    const core::TimeNs* at = &free_at_[server.first];
    i64x4 busy = load(at) > t;
    for (uint32_t k = kLanes; k < server.lanes; k += kLanes) busy += load(at + k) > t;
    const int64_t lanes = -(busy[0] + busy[1] + busy[2] + busy[3]);
    return {static_cast<uint32_t>(lanes) - server.spare, static_cast<uint32_t>(server.starts.size())};
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
  using i64x4 = int64_t __attribute__((vector_size(32)));
  static constexpr uint32_t kLanes = 4;

  static i64x4 load(const core::TimeNs* at) {
    i64x4 lanes;
    std::memcpy(&lanes, at, sizeof lanes);
    return lanes;
  }

  // The first place of `what`, which is there.
  static uint32_t place_of(const core::TimeNs* at, uint32_t lanes, core::TimeNs what) {
    uint32_t from = 0;
    for (; lanes - from > 64; from += kLanes) {
      for (uint32_t k = from; k < from + kLanes; ++k)
        if (at[k] == what) return k;
    }
    i64x4 place = {1, 2, 4, 8};  // no jumps: where it is, is random
    i64x4 bits = (load(at + from) == what) & place;
    for (uint32_t k = from + kLanes; k < lanes; k += kLanes) {
      place <<= kLanes;
      bits |= (load(at + k) == what) & place;
    }
    return from + static_cast<uint32_t>(std::countr_zero(static_cast<uint64_t>(bits[0] | bits[1] | bits[2] | bits[3])));
  }

  struct Server {
    uint32_t first = 0, lanes = 0;
    uint32_t spare = 0;         // lanes without a worker, never free
    Ring<core::TimeNs> starts;  // of the tasks that wait, in their order
  };

  std::vector<Server> servers_;
  std::vector<core::TimeNs> free_at_;  // of each worker: when it is done with all it has been given
};

}  // namespace steelyard::sim
