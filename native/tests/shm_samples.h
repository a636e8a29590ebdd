// What the tests of the shared memory share: names of files, a balancer that has seen something.
#pragma once

#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "native/core/rng.h"
#include "native/shm/publisher.h"
#include "native/shm/reader.h"

namespace steelyard::shm {

inline constexpr core::TimeNs kSecond = core::kNanosPerSecond;

// A path in shared memory that is free, and free again at the end.
class TestPath {
 public:
  TestPath() {
    static int made = 0;
    text_ = "/dev/shm/steelyard-test-" + std::to_string(getpid()) + "-" + std::to_string(made++);
    unlink(text_.c_str());
  }
  ~TestPath() { unlink(text_.c_str()); }
  TestPath(const TestPath&) = delete;
  operator const std::string&() const { return text_; }
  const char* c_str() const { return text_.c_str(); }

 private:
  std::string text_;
};

inline core::LoadBalancer balancer_of(int servers, int reservoir_size = 128, bool features = true) {
  core::BalancerConfig config;
  config.num_servers = servers;
  config.reservoir_size = reservoir_size;
  config.features = features;
  config.preallocate = true;
  core::RuleConfig rule;
  rule.traits = core::find_rule("policy");
  core::LoadBalancer balancer(config, rule);
  balancer.restart(7);
  return balancer;
}

// Flows [first, end) open, a millisecond apart; all but every fifth are closed half a second later.
inline void send_flows(core::LoadBalancer& balancer, uint64_t first, uint64_t end) {
  for (uint64_t i = first; i < end; ++i) {
    const core::TimeNs now = static_cast<core::TimeNs>(i) * 1'000'000;
    const uint64_t hash = core::mix64(i);
    balancer.open(hash, balancer.choose(hash, now, nullptr), now);
    balancer.first_ack(hash, now + 100'000);
    if (i < 500 || i % 5 == 0) continue;
    balancer.close(core::mix64(i - 500), true, now);
  }
}

inline std::unique_ptr<Publisher> publisher_at(const std::string& path, const PoolSpec& spec) {
  std::string error;
  auto publisher = Publisher::open(path, spec, &error);
  if (publisher == nullptr) throw std::runtime_error(error);
  return publisher;
}

inline std::unique_ptr<Reader> reader_at(const std::string& path, Reader::As as = Reader::As::kReader) {
  std::string error;
  auto reader = Reader::open(path, as, &error);
  if (reader == nullptr) throw std::runtime_error(error);
  return reader;
}

inline Snapshot snapshot_of(Reader& reader) {
  Snapshot snapshot(reader.layout());
  if (reader.read(&snapshot) != STEELYARD_SHM_USABLE) throw std::runtime_error("no snapshot");
  return snapshot;
}

}  // namespace steelyard::shm
