// The decisions of a tape, made again by the balancer's program.
#pragma once

#include <string>

namespace steelyard::dataplane {

// Prints what was found as one JSON object. policy: file of the hosted policy, empty for a tape without one.
// 0 if every decision is the tape's, else 1. Throws std::runtime_error (one line) for what cannot be
// replayed.
int replay_tape(const std::string& path, const std::string& policy);

}  // namespace steelyard::dataplane
