/* The C face between VPP and the balancer: plain C, no header of VPP, no header of C++.
 *
 * What is whose. VPP does links, routes, threads, buffers and the clock. The balancer (native/core,
 * native/dataplane) parses, finds the VIP and the connection, chooses, rewrites, hosts the policy, shares
 * memory and writes tapes. Behind this face stands one Forwarder per thread of VPP, called on the bytes of
 * its buffers, so that a packet has the same fate here as in steelyard-lb; the pool that a policy or an agent
 * sees is merged of what the threads measured. Threads share nothing on the path of a packet.
 *
 * Who may call: functions marked [control] only while no other thread is inside (VPP: on the main thread,
 * workers at the barrier); [main] on the main thread; [thread] on the thread that is named. Nothing here
 * throws. */
#ifndef STEELYARD_VPP_H
#define STEELYARD_VPP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STEELYARD_VPP_BURST 64      /* packets of one call */
#define STEELYARD_VPP_HEADROOM 64   /* bytes that may be written before a packet's data */
#define STEELYARD_VPP_LINK_BYTES 14 /* before the IP header; the last two are its Ethernet type */

struct steelyard_vpp;

/* A packet: `data` points STEELYARD_VPP_LINK_BYTES before its IP header, `size` counts from there. */
struct steelyard_vpp_packet {
  uint8_t* data;
  uint32_t size;
  uint32_t headroom;
};

/* What becomes of a packet; from STEELYARD_VPP_DROP on it is dropped, and the word says why. */
enum { STEELYARD_VPP_FORWARD = 0, STEELYARD_VPP_REPLY = 1, STEELYARD_VPP_PASS = 2, STEELYARD_VPP_DROP = 3 };
uint32_t steelyard_vpp_verdicts(void);                    /* how many there are */
const char* steelyard_vpp_verdict_text(uint32_t verdict); /* "forward", ...; of static life */

struct steelyard_vpp_address {
  uint8_t bytes[16]; /* IPv4: the first four */
  uint8_t is_v6;
};

enum { STEELYARD_VPP_GRE = 0, STEELYARD_VPP_L3_DSR = 1, STEELYARD_VPP_NAT = 2 };

/* A VIP as the binary API gives it; 0 and "" stand for the default of docs/vpp.md. */
struct steelyard_vpp_vip {
  const char* name;
  struct steelyard_vpp_address address;
  uint16_t port, target_port;
  uint8_t protocol; /* 6 or 17 */
  uint8_t forwarding;
  uint8_t dscp;
  const char *rule, *policy_file, *shared_memory;
  double interval_s, max_age_s;
  uint32_t connections;
};

struct steelyard_vpp_server {
  const char* vip;
  struct steelyard_vpp_address address;
  double weight; /* 0: 1 */
  uint8_t drain;
};

/* `threads` that may carry packets, of which `workers` share the load (at least 1). NULL without memory. */
struct steelyard_vpp* steelyard_vpp_new(uint32_t threads, uint32_t workers);
void steelyard_vpp_free(struct steelyard_vpp* self); /* [control] */

/* [thread] Decides about up to STEELYARD_VPP_BURST packets and rewrites them. IPv4 headers have passed VPP's
 * own checks (ip4-input). now_ns: CLOCK_MONOTONIC. */
void steelyard_vpp_process(struct steelyard_vpp* self, uint32_t thread, struct steelyard_vpp_packet* packets,
                           uint32_t count, int64_t now_ns, uint8_t* verdicts);
/* [thread] Every 10 ms or so: timeouts; what the pool asks of the thread. */
void steelyard_vpp_tick_thread(struct steelyard_vpp* self, uint32_t thread, int64_t now_ns);
/* [main] Every 10 ms or so: policies decide, memory is shared. */
void steelyard_vpp_tick(struct steelyard_vpp* self, int64_t now_ns);

/* The rest returns 0, or -1 with one line in `answer` that says what is wrong; nothing is changed then. */

/* [control] One line as after `steelyard` on VPP's command line (docs/vpp.md); its answer may be empty. */
int steelyard_vpp_command(struct steelyard_vpp* self, const char* line, int64_t now_ns, char* answer,
                          size_t size);
/* [control] */
int steelyard_vpp_vip_add(struct steelyard_vpp* self, const struct steelyard_vpp_vip* vip, int64_t now_ns,
                          char* answer, size_t size);
/* [control] Adds a server, or changes one. */
int steelyard_vpp_server_set(struct steelyard_vpp* self, const struct steelyard_vpp_server* server,
                             int64_t now_ns, char* answer, size_t size);
/* [control] */
int steelyard_vpp_server_del(struct steelyard_vpp* self, const struct steelyard_vpp_server* server,
                             int64_t now_ns, char* answer, size_t size);

/* Sums over the threads, as of the last time that the pool asked them. */
struct steelyard_vpp_vip_state {
  const char *name, *rule, *why; /* why: the policy is not followed; empty: all is well */
  struct steelyard_vpp_address address;
  uint16_t port, target_port;
  uint8_t protocol, forwarding, healthy;
  uint32_t servers, connections;
  uint64_t decisions, fallbacks;
};
struct steelyard_vpp_server_state {
  const char* vip;
  struct steelyard_vpp_address address;
  uint8_t drain;
  uint32_t flows_on;
  double weight; /* that acts: of the policy, or configured */
  uint64_t opened, completed, reset, packets, bytes;
};
/* [main] What is pointed to lives until the call returns. */
void steelyard_vpp_each_vip(const struct steelyard_vpp* self,
                            void (*tell)(void* context, const struct steelyard_vpp_vip_state*),
                            void* context);
void steelyard_vpp_each_server(const struct steelyard_vpp* self,
                               void (*tell)(void* context, const struct steelyard_vpp_server_state*),
                               void* context);
/* [main] Everything that is counted, by name: "web/10.0.0.11/packets". */
void steelyard_vpp_each_metric(const struct steelyard_vpp* self,
                               void (*tell)(void* context, const char* name, uint64_t value), void* context);
/* [main] Changes of health since the last call, one line each. */
void steelyard_vpp_each_event(struct steelyard_vpp* self, void (*tell)(void* context, const char* line),
                              void* context);
/* [main] What `show steelyard` prints, line by line. */
void steelyard_vpp_show(const struct steelyard_vpp* self, void (*tell)(void* context, const char* line),
                        void* context);

#ifdef __cplusplus
}
#endif
#endif
