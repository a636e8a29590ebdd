// A running balancer: the forwarder between a transport and a clock, changed from outside by jobs that its
// own thread runs between two bursts.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>

#include "native/dataplane/cpu_latency.h"
#include "native/dataplane/forwarder.h"
#include "native/dataplane/kernel_routes.h"
#include "native/dataplane/log.h"
#include "native/dataplane/tapes.h"
#include "native/dataplane/transport.h"

namespace steelyard::dataplane {

// Policy files of a configuration, read.
std::vector<PolicyArtefact> read_policies(const Config& config);

class Runtime {
 public:
  Runtime(const Config& config, Log* log);

  // Until stop().
  void run();
  void stop() { stop_.store(true, std::memory_order_relaxed); }  // from any thread or signal handler

  // From other threads, while run() runs. The job must not take long: no packet is forwarded meanwhile. False
  // if the balancer stopped before it ran.
  bool call(const std::function<void(Forwarder&, Transport&)>& job);
  // Reads `path` and takes it over; the error otherwise, and everything stays as it was.
  std::string reload(const std::string& path);

 private:
  static constexpr TimeNs kTick = 10'000'000;
  void tick(TimeNs now);
  void run_job();
  void report_health();
  void report_tapes(const std::vector<Tapes::Ended>& ended);
  void hide_from_kernel(const Config& config);

  Log* log_;
  Forwarder forwarder_;
  std::unique_ptr<Transport> transport_;
  CpuLatency cpu_latency_;
  KernelRoutes routes_;
  Tapes tapes_;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> has_job_ = false;
  std::mutex callers_, mutex_;
  std::condition_variable done_;
  const std::function<void(Forwarder&, Transport&)>* job_ = nullptr;
  bool running_ = true;
};

}  // namespace steelyard::dataplane
