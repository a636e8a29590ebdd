#include "native/dataplane/pcap.h"

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace steelyard::dataplane {
namespace {

constexpr uint32_t kMicroseconds = 0xa1b2c3d4, kNanoseconds = 0xa1b23c4d;
constexpr uint32_t kEthernet = 1;
constexpr uint32_t kMostBytes = 1 << 18;

std::runtime_error failed(const std::string& path, const std::string& why) {
  return std::runtime_error(path + ": " + why);
}

uint32_t native_word(const uint8_t* p) {
  uint32_t x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

}  // namespace

PcapReader::PcapReader(const std::string& path)
    : path_(path), file_(std::fopen(path.c_str(), "rb")), buffer_(kHeadroom + kMostBytes) {
  if (!file_) throw failed(path, std::strerror(errno));
  uint8_t head[24];
  if (std::fread(head, 1, sizeof head, file_.get()) != sizeof head) throw failed(path, "not a pcap file");
  const uint32_t magic = native_word(head);
  swapped_ = magic != kMicroseconds && magic != kNanoseconds;
  const uint32_t told = word(head);
  if (told != kMicroseconds && told != kNanoseconds)
    throw failed(path, "not a pcap file of the classic format");
  if (told == kNanoseconds) fraction_ns_ = 1;
  if (word(head + 20) != kEthernet) throw failed(path, "its frames are not of Ethernet");
}

uint32_t PcapReader::word(const uint8_t* p) const {
  return swapped_ ? __builtin_bswap32(native_word(p)) : native_word(p);
}

bool PcapReader::next(Packet* packet, core::TimeNs* time) {
  uint8_t head[16];
  const size_t got = std::fread(head, 1, sizeof head, file_.get());
  if (got == 0) return false;
  const uint32_t size = got == sizeof head ? word(head + 8) : 0;
  if (got != sizeof head || size > kMostBytes ||
      std::fread(buffer_.data() + kHeadroom, 1, size, file_.get()) != size) {
    throw failed(path_, "ends in the middle of a frame");
  }
  *time = core::TimeNs{word(head)} * core::kNanosPerSecond + core::TimeNs{word(head + 4)} * fraction_ns_;
  *packet = {buffer_.data() + kHeadroom, size, kHeadroom};
  return true;
}

PcapWriter::PcapWriter(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "wb")) {
  if (!file_) throw failed(path, std::strerror(errno));
  const uint32_t head[6] = {kNanoseconds, 2 | 4u << 16, 0, 0, kMostBytes, kEthernet};
  std::fwrite(head, sizeof head, 1, file_.get());
}

void PcapWriter::write(const uint8_t* data, uint32_t size, core::TimeNs time) {
  const uint32_t head[4] = {static_cast<uint32_t>(time / core::kNanosPerSecond),
                            static_cast<uint32_t>(time % core::kNanosPerSecond), size, size};
  std::fwrite(head, sizeof head, 1, file_.get());
  std::fwrite(data, 1, size, file_.get());
}

void PcapWriter::close() {
  const bool sound = std::ferror(file_.get()) == 0 && std::fclose(file_.release()) == 0;
  if (!sound) throw failed(path_, "cannot write");
}

}  // namespace steelyard::dataplane
