// The program in the kernel that gives the frames of virtual addresses to an AF_XDP socket and leaves all
// others to the kernel.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "native/dataplane/address.h"

namespace steelyard::dataplane {

class XdpFilter {
 public:
  // On the interface with that index; in its driver if that can, else in the kernel's generic path. Throws
  // std::runtime_error: one line.
  explicit XdpFilter(unsigned interface);
  ~XdpFilter();  // so does the end of the process, whatever ends it
  XdpFilter(const XdpFilter&) = delete;
  XdpFilter& operator=(const XdpFilter&) = delete;

  // The addresses whose frames the socket gets.
  void set_addresses(std::span<const Address> addresses);
  int sockets() const { return sockets_; }  // map from receive queue to socket
  bool in_driver() const { return in_driver_; }

 private:
  int addresses_ = -1, sockets_ = -1, program_ = -1, link_ = -1;
  bool in_driver_ = true;
  std::vector<Address> held_;
};

}  // namespace steelyard::dataplane
