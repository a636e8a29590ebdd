// The file format of a rack's policy: little-endian, everything at a computable place.
//
//   offset  size              field
//   0       8                 magic "SLYDRCK1"
//   8       4                 version (1)
//   12      4                 weights: 0 float32, 1 bfloat16 (biases are float32)
//   16      8                 size of the whole file in bytes
//   24      8                 schema hash (rack_policy.h)
//   32      4                 num_servers N
//   36      4                 num_fields
//   40      40 x num_fields   the configuration: name (32 bytes, zero-padded), value (8 bytes)
//   then, per server: migration weight (N, K), bias (N), stealing weight (N, K), bias (N)
//   last 8                    64-bit FNV-1a of all bytes before
//
// A field that is not in a file has its default; one that this build does not know is refused. A reader that
// accepts a file has checked all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "native/core/rack_policy.h"

namespace steelyard::core {

inline constexpr char kRackPolicyMagic[9] = "SLYDRCK1";
inline constexpr uint32_t kRackPolicyVersion = 1;
inline constexpr uint32_t kMaxRackFields = 256;
inline constexpr size_t kRackFieldNameBytes = 32;

// Both return false and set *error (one line); *blob and *policy are then unspecified.
bool encode_rack_policy(const RackPolicySpec& policy, std::vector<uint8_t>* blob, std::string* error);
bool decode_rack_policy(const uint8_t* data, size_t size, RackPolicySpec* policy, std::string* error);

// The configuration as fields, all of them, in the order of malcolm_fields.h.
std::vector<RackField> rack_fields(const MalcolmConfig& config);

}  // namespace steelyard::core
