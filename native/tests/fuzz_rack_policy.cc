// Policies of racks: any bytes are either refused in one line or give a policy that is written again as one
// of the same meaning and runs.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "native/core/hosted_rack_policy.h"
#include "native/core/rack_policy_blob.h"
#include "native/core/rng.h"
#include "native/tests/policy_samples.h"

namespace {

using namespace steelyard::core;

void require(bool condition) {
  if (!condition) std::abort();
}

void play(const std::vector<uint8_t>& blob) {
  std::string error;
  const std::shared_ptr<const LoadedRackPolicy> policy =
      load_rack_policy_bytes(blob.data(), blob.size(), &error);
  require(policy != nullptr && error.empty());
  const auto n = static_cast<ServerId>(policy->num_servers());
  const std::unique_ptr<RackPlayer> player = policy->player(policy->num_servers() - 1, 2, 1);
  for (uint64_t k = 0; k < 4; ++k) {
    player->on_accept(0);
    player->broadcast();
    player->on_load_message(static_cast<ServerId>(k), {1e-3F * static_cast<float>(k), 1, 1});
    player->on_window();
    const ServerId to = player->migrate(draw(1, k));
    const ServerId from = player->steal(draw(2, k));
    require(to >= 0 && to < n && from >= kNoServer && from < n);
  }
}

void try_blob(const std::vector<uint8_t>& blob) {
  RackPolicySpec spec;
  std::string error;
  if (!decode_rack_policy(blob.data(), blob.size(), &spec, &error)) {
    require(!error.empty() && std::find(error.begin(), error.end(), '\n') == error.end());
    return;
  }
  std::vector<uint8_t> again, third;
  RackPolicySpec same;
  require(encode_rack_policy(spec, &again, &error));
  require(decode_rack_policy(again.data(), again.size(), &same, &error) && same.actors == spec.actors);
  require(encode_rack_policy(same, &third, &error) && third == again);
  play(blob);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint8_t> blob(data, data + size);
  try_blob(blob);
  seal(&blob);  // beyond the checksum
  try_blob(blob);
  return 0;
}
