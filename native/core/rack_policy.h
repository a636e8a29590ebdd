// What the servers of a rack have learned (malcolm.h), as data: how they read loads and both linear actors of
// every server. The critics stay behind, a server that follows a policy learns no more. The same
// MalcolmServer runs it from a blob (rack_policy_blob.h), from constexpr arrays of a generated source, and in
// the trainer.
//
// This header and its sources need nothing but the C++ library and files of native/core, so that an exported
// policy can be compiled anywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/core/malcolm.h"

namespace steelyard::core {

// A field of MalcolmConfig by its name in malcolm_fields.h, in 64 bits.
struct RackField {
  const char* name;
  uint64_t bits;
};

// A policy that passed its checks, wherever its numbers lie.
struct RackPolicyView {
  uint64_t schema_hash;
  uint32_t num_servers;
  uint32_t num_fields;
  const RackField* fields;  // of the configuration; those that are not named have their defaults
  const float* actors;      // (num_servers, rack_actor_floats)
};

struct RackPolicySpec {
  MalcolmConfig config;
  uint32_t num_servers = 0;
  // (num_servers, rack_actor_floats): per server the weight of migration (N, K), its bias (N,), the same of
  // stealing, as torch.nn.Linear has them.
  std::vector<float> actors;
  bool bfloat16 = false;  // the weights are bfloat16 numbers, and stored as such
};

// What a host gives to a policy and takes from it, in words, one line; and its 64-bit FNV-1a.
std::string rack_schema_text(uint32_t num_servers, uint32_t num_inputs);
uint64_t rack_schema_hash(uint32_t num_servers, uint32_t num_inputs);

// Inputs K of the actors of a server, and the floats of both actors: 2 N (K + 1). Of a config that passes
// check.
uint32_t rack_actor_inputs(const MalcolmConfig& config, uint32_t num_servers);
size_t rack_actor_floats(const MalcolmConfig& config, uint32_t num_servers);

// Empty, or one line that names the field, its value and what is expected.
std::string check_rack_config(const MalcolmConfig& config, uint32_t num_servers);
std::string check_rack_policy(const RackPolicySpec& policy);
// Sets a field by name; empty, or one line.
std::string set_rack_field(MalcolmConfig* config, const std::string& name, uint64_t bits);
// Rounds the weights to bfloat16, and notes it. False, with a one-line *error, when one is out of its range.
bool round_weights(RackPolicySpec* policy, std::string* error);

// One server that follows the policy, frozen: the one body of every host. `policy` has passed its checks and
// server < num_servers; *error is set, and the result is null, for workers or types out of range.
std::unique_ptr<MalcolmServer> make_rack_server(const RackPolicyView& policy, uint32_t server,
                                                uint32_t workers, uint32_t num_types, std::string* error);

}  // namespace steelyard::core
