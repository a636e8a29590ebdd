/* A consumer in C. With a path: prints what the dataplane there publishes, and answers with weights. Without:
 * is a dataplane and an agent of its own, and checks that each gets what the other wrote. */
#define _GNU_SOURCE
#include <inttypes.h>

#include "native/shm/steelyard_shm_file.h"

static int fails = 0;
static void expect(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "failed: %s\n", what);
  ++fails;
}

static int answer(const char* path) {
  steelyard_shm_file file;
  if (steelyard_shm_open(&file, path, STEELYARD_SHM_AGENT, 0) != 0) {
    fprintf(stderr, "%s\n", file.error);
    return 1;
  }
  const steelyard_shm_channel states = steelyard_shm_states(file.map, &file.layout);
  const steelyard_shm_channel actions = steelyard_shm_actions(file.map, &file.layout);
  uint64_t* state = (uint64_t*)malloc(states.words * sizeof *state);
  uint64_t status = STEELYARD_SHM_NONE;
  if (state == NULL || steelyard_shm_read(&states, state, states.words, STEELYARD_SHM_TRIES, &status) == 0) {
    fprintf(stderr, "%s\n", steelyard_shm_status_text(status));
    return 1;
  }
  const steelyard_shm_state* head = (const steelyard_shm_state*)state;
  printf("publication %" PRIu64 " active %" PRIu64 "\n", head->publication, head->num_active);
  for (uint64_t j = 0; j < file.layout.num_servers; ++j) {
    if (!steelyard_shm_is_active(&file.layout, state, j)) continue;
    const steelyard_shm_server* server = steelyard_shm_server_of(&file.layout, state, j);
    uint64_t count;
    const steelyard_shm_sample* samples =
        steelyard_shm_samples(&file.layout, state, steelyard_shm_fct(j), &count);
    double sum = 0;
    for (uint64_t i = 0; i < count; ++i) sum += steelyard_shm_double(samples[i].value);
    printf("server %" PRIu64 " on %" PRIu64 " packets %" PRIu64 " fct %.17g of %" PRIu64 "\n", j,
           server->n_flow_on, server->packets, count > 0 ? sum / (double)count : 0.0, count);
  }
  const uint64_t generation = steelyard_shm_latest(&actions) + 1;
  uint64_t* frame = steelyard_shm_begin(&actions, generation);
  steelyard_shm_action* action = (steelyard_shm_action*)frame;
  steelyard_shm_store(&action->generation, generation);
  steelyard_shm_store(&action->t_ns, head->t_ns);
  steelyard_shm_store(&action->kind, STEELYARD_SHM_KIND_WEIGHT);
  steelyard_shm_store(&action->num_servers, file.layout.num_servers);
  steelyard_shm_store(&action->schema_hash, steelyard_shm_header_of(&file)->schema_hash);
  steelyard_shm_store(&action->pool_id, head->pool_id);
  steelyard_shm_store(&action->publication, head->publication);
  steelyard_shm_store(&action->agent_pid, (uint64_t)getpid());
  for (uint64_t j = 0; j < file.layout.num_servers; ++j)
    steelyard_shm_store(frame + file.layout.values_at + j, steelyard_shm_bits(1.0 + (double)j));
  steelyard_shm_commit(&actions, generation);
  free(state);
  steelyard_shm_close(&file);
  return 0;
}

static void publish(const steelyard_shm_file* file, uint64_t number) {
  const steelyard_shm_channel states = steelyard_shm_states(file->map, &file->layout);
  uint64_t* frame = steelyard_shm_begin(&states, number);
  steelyard_shm_state* head = (steelyard_shm_state*)frame;
  steelyard_shm_store(&head->publication, number);
  steelyard_shm_store(&head->t_ns, 5000);
  steelyard_shm_store(&head->pool_id, 42);
  steelyard_shm_store(&head->num_active, 1);
  steelyard_shm_store(frame + file->layout.bitmap_at + 1, 1); /* server 64 */
  steelyard_shm_server* server = (steelyard_shm_server*)(frame + file->layout.servers_at) + 64;
  steelyard_shm_store(&server->n_flow_on, 3);
  steelyard_shm_store(&server->packets, 77);
  steelyard_shm_commit(&states, number);
}

static int self(void) {
  char path[64];
  snprintf(path, sizeof path, "/dev/shm/steelyard-test-c-%d", (int)getpid());
  const steelyard_shm_spec spec = {65, 16, 0x1234, CLOCK_MONOTONIC};
  steelyard_shm_file file, other;
  expect(steelyard_shm_create(&file, path, &spec) == 0, file.error);
  expect(steelyard_shm_create(&other, path, &spec) != 0, "a second dataplane is refused");
  expect(strstr(other.error, "has a dataplane already") != NULL, other.error);
  expect(steelyard_shm_open(&other, path, STEELYARD_SHM_READ, 0x999) != 0, "another schema is refused");
  publish(&file, 1);
  expect(answer(path) == 0, "the agent reads and answers");
  const steelyard_shm_channel actions = steelyard_shm_actions(file.map, &file.layout);
  uint64_t action[256], status, active[8] = {0, 1};
  expect(file.layout.action_words <= 256, "room for an action");
  expect(steelyard_shm_read(&actions, action, actions.words, 1, &status) == 1,
         "the first action is number 1");
  steelyard_shm_expected expected = {0x1234, 42, 5000, 1000, active};
  expect(steelyard_shm_check_action(&file.layout, action, &expected) == STEELYARD_SHM_USABLE, "it is usable");
  expected.now_ns = 6001;
  expect(steelyard_shm_check_action(&file.layout, action, &expected) == STEELYARD_SHM_STALE, "for a while");
  expect(steelyard_shm_double(action[file.layout.values_at + 64]) == 65.0, "it says what was written");
  steelyard_shm_close(&file);
  unlink(path);
  return fails != 0;
}

int main(int argc, char** argv) { return argc > 1 ? answer(argv[1]) : self(); }
