// The agent's side of the shared memory (steelyard_shm.h): whole copies of what the dataplane measures, the
// observation that follows from them, and the way back for actions.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "native/core/reservoir.h"
#include "native/core/types.h"
#include "native/shm/steelyard_shm_file.h"

namespace steelyard::shm {

// A whole copy of one state frame.
class Snapshot {
 public:
  Snapshot() = default;
  explicit Snapshot(const steelyard_shm_layout& layout) : layout_(layout), words_(layout.state_words) {}

  const steelyard_shm_state& head() const {
    return *reinterpret_cast<const steelyard_shm_state*>(words_.data());
  }
  std::span<const steelyard_shm_server> servers() const {
    return {steelyard_shm_server_of(&layout_, words_.data(), 0), layout_.num_servers};
  }
  bool is_active(uint64_t server) const {
    return steelyard_shm_is_active(&layout_, words_.data(), server) != 0;
  }
  // By number: STEELYARD_SHM_INTER_ARRIVAL, steelyard_shm_flow_duration(j), steelyard_shm_fct(j).
  std::span<const steelyard_shm_sample> samples(uint64_t reservoir) const {
    uint64_t count;
    const steelyard_shm_sample* first = steelyard_shm_samples(&layout_, words_.data(), reservoir, &count);
    return {first, count};
  }
  const steelyard_shm_layout& layout() const { return layout_; }
  std::span<const uint64_t> words() const { return words_; }
  std::span<uint64_t> words() { return words_; }

 private:
  steelyard_shm_layout layout_{};
  std::vector<uint64_t> words_;
};

// Reduces snapshots by the balancer's own body (core::write_observation): LoadBalancer::observe at the
// snapshot's time, bit for bit. Allocates on construction only.
class Observer {
 public:
  explicit Observer(const steelyard_shm_layout& layout);
  // out: (core::observation_size(N),) float32. The snapshot must be of the same layout.
  void observe(const Snapshot& snapshot, float* out);

 private:
  void take(const Snapshot& snapshot, uint64_t reservoir, core::Reservoir* to);

  std::vector<uint32_t> flows_on_;
  std::vector<float> action_;
  std::vector<core::Reservoir> duration_, completion_;
  core::Reservoir inter_arrival_;
};

// One opened file. From one thread.
class Reader {
 public:
  enum class As { kReader, kAgent };  // an agent also writes; a file has one agent at a time

  // Null and a one-line *error when there is no such file, or it is foreign, of another ABI or schema,
  // corrupt, open to other users, or its dataplane does not live.
  static std::unique_ptr<Reader> open(const std::string& path, As as, std::string* error);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // A whole copy of the last publication, or why there is none (STEELYARD_SHM_NONE, STEELYARD_SHM_TORN).
  uint64_t read(Snapshot* snapshot, int tries = STEELYARD_SHM_TRIES);
  // The words of publication `number` where they lie; it may be overwritten while it is read, see
  // still_whole.
  const uint64_t* frame(uint64_t number) const { return steelyard_shm_frame(&states_, number); }
  uint64_t latest() const { return steelyard_shm_latest(&states_); }
  bool still_whole(uint64_t number) const { return steelyard_shm_was_whole(&states_, number) != 0; }

  // Writes (N,) values of a STEELYARD_SHM_KIND_*, in answer to a snapshot; its generation. Only as an agent.
  // Values are judged by the dataplane.
  uint64_t write(uint64_t kind, std::span<const double> values, const steelyard_shm_state& answered,
                 core::TimeNs now);
  // The dataplane is to go on without: its last word of this agent.
  uint64_t withdraw(core::TimeNs now);

  bool is_agent() const { return as_ == As::kAgent; }
  bool writer_lives() const { return steelyard_shm_writer_lives(&file_) != 0; }
  // False once the path names another file or none: open it again.
  bool is_current() const { return steelyard_shm_is_current(&file_) != 0; }
  // Now on the dataplane's clock; 0 if that is simulated.
  core::TimeNs now() const;
  const steelyard_shm_layout& layout() const { return layout_; }
  const steelyard_shm_header& header() const { return *steelyard_shm_header_of(&file_); }
  const std::string& path() const { return path_; }

 private:
  Reader(const steelyard_shm_file& file, As as);

  steelyard_shm_file file_;
  std::string path_;
  As as_;
  steelyard_shm_layout layout_;
  steelyard_shm_channel states_, actions_;
  uint64_t clock_id_, schema_hash_;
  uint64_t agent_generation_;
  uint64_t generation_;  // of the last action
};

}  // namespace steelyard::shm
