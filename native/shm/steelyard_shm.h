/* What a dataplane tells an agent of one pool, and what the agent tells it back, in one shared file: layout
 * and protocol, for C11 and C++20 (docs/shared-memory.md; steelyard_shm_file.h opens such files).
 *
 * Everything is a 64-bit word, aligned to 64 bits. Times are nanoseconds on the clock that the header names.
 * Values that are not whole numbers are IEEE doubles, held as their bits.
 *
 *   header                     256 bytes
 *   3 state frames             written by the dataplane: counters, bitmap of active servers, reservoirs
 *   3 action frames            written by the agent: one value per server
 *
 * A frame is guarded by its first word. Message n (from 1 on) of a direction goes to frame n mod 3: the guard
 * becomes 2n - 1, then the words are stored, then the guard becomes 2n, then the header's `latest` becomes n.
 * A reader takes n from `latest`, finds the guard at 2n, copies, and looks at the guard again: unchanged
 * means that the copy is whole, anything else means to start again. Nobody waits for anybody. Who dies while
 * writing leaves an odd guard in a frame that `latest` does not name, and its successor goes on from
 * `latest`.
 */
#ifndef STEELYARD_SHM_H
#define STEELYARD_SHM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STEELYARD_SHM_MAGIC UINT64_C(0x4d48535f4c455453) /* "STEL_SHM" */
#define STEELYARD_SHM_ABI UINT64_C(1)
#define STEELYARD_SHM_FRAMES 3u
#define STEELYARD_SHM_MAX_SERVERS 4096u
#define STEELYARD_SHM_MAX_RESERVOIR 128u
#define STEELYARD_SHM_VIRTUAL_CLOCK UINT64_MAX /* clock_id of a host whose time is simulated */
#define STEELYARD_SHM_TRIES 1000               /* enough unless the writer writes without pause */

/* Words of a cache line have one writer. */
typedef struct {
  uint64_t magic;
  uint64_t abi;
  uint64_t schema_hash; /* of the observation that the state's reservoirs reduce to */
  uint64_t file_size;   /* bytes */
  uint64_t num_servers;
  uint64_t reservoir_size; /* samples that a reservoir holds at most */
  uint64_t clock_id;       /* of clock_gettime */
  uint64_t frames;

  uint64_t state_offset; /* bytes from the start of the file */
  uint64_t state_stride; /* bytes of a frame */
  uint64_t action_offset;
  uint64_t action_stride;
  uint64_t reserved1[4];

  uint64_t writer_pid;        /* the dataplane's */
  uint64_t writer_start_ns;   /* its start after boot */
  uint64_t writer_generation; /* dataplanes that have published here so far */
  uint64_t state_latest;
  uint64_t retired; /* 1: the dataplane has made another file under this name */
  uint64_t reserved2[3];

  uint64_t agent_pid;
  uint64_t agent_start_ns;
  uint64_t agent_generation; /* agents that have written here so far */
  uint64_t action_latest;
  uint64_t reserved3[4];
} steelyard_shm_header;

/* The head of a state frame. The bitmap of active servers follows (server j: bit j % 64 of word j / 64, whole
 * lines of 8 words), then a steelyard_shm_server for each server, then the reservoirs: inter-arrival time,
 * then of each server flow duration and flow completion time. */
typedef struct {
  uint64_t guard;
  uint64_t publication;
  uint64_t t_ns; /* when the state was this */
  uint64_t writer_generation;
  uint64_t pool_id;           /* identity of the servers in their order; actions must repeat it */
  uint64_t num_active;        /* bits in the bitmap */
  uint64_t untracked;         /* flows that found no room in the flow table */
  uint64_t action_generation; /* of the last action taken over; 0: none so far */
  uint64_t action_status;     /* STEELYARD_SHM_USABLE while the agent's weights are in force, else why not */
  uint64_t features;          /* 1 if samples are kept */
  uint64_t reserved[6];
} steelyard_shm_state;

typedef struct {
  uint64_t n_flow_on;
  uint64_t flows_opened;
  uint64_t flows_completed; /* ended by FIN */
  uint64_t packets;
  uint64_t bytes;
  uint64_t resets;     /* flows ended by RST */
  uint64_t collisions; /* flows that found no room in the flow table and went here */
  uint64_t weight_q16; /* in force, times 65536 */
  uint64_t action;     /* double; the previous action, as the observation has it */
  uint64_t reserved[7];
} steelyard_shm_server;

typedef struct {
  uint64_t t_ns;
  uint64_t value; /* double, seconds */
} steelyard_shm_sample;

/* The head of a reservoir; samples [0, count) follow, the rest is not there. */
typedef struct {
  uint64_t count;
  uint64_t added; /* samples ever */
  uint64_t reserved[2];
} steelyard_shm_reservoir;

/* The head of an action frame; a double per server follows. */
typedef struct {
  uint64_t guard;
  uint64_t generation;
  uint64_t t_ns; /* when it was written */
  uint64_t kind; /* STEELYARD_SHM_KIND_* */
  uint64_t num_servers;
  uint64_t schema_hash;
  uint64_t pool_id;     /* of the state that it answers */
  uint64_t publication; /* of the state that it answers */
  uint64_t agent_pid;
  uint64_t agent_generation;
  uint64_t reserved[6];
} steelyard_shm_action;

enum {
  STEELYARD_SHM_KIND_WITHDRAWN = 0, /* the agent has left in order */
  STEELYARD_SHM_KIND_ACTION = 1,    /* values in [-1, 1]; the weight is 2^(2 value) */
  STEELYARD_SHM_KIND_WEIGHT = 2     /* values >= 0, not all 0 */
};

/* Whether an action can be used, and if not, why. */
enum {
  STEELYARD_SHM_USABLE = 0,
  STEELYARD_SHM_NONE = 1,         /* no agent has written yet */
  STEELYARD_SHM_WITHDRAWN = 2,    /* the agent has left */
  STEELYARD_SHM_TORN = 3,         /* no whole copy in so many tries */
  STEELYARD_SHM_STALE = 4,        /* older than the limit */
  STEELYARD_SHM_FUTURE = 5,       /* its time has not come: another clock */
  STEELYARD_SHM_OTHER_SCHEMA = 6, /* for another observation */
  STEELYARD_SHM_OTHER_POOL = 7,   /* for other servers */
  STEELYARD_SHM_NOT_FINITE = 8,
  STEELYARD_SHM_OUT_OF_RANGE = 9, /* unknown kind, action beyond [-1, 1] or weight below 0 */
  STEELYARD_SHM_ZERO_SUM = 10,    /* no active server has a weight above 0 */
  STEELYARD_SHM_NUM_STATUS = 11
};

static inline const char* steelyard_shm_status_text(uint64_t status) {
  static const char* const text[STEELYARD_SHM_NUM_STATUS] = {"usable",
                                                             "no agent has written yet",
                                                             "the agent has withdrawn",
                                                             "torn: the agent wrote over it again and again",
                                                             "stale: older than the limit",
                                                             "from the future: the agent has another clock",
                                                             "made for another observation schema",
                                                             "made for other servers",
                                                             "not finite",
                                                             "out of range",
                                                             "no active server has a weight above 0"};
  return status < STEELYARD_SHM_NUM_STATUS ? text[status] : "unknown status";
}

/* Where things are, in words within a frame and in bytes within the file. */
typedef struct {
  uint64_t num_servers, reservoir_size;
  uint64_t bitmap_at, servers_at, inter_arrival_at, reservoirs_at, reservoir_words, state_words;
  uint64_t values_at, action_words;
  uint64_t state_offset, action_offset, file_size;
} steelyard_shm_layout;

#define STEELYARD_SHM_WORDS(type) (sizeof(type) / sizeof(uint64_t))

static inline uint64_t steelyard_shm_lines(uint64_t words) { return (words + 7) / 8 * 8; }

/* 0, or -1 when a number is out of range. */
static inline int steelyard_shm_lay_out(uint64_t num_servers, uint64_t reservoir_size,
                                        steelyard_shm_layout* layout) {
  if (num_servers < 1 || num_servers > STEELYARD_SHM_MAX_SERVERS) return -1;
  if (reservoir_size < 1 || reservoir_size > STEELYARD_SHM_MAX_RESERVOIR) return -1;
  layout->num_servers = num_servers;
  layout->reservoir_size = reservoir_size;
  layout->bitmap_at = STEELYARD_SHM_WORDS(steelyard_shm_state);
  layout->servers_at = layout->bitmap_at + steelyard_shm_lines((num_servers + 63) / 64);
  layout->inter_arrival_at = layout->servers_at + num_servers * STEELYARD_SHM_WORDS(steelyard_shm_server);
  layout->reservoir_words = STEELYARD_SHM_WORDS(steelyard_shm_reservoir) +
                            reservoir_size * STEELYARD_SHM_WORDS(steelyard_shm_sample);
  layout->reservoirs_at = layout->inter_arrival_at + layout->reservoir_words;
  layout->state_words =
      steelyard_shm_lines(layout->reservoirs_at + 2 * num_servers * layout->reservoir_words);
  layout->values_at = STEELYARD_SHM_WORDS(steelyard_shm_action);
  layout->action_words = steelyard_shm_lines(layout->values_at + num_servers);
  layout->state_offset = sizeof(steelyard_shm_header);
  layout->action_offset = layout->state_offset + 8 * STEELYARD_SHM_FRAMES * layout->state_words;
  layout->file_size = layout->action_offset + 8 * STEELYARD_SHM_FRAMES * layout->action_words;
  return 0;
}

/* ---- words ---- */
static inline uint64_t steelyard_shm_load(const uint64_t* word) {
  return __atomic_load_n(word, __ATOMIC_RELAXED);
}
static inline void steelyard_shm_store(uint64_t* word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
}
static inline double steelyard_shm_double(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
static inline uint64_t steelyard_shm_bits(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
static inline int steelyard_shm_is_finite(uint64_t bits) { return (bits >> 52 & 0x7ff) != 0x7ff; }

/* ---- messages ---- */
/* One direction of a mapped file. */
typedef struct {
  uint64_t* latest; /* in the header */
  uint64_t* frames;
  uint64_t words; /* of a frame */
} steelyard_shm_channel;

static inline steelyard_shm_channel steelyard_shm_states(void* map, const steelyard_shm_layout* layout) {
  steelyard_shm_channel channel;
  channel.latest = &((steelyard_shm_header*)map)->state_latest;
  channel.frames = (uint64_t*)map + layout->state_offset / 8;
  channel.words = layout->state_words;
  return channel;
}
static inline steelyard_shm_channel steelyard_shm_actions(void* map, const steelyard_shm_layout* layout) {
  steelyard_shm_channel channel;
  channel.latest = &((steelyard_shm_header*)map)->action_latest;
  channel.frames = (uint64_t*)map + layout->action_offset / 8;
  channel.words = layout->action_words;
  return channel;
}
static inline uint64_t* steelyard_shm_frame(const steelyard_shm_channel* channel, uint64_t number) {
  return channel->frames + number % STEELYARD_SHM_FRAMES * channel->words;
}

/* Opens the frame of message `number`, which must be 1 + the last; store its words, then commit. */
static inline uint64_t* steelyard_shm_begin(const steelyard_shm_channel* channel, uint64_t number) {
  uint64_t* frame = steelyard_shm_frame(channel, number);
  steelyard_shm_store(frame, 2 * number - 1);
  __atomic_thread_fence(__ATOMIC_RELEASE); /* no word of the message is seen before the odd guard */
  return frame;
}
static inline void steelyard_shm_commit(const steelyard_shm_channel* channel, uint64_t number) {
  __atomic_store_n(steelyard_shm_frame(channel, number), 2 * number, __ATOMIC_RELEASE);
  __atomic_store_n(channel->latest, number, __ATOMIC_RELEASE);
}

/* The number of the last message; 0: none yet. */
static inline uint64_t steelyard_shm_latest(const steelyard_shm_channel* channel) {
  return __atomic_load_n(channel->latest, __ATOMIC_ACQUIRE);
}
/* Whether the frame of message `number` is whole, before reading it in place... */
static inline int steelyard_shm_is_whole(const steelyard_shm_channel* channel, uint64_t number) {
  return number != 0 && __atomic_load_n(steelyard_shm_frame(channel, number), __ATOMIC_ACQUIRE) == 2 * number;
}
/* ...and still was when the last word of it had been read. */
static inline int steelyard_shm_was_whole(const steelyard_shm_channel* channel, uint64_t number) {
  __atomic_thread_fence(__ATOMIC_ACQUIRE); /* the guard is not seen earlier than the words */
  return steelyard_shm_load(steelyard_shm_frame(channel, number)) == 2 * number;
}

/* Copies the first `words` words of the last message. Its number; 0 with *status STEELYARD_SHM_NONE or
 * STEELYARD_SHM_TORN when there is none to be had; the copy is then of no use. */
static inline uint64_t steelyard_shm_read(const steelyard_shm_channel* channel, uint64_t* copy,
                                          uint64_t words, int tries, uint64_t* status) {
  *status = STEELYARD_SHM_NONE;
  for (; tries > 0; --tries) {
    const uint64_t number = steelyard_shm_latest(channel);
    if (number == 0) return 0;
    *status = STEELYARD_SHM_TORN;
    if (!steelyard_shm_is_whole(channel, number)) continue;
    const uint64_t* frame = steelyard_shm_frame(channel, number);
    for (uint64_t i = 0; i < words; ++i) copy[i] = steelyard_shm_load(frame + i);
    if (!steelyard_shm_was_whole(channel, number)) continue;
    *status = STEELYARD_SHM_USABLE;
    return number;
  }
  return 0;
}

/* ---- within a copy of a state frame ---- */
static inline int steelyard_shm_is_active(const steelyard_shm_layout* layout, const uint64_t* state,
                                          uint64_t server) {
  return server < layout->num_servers && (state[layout->bitmap_at + server / 64] >> server % 64 & 1) != 0;
}
static inline const steelyard_shm_server* steelyard_shm_server_of(const steelyard_shm_layout* layout,
                                                                  const uint64_t* state, uint64_t server) {
  return (const steelyard_shm_server*)(state + layout->servers_at) + server;
}
/* Reservoirs by number. */
#define STEELYARD_SHM_INTER_ARRIVAL UINT64_C(0)
static inline uint64_t steelyard_shm_flow_duration(uint64_t server) { return 1 + 2 * server; }
static inline uint64_t steelyard_shm_fct(uint64_t server) { return 2 + 2 * server; }
static inline uint64_t steelyard_shm_reservoir_at(const steelyard_shm_layout* layout, uint64_t reservoir) {
  return layout->inter_arrival_at + reservoir * layout->reservoir_words;
}
/* The samples of a reservoir; *count of them. */
static inline const steelyard_shm_sample* steelyard_shm_samples(const steelyard_shm_layout* layout,
                                                                const uint64_t* state, uint64_t reservoir,
                                                                uint64_t* count) {
  const uint64_t* at = state + steelyard_shm_reservoir_at(layout, reservoir);
  *count = *at < layout->reservoir_size ? *at : layout->reservoir_size;
  return (const steelyard_shm_sample*)(at + STEELYARD_SHM_WORDS(steelyard_shm_reservoir));
}

/* ---- what the dataplane checks of a copy of an action frame ---- */
typedef struct {
  uint64_t schema_hash, pool_id;
  uint64_t now_ns, max_age_ns;
  const uint64_t* active; /* bitmap; weights of other servers do not count */
} steelyard_shm_expected;

#define STEELYARD_SHM_CLOCK_SLACK_NS \
  UINT64_C(1000000000) /* `now` may have been read before the action came */

static inline uint64_t steelyard_shm_check_values(const steelyard_shm_layout* layout, const uint64_t* action,
                                                  const uint64_t* active) {
  const int weights = ((const steelyard_shm_action*)action)->kind == STEELYARD_SHM_KIND_WEIGHT;
  int some = 0;
  for (uint64_t j = 0; j < layout->num_servers; ++j) {
    const uint64_t bits = action[layout->values_at + j];
    const double value = steelyard_shm_double(bits);
    if (!steelyard_shm_is_finite(bits)) return STEELYARD_SHM_NOT_FINITE;
    if (weights ? value < 0 : (value < -1 || value > 1)) return STEELYARD_SHM_OUT_OF_RANGE;
    some |= (active[j / 64] >> j % 64 & 1) != 0 && (!weights || value > 0);
  }
  return some ? STEELYARD_SHM_USABLE : STEELYARD_SHM_ZERO_SUM;
}

static inline uint64_t steelyard_shm_check_action(const steelyard_shm_layout* layout, const uint64_t* action,
                                                  const steelyard_shm_expected* expected) {
  const steelyard_shm_action* head = (const steelyard_shm_action*)action;
  if (head->kind == STEELYARD_SHM_KIND_WITHDRAWN) return STEELYARD_SHM_WITHDRAWN;
  if (head->kind > STEELYARD_SHM_KIND_WEIGHT) return STEELYARD_SHM_OUT_OF_RANGE;
  if (head->schema_hash != expected->schema_hash) return STEELYARD_SHM_OTHER_SCHEMA;
  if (head->num_servers != layout->num_servers || head->pool_id != expected->pool_id)
    return STEELYARD_SHM_OTHER_POOL;
  if (head->t_ns > expected->now_ns && head->t_ns - expected->now_ns > STEELYARD_SHM_CLOCK_SLACK_NS)
    return STEELYARD_SHM_FUTURE;
  if (head->t_ns < expected->now_ns && expected->now_ns - head->t_ns > expected->max_age_ns)
    return STEELYARD_SHM_STALE;
  return steelyard_shm_check_values(layout, action, expected->active);
}

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
