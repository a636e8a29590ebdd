/* The binary API: messages to the C face of the balancer and back. */
#include <vlibapi/api.h>
#include <vlibmemory/api.h>
#include <vnet/format_fns.h>
#include <vnet/ip/ip_types_api.h>

#include "deploy/vpp/plugin.h"

/* Made of steelyard.api; they need what stands before them. */
#include <steelyard.api_enum.h>
#include <steelyard.api_types.h>

#define REPLY_MSG_ID_BASE steelyard_main.msg_id_base
#include <vlibapi/api_helper_macros.h>

#define STEELYARD_ANSWER 1024

static char steelyard_answer[STEELYARD_ANSWER]; /* handlers run on the main thread, one at a time */

static struct steelyard_vpp_address steelyard_address(const vl_api_address_t* given) {
  struct steelyard_vpp_address address = {};
  address.is_v6 = given->af == ADDRESS_IP6;
  clib_memcpy(address.bytes, &given->un, address.is_v6 ? 16 : 4);
  return address;
}

static vl_api_address_t steelyard_api_address(const struct steelyard_vpp_address* address) {
  vl_api_address_t out = {};
  out.af = address->is_v6 ? ADDRESS_IP6 : ADDRESS_IP4;
  clib_memcpy(&out.un, address->bytes, address->is_v6 ? 16 : 4);
  return out;
}

/* Strings of a message that fill their field have no end of their own. */
#define STEELYARD_END(field) field[sizeof(field) - 1] = 0

static int steelyard_run(const char* format_text, ...) {
  va_list arguments;
  va_start(arguments, format_text);
  u8* line = va_format(0, format_text, &arguments);
  va_end(arguments);
  vec_add1(line, 0);
  steelyard_answer[0] = 0;
  int rv = VNET_API_ERROR_FEATURE_DISABLED;
  if (steelyard_main.host != NULL) {
    rv = steelyard_vpp_command(steelyard_main.host, (char*)line, steelyard_now(), steelyard_answer,
                               sizeof steelyard_answer);
  }
  vec_free(line);
  return rv == 0 ? 0 : VNET_API_ERROR_INVALID_VALUE;
}

#define STEELYARD_REPLY(MESSAGE, rv_)                                                     \
  do {                                                                                    \
    int rv = rv_;                                                                         \
    REPLY_MACRO2(MESSAGE, ({                                                              \
                   strncpy((char*)rmp->answer, steelyard_answer, sizeof rmp->answer - 1); \
                   rmp->answer[sizeof rmp->answer - 1] = 0;                               \
                 }));                                                                     \
  } while (0)

static void vl_api_steelyard_command_t_handler(vl_api_steelyard_command_t* mp) {
  vl_api_steelyard_command_reply_t* rmp;
  STEELYARD_END(mp->line);
  STEELYARD_REPLY(VL_API_STEELYARD_COMMAND_REPLY, steelyard_run("%s", mp->line));
}

static void vl_api_steelyard_vip_del_t_handler(vl_api_steelyard_vip_del_t* mp) {
  vl_api_steelyard_vip_del_reply_t* rmp;
  STEELYARD_END(mp->name);
  STEELYARD_REPLY(VL_API_STEELYARD_VIP_DEL_REPLY, steelyard_run("vip del %s", mp->name));
}

static void vl_api_steelyard_rule_set_t_handler(vl_api_steelyard_rule_set_t* mp) {
  vl_api_steelyard_rule_set_reply_t* rmp;
  STEELYARD_END(mp->name);
  STEELYARD_END(mp->rule);
  STEELYARD_REPLY(VL_API_STEELYARD_RULE_SET_REPLY, steelyard_run("vip set %s rule %s", mp->name, mp->rule));
}

static void vl_api_steelyard_policy_load_t_handler(vl_api_steelyard_policy_load_t* mp) {
  vl_api_steelyard_policy_load_reply_t* rmp;
  STEELYARD_END(mp->name);
  STEELYARD_END(mp->policy_file);
  const char* file = mp->policy_file[0] ? (char*)mp->policy_file : "agent";
  STEELYARD_REPLY(VL_API_STEELYARD_POLICY_LOAD_REPLY, steelyard_run("vip set %s policy %s", mp->name, file));
}

static void vl_api_steelyard_vip_add_t_handler(vl_api_steelyard_vip_add_t* mp) {
  vl_api_steelyard_vip_add_reply_t* rmp;
  STEELYARD_END(mp->name);
  STEELYARD_END(mp->rule);
  STEELYARD_END(mp->policy_file);
  STEELYARD_END(mp->shared_memory);
  const struct steelyard_vpp_vip vip = {
      .name = (char*)mp->name,
      .address = steelyard_address(&mp->address),
      .port = ntohs(mp->port),
      .target_port = ntohs(mp->target_port),
      .protocol = mp->protocol,
      .forwarding = mp->forwarding,
      .dscp = mp->dscp,
      .rule = (char*)mp->rule,
      .policy_file = (char*)mp->policy_file,
      .shared_memory = (char*)mp->shared_memory,
      .interval_s = clib_net_to_host_f64(mp->interval),
      .max_age_s = clib_net_to_host_f64(mp->max_age),
      .connections = ntohl(mp->connections),
  };
  int done = -1;
  steelyard_answer[0] = 0;
  if (steelyard_main.host != NULL) {
    done = steelyard_vpp_vip_add(steelyard_main.host, &vip, steelyard_now(), steelyard_answer,
                                 sizeof steelyard_answer);
  }
  STEELYARD_REPLY(VL_API_STEELYARD_VIP_ADD_REPLY, done == 0 ? 0 : VNET_API_ERROR_INVALID_VALUE);
}

static void vl_api_steelyard_server_set_t_handler(vl_api_steelyard_server_set_t* mp) {
  vl_api_steelyard_server_set_reply_t* rmp;
  STEELYARD_END(mp->vip);
  const struct steelyard_vpp_server server = {
      .vip = (char*)mp->vip,
      .address = steelyard_address(&mp->address),
      .weight = clib_net_to_host_f64(mp->weight),
      .drain = mp->drain,
  };
  int done = -1;
  steelyard_answer[0] = 0;
  if (steelyard_main.host != NULL) {
    done = steelyard_vpp_server_set(steelyard_main.host, &server, steelyard_now(), steelyard_answer,
                                    sizeof steelyard_answer);
  }
  STEELYARD_REPLY(VL_API_STEELYARD_SERVER_SET_REPLY, done == 0 ? 0 : VNET_API_ERROR_INVALID_VALUE);
}

static void vl_api_steelyard_server_del_t_handler(vl_api_steelyard_server_del_t* mp) {
  vl_api_steelyard_server_del_reply_t* rmp;
  STEELYARD_END(mp->vip);
  const struct steelyard_vpp_server server = {.vip = (char*)mp->vip,
                                              .address = steelyard_address(&mp->address)};
  int done = -1;
  steelyard_answer[0] = 0;
  if (steelyard_main.host != NULL) {
    done = steelyard_vpp_server_del(steelyard_main.host, &server, steelyard_now(), steelyard_answer,
                                    sizeof steelyard_answer);
  }
  STEELYARD_REPLY(VL_API_STEELYARD_SERVER_DEL_REPLY, done == 0 ? 0 : VNET_API_ERROR_INVALID_VALUE);
}

static void vl_api_steelyard_interface_t_handler(vl_api_steelyard_interface_t* mp) {
  vl_api_steelyard_interface_reply_t* rmp;
  int rv = 0;
  VALIDATE_SW_IF_INDEX(mp);
  rv = steelyard_interface(ntohl(mp->sw_if_index), mp->enable);
  BAD_SW_IF_INDEX_LABEL;
  REPLY_MACRO(VL_API_STEELYARD_INTERFACE_REPLY);
}

typedef struct {
  vl_api_registration_t* to;
  u32 context;
} steelyard_dump_t;

static void steelyard_send_vip(void* context, const struct steelyard_vpp_vip_state* state) {
  steelyard_dump_t* dump = context;
  vl_api_steelyard_vip_details_t* mp = vl_msg_api_alloc_zero(sizeof *mp);
  mp->_vl_msg_id = htons(VL_API_STEELYARD_VIP_DETAILS + REPLY_MSG_ID_BASE);
  mp->context = dump->context;
  strncpy((char*)mp->name, state->name, sizeof mp->name - 1);
  mp->address = steelyard_api_address(&state->address);
  mp->port = htons(state->port);
  mp->target_port = htons(state->target_port);
  mp->protocol = state->protocol;
  mp->forwarding = state->forwarding;
  strncpy((char*)mp->rule, state->rule, sizeof mp->rule - 1);
  mp->policy_healthy = state->healthy;
  strncpy((char*)mp->policy_why, state->why, sizeof mp->policy_why - 1);
  mp->servers = htonl(state->servers);
  mp->connections = htonl(state->connections);
  mp->policy_decisions = clib_host_to_net_u64(state->decisions);
  mp->policy_fallbacks = clib_host_to_net_u64(state->fallbacks);
  vl_api_send_msg(dump->to, (u8*)mp);
}

static void steelyard_send_server(void* context, const struct steelyard_vpp_server_state* state) {
  steelyard_dump_t* dump = context;
  vl_api_steelyard_server_details_t* mp = vl_msg_api_alloc_zero(sizeof *mp);
  mp->_vl_msg_id = htons(VL_API_STEELYARD_SERVER_DETAILS + REPLY_MSG_ID_BASE);
  mp->context = dump->context;
  strncpy((char*)mp->vip, state->vip, sizeof mp->vip - 1);
  mp->address = steelyard_api_address(&state->address);
  mp->drain = state->drain;
  mp->flows_on = htonl(state->flows_on);
  mp->weight = clib_host_to_net_f64(state->weight);
  mp->opened = clib_host_to_net_u64(state->opened);
  mp->completed = clib_host_to_net_u64(state->completed);
  mp->reset = clib_host_to_net_u64(state->reset);
  mp->packets = clib_host_to_net_u64(state->packets);
  mp->bytes = clib_host_to_net_u64(state->bytes);
  vl_api_send_msg(dump->to, (u8*)mp);
}

static void vl_api_steelyard_vip_dump_t_handler(vl_api_steelyard_vip_dump_t* mp) {
  steelyard_dump_t dump = {vl_api_client_index_to_registration(mp->client_index), mp->context};
  if (dump.to != NULL && steelyard_main.host != NULL) {
    steelyard_vpp_each_vip(steelyard_main.host, steelyard_send_vip, &dump);
  }
}

static void vl_api_steelyard_server_dump_t_handler(vl_api_steelyard_server_dump_t* mp) {
  steelyard_dump_t dump = {vl_api_client_index_to_registration(mp->client_index), mp->context};
  if (dump.to != NULL && steelyard_main.host != NULL) {
    steelyard_vpp_each_server(steelyard_main.host, steelyard_send_server, &dump);
  }
}

#include <steelyard.api.c>

static clib_error_t* steelyard_api_init(vlib_main_t* vm) {
  steelyard_main.msg_id_base = setup_message_id_table();
  return 0;
}
VLIB_API_INIT_FUNCTION(steelyard_api_init);
