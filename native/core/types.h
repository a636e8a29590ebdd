// Words that every room of the native core shares.
#pragma once

#include <cstdint>

namespace steelyard::core {

using ServerId = int32_t;
inline constexpr ServerId kNoServer = -1;
inline constexpr int kMaxServers = 4096;
inline constexpr int kMaxLoadBalancers = 1024;

using TimeNs = int64_t;  // nanoseconds on the host's clock
inline constexpr TimeNs kNanosPerSecond = 1'000'000'000;
inline constexpr TimeNs kNever = INT64_MAX;

}  // namespace steelyard::core
