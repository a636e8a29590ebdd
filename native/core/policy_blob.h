// The policy file format: little-endian, everything at a computable place, nothing optional. Version 2 is
// version 1 with the matrices of the layers (weight, weight_ih, weight_hh) in bfloat16, 2 bytes a number;
// inference stays in float32.
//
//   offset  size              field
//   0       8                 magic "SLYDPOL1"
//   8       4                 version (1 or 2)
//   12      4                 central agents (0: every balancer is its own agent, as in files from before
//   this
//                             field was one; M: one central agent for all of M balancers)
//   16      8                 size of the whole file in bytes
//   24      8                 observation schema hash (schema.h)
//   32      4                 num_servers
//   36      4                 num_actors
//   40      4                 num_layers
//   44      4                 input mode (PolicyInput)
//   48      4                 output kind (PolicyOutput)
//   52      4                 clip (float32, > 0)
//   56      16 x num_layers   layers: kind, activation, in, out (uint32 each)
//   then, per actor, float32: mean (D), inv_std (D), and per layer (D: one observation, or M of a central
//   policy, end to end; so are its actions)
//           dense: weight (out, in), bias (out)
//           gru:   weight_ih (3 out, in), weight_hh (3 out, out), bias_ih (3 out), bias_hh (3 out)
//   last 8                    64-bit FNV-1a of all bytes before
//
// All actors share one architecture. A reader that accepts a file has checked all of it: the checksum, the
// dimensions against each other and against the file's size, the schema, and that every number is usable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "native/core/policy_spec.h"

namespace steelyard::core {

inline constexpr char kPolicyMagic[9] = "SLYDPOL1";
inline constexpr uint32_t kPolicyVersion = 2;  // the newest that is read

// Both return false and set *error (one line); *blob and *policy are then unspecified.
bool encode_policy_blob(const PolicySpec& policy, std::vector<uint8_t>* blob, std::string* error);
bool decode_policy_blob(const uint8_t* data, size_t size, PolicySpec* policy, std::string* error);

}  // namespace steelyard::core
