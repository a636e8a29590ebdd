#include "native/core/hosted_policy.h"

#include <dlfcn.h>

#include <algorithm>
#include <new>
#include <stdexcept>

#include "native/core/policy_artefact.h"
#include "native/core/policy_blob.h"
#include "native/core/policy_c.h"
#include "native/core/schema.h"

namespace steelyard::core {
namespace {

constexpr uint32_t kOldestAbi = 1;  // that is still read

class BlobPolicy final : public LoadedPolicy {
 public:
  explicit BlobPolicy(std::unique_ptr<PackedPolicy> packed)
      : LoadedPolicy(info_of(packed->set())), packed_(std::move(packed)) {}

  bool infer(int actor, const float* obs, float* state, float* scratch, float* action) const override {
    return policy_infer(packed_->set().actors[actor], obs, state, scratch, action);
  }

 private:
  static Info info_of(const PolicySet& set) {
    const int servers = static_cast<int>(set.num_servers);
    return {set.schema_hash,
            servers,
            static_cast<int>(set.num_actors),
            static_cast<int>(set.central_agents),
            policy_obs_size(set.actors[0]),
            policy_state_size(set.actors[0]),
            policy_scratch_size(set.actors[0])};
  }

  std::unique_ptr<PackedPolicy> packed_;
};

// The functions of policy_c.h, found in a shared object. Of ABI 1, which has no central policies, the one
// that it lacks is null.
struct CFace {
  decltype(&steelyard_policy_abi) abi;
  decltype(&steelyard_policy_schema_hash) schema_hash;
  decltype(&steelyard_policy_num_servers) num_servers;
  decltype(&steelyard_policy_num_actors) num_actors;
  decltype(&steelyard_policy_central_agents) central_agents;
  decltype(&steelyard_policy_obs_size) obs_size;
  decltype(&steelyard_policy_state_size) state_size;
  decltype(&steelyard_policy_scratch_size) scratch_size;
  decltype(&steelyard_policy_infer) infer;
};

uint32_t central_agents_of(const CFace& face) {
  return face.central_agents == nullptr ? 0 : face.central_agents();
}

class CompiledPolicy final : public LoadedPolicy {
 public:
  CompiledPolicy(Library library, const CFace& face)
      : LoadedPolicy(info_of(face)), library_(std::move(library)), infer_(face.infer) {}

  bool infer(int actor, const float* obs, float* state, float* scratch, float* action) const override {
    return infer_(static_cast<uint32_t>(actor), obs, state, scratch, action) == STEELYARD_POLICY_OK;
  }

 private:
  static Info info_of(const CFace& face) {
    return {face.schema_hash(),
            static_cast<int>(face.num_servers()),
            static_cast<int>(face.num_actors()),
            static_cast<int>(central_agents_of(face)),
            face.obs_size(),
            face.state_size(),
            face.scratch_size()};
  }

  Library library_;
  decltype(&steelyard_policy_infer) infer_;
};

bool find_face(void* library, CFace* face, std::string* error) {
  if (dlsym(library, "steelyard_rack_policy_abi") != nullptr) {
    *error = "a policy of a rack's servers, not of load balancers";
    return false;
  }
  if (!find_function(library, "steelyard_policy_abi", &face->abi, error)) return false;
  const uint32_t abi = face->abi();
  if (abi < kOldestAbi || abi > STEELYARD_POLICY_ABI) {
    *error = "compiled policy has ABI " + std::to_string(abi) + "; this build has " +
             std::to_string(STEELYARD_POLICY_ABI);
    return false;
  }
  face->central_agents = nullptr;
  return (abi == 1 ||
          find_function(library, "steelyard_policy_central_agents", &face->central_agents, error)) &&
         find_function(library, "steelyard_policy_schema_hash", &face->schema_hash, error) &&
         find_function(library, "steelyard_policy_num_servers", &face->num_servers, error) &&
         find_function(library, "steelyard_policy_num_actors", &face->num_actors, error) &&
         find_function(library, "steelyard_policy_obs_size", &face->obs_size, error) &&
         find_function(library, "steelyard_policy_state_size", &face->state_size, error) &&
         find_function(library, "steelyard_policy_scratch_size", &face->scratch_size, error) &&
         find_function(library, "steelyard_policy_infer", &face->infer, error);
}

// What a blob's reader checks of its header, for a compiled policy. The kernel inside it is the one it was
// built with, so a change of the schema shows here.
std::string check_face(const CFace& face) {
  PolicyHeader header;
  header.schema_hash = face.schema_hash();
  header.num_servers = face.num_servers();
  header.num_actors = face.num_actors();
  header.central_agents = central_agents_of(face);
  header.num_layers = 1;
  header.clip = 1;
  std::string error = check_header(header);
  if (error.empty() && face.obs_size() != observed_size(header)) {
    error = "compiled policy reads " + std::to_string(face.obs_size()) + " features; this build gives " +
            std::to_string(observed_size(header));
  }
  return error;
}

std::shared_ptr<const LoadedPolicy> load_library(const std::string& path, const std::vector<uint8_t>& bytes,
                                                 std::string* error) {
  Library library = open_library(path, bytes, error);
  CFace face;
  if (!library || !find_face(library.get(), &face, error)) return nullptr;
  *error = check_face(face);
  if (!error->empty()) return nullptr;
  return std::make_shared<CompiledPolicy>(std::move(library), face);
}

std::shared_ptr<const LoadedPolicy> load_file(const std::string& path, std::string* error) {
  std::vector<uint8_t> bytes;
  if (!read_policy_file(path, &bytes, error)) return nullptr;
  return is_shared_object(bytes) ? load_library(path, bytes, error)
                                 : load_policy_bytes(bytes.data(), bytes.size(), error);
}

}  // namespace

std::shared_ptr<const LoadedPolicy> load_policy_bytes(const uint8_t* data, size_t size, std::string* error) {
  try {
    PolicySpec spec;
    if (!decode_policy_blob(data, size, &spec, error)) return nullptr;
    return std::make_shared<BlobPolicy>(std::make_unique<PackedPolicy>(spec));
  } catch (const std::bad_alloc&) {
    *error = "not enough memory for this policy";
    return nullptr;
  }
}

std::shared_ptr<const LoadedPolicy> load_policy_file(const std::string& path, std::string* error) {
  std::shared_ptr<const LoadedPolicy> policy;
  try {
    policy = load_file(path, error);
  } catch (const std::bad_alloc&) {
    *error = "not enough memory for this policy";
  }
  if (!policy) error->insert(0, path + ": ");
  return policy;
}

std::string check_policy_fits(const LoadedPolicy& policy, uint64_t schema_hash, int num_servers,
                              int num_balancers, bool cycle) {
  if (policy.num_servers() != num_servers) {
    return "policy is for " + std::to_string(policy.num_servers()) + " servers; this pool has " +
           std::to_string(num_servers);
  }
  if (policy.central() && policy.central_agents() != num_balancers) {
    return "policy is central, for " + std::to_string(policy.central_agents()) +
           " load balancers; this pool has " + std::to_string(num_balancers);
  }
  if (!cycle && policy.num_actors() != 1 && policy.num_actors() != num_balancers) {
    return "policy has " + std::to_string(policy.num_actors()) + " actors; needs 1 or " +
           std::to_string(num_balancers) + ", one per load balancer";
  }
  if (policy.schema_hash() != schema_hash) return "policy has another observation schema than this host";
  return "";
}

HostedPolicy::HostedPolicy(std::shared_ptr<const LoadedPolicy> policy, int num_balancers, bool cycle)
    : policy_(std::move(policy)), num_agents_(num_balancers) {
  if (!policy_) throw std::invalid_argument("policy is missing");
  const std::string error =
      num_balancers < 1
          ? "num_agents is " + std::to_string(num_balancers) + "; must be at least 1"
          : check_policy_fits(*policy_, policy_->schema_hash(), policy_->num_servers(), num_balancers, cycle);
  if (!error.empty()) throw std::invalid_argument(error);
  if (policy_->central()) num_agents_ = 1;
  state_.resize(policy_->state_size() * static_cast<size_t>(num_agents_));
  scratch_.resize(policy_->scratch_size());
}

bool HostedPolicy::act(int agent, const float* obs, float* action_out) {
  if (agent < 0 || agent >= num_agents_) return false;
  float* state = state_.data() + policy_->state_size() * static_cast<size_t>(agent);
  const int actor = agent % policy_->num_actors();
  return policy_->infer(actor, obs, state, scratch_.data(), action_out);
}

void HostedPolicy::reset() { std::fill(state_.begin(), state_.end(), 0.0F); }

void HostedPolicy::reset(int agent) {
  if (agent < 0 || agent >= num_agents_) return;
  const auto size = static_cast<std::ptrdiff_t>(policy_->state_size());
  std::fill_n(state_.begin() + agent * size, size, 0.0F);
}

}  // namespace steelyard::core
