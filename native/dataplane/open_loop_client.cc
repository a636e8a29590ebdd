#include "native/dataplane/open_loop_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <string_view>
#include <system_error>

namespace steelyard::dataplane {

namespace {

constexpr size_t kBufferBytes = 1 << 18;
constexpr size_t kMaxHeadBytes = 16384;
constexpr int64_t kWakeNs = 50'000'000;  // how often `stop` is looked at
constexpr int kBatch = 256;

std::vector<char> socket_address(const std::string& address, uint16_t port) {
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  const auto bytes = [](const auto& value) {
    const char* first = reinterpret_cast<const char*>(&value);
    return std::vector<char>(first, first + sizeof(value));
  };
  if (inet_pton(AF_INET, address.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    return bytes(v4);
  }
  if (inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    return bytes(v6);
  }
  throw std::invalid_argument("address: \"" + address + "\" is no IPv4 or IPv6 address");
}

bool starts_with_no_case(std::string_view line, std::string_view name) {
  if (line.size() < name.size()) return false;
  return std::equal(name.begin(), name.end(), line.begin(),
                    [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b + ('a' - 'A') : b); });
}

// The number after a header's name and blanks; `otherwise` if there is none.
int64_t number_after(std::string_view line, size_t name, int64_t otherwise) {
  line.remove_prefix(name);
  while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
  int64_t value = otherwise;
  std::from_chars(line.data(), line.data() + line.size(), value);
  return value;
}

}  // namespace

void ClientPlan::check() const {
  const auto refuse = [](const std::string& text) { throw std::invalid_argument(text); };
  if (!std::is_sorted(due_ns.begin(), due_ns.end())) refuse("due_ns: must be ascending");
  if (!due_ns.empty() && due_ns.front() < 0) refuse("due_ns: must be 0 or more");
  if (path_of.size() != due_ns.size()) refuse("path_of: needs one entry for each request");
  for (const uint32_t path : path_of) {
    if (path >= paths.size()) refuse("path_of: " + std::to_string(path) + " is no index into paths");
  }
  for (const std::string& path : paths) {
    if (path.empty() || path[0] != '/' || path.find_first_of(" \r\n") != std::string::npos)
      refuse("paths: \"" + path + "\" is not allowed; must start with / and hold no blanks");
  }
  if (timeout_ns <= 0) refuse("timeout_s: must be above 0");
  if (max_open < 1) refuse("max_open: must be 1 or more");
}

OpenLoopClient::OpenLoopClient(ClientPlan plan) : plan_(std::move(plan)), buffer_(kBufferBytes) {
  plan_.check();
  to_ = socket_address(plan_.address, plan_.port);
  outcomes_.resize(plan_.due_ns.size());
}

OpenLoopClient::~OpenLoopClient() {
  for (const Exchange& exchange : exchanges_) {
    if (exchange.fd >= 0) close(exchange.fd);
  }
  if (epoll_ >= 0) close(epoll_);
}

int64_t OpenLoopClient::now() const {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec - start_ns_;
}

void OpenLoopClient::run(int64_t start_ns) {
  if (epoll_ >= 0) throw std::logic_error("run: a plan is played once");
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) throw std::system_error(errno, std::generic_category(), "epoll_create1");
  start_ns_ = start_ns;
  const uint32_t total = static_cast<uint32_t>(outcomes_.size());
  std::array<epoll_event, kBatch> events;
  while ((next_ < total || open_ > 0) && !stop_.load(std::memory_order_relaxed)) {
    while (next_ < total && plan_.due_ns[next_] <= now()) launch(next_++);
    const int64_t wait = patience_ns();
    const timespec patience{.tv_sec = wait / 1'000'000'000, .tv_nsec = wait % 1'000'000'000};
    const int count = epoll_pwait2(epoll_, events.data(), kBatch, &patience, nullptr);
    if (count < 0 && errno != EINTR) throw std::system_error(errno, std::generic_category(), "epoll_pwait2");
    for (int i = 0; i < count; ++i) serve(events[i].data.u32, events[i].events);
    expire();
  }
  for (Exchange& exchange : exchanges_) {
    if (exchange.fd >= 0) finish(exchange, Problem::kStopped);
  }
}

// Until the next request is due, the oldest one open has waited too long, or `stop` is looked at.
int64_t OpenLoopClient::patience_ns() const {
  const int64_t at = now();
  int64_t until = at + kWakeNs;
  if (next_ < outcomes_.size()) until = std::min(until, plan_.due_ns[next_]);
  if (!by_age_.empty()) until = std::min(until, plan_.due_ns[by_age_.front().second] + plan_.timeout_ns);
  return std::max<int64_t>(until - at, 0);
}

void OpenLoopClient::launch(uint32_t request) {
  Outcome& outcome = outcomes_[request];
  if (open_ >= plan_.max_open) {
    outcome.problem = Problem::kOverload;
    done_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(exchanges_.size()));
    exchanges_.emplace_back();
  }
  const uint32_t slot = free_.back();
  free_.pop_back();
  Exchange& exchange = exchanges_[slot];
  exchange = Exchange{};
  exchange.request = request;
  outcome.sent_ns = now();
  ++open_;
  sent_.fetch_add(1, std::memory_order_relaxed);
  by_age_.emplace_back(slot, request);
  const sockaddr* to = reinterpret_cast<const sockaddr*>(to_.data());
  exchange.fd = socket(to->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (exchange.fd < 0) return finish(exchange, Problem::kNoConnection);
  if (connect(exchange.fd, to, static_cast<socklen_t>(to_.size())) != 0 && errno != EINPROGRESS)
    return finish(exchange, Problem::kNoConnection);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLET;
  event.data.u32 = slot;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, exchange.fd, &event) != 0) finish(exchange, Problem::kNoConnection);
}

void OpenLoopClient::serve(uint32_t slot, uint32_t events) {
  Exchange& exchange = exchanges_[slot];
  if (exchange.fd < 0) return;
  if (!exchange.asked) {
    if (events & (EPOLLERR | EPOLLHUP)) return finish(exchange, Problem::kNoConnection);
    if (!(events & EPOLLOUT)) return;
    ask(exchange);
  }
  if (exchange.fd >= 0 && (events & (EPOLLIN | EPOLLERR | EPOLLHUP))) read(exchange);
}

void OpenLoopClient::ask(Exchange& exchange) {
  const std::string text = "GET " + plan_.paths[plan_.path_of[exchange.request]] +
                           " HTTP/1.1\r\nHost: " + plan_.address + "\r\nX-Request-Id: r" +
                           std::to_string(exchange.request) + "\r\nConnection: close\r\n\r\n";
  exchange.asked = true;
  // A fresh connection takes a few hundred bytes whole.
  if (send(exchange.fd, text.data(), text.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(text.size()))
    finish(exchange, Problem::kReset);
}

void OpenLoopClient::read(Exchange& exchange) {
  while (true) {
    const ssize_t count = recv(exchange.fd, buffer_.data(), buffer_.size(), 0);
    if (count > 0) {
      take(exchange, buffer_.data(), static_cast<size_t>(count));
      if (exchange.head.size() > kMaxHeadBytes) return finish(exchange, Problem::kShort);
      continue;
    }
    if (count == 0) return finish(exchange, whole(exchange) ? Problem::kNone : Problem::kShort);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    if (errno != EINTR) return finish(exchange, whole(exchange) ? Problem::kNone : Problem::kReset);
  }
}

void OpenLoopClient::take(Exchange& exchange, const char* bytes, size_t count) {
  Outcome& outcome = outcomes_[exchange.request];
  if (exchange.in_body) {
    outcome.body_bytes += static_cast<int64_t>(count);
  } else {
    exchange.head.append(bytes, count);
    const size_t end = exchange.head.find("\r\n\r\n");
    if (end == std::string::npos) return;
    exchange.in_body = true;
    outcome.body_bytes = static_cast<int64_t>(exchange.head.size() - end - 4);
    std::string_view rest(exchange.head.data(), end);
    const size_t blank = rest.find(' ');
    if (blank != std::string_view::npos)
      outcome.status = static_cast<int32_t>(number_after(rest, blank + 1, 0));
    while (!rest.empty()) {
      const size_t line_end = std::min(rest.find("\r\n"), rest.size());
      const std::string_view line = rest.substr(0, line_end);
      if (starts_with_no_case(line, "content-length:")) exchange.length = number_after(line, 15, -1);
      if (starts_with_no_case(line, "x-server:"))
        outcome.server = static_cast<int32_t>(number_after(line, 9, -1));
      rest.remove_prefix(std::min(line_end + 2, rest.size()));
    }
    exchange.head.clear();
  }
  if (outcome.done_ns < 0 && exchange.length >= 0 && whole(exchange)) outcome.done_ns = now();
}

bool OpenLoopClient::whole(const Exchange& exchange) const {
  const Outcome& outcome = outcomes_[exchange.request];
  return exchange.in_body && (exchange.length < 0 || outcome.body_bytes == exchange.length);
}

void OpenLoopClient::finish(Exchange& exchange, Problem problem) {
  Outcome& outcome = outcomes_[exchange.request];
  outcome.problem = problem;
  if (outcome.done_ns < 0) outcome.done_ns = now();
  if (exchange.fd >= 0) {
    if (problem == Problem::kTimeout || problem == Problem::kStopped) {
      const linger abort{.l_onoff = 1, .l_linger = 0};  // a reset tells server and balancer at once
      setsockopt(exchange.fd, SOL_SOCKET, SO_LINGER, &abort, sizeof(abort));
    }
    close(exchange.fd);
    exchange.fd = -1;
  }
  --open_;
  free_.push_back(static_cast<uint32_t>(&exchange - exchanges_.data()));
  done_.fetch_add(1, std::memory_order_relaxed);
}

void OpenLoopClient::expire() {
  const int64_t at = now();
  while (!by_age_.empty()) {
    const auto [slot, request] = by_age_.front();
    Exchange& exchange = exchanges_[slot];
    const bool open = exchange.fd >= 0 && exchange.request == request;
    if (open && plan_.due_ns[request] + plan_.timeout_ns > at) return;
    if (open) finish(exchange, Problem::kTimeout);
    by_age_.pop_front();
  }
}

}  // namespace steelyard::dataplane
