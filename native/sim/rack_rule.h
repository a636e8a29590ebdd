// The rules of a rack by name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "native/sim/rack_config.h"
#include "native/sim/rack_decider.h"
#include "native/sim/rack_pallas.h"

namespace steelyard::sim {

enum class RackKind : uint8_t {
  kLocal,
  kRandom,
  kRoundRobin,
  kPowerOfD,
  kLeast,  // argmin of (load + a) / capacity: jsq, sed, least_work_left
  kBelow,  // jbt
  kIdle,   // jiq
  // From here on tasks may wait at their decider.
  kBounded,      // jbsq, cfcfs
  kLateBinding,  // sparrow
  kDecider,      // a RackDecider
  kShaped,       // pallas
};

struct RackTraits {
  std::string_view name;
  RackKind kind;
  bool central = false;               // one decider for all tasks, rtt_s away from the servers
  std::optional<LoadInfo> info = {};  // what it always goes by
  std::optional<LoadMeasure> measure = {};
  std::string_view summary = {};
};

std::span<const RackTraits> all_rack_rules();
// nullptr when there is no such rule.
const RackTraits* find_rack_rule(std::string_view name);

enum class StealBy : uint8_t { kNone, kRandom, kLongest };

// A rule with its parameters.
struct RackRule {
  const RackTraits* traits = nullptr;
  int d = 2;                                   // power_of_d: servers drawn; sparrow: reservations
  double threshold = 30;                       // jbt: a server below it will do
  bool first = false;                          // ties, and jbt's choice: the least index, not a random one
  bool increments = false;                     // a decider adds what it sends to the load that it knows
  bool keep = false;                           // a server that is itself among the best keeps the task
  bool estimated_rates = false;                // sed: rates as servers estimate them, not workers x speed
  int bound = 2;                               // jbsq: tasks in a server per worker
  double rtt_s = 0;                            // central rules: from the dispatcher to a server and back
  std::optional<LoadInfo> info;                // not the configuration's
  StealBy steal = StealBy::kNone;              // whom an idle server asks for work
  std::vector<double> weights;                 // sed, jsq...: in the place of workers x speed
  RackShaping shaping;                         // pallas
  std::shared_ptr<const RackDecider> decider;  // kDecider: cloned for each world

  LoadInfo info_of(const RackConfig& config) const;
  LoadMeasure measure_of(const RackConfig& config) const;
  // Throws std::invalid_argument (one line: key, value, what is allowed).
  void check(const RackConfig& config) const;
};

}  // namespace steelyard::sim
