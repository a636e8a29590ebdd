// The balancer between two pcap files: the file's time is the clock.
#pragma once

#include <string>

namespace steelyard::dataplane {

// The exit status. `verdicts` may be empty. Throws std::runtime_error: one line.
int run_offline(const std::string& config, const std::string& pcap_in, const std::string& pcap_out,
                const std::string& verdicts);

}  // namespace steelyard::dataplane
