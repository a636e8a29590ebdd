// What an interface says of itself.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "native/dataplane/transport.h"

namespace steelyard::dataplane {
namespace {

[[noreturn]] void refuse(const std::string& interface, const std::string& why) {
  throw std::runtime_error("link.interface: \"" + interface + "\": " + why);
}

class Query {
 public:
  explicit Query(const std::string& interface) : fd_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    if (interface.size() >= IFNAMSIZ) refuse(interface, "no interface has so long a name");
    std::strncpy(request_.ifr_name, interface.c_str(), IFNAMSIZ - 1);
  }
  ~Query() { ::close(fd_); }
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;
  const ifreq& ask(unsigned long what) {
    if (::ioctl(fd_, what, &request_) != 0) refuse(request_.ifr_name, std::strerror(errno));
    return request_;
  }

 private:
  int fd_;
  ifreq request_{};
};

int prefix_of(const sockaddr* mask) {
  if (mask->sa_family == AF_INET) {
    return std::popcount(reinterpret_cast<const sockaddr_in*>(mask)->sin_addr.s_addr);
  }
  int bits = 0;
  for (const uint8_t byte : reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr.s6_addr) {
    bits += std::popcount(byte);
  }
  return bits;
}

// The first address of each family; of IPv6 one that is not link-local, if there is one.
void read_addresses(const std::string& interface, const LinkConfig& config, Link* link) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) refuse(interface, std::strerror(errno));
  bool local6 = true;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || interface != each->ifa_name) continue;
    if (each->ifa_addr->sa_family == AF_INET && !config.address4 && link->address4.none()) {
      const auto* found = reinterpret_cast<const sockaddr_in*>(each->ifa_addr);
      link->address4 = Address::v4(ntohl(found->sin_addr.s_addr));
      link->prefix4 = prefix_of(each->ifa_netmask);
    } else if (each->ifa_addr->sa_family == AF_INET6 && !config.address6 && local6) {
      const auto* found = reinterpret_cast<const sockaddr_in6*>(each->ifa_addr);
      link->address6 = Address::read_v6(found->sin6_addr.s6_addr);
      link->prefix6 = prefix_of(each->ifa_netmask);
      local6 = IN6_IS_ADDR_LINKLOCAL(&found->sin6_addr);
    }
  }
  ::freeifaddrs(all);
}

}  // namespace

Link link_of(const LinkConfig& config) {
  Link link;
  link.address4 = config.address4.value_or(Address{});
  link.address6 = config.address6.value_or(Address{});
  link.prefix4 = config.prefix4;
  link.prefix6 = config.prefix6;
  link.gateway4 = config.gateway4.value_or(Address{});
  link.gateway6 = config.gateway6.value_or(Address{});
  link.mtu = config.mtu != 0 ? config.mtu : 1500;
  if (config.mac) link.mac = *config.mac;
  if (config.interface.empty()) return link;
  Query query(config.interface);
  if (config.mtu == 0) link.mtu = static_cast<uint32_t>(query.ask(SIOCGIFMTU).ifr_mtu);
  if (!config.mac) std::memcpy(link.mac.data(), query.ask(SIOCGIFHWADDR).ifr_hwaddr.sa_data, link.mac.size());
  if ((query.ask(SIOCGIFFLAGS).ifr_flags & IFF_UP) == 0) refuse(config.interface, "is down");
  read_addresses(config.interface, config, &link);
  return link;
}

}  // namespace steelyard::dataplane
