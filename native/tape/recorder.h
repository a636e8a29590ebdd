// Writes a tape. No heap after open: records go through a buffer that is allocated there. A write that fails
// (a full disk) ends the recording and is told once by failure(); whoever decides goes on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "native/core/balancer_log.h"
#include "native/tape/tape.h"

namespace steelyard::tape {

class Recorder final : public core::BalancerLog {
 public:
  Recorder() = default;
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  ~Recorder() override { close(); }

  // Creates the file, or empties it. False, with a one-line *error, if that fails or the rule's decisions
  // cannot be made again from a tape. buffer_records: kept in memory before a write.
  bool open(const std::string& path, const TapeHeader& header, std::string* error,
            size_t buffer_records = 4096);
  // Ends the tape with its mark. False if that, or a write before, failed: see failure().
  bool close();
  bool recording() const { return file_ >= 0; }
  // Why the recording ended before close, one line; empty while all is well.
  const char* failure() const { return failure_; }

  uint64_t records() const { return records_; }
  uint64_t decisions() const { return decisions_; }
  uint64_t digest() const { return digest_; }  // of the decisions; goes on when recording has ended

  void on_restart(uint64_t stream) override;
  void on_open(uint64_t hash, core::ServerId server, core::TimeNs now) override;
  void on_first_ack(uint64_t hash, core::TimeNs now) override;
  void on_close(uint64_t hash, bool completed, core::TimeNs now) override;
  void on_load(core::ServerId server, uint32_t load, core::TimeNs now) override;
  void on_reply(uint64_t hash, uint32_t queue, float service_s, core::TimeNs now) override;
  void on_probe(core::ServerId server, uint32_t rif, float latency_s, core::TimeNs now) override;
  void on_members(std::span<const core::ServerId> members, core::TimeNs now) override;
  void on_names(std::span<const uint64_t> names, core::TimeNs now) override;
  void on_tick(std::span<const uint32_t> probed_load, core::TimeNs now) override;
  void on_policy(core::TimeNs now) override;
  void on_action(std::span<const float> action, core::TimeNs now) override;
  void on_apply(core::TimeNs now) override;
  void on_weights(std::span<const double> weights, core::TimeNs now) override;

 private:
  void put(Kind kind, core::TimeNs now, uint64_t key, uint32_t value);
  bool flush();
  bool write_all(const void* data, size_t size);
  void stop(const char* what);

  int file_ = -1;
  char failure_[160] = "";
  std::vector<Record> buffer_;
  size_t used_ = 0;
  uint64_t records_ = 0, decisions_ = 0, digest_ = 0, checksum_ = 0;
};

}  // namespace steelyard::tape
