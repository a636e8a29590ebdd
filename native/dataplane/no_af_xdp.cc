// Where AF_XDP was not built in.
#include <stdexcept>

#include "native/dataplane/transport.h"

namespace steelyard::dataplane {

std::unique_ptr<Transport> open_af_xdp(const std::string&, const TransportConfig&, uint32_t) {
  throw std::runtime_error("transport.kind: \"af_xdp\" was not built in; install libxdp-dev and build again");
}

}  // namespace steelyard::dataplane
