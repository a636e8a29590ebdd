// Frames from a file and into one, in the classic format of libpcap, with the file's time in the place of a
// clock.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "native/core/types.h"
#include "native/dataplane/packet.h"

namespace steelyard::dataplane {

// Both throw std::runtime_error: one line.
class PcapReader {
 public:
  explicit PcapReader(const std::string& path);
  // The next frame, in a buffer with kHeadroom that the next call reuses. False at the end.
  bool next(Packet* packet, core::TimeNs* time);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  uint32_t word(const uint8_t* p) const;

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  bool swapped_ = false;
  core::TimeNs fraction_ns_ = 1000;
  std::vector<uint8_t> buffer_;
};

class PcapWriter {
 public:
  explicit PcapWriter(const std::string& path);
  void write(const uint8_t* data, uint32_t size, core::TimeNs time);
  void close();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace steelyard::dataplane
