/* VPP's command line: `steelyard ...` and `show steelyard`. The lines are the balancer's to read. */
#include <vnet/vnet.h>

#include "deploy/vpp/plugin.h"

static clib_error_t* steelyard_interface_line(unformat_input_t* line) {
  u32 sw_if_index = ~0;
  int enable = 1;
  if (!unformat(line, "%U", unformat_vnet_sw_interface, vnet_get_main(), &sw_if_index)) {
    return clib_error_return(0, "interface: `%U' is not there", format_unformat_error, line);
  }
  if (unformat(line, "off")) enable = 0;
  const int rv = steelyard_interface(sw_if_index, enable);
  return rv == 0 ? 0 : clib_error_return(0, "interface: refused (%d)", rv);
}

static clib_error_t* steelyard_command_fn(vlib_main_t* vm, unformat_input_t* input, vlib_cli_command_t* cmd) {
  unformat_input_t line;
  clib_error_t* error = 0;
  if (steelyard_main.host == NULL) return clib_error_return(0, "steelyard did not start: see `show logging'");
  if (!unformat_user(input, unformat_line_input, &line))
    return clib_error_return(0, "see docs: steelyard vip|server|...");
  if (unformat(&line, "interface")) {
    error = steelyard_interface_line(&line);
  } else {
    char answer[1024];
    u8* text = format(0, "%v%c", line.buffer, 0);
    if (steelyard_vpp_command(steelyard_main.host, (char*)text, steelyard_now(), answer, sizeof answer) !=
        0) {
      error = clib_error_return(0, "%s", answer);
    } else if (answer[0] != 0) {
      vlib_cli_output(vm, "%s", answer);
    }
    vec_free(text);
  }
  unformat_free(&line);
  return error;
}

VLIB_CLI_COMMAND(steelyard_command, static) = {
    .path = "steelyard",
    .short_help =
        "steelyard interface <interface> [off]\n"
        "steelyard source <address> | mtu <bytes> | seed <n> | balancer <i> of <n>\n"
        "steelyard vip add <name> address <address> port <n> [protocol tcp|udp] [forwarding gre|l3-dsr|nat] "
        "[dscp <n>]"
        " [target-port <n>] [connections <n>] [<setting> <value>]...\n"
        "steelyard vip set <name> [rule <rule>] [policy <file>|agent] [shared-memory <file>|none] [interval "
        "<s>]"
        " [max-age <s>] [opening|established|closing|udp <s>] [half-open <n>] [reservoir-size <n>] [decay "
        "<s>]\n"
        "steelyard vip del <name>\n"
        "steelyard server add|set <vip> <address> [weight <w>] [drain on|off]\n"
        "steelyard server del <vip> <address>\n"
        "steelyard tape <vip> <file>|off",
    .function = steelyard_command_fn,
};

static void steelyard_print(void* context, const char* line) { vlib_cli_output(context, "%s", line); }

static clib_error_t* steelyard_show_fn(vlib_main_t* vm, unformat_input_t* input, vlib_cli_command_t* cmd) {
  if (steelyard_main.host == NULL) return clib_error_return(0, "steelyard did not start: see `show logging'");
  steelyard_vpp_show(steelyard_main.host, steelyard_print, vm);
  return 0;
}

VLIB_CLI_COMMAND(steelyard_show_command, static) = {
    .path = "show steelyard",
    .short_help = "show steelyard",
    .function = steelyard_show_fn,
};
