#include "native/core/blob_io.h"

namespace steelyard::core {
namespace {

bool starts_with(const uint8_t* data, size_t size, const char* magic) {
  return size >= kMagicBytes && std::memcmp(data, magic, kMagicBytes) == 0;
}

}  // namespace

std::string check_envelope(const uint8_t* data, size_t size, const char* magic, uint32_t newest_version,
                           size_t header_bytes, const ForeignMagic& foreign) {
  if (starts_with(data, size, foreign.magic)) return foreign.message;
  if (!starts_with(data, size, magic)) {
    return "not a policy file: it does not start with " + std::string(magic);
  }
  if (size < header_bytes + kChecksumBytes) {
    return "truncated policy file: its " + std::to_string(size) + " bytes are less than a header";
  }
  BlobReader reader(data + kMagicBytes);
  const auto version = reader.number<uint32_t>();
  if (version < 1 || version > newest_version) {
    return "policy file version is " + std::to_string(version) + "; this build reads version" +
           (newest_version > 1 ? "s 1.." : " ") + std::to_string(newest_version);
  }
  reader.number<uint32_t>();  // the format's own
  const auto stated = reader.number<uint64_t>();
  if (stated != size) {
    return std::string(stated > size ? "truncated" : "corrupt") + " policy file: it states " +
           std::to_string(stated) + " bytes and has " + std::to_string(size);
  }
  if (BlobReader(data + size - kChecksumBytes).number<uint64_t>() != fnv1a(data, size - kChecksumBytes)) {
    return "corrupt policy file: its checksum does not match";
  }
  return "";
}

}  // namespace steelyard::core
