#include "native/tape/recorder.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace steelyard::tape {

bool Recorder::open(const std::string& path, const TapeHeader& header, std::string* error,
                    size_t buffer_records) {
  close();
  *error = check_rule(header.rule);
  if (!error->empty()) return false;
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file_ < 0) {
    *error = std::string("cannot write: ") + std::strerror(errno);
    return false;
  }
  buffer_.assign(buffer_records > 0 ? buffer_records : 1, {});
  used_ = 0;
  records_ = decisions_ = digest_ = checksum_ = 0;
  failure_[0] = 0;
  const std::vector<uint8_t> head = encode_header(header);
  for (size_t at = 0; at < head.size(); at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, &head[at], sizeof word);
    checksum_ = add_word(checksum_, word);
  }
  if (write_all(head.data(), head.size())) return true;
  *error = failure_;
  return false;
}

bool Recorder::close() {
  if (file_ < 0) return failure_[0] == 0;
  const uint64_t count = records_;
  put(Kind::kEnd, static_cast<core::TimeNs>(count), digest_, 0);
  records_ = count;
  if (flush()) write_all(&checksum_, sizeof checksum_);
  if (file_ >= 0 && ::close(file_) != 0) {
    file_ = -1;
    stop(std::strerror(errno));
  }
  file_ = -1;
  return failure_[0] == 0;
}

void Recorder::put(Kind kind, core::TimeNs now, uint64_t key, uint32_t value) {
  if (file_ < 0) return;
  buffer_[used_] = {now, key, static_cast<uint32_t>(kind), value};
  uint64_t word[3];
  std::memcpy(word, &buffer_[used_], sizeof word);
  for (const uint64_t w : word) checksum_ = add_word(checksum_, w);
  ++records_;
  if (++used_ == buffer_.size()) flush();
}

bool Recorder::flush() {
  const size_t count = used_;
  used_ = 0;
  return write_all(buffer_.data(), count * sizeof(Record));
}

bool Recorder::write_all(const void* data, size_t size) {
  const auto* at = static_cast<const char*>(data);
  while (size > 0 && file_ >= 0) {
    const ssize_t wrote = ::write(file_, at, size);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      stop(wrote < 0 ? std::strerror(errno) : "nothing more is taken");
      return false;
    }
    at += wrote;
    size -= static_cast<size_t>(wrote);
  }
  return file_ >= 0;
}

void Recorder::stop(const char* what) {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
  std::snprintf(failure_, sizeof failure_, "tape ended after about %llu records: %s; decisions go on",
                static_cast<unsigned long long>(records_), what);
}

void Recorder::on_restart(uint64_t stream) { put(Kind::kRestart, 0, stream, 0); }

void Recorder::on_open(uint64_t hash, core::ServerId server, core::TimeNs now) {
  digest_ = add_decision(digest_, decisions_++, server);
  put(Kind::kOpen, now, hash, static_cast<uint32_t>(server + 1));
}

void Recorder::on_first_ack(uint64_t hash, core::TimeNs now) { put(Kind::kFirstAck, now, hash, 0); }

void Recorder::on_close(uint64_t hash, bool completed, core::TimeNs now) {
  put(Kind::kClose, now, hash, completed ? 1 : 0);
}

void Recorder::on_load(core::ServerId server, uint32_t load, core::TimeNs now) {
  put(Kind::kLoad, now, static_cast<uint64_t>(server), load);
}

void Recorder::on_reply(uint64_t hash, uint32_t queue, float service_s, core::TimeNs now) {
  put(Kind::kItem, now, std::bit_cast<uint32_t>(service_s), 0);
  put(Kind::kReply, now, hash, queue);
}

void Recorder::on_probe(core::ServerId server, uint32_t rif, float latency_s, core::TimeNs now) {
  put(Kind::kProbe, now, static_cast<uint64_t>(server) | uint64_t{rif} << 32,
      std::bit_cast<uint32_t>(latency_s));
}

void Recorder::on_members(std::span<const core::ServerId> members, core::TimeNs now) {
  for (const core::ServerId server : members) put(Kind::kItem, now, static_cast<uint64_t>(server), 0);
  put(Kind::kMembers, now, 0, static_cast<uint32_t>(members.size()));
}

void Recorder::on_names(std::span<const uint64_t> names, core::TimeNs now) {
  for (const uint64_t name : names) put(Kind::kItem, now, name, 0);
  put(Kind::kNames, now, 0, static_cast<uint32_t>(names.size()));
}

void Recorder::on_tick(std::span<const uint32_t> probed_load, core::TimeNs now) {
  for (const uint32_t load : probed_load) put(Kind::kItem, now, load, 0);
  put(Kind::kTick, now, 0, static_cast<uint32_t>(probed_load.size()));
}

void Recorder::on_policy(core::TimeNs now) { put(Kind::kPolicy, now, 0, 0); }

void Recorder::on_action(std::span<const float> action, core::TimeNs now) {
  for (const float value : action) put(Kind::kItem, now, std::bit_cast<uint32_t>(value), 0);
  put(Kind::kAction, now, 0, static_cast<uint32_t>(action.size()));
}

void Recorder::on_apply(core::TimeNs now) { put(Kind::kApply, now, 0, 0); }

void Recorder::on_weights(std::span<const double> weights, core::TimeNs now) {
  for (const double value : weights) put(Kind::kItem, now, std::bit_cast<uint64_t>(value), 0);
  put(Kind::kWeights, now, 0, static_cast<uint32_t>(weights.size()));
}

}  // namespace steelyard::tape
