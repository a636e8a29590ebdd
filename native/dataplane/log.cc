#include "native/dataplane/log.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace steelyard::dataplane {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    char code[8];
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      std::snprintf(code, sizeof code, "\\u%04x", c);
      out += code;
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string utc_now() {
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  tm parts;
  ::gmtime_r(&now.tv_sec, &parts);
  char day[40], text[64];
  std::strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text, sizeof text, "%s.%06ldZ", day, now.tv_nsec / 1000);
  return text;
}

}  // namespace

Json& Json::add_raw(std::string_view key, std::string_view value) {
  if (!body_.empty()) body_ += ", ";
  body_ += quoted(key) + ": ";
  body_ += value;
  return *this;
}

Json& Json::add(std::string_view key, std::string_view text) { return add_raw(key, quoted(text)); }

Json& Json::add(std::string_view key, double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", number);
  return add_raw(key, std::isfinite(number) ? text : "null");
}

Json& Json::add(std::string_view key, uint64_t number) { return add_raw(key, std::to_string(number)); }

std::string hex_of(uint64_t word) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(word));
  return text;
}

std::string json_list(const std::deque<std::string>& items) {
  std::string out = "[";
  for (const std::string& item : items) out += (out.size() == 1 ? "" : ", ") + item;
  return out + "]";
}

Log::Log(const std::string& path) : fd_(STDERR_FILENO), owned_(!path.empty()) {
  if (owned_) fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
  if (fd_ < 0) throw std::runtime_error("log_file: " + path + ": " + std::strerror(errno));
  thread_ = std::thread([this] { run(); });
}

Log::~Log() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
  if (owned_) ::close(fd_);
}

void Log::write(std::string_view event, const Json& fields) {
  Json line;
  line.add("time", utc_now()).add("event", event);
  const std::string rest = fields.text();
  std::string text = line.text();
  if (rest.size() > 2) text.replace(text.size() - 1, 1, ", " + rest.substr(1));
  {
    const std::lock_guard lock(mutex_);
    if (lines_.size() >= kMostLines) {
      ++dropped_;
      return;
    }
    lines_.push_back(text + "\n");
  }
  wake_.notify_one();
}

uint64_t Log::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

void Log::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || !lines_.empty(); });
    if (lines_.empty()) return;
    const std::string line = std::move(lines_.front());
    lines_.pop_front();
    lock.unlock();
    const bool written = ::write(fd_, line.data(), line.size()) == static_cast<ssize_t>(line.size());
    lock.lock();
    if (!written) ++dropped_;  // a full disk costs lines, nothing else
  }
}

}  // namespace steelyard::dataplane
