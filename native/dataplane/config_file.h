// The configuration file (docs/dataplane.md): TOML; what it does not know is an error.
#pragma once

#include <string>

#include "native/dataplane/config.h"

namespace steelyard::dataplane {

// Throws std::runtime_error: one line that names file, line, key and what is allowed. Paths in the file are
// relative to its folder.
Config read_config(const std::string& path);

}  // namespace steelyard::dataplane
