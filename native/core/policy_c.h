/* The C face of a compiled policy: what a shared object made by `steelyard export --to cpp` exports. It needs
 * no other library and no Python. Nothing in it allocates, blocks or throws; every function may be called
 * from any thread, with state and scratch memory of the thread's own.
 *
 * An agent's step:
 *   1. once:          state = steelyard_policy_state_size() floats, scratch = steelyard_policy_scratch_size()
 *   2. at a reset:    set state to zeros
 *   3. at every step: fill obs, call steelyard_policy_infer; server j then has the weight 2^(2 action[j])
 *
 * A central policy is one agent for all load balancers: its obs is their observations end to end, its action
 * their actions end to end, balancer by balancer.
 */
#ifndef STEELYARD_POLICY_C_H
#define STEELYARD_POLICY_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 1 had no steelyard_policy_central_agents; none of its policies is central. */
#define STEELYARD_POLICY_ABI 2u
#define STEELYARD_POLICY_EXPORT __attribute__((visibility("default")))

enum {
  STEELYARD_POLICY_OK = 0,
  STEELYARD_POLICY_NOT_FINITE =
      1,                        /* NaN or infinity in obs, state or result: use your own rule for this step */
  STEELYARD_POLICY_NO_ACTOR = 2 /* actor >= steelyard_policy_num_actors() */
};

/* STEELYARD_POLICY_ABI of the header that the policy was built with. */
STEELYARD_POLICY_EXPORT uint32_t steelyard_policy_abi(void);
/* Hash of the observation schema that the policy was trained on; it must be the host's. */
STEELYARD_POLICY_EXPORT uint64_t steelyard_policy_schema_hash(void);
STEELYARD_POLICY_EXPORT uint32_t steelyard_policy_num_servers(void);
/* Load balancers that a central policy decides for at once; 0 when every load balancer is an agent of its
 * own. */
STEELYARD_POLICY_EXPORT uint32_t steelyard_policy_central_agents(void);
/* Agent i uses actor i, or actor 0 when there is only one. */
STEELYARD_POLICY_EXPORT uint32_t steelyard_policy_num_actors(void);
/* Sizes in floats. */
STEELYARD_POLICY_EXPORT size_t steelyard_policy_obs_size(void);
STEELYARD_POLICY_EXPORT size_t steelyard_policy_state_size(void);
STEELYARD_POLICY_EXPORT size_t steelyard_policy_scratch_size(void);
/* One decision: reads obs, reads and writes state, writes action (num_servers floats in [-1, 1], times
 * central_agents of a central policy). Unless it returns STEELYARD_POLICY_OK, state and action are as they
 * were. */
STEELYARD_POLICY_EXPORT int steelyard_policy_infer(uint32_t actor, const float* obs, float* state,
                                                   float* scratch, float* action);

#ifdef __cplusplus
}
#endif

#endif
