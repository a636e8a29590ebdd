// Small racks for the tests of the rack world.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "native/sim/rack.h"

namespace steelyard::testing {

inline sim::RackType task_type(double mean_s, double ratio = 1,
                               sim::DistributionKind law = sim::DistributionKind::kExponential) {
  sim::RackType type;
  type.ratio = ratio;
  type.service.kind = law;
  type.service.a = {mean_s};
  return type;
}

// Equal servers at this load of exponential tasks of 50 us, known exactly and without delay.
inline sim::RackConfig rack(int servers, int workers, double load, double horizon_s) {
  sim::RackConfig config;
  config.servers.assign(servers, {workers, 1.0});
  config.types = {task_type(50e-6)};
  config.arrival.rate = load * servers * workers / 50e-6;
  config.load_info = sim::LoadInfo::kExact;
  config.horizon_s = horizon_s;
  return config;
}

inline std::shared_ptr<const sim::RackConfig> prepared(sim::RackConfig config) {
  config.prepare();
  return std::make_shared<const sim::RackConfig>(std::move(config));
}

inline sim::RackRule rack_rule(const std::string& name) {
  sim::RackRule rule;
  rule.traits = sim::find_rack_rule(name);
  return rule;
}

}  // namespace steelyard::testing
