// What all policy files share: an envelope of 24 bytes (magic, version, a word of the format's own, size of
// the whole file), a body, and a 64-bit FNV-1a of everything before at the end; little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace steelyard::core {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "policy files are little-endian, so is the reader");

inline constexpr size_t kMagicBytes = 8;
inline constexpr size_t kEnvelopeBytes = 24;
inline constexpr size_t kOwnWordAt = 12;
inline constexpr size_t kChecksumBytes = 8;

inline uint64_t fnv1a(const uint8_t* data, size_t size) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ data[i]) * 0x100000001b3ULL;
  return hash;
}

class BlobWriter {
 public:
  explicit BlobWriter(std::vector<uint8_t>* bytes) : bytes_(bytes) {}
  void bytes(const void* data, size_t size) {
    const size_t before = bytes_->size();
    bytes_->resize(before + size);
    if (size > 0) std::memcpy(bytes_->data() + before, data, size);
  }
  template <typename T>
  void number(T value) {
    bytes(&value, sizeof value);
  }
  void floats(const std::vector<float>& values) { bytes(values.data(), values.size() * sizeof(float)); }
  // The upper halves alone; the lower ones must be 0.
  void bfloats(const std::vector<float>& values) {
    for (const float value : values) {
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      number(static_cast<uint16_t>(bits >> 16));
    }
  }

 private:
  std::vector<uint8_t>* bytes_;
};

// Reads from a range that is known to be long enough.
class BlobReader {
 public:
  explicit BlobReader(const uint8_t* data) : at_(data) {}
  void bytes(void* to, size_t size) {
    if (size > 0) std::memcpy(to, at_, size);
    at_ += size;
  }
  template <typename T>
  T number() {
    T value;
    bytes(&value, sizeof value);
    return value;
  }
  void floats(std::vector<float>* values, size_t count) {
    values->resize(count);
    bytes(values->data(), count * sizeof(float));
  }
  void bfloats(std::vector<float>* values, size_t count) {
    values->resize(count);
    for (float& value : *values) {
      const uint32_t bits = static_cast<uint32_t>(number<uint16_t>()) << 16;
      std::memcpy(&value, &bits, sizeof bits);
    }
  }

 private:
  const uint8_t* at_;
};

// The nearest bfloat16, ties to the even one; NaN and infinity stay as they are, and what is out of its range
// becomes infinite.
inline float nearest_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline bool is_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return (bits & 0xffffu) == 0;
}

// What stands before any number is believed: magic, version, size, checksum. Empty, or one line. `foreign` is
// the magic of another kind of policy and what that is, for a better message.
struct ForeignMagic {
  const char* magic;
  const char* message;
};
std::string check_envelope(const uint8_t* data, size_t size, const char* magic, uint32_t newest_version,
                           size_t header_bytes, const ForeignMagic& foreign);

}  // namespace steelyard::core
