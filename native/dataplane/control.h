// The control socket: a stream socket of this machine, mode 0600, one command a connection: "stats" or
// "reload". The answer is one JSON object, in which "error" says what went wrong.
#pragma once

#include <atomic>
#include <string>
#include <thread>

#include "native/dataplane/runtime.h"

namespace steelyard::dataplane {

class Control {
 public:
  // An empty path: no socket. Throws std::runtime_error: one line.
  Control(const std::string& path, std::string config_path, Runtime* runtime);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

 private:
  void run();
  void serve(int client);
  std::string answer(const std::string& command);

  std::string path_, config_path_;
  Runtime* runtime_;
  int fd_ = -1;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace steelyard::dataplane
