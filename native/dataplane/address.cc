#include "native/dataplane/address.h"

#include <arpa/inet.h>

#include <cstdio>

namespace steelyard::dataplane {

std::optional<Address> parse_address(const std::string& text) {
  uint8_t bytes[16];
  if (inet_pton(AF_INET, text.c_str(), bytes) == 1) return Address::read_v4(bytes);
  if (inet_pton(AF_INET6, text.c_str(), bytes) != 1) return std::nullopt;
  const Address address = Address::read_v6(bytes);
  return address.is_v4() ? std::nullopt : std::optional(address);
}

std::optional<Mac> parse_mac(const std::string& text) {
  Mac mac;
  char rest;
  const int got = std::sscanf(text.c_str(), "%2hhx:%2hhx:%2hhx:%2hhx:%2hhx:%2hhx%c", &mac[0], &mac[1],
                              &mac[2], &mac[3], &mac[4], &mac[5], &rest);
  return got == 6 ? std::optional(mac) : std::nullopt;
}

std::string text_of(const Address& address) {
  uint8_t bytes[16];
  char text[INET6_ADDRSTRLEN];
  if (address.is_v4()) {
    address.write_v4(bytes);
    return inet_ntop(AF_INET, bytes, text, sizeof text);
  }
  address.write_v6(bytes);
  return inet_ntop(AF_INET6, bytes, text, sizeof text);
}

std::string text_of(const Mac& mac) {
  char text[18];
  std::snprintf(text, sizeof text, "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4],
                mac[5]);
  return text;
}

}  // namespace steelyard::dataplane
