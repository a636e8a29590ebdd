// Hosts for the tests of the adapter.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "deploy/vpp/adapter/command.h"
#include "native/tests/lb_frames.h"

namespace steelyard::vpp {

using namespace steelyard::testing;

inline constexpr TimeNs kMillisecond = 1'000'000;

inline std::string run(Host& host, const std::string& line, TimeNs now = 0) {
  std::string answer;
  const bool done = run_command(&host, line, now, &answer);
  return (done ? "" : "refused: ") + answer;
}

// A host with a VIP 10.0.0.1:80 in front of 10.0.1.1, 10.0.1.2, ...
struct Fixture {
  explicit Fixture(const std::string& settings, int servers = 2, int threads = 1)
      : host(threads, std::max(1, threads - 1)) {
    EXPECT_EQ(run(host, "source 10.0.0.9"), "");
    EXPECT_EQ(run(host, "vip add web address 10.0.0.1 port 80 " + settings), "");
    for (int j = 1; j <= servers; ++j) EXPECT_EQ(run(host, "server add web 10.0.1." + std::to_string(j)), "");
  }
  Verdict send(Frame& frame, TimeNs now = 0, int thread = 0) {
    out = frame.packet();
    Verdict verdict;
    host.process(thread, {&out, 1}, now, &verdict);
    return verdict;
  }
  Headers sent() const {
    Headers headers;
    EXPECT_EQ(parse(out.data, out.size, &headers), Parse::kOk);
    return headers;
  }
  void tick(TimeNs now) {
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < host.threads(); ++i) host.tick_thread(i, now);
      host.tick(now);
    }
    for (int i = 0; i < host.threads(); ++i) host.tick_thread(i, now);
  }

  Host host;
  Packet out{};
};

}  // namespace steelyard::vpp
