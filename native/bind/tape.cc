// Python face of tapes: recording a balancer of the simulator, reading, and deciding again.
#include "native/tape/tape.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "native/bind/cluster.h"
#include "native/bind/policy.h"
#include "native/core/blob_io.h"
#include "native/core/feature_families.h"
#include "native/sim/cluster.h"
#include "native/tape/recorder.h"
#include "native/tape/replay.h"

namespace py = pybind11;
using namespace steelyard;

namespace {

uint32_t hidden_bits(const std::vector<std::string>& names) {
  uint32_t bits = 0;
  for (size_t f = 0; f < core::kFeatureFamilies.size(); ++f) {
    if (std::find(names.begin(), names.end(), core::kFeatureFamilies[f]) != names.end()) bits |= 1u << f;
  }
  return bits;
}

tape::TapeHeader header_for(const sim::ClusterConfig& config, const core::RuleConfig& rule, uint64_t seed,
                            int balancer, uint64_t policy_digest) {
  if (balancer < 0 || balancer >= config.num_load_balancers)
    throw py::value_error("balancer " + std::to_string(balancer) + "; allowed: 0 to " +
                          std::to_string(config.num_load_balancers - 1));
  if (rule.policy != nullptr && !rule.policy->central() && config.observation_delay_s > 0)
    throw py::value_error("an observation delay of " + std::to_string(config.observation_delay_s) +
                          " s: a tape holds what the policy sees at once");
  tape::TapeHeader header = tape::header_of({.num_servers = config.num_servers(),
                                             .num_load_balancers = config.num_load_balancers,
                                             .flow_table_buckets = config.flow_table_buckets,
                                             .flow_table_ways = config.flow_table_ways,
                                             .reservoir_size = config.reservoir_size,
                                             .features = config.features},
                                            rule, static_cast<uint32_t>(balancer));
  header.seed = seed;
  header.policy_digest = policy_digest;
  header.hidden = hidden_bits(config.hidden_features);
  return header;
}

py::dict record(const sim::ClusterConfig& config, const core::RuleConfig& rule, uint64_t seed, int balancer,
                const std::string& path, uint64_t policy_digest, const std::string& convention) {
  const auto checked = bind::frozen(config);
  rule.check(checked->num_servers(), checked->num_load_balancers);
  const sim::Convention chosen = bind::convention_of(convention);
  const tape::TapeHeader header = header_for(*checked, rule, seed, balancer, policy_digest);
  tape::Recorder recorder;
  std::string error;
  if (!recorder.open(path, header, &error)) throw py::value_error(error);
  sim::ClusterWorld world(checked, rule, seed);
  world.listen(balancer, &recorder);
  {
    const py::gil_scoped_release release;
    world.reset(seed);
    chosen == sim::Convention::kPeer ? world.run_until(world.horizon_ns()) : world.drain();
    recorder.close();
  }
  sim::EpisodeStats stats = world.metrics().summarise(chosen);
  world.add_counts(stats);
  py::dict d = bind::stats_dict(stats);
  d["seed"] = seed;
  d["digest"] = world.digest();
  py::dict told;
  told["balancer"] = balancer;
  told["records"] = recorder.records();
  told["decisions"] = recorder.decisions();
  told["digest"] = recorder.digest();
  told["failure"] = std::string(recorder.failure());
  d["tape"] = told;
  return d;
}

py::dict header_dict(const tape::Tape& tape) {
  const tape::TapeHeader& header = tape.header;
  py::dict d;
  d["rule"] = std::string(header.rule.traits->name);
  d["servers"] = header.num_servers;
  d["load_balancers"] = header.num_load_balancers;
  d["balancer"] = header.balancer;
  d["seed"] = header.seed;
  d["hosted"] = header.hosted;
  d["policy_digest"] = header.policy_digest;
  d["schema_hash"] = header.schema_hash;
  d["weights"] = header.rule.weights;
  d["records"] = tape.num_records;
  d["digest"] = tape.digest;
  return d;
}

tape::Tape read(const std::string& path, std::vector<uint8_t>* bytes) {
  tape::Tape tape;
  std::string error;
  if (!tape::read_file(path, bytes, &error) || !tape::read_tape(bytes->data(), bytes->size(), &tape, &error))
    throw py::value_error(error);
  return tape;
}

py::dict replay(const std::string& path, const py::object& policy) {
  std::vector<uint8_t> bytes;
  const tape::Tape tape = read(path, &bytes);
  std::shared_ptr<const core::LoadedPolicy> loaded;
  if (!policy.is_none()) loaded = policy.cast<std::shared_ptr<bind::PolicyHandle>>()->loaded;
  tape::Replay result;
  std::string error;
  bool done = false;
  {
    const py::gil_scoped_release release;
    done = tape::replay(tape, loaded, &result, &error);
  }
  if (!done) throw py::value_error(error);
  py::dict d;
  d["tape"] = header_dict(tape);
  d["decisions"] = result.decisions;
  d["digest"] = result.digest;
  d["different"] = result.different;
  d["refused"] = result.refused;
  d["seconds"] = static_cast<double>(result.last - result.first) * 1e-9;
  return d;
}

}  // namespace

void bind_tape(py::module_& module) {
  module.def("record_tape", &record, py::arg("config"), py::arg("rule"), py::arg("seed"), py::arg("balancer"),
             py::arg("path"), py::arg("policy_digest") = 0, py::arg("convention") = "uncensored",
             "One episode, with a tape of one balancer: the dict of simulate, and tape {balancer, records,\n"
             "decisions, digest, failure}; failure says why the tape ended early, the episode goes on. "
             "ValueError\n"
             "for a rule that knows more than a tape holds.");
  module.def(
      "tape_header",
      [](const std::string& path) {
        std::vector<uint8_t> bytes;
        return header_dict(read(path, &bytes));
      },
      py::arg("path"), "What a tape says of itself, checked whole. ValueError (one line) if it is damaged.");
  module.def(
      "replay_tape", &replay, py::arg("path"), py::arg("policy") = py::none(),
      "Its decisions made again: decisions, digest, different (from the tape's), refused, seconds, and\n"
      "tape, what it says of itself. policy: a native.Policy, for a tape of a hosted one. ValueError for "
      "a tape\n"
      "that is damaged, and for a policy that does not fit.");
  module.def(
      "file_digest",
      [](const py::bytes& data) {
        const std::string_view view = data;
        return core::fnv1a(reinterpret_cast<const uint8_t*>(view.data()), view.size());
      },
      py::arg("data"), "64-bit FNV-1a, by which a tape names its policy.");
}
