// Policy files as a host meets them: a blob's bytes, or a shared object and the functions in it. Every
// failure is one line in *error.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace steelyard::core {

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

bool read_policy_file(const std::string& path, std::vector<uint8_t>* bytes, std::string* error);
// By its first bytes.
bool is_shared_object(const std::vector<uint8_t>& bytes);
// The shared object at `path`, whose bytes are given: checked to be whole before it is mapped, since a
// truncated one would end the process. Null if refused.
Library open_library(const std::string& path, const std::vector<uint8_t>& bytes, std::string* error);

template <typename Function>
bool find_function(void* library, const char* name, Function* function, std::string* error) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) {
    *error = std::string("not a compiled policy: it has no function ") + name;
    return false;
  }
  std::memcpy(function, &symbol, sizeof symbol);
  return true;
}

}  // namespace steelyard::core
