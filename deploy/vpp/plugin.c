/* The plugin's start, its timer, the interfaces that it works on, its numbers in the stats segment. */
#include "deploy/vpp/plugin.h"

#include <vlib/log.h>
#include <vlib/stats/stats.h>
#include <vnet/feature/feature.h>
#include <vnet/plugin/plugin.h>
#include <vppinfra/cpu.h>

#define STEELYARD_TICK_S 0.010
#define STEELYARD_STATS_S 1.0

struct steelyard_gauge {
  u8* name;
  u32 entry;
  u32 sweep;
};

steelyard_main_t steelyard_main;

VLIB_PLUGIN_REGISTER() = {
    .version = STEELYARD_VERSION,
    .description = "Steelyard: L4 load balancing by rules and learned policies",
};

static clib_error_t* steelyard_init(vlib_main_t* vm) {
  steelyard_main_t* sm = &steelyard_main;
  const u32 workers = vlib_num_workers();

  sm->threads = 1 + workers;
  sm->log_class = vlib_log_register_class("steelyard", 0);
  sm->gauge_by_name = hash_create_string(0, sizeof(uword));
#ifdef STEELYARD_NEEDS_AVX2
  if (!clib_cpu_supports_avx2()) {
    vlib_log_err(sm->log_class, "this processor lacks AVX2: build with another STEELYARD_MARCH");
    return 0;
  }
#endif
  sm->host = steelyard_vpp_new(sm->threads, clib_max(workers, 1));
  return 0;
}
VLIB_INIT_FUNCTION(steelyard_init);

int steelyard_interface(u32 sw_if_index, int enable) {
  const int rv = vnet_feature_enable_disable("ip4-unicast", "steelyard4", sw_if_index, enable, 0, 0);
  return rv != 0 ? rv : vnet_feature_enable_disable("ip6-unicast", "steelyard6", sw_if_index, enable, 0, 0);
}

/* The workers' part of the timer: the main thread asks for it. */
static uword steelyard_tick_fn(vlib_main_t* vm, vlib_node_runtime_t* node, vlib_frame_t* frame) {
  if (steelyard_main.host != NULL)
    steelyard_vpp_tick_thread(steelyard_main.host, vm->thread_index, steelyard_now());
  return 0;
}
VLIB_REGISTER_NODE(steelyard_tick_node, static) = {
    .function = steelyard_tick_fn,
    .name = "steelyard-tick",
    .type = VLIB_NODE_TYPE_INPUT,
    .state = VLIB_NODE_STATE_INTERRUPT,
};

static void steelyard_publish_one(void* context, const char* name, uint64_t value) {
  steelyard_main_t* sm = context;
  uword* known = hash_get_mem(sm->gauge_by_name, name);
  struct steelyard_gauge* gauge;
  if (known == NULL) {
    vec_add2(sm->gauges, gauge, 1);
    gauge->name = format(0, "%s%c", name, 0);
    gauge->entry = vlib_stats_add_gauge("/steelyard/%s", name);
    hash_set_mem(sm->gauge_by_name, gauge->name, gauge - sm->gauges);
  } else {
    gauge = vec_elt_at_index(sm->gauges, known[0]);
  }
  gauge->sweep = sm->sweep;
  vlib_stats_set_gauge(gauge->entry, value);
}

static void steelyard_publish(steelyard_main_t* sm) {
  sm->sweep++;
  steelyard_vpp_each_metric(sm->host, steelyard_publish_one, sm);
  for (u32 i = 0; i < vec_len(sm->gauges);) {
    struct steelyard_gauge* gauge = vec_elt_at_index(sm->gauges, i);
    if (gauge->sweep == sm->sweep) {
      i++;
      continue;
    }
    vlib_stats_remove_entry(gauge->entry);
    hash_unset_mem(sm->gauge_by_name, gauge->name);
    vec_free(gauge->name);
    vec_del1(sm->gauges, i); /* the last one moves here */
    if (i < vec_len(sm->gauges)) hash_set_mem(sm->gauge_by_name, sm->gauges[i].name, i);
  }
}

static void steelyard_log_line(void* context, const char* line) {
  vlib_log_notice(((steelyard_main_t*)context)->log_class, "%s", line);
}

static uword steelyard_process_fn(vlib_main_t* vm, vlib_node_runtime_t* node, vlib_frame_t* frame) {
  steelyard_main_t* sm = &steelyard_main;
  f64 publish_at = 0;
  while (sm->host != NULL) {
    vlib_process_wait_for_event_or_clock(vm, STEELYARD_TICK_S);
    vlib_process_get_events(vm, NULL);
    const i64 now = steelyard_now();
    for (u32 i = 1; i < sm->threads; i++) {
      vlib_node_set_interrupt_pending(vlib_get_main_by_index(i), steelyard_tick_node.index);
    }
    steelyard_vpp_tick_thread(sm->host, 0, now);
    steelyard_vpp_tick(sm->host, now);
    steelyard_vpp_each_event(sm->host, steelyard_log_line, sm);
    if (vlib_time_now(vm) < publish_at) continue;
    publish_at = vlib_time_now(vm) + STEELYARD_STATS_S;
    steelyard_publish(sm);
  }
  return 0;
}
VLIB_REGISTER_NODE(steelyard_process_node, static) = {
    .function = steelyard_process_fn,
    .type = VLIB_NODE_TYPE_PROCESS,
    .name = "steelyard-process",
};
