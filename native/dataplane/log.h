// The balancer's log: one JSON object per line and event. Writing never waits for a disk: lines go through a
// bounded queue to a thread of their own, and what finds it full is counted and dropped.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace steelyard::dataplane {

// A JSON object under construction.
class Json {
 public:
  Json& add(std::string_view key, std::string_view text);
  Json& add(std::string_view key, const char* text) { return add(key, std::string_view(text)); }
  Json& add(std::string_view key, double number);
  Json& add(std::string_view key, uint64_t number);
  Json& add(std::string_view key, int number) { return add_raw(key, std::to_string(number)); }
  Json& add(std::string_view key, bool flag) { return add_raw(key, flag ? "true" : "false"); }
  Json& add_raw(std::string_view key, std::string_view value);  // JSON already
  std::string text() const { return "{" + body_ + "}"; }

 private:
  std::string body_;
};
std::string hex_of(uint64_t word);                            // 16 digits
std::string json_list(const std::deque<std::string>& items);  // of JSON values

class Log {
 public:
  // An empty path is standard error. Throws std::runtime_error: one line.
  explicit Log(const std::string& path);
  ~Log();  // writes what is queued
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  // Adds the time and the name of the event.
  void write(std::string_view event, const Json& fields);
  uint64_t dropped() const;

 private:
  static constexpr size_t kMostLines = 4096;
  void run();

  int fd_;
  bool owned_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::string> lines_;
  uint64_t dropped_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace steelyard::dataplane
