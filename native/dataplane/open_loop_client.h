// An open-loop HTTP client: every request leaves at its scheduled time, on a connection of its own, whatever
// became of those before it. No coordinated omission: a slow server only makes more of them open at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace steelyard::dataplane {

// What to ask, whom and when.
struct ClientPlan {
  std::string address;  // IPv4 or IPv6, in digits
  uint16_t port = 80;
  std::vector<int64_t> due_ns;     // from the start of the run, ascending
  std::vector<std::string> paths;  // distinct paths
  std::vector<uint32_t> path_of;   // index into `paths` for each request
  int64_t timeout_ns = 0;          // from when a request was due
  uint32_t max_open = 0;           // connections open at once; a request beyond that is not sent

  void check() const;  // std::invalid_argument
};

enum class Problem : uint8_t {
  kNone = 0,
  kNoConnection = 1,  // refused, unreachable, or no socket
  kTimeout = 2,
  kReset = 3,     // the connection broke before the reply was whole
  kShort = 4,     // closed before the reply was whole
  kOverload = 5,  // max_open reached: not sent
  kStopped = 6,   // the run was stopped
};

// What became of a request; times from the start of the run, -1: never.
struct Outcome {
  int64_t sent_ns = -1;
  int64_t done_ns = -1;  // the last byte of the reply is here
  int64_t body_bytes = 0;
  int32_t status = 0;   // of HTTP; 0: none
  int32_t server = -1;  // the number in the reply's header X-Server
  Problem problem = Problem::kStopped;
};

class OpenLoopClient {
 public:
  explicit OpenLoopClient(ClientPlan plan);  // checked
  ~OpenLoopClient();
  OpenLoopClient(const OpenLoopClient&) = delete;
  OpenLoopClient& operator=(const OpenLoopClient&) = delete;

  // Plays the plan once; `start_ns` on CLOCK_MONOTONIC. std::system_error if the machine gives no epoll.
  void run(int64_t start_ns);
  // Ends `run` within 50 ms; from any thread.
  void stop() { stop_.store(true, std::memory_order_relaxed); }

  uint64_t sent() const { return sent_.load(std::memory_order_relaxed); }
  uint64_t done() const { return done_.load(std::memory_order_relaxed); }
  const std::vector<Outcome>& outcomes() const { return outcomes_; }

 private:
  struct Exchange {
    int fd = -1;
    uint32_t request = 0;
    bool asked = false;
    bool in_body = false;
    int64_t length = -1;
    std::string head;
  };

  void launch(uint32_t request);
  void serve(uint32_t slot, uint32_t events);
  void ask(Exchange& exchange);
  void read(Exchange& exchange);
  void take(Exchange& exchange, const char* bytes, size_t count);
  bool whole(const Exchange& exchange) const;
  void finish(Exchange& exchange, Problem problem);
  void expire();
  int64_t now() const;
  int64_t patience_ns() const;

  ClientPlan plan_;
  std::vector<Outcome> outcomes_;
  std::vector<Exchange> exchanges_;  // by slot
  std::vector<uint32_t> free_;
  std::deque<std::pair<uint32_t, uint32_t>> by_age_;  // (slot, request), oldest first
  std::vector<char> buffer_;
  std::vector<char> to_;  // sockaddr of the server
  int epoll_ = -1;
  int64_t start_ns_ = 0;
  uint32_t next_ = 0;
  uint32_t open_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> sent_{0}, done_{0};
};

}  // namespace steelyard::dataplane
