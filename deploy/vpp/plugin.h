/* What the files of the plugin share. */
#ifndef STEELYARD_VPP_PLUGIN_H
#define STEELYARD_VPP_PLUGIN_H

#include <time.h>
#include <vlib/vlib.h>
#include <vnet/vnet.h>

#include "deploy/vpp/adapter/steelyard_vpp.h"

typedef struct {
  struct steelyard_vpp* host; /* NULL: this processor lacks what the core was compiled for */
  u32 threads;
  u16 msg_id_base;
  vlib_log_class_t log_class;
  uword* gauge_by_name; /* of the stats segment: name -> index into gauges */
  struct steelyard_gauge* gauges;
  u32 sweep; /* of gauges: those of an earlier one have gone */
} steelyard_main_t;

extern steelyard_main_t steelyard_main;
extern vlib_node_registration_t steelyard4_node;
extern vlib_node_registration_t steelyard6_node;

static_always_inline i64 steelyard_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now); /* the clock of agents in the shared memory */
  return (i64)now.tv_sec * 1000000000 + now.tv_nsec;
}

int steelyard_interface(u32 sw_if_index, int enable);

#endif
