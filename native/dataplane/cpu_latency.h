// A word to the kernel that processors must wake quickly (PM QoS, /dev/cpu_dma_latency): it then keeps idle
// ones out of states that take longer to leave, and polls where none is quick enough. It is given while
// packets come and taken back when they cease.
#pragma once

#include <cstdint>
#include <optional>

#include "native/core/types.h"

namespace steelyard::dataplane {

class CpuLatency {
 public:
  static constexpr core::TimeNs kHold = core::kNanosPerSecond / 10;  // after the last packet

  // nullopt: nothing is asked for. Throws std::runtime_error (one line) where the kernel does not take it.
  explicit CpuLatency(std::optional<uint32_t> most_us);
  ~CpuLatency();
  CpuLatency(const CpuLatency&) = delete;
  CpuLatency& operator=(const CpuLatency&) = delete;

  void packets_came(core::TimeNs now) { last_packet_ = now; }
  void tick(core::TimeNs now);

 private:
  int fd_ = -1;
  int32_t most_us_ = 0;
  bool asked_ = false;
  core::TimeNs last_packet_ = -kHold;
};

}  // namespace steelyard::dataplane
