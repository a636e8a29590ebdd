// Decisions made again from a tape, by the LoadBalancer of every host.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "native/core/hosted_policy.h"
#include "native/tape/tape.h"

namespace steelyard::tape {

struct Replay {
  uint64_t decisions = 0;
  uint64_t digest = 0;     // equal to the tape's when all decisions are
  uint64_t different = 0;  // decisions that are not the tape's
  uint64_t refused = 0;    // times that the policy gave no finite action
  core::TimeNs first = 0, last = 0;
};

// policy: what set the weights, for a tape of a hosted policy; null for others. False, with a one-line
// *error, when the policy is missing or does not fit, or a record is not possible.
bool replay(const Tape& tape, std::shared_ptr<const core::LoadedPolicy> policy, Replay* result,
            std::string* error);

}  // namespace steelyard::tape
