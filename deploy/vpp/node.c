/* The nodes on the unicast arcs: buffers to packets, verdicts to next nodes; nothing is decided here. */
#include <vnet/feature/feature.h>
#include <vnet/ip/ip.h>
#include <vnet/udp/udp_packet.h>

/* It needs what stands before it. */
#include <vnet/interface_output.h>

#include "deploy/vpp/plugin.h"

#define STEELYARD_AHEAD 8 /* packets whose bytes are on their way while one is read */

enum { STEELYARD_NEXT_DROP, STEELYARD_NEXT_IP4, STEELYARD_NEXT_IP6, STEELYARD_NEXTS };

#define STEELYARD_VERDICTS 12

#ifndef CLIB_MARCH_VARIANT
/* The words of the verdicts, which counters need before the balancer is there; checked against it at start.
 */
static char* steelyard_verdict_texts[] = {
    "forward",  "reply",     "pass",       "truncated", "bad_header",   "bad_checksum",
    "fragment", "bad_flags", "no_service", "no_server", "no_neighbour", "too_big",
};
STATIC_ASSERT(ARRAY_LEN(steelyard_verdict_texts) == STEELYARD_VERDICTS, "each verdict has its words");
#endif

typedef struct {
  u32 verdict;
  u32 next;
} steelyard_trace_t;

#ifndef CLIB_MARCH_VARIANT
static u8* format_steelyard_trace(u8* s, va_list* args) {
  CLIB_UNUSED(vlib_main_t * vm) = va_arg(*args, vlib_main_t*);
  CLIB_UNUSED(vlib_node_t * node) = va_arg(*args, vlib_node_t*);
  steelyard_trace_t* t = va_arg(*args, steelyard_trace_t*);
  return format(s, "steelyard: %s, next %u", steelyard_vpp_verdict_text(t->verdict), t->next);
}

#endif

/* What a parser of bytes cannot see: checksums left to a device, and packets in several buffers, of which the
 * first must hold all that is read or rewritten. */
static __clib_noinline void steelyard_straighten(vlib_main_t* vm, vlib_buffer_t* b, int is_ip4) {
  if (b->flags & VNET_BUFFER_F_OFFLOAD) vnet_calc_checksums_inline(vm, b, is_ip4, !is_ip4);
  if (b->flags & VLIB_BUFFER_NEXT_PRESENT) vlib_buffer_chain_linearize(vm, b);
}

static_always_inline void steelyard_packet(vlib_main_t* vm, vlib_buffer_t* b, int is_ip4,
                                           struct steelyard_vpp_packet* packet) {
  if (PREDICT_FALSE(b->flags & (VNET_BUFFER_F_OFFLOAD | VLIB_BUFFER_NEXT_PRESENT)))
    steelyard_straighten(vm, b, is_ip4);
  u8* data = (u8*)vlib_buffer_get_current(b) - STEELYARD_VPP_LINK_BYTES;
  const i32 headroom = (i32)b->current_data + VLIB_BUFFER_PRE_DATA_SIZE - STEELYARD_VPP_LINK_BYTES;
  u32 size = STEELYARD_VPP_LINK_BYTES + vlib_buffer_length_in_chain(vm, b);
  /* Of a frame shorter than its link header VPP keeps a negative length. */
  if (PREDICT_FALSE(headroom < STEELYARD_VPP_HEADROOM || (i16)b->current_length < 0)) size = 0;
  /* On Ethernet it stands there already; elsewhere the bytes before a packet are nobody's. */
  *(u16*)(data + 12) = clib_host_to_net_u16(is_ip4 ? 0x0800 : 0x86dd);
  *packet = (struct steelyard_vpp_packet){data, size, headroom};
}

/* The buffer becomes the packet that was made of it. */
static_always_inline void steelyard_take(vlib_buffer_t* b, const struct steelyard_vpp_packet* packet) {
  const i16 before = b->current_data, after = (i16)(packet->data + STEELYARD_VPP_LINK_BYTES - b->data);
  const u32 flags = b->flags;
  /* Of a packet in several buffers only the first has changed. */
  const u16 length = PREDICT_TRUE(!(flags & VLIB_BUFFER_NEXT_PRESENT))
                         ? packet->size - STEELYARD_VPP_LINK_BYTES
                         : b->current_length + before - after;
  b->current_data = after;
  b->current_length = length;
  /* What begins here has its own TTL, which ip4-rewrite is not to lower. */
  const u32 began = before != after ? VNET_BUFFER_F_LOCALLY_ORIGINATED : 0;
  b->flags = (flags | began) & ~(VNET_BUFFER_F_L2_HDR_OFFSET_VALID | VNET_BUFFER_F_L3_HDR_OFFSET_VALID |
                                 VNET_BUFFER_F_L4_HDR_OFFSET_VALID);
  vnet_buffer(b)->sw_if_index[VLIB_TX] = ~0;
}

/* An answer of the balancer's own; one that quotes the first bytes of a long packet leaves the rest. */
static_always_inline void steelyard_take_reply(vlib_main_t* vm, vlib_buffer_t* b,
                                               const struct steelyard_vpp_packet* packet) {
  const u8* at = packet->data + STEELYARD_VPP_LINK_BYTES;
  if ((b->flags & VLIB_BUFFER_NEXT_PRESENT) && packet->headroom != 0 && at != b->data + b->current_data) {
    vlib_buffer_free_one(vm, b->next_buffer);
    b->flags &= ~(VLIB_BUFFER_NEXT_PRESENT | VLIB_BUFFER_TOTAL_LENGTH_VALID);
  }
  steelyard_take(b, packet);
  b->flags |= VNET_BUFFER_F_LOCALLY_ORIGINATED;
}

/* What the packet after some others will need: its header, its first bytes, and those that a tunnel writes.
 */
static_always_inline void steelyard_prefetch(vlib_buffer_t* b) {
  vlib_prefetch_buffer_header(b, LOAD);
  clib_prefetch_store(b->data);
  clib_prefetch_store(b->data - CLIB_CACHE_LINE_BYTES);
}

static_always_inline u16 steelyard_next(const struct steelyard_vpp_packet* packet) {
  return packet->data[12] == 0x08 ? STEELYARD_NEXT_IP4 : STEELYARD_NEXT_IP6;
}

/* What follows from any verdict: the next node. */
static __clib_noinline u16 steelyard_obey(vlib_main_t* vm, vlib_node_runtime_t* node, vlib_buffer_t* b,
                                          const struct steelyard_vpp_packet* packet, u8 verdict) {
  u16 next = STEELYARD_NEXT_DROP;
  if (verdict == STEELYARD_VPP_PASS) {
    vnet_feature_next_u16(&next, b);
  } else if (verdict >= STEELYARD_VPP_DROP) {
    b->error = node->errors[verdict];
  } else {
    verdict == STEELYARD_VPP_REPLY ? steelyard_take_reply(vm, b, packet) : steelyard_take(b, packet);
    next = steelyard_next(packet);
  }
  if (PREDICT_FALSE(b->flags & VLIB_BUFFER_IS_TRACED)) {
    steelyard_trace_t* t = vlib_add_trace(vm, node, b, sizeof(*t));
    t->verdict = verdict;
    t->next = next;
  }
  return next;
}

/* `left`: packets of the frame from the first of these on. */
static_always_inline void steelyard_burst(vlib_main_t* vm, vlib_node_runtime_t* node, vlib_buffer_t** b,
                                          u16* next, u32 count, u32 left, i64 now, u32* counts, int is_ip4) {
  struct steelyard_vpp_packet packets[STEELYARD_VPP_BURST];
  u8 verdicts[STEELYARD_VPP_BURST];
  const u32 ahead = left > STEELYARD_AHEAD ? clib_min(count, left - STEELYARD_AHEAD) : 0;

  for (u32 i = 0; i < ahead; i++) {
    steelyard_prefetch(b[i + STEELYARD_AHEAD]);
    steelyard_packet(vm, b[i], is_ip4, &packets[i]);
  }
  for (u32 i = ahead; i < count; i++) steelyard_packet(vm, b[i], is_ip4, &packets[i]);
  steelyard_vpp_process(steelyard_main.host, vm->thread_index, packets, count, now, verdicts);
  u32 forwarded = 0;
  for (u32 i = 0; i < count; i++) {
    if (PREDICT_TRUE(verdicts[i] == STEELYARD_VPP_FORWARD && !(b[i]->flags & VLIB_BUFFER_IS_TRACED))) {
      steelyard_take(b[i], &packets[i]);
      next[i] = steelyard_next(&packets[i]);
      forwarded++;
    } else {
      counts[verdicts[i]]++;
      next[i] = steelyard_obey(vm, node, b[i], &packets[i], verdicts[i]);
    }
  }
  counts[STEELYARD_VPP_FORWARD] += forwarded;
}

static_always_inline uword steelyard_inline(vlib_main_t* vm, vlib_node_runtime_t* node, vlib_frame_t* frame,
                                            int is_ip4) {
  vlib_buffer_t* bufs[VLIB_FRAME_SIZE];
  u16 nexts[VLIB_FRAME_SIZE];
  u32 counts[STEELYARD_VERDICTS] = {};
  u32* from = vlib_frame_vector_args(frame);
  const u32 count = frame->n_vectors;
  const i64 now = steelyard_now();

  vlib_get_buffers(vm, from, bufs, count);
  for (u32 at = 0; at < count; at += STEELYARD_VPP_BURST) {
    steelyard_burst(vm, node, bufs + at, nexts + at, clib_min(count - at, STEELYARD_VPP_BURST), count - at,
                    now, counts, is_ip4);
  }
  vlib_buffer_enqueue_to_next(vm, node, from, nexts, count);
  for (u32 i = 0; i < STEELYARD_VERDICTS; i++) {
    /* Drops are counted where they happen. */
    if (counts[i] != 0 && i < STEELYARD_VPP_DROP)
      vlib_node_increment_counter(vm, node->node_index, i, counts[i]);
  }
  return count;
}

VLIB_NODE_FN(steelyard4_node)(vlib_main_t* vm, vlib_node_runtime_t* node, vlib_frame_t* frame) {
  return steelyard_inline(vm, node, frame, 1);
}

VLIB_NODE_FN(steelyard6_node)(vlib_main_t* vm, vlib_node_runtime_t* node, vlib_frame_t* frame) {
  return steelyard_inline(vm, node, frame, 0);
}

#ifndef CLIB_MARCH_VARIANT
#define STEELYARD_NODE(number)                              \
  VLIB_REGISTER_NODE(steelyard##number##_node) = {          \
      .name = "steelyard" #number,                          \
      .vector_size = sizeof(u32),                           \
      .format_trace = format_steelyard_trace,               \
      .n_errors = STEELYARD_VERDICTS,                       \
      .error_strings = steelyard_verdict_texts,             \
      .n_next_nodes = STEELYARD_NEXTS,                      \
      .next_nodes = {[STEELYARD_NEXT_DROP] = "error-drop",  \
                     [STEELYARD_NEXT_IP4] = "ip4-lookup",   \
                     [STEELYARD_NEXT_IP6] = "ip6-lookup"},  \
  };                                                        \
  VNET_FEATURE_INIT(steelyard##number, static) = {          \
      .arc_name = "ip" #number "-unicast",                  \
      .node_name = "steelyard" #number,                     \
      .runs_before = VNET_FEATURES("ip" #number "-lookup"), \
  }

STEELYARD_NODE(4);
STEELYARD_NODE(6);

static clib_error_t* steelyard_check_verdicts(vlib_main_t* vm) {
  if (steelyard_vpp_verdicts() != STEELYARD_VERDICTS)
    return clib_error_return(0, "steelyard: other verdicts");
  for (u32 i = 0; i < STEELYARD_VERDICTS; i++) {
    if (strcmp(steelyard_verdict_texts[i], steelyard_vpp_verdict_text(i)) != 0) {
      return clib_error_return(0, "steelyard: verdict %u has another name", i);
    }
  }
  return 0;
}
VLIB_INIT_FUNCTION(steelyard_check_verdicts);
#endif
