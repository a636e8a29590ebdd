// The body of the C face (policy_c.h) over a constexpr PolicySet named kPolicy. A generated policy source
// defines kPolicy in steelyard::exported and then includes this header: data there, logic here.
#pragma once

#include "native/core/policy.h"
#include "native/core/policy_c.h"

extern "C" {

uint32_t steelyard_policy_abi(void) { return STEELYARD_POLICY_ABI; }

uint64_t steelyard_policy_schema_hash(void) { return steelyard::exported::kPolicy.schema_hash; }

uint32_t steelyard_policy_num_servers(void) { return steelyard::exported::kPolicy.num_servers; }

uint32_t steelyard_policy_central_agents(void) { return steelyard::exported::kPolicy.central_agents; }

uint32_t steelyard_policy_num_actors(void) { return steelyard::exported::kPolicy.num_actors; }

size_t steelyard_policy_obs_size(void) {
  return steelyard::core::policy_obs_size(steelyard::exported::kPolicy.actors[0]);
}

size_t steelyard_policy_state_size(void) {
  return steelyard::core::policy_state_size(steelyard::exported::kPolicy.actors[0]);
}

size_t steelyard_policy_scratch_size(void) {
  return steelyard::core::policy_scratch_size(steelyard::exported::kPolicy.actors[0]);
}

int steelyard_policy_infer(uint32_t actor, const float* obs, float* state, float* scratch, float* action) {
  const steelyard::core::PolicySet& policy = steelyard::exported::kPolicy;
  if (actor >= policy.num_actors) return STEELYARD_POLICY_NO_ACTOR;
  const bool done = steelyard::core::policy_infer(policy.actors[actor], obs, state, scratch, action);
  return done ? STEELYARD_POLICY_OK : STEELYARD_POLICY_NOT_FINITE;
}

}  // extern "C"
