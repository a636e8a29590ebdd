// Numbers in network byte order at any address, and the Internet checksum (RFC 1071) whole and by difference
// (RFC 1624).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace steelyard::dataplane {

inline uint16_t load16(const uint8_t* p) {
  uint16_t x;
  std::memcpy(&x, p, sizeof x);
  return __builtin_bswap16(x);
}
inline uint32_t load32(const uint8_t* p) {
  uint32_t x;
  std::memcpy(&x, p, sizeof x);
  return __builtin_bswap32(x);
}
inline uint64_t load64(const uint8_t* p) {
  uint64_t x;
  std::memcpy(&x, p, sizeof x);
  return __builtin_bswap64(x);
}
inline void store16(uint8_t* p, uint16_t value) {
  value = __builtin_bswap16(value);
  std::memcpy(p, &value, sizeof value);
}
inline void store32(uint8_t* p, uint32_t value) {
  value = __builtin_bswap32(value);
  std::memcpy(p, &value, sizeof value);
}
inline void store64(uint8_t* p, uint64_t value) {
  value = __builtin_bswap64(value);
  std::memcpy(p, &value, sizeof value);
}

// Sum of 16-bit big-endian words, not yet folded; an odd last byte counts as its high half.
inline uint64_t sum_words(const uint8_t* p, size_t size, uint64_t sum = 0) {
  for (; size >= 4; p += 4, size -= 4) sum += load32(p);
  if (size >= 2) {
    sum += load16(p);
    p += 2;
    size -= 2;
  }
  return size == 1 ? sum + (uint64_t{*p} << 8) : sum;
}

// Added to itself turned by half, a number has in its upper half the sum of both halves and of that sum's
// carry. 0 only for 0.
inline uint16_t fold(uint64_t sum) {
  const auto half = static_cast<uint32_t>((sum + std::rotr(sum, 32)) >> 32);
  return static_cast<uint16_t>((half + std::rotr(half, 16)) >> 16);
}

// The checksum of data whose words sum to `sum`; 0 says that data with a right checksum in it is sound.
inline uint16_t checksum_of(uint64_t sum) { return static_cast<uint16_t>(~fold(sum)); }

// Whether the checksum of an IPv4 header of 20 bytes is right. In any byte order, so in the machine's.
inline bool sound_header(const uint8_t* ip) {
  uint64_t first, second;
  uint32_t third;
  std::memcpy(&first, ip, sizeof first);
  std::memcpy(&second, ip + 8, sizeof second);
  std::memcpy(&third, ip + 16, sizeof third);
  uint64_t sum = first + second;
  sum += (sum < first) + uint64_t{third};
  sum += sum < third;
  return fold(sum) == 0xffff;
}

// The checksum after words that summed to `before` were replaced by ones that sum to `after` (RFC 1624, eq.
// 3).
inline uint16_t updated_checksum(uint16_t checksum, uint64_t before, uint64_t after) {
  const uint16_t removed = static_cast<uint16_t>(~fold(before));
  return checksum_of(uint64_t{static_cast<uint16_t>(~checksum)} + removed + fold(after));
}

}  // namespace steelyard::dataplane
