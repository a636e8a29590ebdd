// Addresses of links and networks.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "native/core/rng.h"
#include "native/dataplane/bytes.h"

namespace steelyard::dataplane {

using Mac = std::array<uint8_t, 6>;
inline constexpr Mac kBroadcast = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

// An IPv6 address, or an IPv4 address in the form ::ffff:a.b.c.d, so that both are one key.
struct Address {
  uint64_t high = 0;
  uint64_t low = 0;

  static constexpr uint64_t kMapped = 0xffff'0000'0000ull;
  static constexpr Address v4(uint32_t address) { return {0, kMapped | address}; }
  static Address read_v4(const uint8_t* p) { return v4(load32(p)); }
  static Address read_v6(const uint8_t* p) { return {load64(p), load64(p + 8)}; }

  constexpr bool is_v4() const { return high == 0 && (low >> 32) == 0xffff; }
  constexpr bool none() const { return high == 0 && low == 0; }
  // 224.0.0.0/4, 255.255.255.255 and ff00::/8.
  constexpr bool multicast() const {
    return is_v4() ? (low & 0xf000'0000) >= 0xe000'0000 : high >> 56 == 0xff;
  }
  void write_v4(uint8_t* p) const { store32(p, static_cast<uint32_t>(low)); }
  void write_v6(uint8_t* p) const {
    store64(p, high);
    store64(p + 8, low);
  }
  friend constexpr bool operator==(const Address&, const Address&) = default;
};

std::optional<Address> parse_address(const std::string& text);
std::optional<Mac> parse_mac(const std::string& text);
std::string text_of(const Address& address);
std::string text_of(const Mac& mac);

// One word of an address by which a server is known to every balancer, whatever its place in a list.
constexpr uint64_t name_of(const Address& address) {
  return core::mix64(core::mix64(address.high + core::kGolden) ^ address.low);
}

}  // namespace steelyard::dataplane
