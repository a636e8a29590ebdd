// The Prometheus endpoint: http://LISTEN/metrics.
#pragma once

#include <memory>
#include <string>

#include "native/dataplane/runtime.h"

namespace steelyard::dataplane {

class Metrics {
 public:
  // An empty address: no endpoint. Throws std::runtime_error: one line.
  Metrics(const std::string& listen, Runtime* runtime);
  ~Metrics();

 private:
  struct Server;
  std::unique_ptr<Server> server_;
};

}  // namespace steelyard::dataplane
