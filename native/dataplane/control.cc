#include "native/dataplane/control.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "native/dataplane/report.h"

namespace steelyard::dataplane {
namespace {

constexpr size_t kLongestCommand = 64;
constexpr int kPollMs = 100;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw std::runtime_error("control_socket: " + path + ": " + why);
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) refuse(path, "too long for a socket");
  std::memcpy(address.sun_path, path.c_str(), path.size());
  return address;
}

bool answers(const sockaddr_un& address) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool alive = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  ::close(fd);
  return alive;
}

int listen_at(const std::string& path) {
  const sockaddr_un address = address_of(path);
  struct stat status;
  if (::lstat(path.c_str(), &status) == 0) {
    if (!S_ISSOCK(status.st_mode)) refuse(path, "is there and is no socket");
    if (answers(address)) refuse(path, "another balancer answers there");
    ::unlink(path.c_str());  // left by one that was killed
  }
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const mode_t before = ::umask(0177);
  const bool bound = ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  ::umask(before);
  if (!bound || ::listen(fd, 8) != 0) {
    ::close(fd);
    refuse(path, std::strerror(errno));
  }
  return fd;
}

}  // namespace

Control::Control(const std::string& path, std::string config_path, Runtime* runtime)
    : path_(path), config_path_(std::move(config_path)), runtime_(runtime) {
  if (path_.empty()) return;
  fd_ = listen_at(path_);
  thread_ = std::thread([this] { run(); });
}

Control::~Control() {
  if (fd_ < 0) return;
  stop_ = true;
  thread_.join();
  ::close(fd_);
  ::unlink(path_.c_str());
}

void Control::run() {
  while (!stop_) {
    pollfd poller{fd_, POLLIN, 0};
    if (::poll(&poller, 1, kPollMs) <= 0) continue;
    const int client = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    serve(client);
    ::close(client);
  }
}

void Control::serve(int client) {
  const timeval patience{2, 0};
  ::setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  std::string command;
  char c;
  while (command.size() < kLongestCommand && ::read(client, &c, 1) == 1 && c != '\n') command += c;
  const std::string text = answer(command) + "\n";
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(client, text.data() + done, text.size() - done);
    if (written <= 0) return;
    done += static_cast<size_t>(written);
  }
}

std::string Control::answer(const std::string& command) {
  if (command == "reload") {
    const std::string error = runtime_->reload(config_path_);
    return error.empty() ? Json().add("reloaded", config_path_).text() : Json().add("error", error).text();
  }
  if (command != "stats") return Json().add("error", "unknown command; use stats or reload").text();
  Report report;
  const bool ran = runtime_->call(
      [&](const Forwarder& forwarder, Transport& transport) { report = report_of(forwarder, transport); });
  return ran ? json_of(report) : Json().add("error", "the balancer is stopping").text();
}

}  // namespace steelyard::dataplane
