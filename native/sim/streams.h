// The random streams of a seed. What happens to flow k is keyed by k alone, never by what policies do.
#pragma once

#include <cstdint>

namespace steelyard::sim {

enum Stream : uint64_t {
  kStreamGap = 1,           // inter-arrival draws
  kStreamArrivalState = 2,  // modulating chain, trace offset
  kStreamHash = 3,          // flow hashes: edge router and balancers
  kStreamHop = 4,           // network latencies
  kStreamNode = 5,          // processing latencies
  kStreamTimetable = 6,     // randomised events
  kStreamReservoir = 7,     // reservoir slots, one sub-stream per balancer
  kStreamType = 8,          // rack: types of tasks
  kStreamChoice = 9,        // rack: deciders
  kStreamSteal = 10,        // rack: thieves
  kStreamStage = 64,        // + stage index: demands
};

}  // namespace steelyard::sim
