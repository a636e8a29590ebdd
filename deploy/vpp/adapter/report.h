// What a host tells of itself: numbers by name, and a page for people.
#pragma once

#include <functional>
#include <string>

#include "deploy/vpp/adapter/host.h"

namespace steelyard::vpp {

using Metric = std::function<void(const std::string& name, uint64_t value)>;

// Names as "web/rule_decisions", "web/10.0.0.11/packets"; weights in thousandths.
void each_metric(const Host& host, const Metric& tell);

// The page, a line at a time.
void show(const Host& host, const std::function<void(const std::string& line)>& tell);

}  // namespace steelyard::vpp
