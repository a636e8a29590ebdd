// Policy files: any bytes are either refused in one line or give a policy that encodes to the same bytes and
// runs.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "native/core/hosted_policy.h"
#include "native/core/policy_blob.h"
#include "native/tests/policy_samples.h"

namespace {

using namespace steelyard::core;

constexpr size_t kMostFloats = size_t{1} << 22;  // a policy that needs more memory is not stepped here

void require(bool condition) {
  if (!condition) std::abort();
}

void step(const std::vector<uint8_t>& blob) {
  std::string error;
  const std::shared_ptr<const LoadedPolicy> policy = load_policy_bytes(blob.data(), blob.size(), &error);
  require(policy != nullptr && error.empty());
  if (policy->state_size() + policy->scratch_size() > kMostFloats) return;
  HostedPolicy hosted(policy, policy->central() ? policy->central_agents() : policy->num_actors());
  const std::vector<float> obs(policy->obs_size(), 1.0F);
  std::vector<float> action(policy->action_size());
  for (int i = 0; i < 3; ++i) {
    if (!hosted.act(policy->num_actors() - 1, obs.data(), action.data())) continue;
    for (const float a : action) require(a >= -1.0F && a <= 1.0F);
  }
}

void try_blob(const std::vector<uint8_t>& blob) {
  PolicySpec spec;
  std::string error;
  if (!decode_policy_blob(blob.data(), blob.size(), &spec, &error)) {
    require(!error.empty() && std::find(error.begin(), error.end(), '\n') == error.end());
    return;
  }
  std::vector<uint8_t> again;
  require(encode_policy_blob(spec, &again, &error) && again == blob);
  step(blob);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint8_t> blob(data, data + size);
  try_blob(blob);
  seal(&blob);  // beyond the checksum
  try_blob(blob);
  return 0;
}
