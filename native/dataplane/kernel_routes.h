// Keeps the kernel out of what the balancer does: packets for virtual addresses reach it too. It would answer
// IPv6 ones as unreachable, and forward them a second time if it is a router. A blackhole route for each
// virtual address makes it drop them in silence.
#pragma once

#include <string>
#include <vector>

#include "native/dataplane/address.h"

namespace steelyard::dataplane {

class KernelRoutes {
 public:
  KernelRoutes() = default;
  ~KernelRoutes() { want({}); }
  KernelRoutes(const KernelRoutes&) = delete;
  KernelRoutes& operator=(const KernelRoutes&) = delete;

  // Blackholes for these addresses from now on, and for no others that this object made before. Empty, or one
  // line that says what the kernel refused.
  std::string want(const std::vector<Address>& addresses);

 private:
  std::vector<Address> made_;
};

// Whether an interface of this machine has the address; the kernel would then answer for it.
bool is_local(const Address& address);

}  // namespace steelyard::dataplane
