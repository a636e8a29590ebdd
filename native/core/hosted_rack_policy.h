// How a host runs the policy of a rack: LoadedRackPolicy is the immutable artefact (blob or compiled shared
// object), RackPlayer one server that follows it. Loading and making players allocates; deciding does not.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/core/malcolm.h"
#include "native/core/types.h"

namespace steelyard::core {

// The calls, and their order, are those of MalcolmServer (malcolm.h), which is what answers them.
class RackPlayer {
 public:
  virtual ~RackPlayer() = default;
  virtual std::unique_ptr<RackPlayer> clone() const = 0;
  virtual void on_accept(uint32_t type) = 0;
  virtual void on_completion(uint32_t type, float service_s) = 0;
  virtual void on_stolen(uint32_t type) = 0;
  virtual void set_workers(uint32_t workers) = 0;
  virtual LoadMessage broadcast() = 0;
  virtual void on_load_message(ServerId from, const LoadMessage& message) = 0;
  virtual void on_window() = 0;
  virtual ServerId migrate(uint64_t word) = 0;
  virtual ServerId steal(uint64_t word) = 0;
};

// An artefact that has passed every check of its reader. Thread-safe: all methods are const.
class LoadedRackPolicy {
 public:
  virtual ~LoadedRackPolicy() = default;
  LoadedRackPolicy(const LoadedRackPolicy&) = delete;
  LoadedRackPolicy& operator=(const LoadedRackPolicy&) = delete;

  uint64_t schema_hash() const { return schema_hash_; }
  uint32_t num_servers() const { return num_servers_; }
  uint32_t num_inputs() const { return num_inputs_; }
  bool compiled() const { return compiled_; }
  // Throws std::invalid_argument (one line) for a server, workers or types out of range.
  virtual std::unique_ptr<RackPlayer> player(uint32_t server, uint32_t workers, uint32_t num_types) const = 0;

 protected:
  LoadedRackPolicy(uint64_t schema_hash, uint32_t num_servers, uint32_t num_inputs, bool compiled)
      : schema_hash_(schema_hash), num_servers_(num_servers), num_inputs_(num_inputs), compiled_(compiled) {}

 private:
  uint64_t schema_hash_;
  uint32_t num_servers_, num_inputs_;
  bool compiled_;
};

// A blob in memory; what it needs is copied. Null and a one-line *error when it is refused.
std::shared_ptr<const LoadedRackPolicy> load_rack_policy_bytes(const uint8_t* data, size_t size,
                                                               std::string* error);
// A blob's file, or a shared object made by `steelyard export --to cpp` from a run on a rack. A shared object
// is code and runs with the rights of the host: load only what you built.
std::shared_ptr<const LoadedRackPolicy> load_rack_policy_file(const std::string& path, std::string* error);

}  // namespace steelyard::core
