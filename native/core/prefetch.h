// Asks for memory that will be needed.
#pragma once

namespace steelyard::core {

// GCC 12 takes a function that only prefetches for one without effect and leaves out calls to it; the empty
// statement is an effect.
inline void prefetch(const void* address) {
  __builtin_prefetch(address, 1);
  asm volatile("");
}

}  // namespace steelyard::core
