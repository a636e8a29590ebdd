// The command line of the plugin: what stands behind `steelyard` in VPP's. One line, words between blanks.
#pragma once

#include <string>

#include "deploy/vpp/adapter/host.h"

namespace steelyard::vpp {

// True: done, and *answer is what to print, perhaps nothing. False: *answer is one line that says what is
// wrong.
bool run_command(Host* host, const std::string& line, TimeNs now, std::string* answer);

}  // namespace steelyard::vpp
