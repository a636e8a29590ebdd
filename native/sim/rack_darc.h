// DARC: cores of a server reserved for groups of task types (Demoulin et al., "When Idling is Ideal",
// SOSP'21, Alg. 2). Short types may run on the cores of longer ones, never the reverse.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "native/sim/ring.h"

namespace steelyard::sim {

struct DarcPlan {
  std::vector<uint16_t> group_of;  // type -> group; groups from short to long
  std::vector<uint16_t> level;     // core -> the longest group that it may serve; rises with the core
  std::vector<double> share;       // group -> its part of the demand when planned
};

// `means_s` and `ratios` by type; `within`: neighbours whose means differ by less than this factor share a
// group. Cores by demand, at least one each: a fraction up to one half is cut off, else rounded up. When
// cores run out, the rest of the groups share the last core (the spillway).
DarcPlan darc_plan(std::span<const double> means_s, std::span<const double> ratios, int cores, double within);

// The lines and cores of one server under DARC. Cores are numbered from 0.
class Darc {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  Darc() = default;
  Darc(std::span<const double> means_s, std::span<const double> ratios, int cores, double within,
       double shift, int window);

  // An idle core for a task of this type, now taken; kNone: the task has joined its group's line.
  uint32_t place(uint32_t slot, uint32_t type);
  // The core is free: a task that it may serve, or kNone when it idles now.
  uint32_t next(uint32_t core);
  // Demand is measured; plans anew when it has moved. True then.
  bool completed(uint32_t type, double service_s);
  // A waiting task for a thief, of the longest group that has one; kNone.
  uint32_t take_waiting(bool newest);
  // From here on there are so many cores, these of them idle; plans anew.
  void set_cores(std::vector<uint8_t> idle);
  // Which cores are idle, when others have gone by another plan before.
  void set_idle(std::vector<uint8_t> idle) { idle_ = std::move(idle); }
  bool has_idle() const {
    for (const uint8_t idle : idle_)
      if (idle != 0) return true;
    return false;
  }
  // Takes out all who wait, in the order in which they came.
  std::vector<uint32_t> empty_lines();
  // Any idle core, now taken, whatever it is reserved for; kNone when there is none.
  uint32_t any_idle();
  size_t waiting() const;
  const DarcPlan& plan() const { return plan_; }

 private:
  struct Waiting {
    uint64_t stamp;  // order of joining
    uint32_t slot;
  };

  DarcPlan plan_;
  int cores_ = 0, window_ = 0, counted_ = 0;
  double within_ = 1.2, shift_ = 0.1;
  std::vector<double> means_s_, ratios_;
  std::vector<double> time_s_;        // by type, served in this window of completions
  std::vector<uint32_t> count_;       // the same, tasks
  std::vector<uint8_t> idle_;         // by core
  std::vector<Ring<Waiting>> lines_;  // by type
  uint64_t clock_ = 0;
};

}  // namespace steelyard::sim
