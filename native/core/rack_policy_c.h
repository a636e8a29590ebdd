/* The C face of a compiled policy of a rack: what a shared object made by `steelyard export --to cpp` from a
 * run on a rack exports. It needs no other library and no Python. Nothing blocks or throws; after
 * steelyard_rack_server_new nothing allocates. A server's functions are called by one thread at a time.
 *
 * A server's life:
 *   1. once:             server = steelyard_rack_server_new(its index, its workers, types of tasks)
 *   2. at every task:    on_accept when one joins (kept, migrated here, stolen by it), on_completion when one
 *                        leaves served, on_stolen when one leaves unserved
 *   3. every period:     broadcast, and send what it says to the others; on_load with what arrives of theirs;
 *                        on_window once the messages are in
 *   4. at an arrival:    migrate says which server gets the task, itself meaning keep; ask once per task
 *   5. at a completion:  steal says whom to ask for a task
 * Random words are arguments: 64 uniform bits for each decision.
 */
#ifndef STEELYARD_RACK_POLICY_C_H
#define STEELYARD_RACK_POLICY_C_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STEELYARD_RACK_POLICY_ABI 1u
#define STEELYARD_RACK_POLICY_EXPORT __attribute__((visibility("default")))
#define STEELYARD_RACK_NOBODY (-1)

typedef struct steelyard_rack_server steelyard_rack_server;

/* What a server tells every other once a period. */
typedef struct steelyard_rack_load {
  float load_s;        /* the time that its tasks take it [s] */
  uint32_t migrations; /* since its last message */
  uint32_t steals;
  float task_s; /* what one task more adds to load_s [s] */
  float workers;
} steelyard_rack_load;

/* STEELYARD_RACK_POLICY_ABI of the header that the policy was built with. */
STEELYARD_RACK_POLICY_EXPORT uint32_t steelyard_rack_policy_abi(void);
/* Hash of what the policy reads and decides; it must be the host's. */
STEELYARD_RACK_POLICY_EXPORT uint64_t steelyard_rack_policy_schema_hash(void);
STEELYARD_RACK_POLICY_EXPORT uint32_t steelyard_rack_policy_num_servers(void);
/* Inputs of an actor: the loads of all servers, and their ranks if it reads them. */
STEELYARD_RACK_POLICY_EXPORT uint32_t steelyard_rack_policy_num_inputs(void);

/* Null for an index, workers or types out of range, and without memory. */
STEELYARD_RACK_POLICY_EXPORT steelyard_rack_server* steelyard_rack_server_new(uint32_t index,
                                                                              uint32_t workers,
                                                                              uint32_t types);
/* A copy with all that it knows; null without memory. */
STEELYARD_RACK_POLICY_EXPORT steelyard_rack_server* steelyard_rack_server_copy(
    const steelyard_rack_server* server);
STEELYARD_RACK_POLICY_EXPORT void steelyard_rack_server_free(steelyard_rack_server* server);
/* As it was when it was new. */
STEELYARD_RACK_POLICY_EXPORT void steelyard_rack_server_restart(steelyard_rack_server* server);

STEELYARD_RACK_POLICY_EXPORT void steelyard_rack_on_accept(steelyard_rack_server* server, uint32_t type);
/* service_s: time of a worker that the task took [s]. */
STEELYARD_RACK_POLICY_EXPORT void steelyard_rack_on_completion(steelyard_rack_server* server, uint32_t type,
                                                               float service_s);
STEELYARD_RACK_POLICY_EXPORT void steelyard_rack_on_stolen(steelyard_rack_server* server, uint32_t type);
STEELYARD_RACK_POLICY_EXPORT void steelyard_rack_set_workers(steelyard_rack_server* server, uint32_t workers);
/* Whether another server is a destination of moves (1, as at the start) or has left the rack (0). */
STEELYARD_RACK_POLICY_EXPORT void steelyard_rack_set_member(steelyard_rack_server* server, uint32_t other,
                                                            int member);

STEELYARD_RACK_POLICY_EXPORT void steelyard_rack_broadcast(steelyard_rack_server* server,
                                                           steelyard_rack_load* told);
/* Ignored: servers out of range, itself, loads that are not finite. */
STEELYARD_RACK_POLICY_EXPORT void steelyard_rack_on_load(steelyard_rack_server* server, uint32_t from,
                                                         const steelyard_rack_load* told);
STEELYARD_RACK_POLICY_EXPORT void steelyard_rack_on_window(steelyard_rack_server* server);

/* The server that gets a new task; its own index: keep. */
STEELYARD_RACK_POLICY_EXPORT uint32_t steelyard_rack_migrate(steelyard_rack_server* server, uint64_t word);
/* The server to ask for a task, or STEELYARD_RACK_NOBODY: enough tasks are waiting here, or drawn so. */
STEELYARD_RACK_POLICY_EXPORT int32_t steelyard_rack_steal(steelyard_rack_server* server, uint64_t word);

#ifdef __cplusplus
}
#endif

#endif
