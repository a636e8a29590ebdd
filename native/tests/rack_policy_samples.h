// Policies of a rack with random weights: shared by the tests and the fuzz target.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "native/core/rack_policy.h"
#include "native/core/rack_policy_blob.h"

namespace steelyard::core {

inline RackPolicySpec sample_rack_policy(uint32_t num_servers, bool code = false, uint32_t seed = 1) {
  RackPolicySpec spec;
  spec.config = code ? MalcolmConfig::code() : MalcolmConfig::thesis();
  spec.num_servers = num_servers;
  std::mt19937 draw(seed);
  std::normal_distribution<float> normal(0.0F, 0.5F);
  spec.actors.resize(num_servers * rack_actor_floats(spec.config, num_servers));
  for (float& value : spec.actors) value = normal(draw);
  return spec;
}

inline std::vector<uint8_t> rack_blob_of(const RackPolicySpec& spec) {
  std::vector<uint8_t> blob;
  std::string error;
  if (!encode_rack_policy(spec, &blob, &error)) blob.clear();
  return blob;
}

}  // namespace steelyard::core
