#include "native/dataplane/kernel_routes.h"

#include <ifaddrs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace steelyard::dataplane {
namespace {

struct Request {
  nlmsghdr head{};
  rtmsg route{};
  rtattr destination{};
  uint8_t address[16] = {};
};

// 0, or the kernel's error number.
int change(const Address& address, uint16_t type, uint16_t flags) {
  const bool v4 = address.is_v4();
  const size_t bytes = v4 ? 4 : 16;
  Request request;
  request.head.nlmsg_type = type;
  request.head.nlmsg_flags = static_cast<uint16_t>(NLM_F_REQUEST | NLM_F_ACK | flags);
  request.head.nlmsg_len = static_cast<uint32_t>(offsetof(Request, address) + bytes);
  request.route.rtm_family = v4 ? AF_INET : AF_INET6;
  request.route.rtm_dst_len = static_cast<uint8_t>(8 * bytes);
  request.route.rtm_table = RT_TABLE_MAIN;
  request.route.rtm_protocol = RTPROT_STATIC;
  request.route.rtm_scope = RT_SCOPE_UNIVERSE;
  request.route.rtm_type = RTN_BLACKHOLE;
  request.destination.rta_type = RTA_DST;
  request.destination.rta_len = static_cast<uint16_t>(RTA_LENGTH(bytes));
  v4 ? address.write_v4(request.address) : address.write_v6(request.address);
  const int fd = ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (fd < 0) return errno;
  struct {
    nlmsghdr head;
    nlmsgerr error;
    uint8_t rest[256];
  } answer{};
  const bool told =
      ::send(fd, &request, request.head.nlmsg_len, 0) >= 0 &&
      ::recv(fd, &answer, sizeof answer, 0) >= static_cast<ssize_t>(sizeof(nlmsghdr) + sizeof(int));
  const int error = told ? -answer.error.error : errno;
  ::close(fd);
  return error;
}

}  // namespace

std::string KernelRoutes::want(const std::vector<Address>& addresses) {
  std::string why;
  std::vector<Address> kept;
  const auto contains = [](const std::vector<Address>& list, const Address& address) {
    return std::find(list.begin(), list.end(), address) != list.end();
  };
  for (const Address& address : made_) {
    if (contains(addresses, address)) {
      kept.push_back(address);
    } else {
      change(address, RTM_DELROUTE, 0);
    }
  }
  for (const Address& address : addresses) {
    if (contains(kept, address)) continue;
    const int error = change(address, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL);
    if (error == 0) kept.push_back(address);
    if (error != 0 && error != EEXIST) why = "route for " + text_of(address) + ": " + std::strerror(error);
  }
  made_ = std::move(kept);
  return why;
}

bool is_local(const Address& address) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return false;
  bool found = false;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    if (each->ifa_addr->sa_family == AF_INET) {
      const auto* v4 = reinterpret_cast<const sockaddr_in*>(each->ifa_addr);
      found = found || address == Address::v4(__builtin_bswap32(v4->sin_addr.s_addr));
    } else if (each->ifa_addr->sa_family == AF_INET6) {
      const auto* v6 = reinterpret_cast<const sockaddr_in6*>(each->ifa_addr);
      found = found || address == Address::read_v6(v6->sin6_addr.s6_addr);
    }
  }
  ::freeifaddrs(all);
  return found;
}

}  // namespace steelyard::dataplane
