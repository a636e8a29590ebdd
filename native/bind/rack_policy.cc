// Python face of a rack's policy file: writing, reading, playing, and the time of its decisions.
#include "native/core/rack_policy.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "native/bind/policy.h"
#include "native/core/hosted_rack_policy.h"
#include "native/core/malcolm_fields.h"
#include "native/core/rack_policy_blob.h"
#include "native/core/rng.h"
#include "native/sim/rack_policy_decider.h"
#include "native/sim/rack_rule.h"

namespace py = pybind11;
using namespace steelyard;

namespace {

using core::LoadedRackPolicy;
using core::RackPlayer;
using core::RackPolicySpec;

py::bytes encode(const core::MalcolmConfig& config, const py::object& actors, const std::string& weights) {
  static const std::vector<std::string> kWeights = {"float32", "bfloat16"};
  const py::array_t<float, py::array::c_style> values(bind::float32_array("actors", actors, 2));
  RackPolicySpec spec;
  spec.config = config;
  spec.num_servers = static_cast<uint32_t>(values.shape(0));
  spec.actors.assign(values.data(), values.data() + values.size());
  std::vector<uint8_t> blob;
  std::string error;
  const bool rounds = bind::word_index("weights", weights, kWeights) == 1;
  if ((rounds && !core::round_weights(&spec, &error)) || !core::encode_rack_policy(spec, &blob, &error))
    throw py::value_error(error);
  return py::bytes(reinterpret_cast<const char*>(blob.data()), blob.size());
}

py::dict decode(const py::bytes& blob) {
  const std::string_view view = blob;
  RackPolicySpec spec;
  std::string error;
  if (!core::decode_rack_policy(reinterpret_cast<const uint8_t*>(view.data()), view.size(), &spec, &error))
    throw py::value_error(error);
  const auto n = static_cast<py::ssize_t>(spec.num_servers);
  const uint32_t inputs = core::rack_actor_inputs(spec.config, spec.num_servers);
  py::dict fields;
  for (const core::RackField& field : core::rack_fields(spec.config)) fields[field.name] = field.bits;
  py::dict d;
  d["config"] = spec.config;
  d["fields"] = fields;
  d["num_servers"] = spec.num_servers;
  d["num_inputs"] = inputs;
  d["schema_hash"] = core::rack_schema_hash(spec.num_servers, inputs);
  d["schema"] = core::rack_schema_text(spec.num_servers, inputs);
  d["weights"] = spec.bfloat16 ? "bfloat16" : "float32";
  d["actors"] = bind::copied_array(spec.actors.data(), {n, static_cast<py::ssize_t>(spec.actors.size()) / n});
  return d;
}

std::shared_ptr<LoadedRackPolicy> open_policy(const py::object& source) {
  std::string error;
  std::shared_ptr<const LoadedRackPolicy> policy;
  if (py::isinstance<py::bytes>(source)) {
    const std::string_view view = py::reinterpret_borrow<py::bytes>(source);
    policy = core::load_rack_policy_bytes(reinterpret_cast<const uint8_t*>(view.data()), view.size(), &error);
  } else {
    policy = core::load_rack_policy_file(py::str(py::module_::import("os").attr("fspath")(source)), &error);
  }
  if (!policy) throw py::value_error(error);
  return std::const_pointer_cast<LoadedRackPolicy>(policy);  // pybind11 holds no pointers to const
}

template <class Call>
double mean_ns(int calls, Call call) {
  const auto begin = std::chrono::steady_clock::now();
  for (int k = 0; k < calls; ++k) call(static_cast<uint64_t>(k));
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  return took.count() / calls;
}

// Mean times of what a server does [ns], random words included.
py::dict costs(const LoadedRackPolicy& policy, int calls) {
  if (calls < 1) throw py::value_error("calls is " + std::to_string(calls) + "; must be at least 1");
  const std::unique_ptr<RackPlayer> player = policy.player(0, 8, 1);
  const uint32_t n = policy.num_servers();
  uint64_t sum = 0;
  py::dict d;
  d["load_message_ns"] = mean_ns(calls, [&](uint64_t k) {
    const auto from = static_cast<core::ServerId>(1 + k % (n - 1));
    player->on_load_message(from, {1e-4F * static_cast<float>(k % 7), 0, 0, 6e-6F, 8});
  });
  d["window_ns"] = mean_ns(calls, [&](uint64_t) { player->on_window(); });
  d["migrate_ns"] =
      mean_ns(calls, [&](uint64_t k) { sum += static_cast<uint64_t>(player->migrate(core::draw(1, k))); });
  d["steal_ns"] =
      mean_ns(calls, [&](uint64_t k) { sum += static_cast<uint64_t>(player->steal(core::draw(2, k)) + 1); });
  d["checksum"] = sum;  // so that no call can be left out
  return d;
}

sim::RackRule rule_of(const std::shared_ptr<LoadedRackPolicy>& policy) {
  sim::RackRule rule;
  rule.traits = sim::find_rack_rule("malcolm");
  rule.decider = std::make_shared<sim::RackPolicyDecider>(policy);
  return rule;
}

py::object stolen_from(RackPlayer& player, uint64_t word) {
  const core::ServerId from = player.steal(word);
  return from == core::kNoServer ? py::object(py::none()) : py::object(py::int_(from));
}

void bind_player(py::module_& module) {
  py::class_<RackPlayer>(module, "RackPlayer",
                         "One server that follows a policy: the calls of MalcolmServer.")
      .def("on_accept", &RackPlayer::on_accept, py::arg("type") = 0)
      .def("on_completion", &RackPlayer::on_completion, py::arg("type"), py::arg("service_s"))
      .def("on_stolen", &RackPlayer::on_stolen, py::arg("type") = 0)
      .def("set_workers", &RackPlayer::set_workers, py::arg("workers"))
      .def(
          "broadcast",
          [](RackPlayer& self) {
            const core::LoadMessage told = self.broadcast();
            return py::make_tuple(told.load_s, told.migrations, told.steals, told.task_s, told.workers);
          },
          "(load_s, migrations, steals, task_s, workers): arguments of on_load_message.")
      .def(
          "on_load_message",
          [](RackPlayer& self, int from, float load_s, uint32_t migrations, uint32_t steals, float task_s,
             float workers) { self.on_load_message(from, {load_s, migrations, steals, task_s, workers}); },
          py::arg("server"), py::arg("load_s"), py::arg("migrations") = 0, py::arg("steals") = 0,
          py::arg("task_s") = 0, py::arg("workers") = 0)
      .def("on_window", &RackPlayer::on_window)
      .def("migrate", &RackPlayer::migrate, py::arg("word"))
      .def("steal", &stolen_from, py::arg("word"), "The server to ask, or None.")
      .def("__copy__", &RackPlayer::clone);
}

}  // namespace

void bind_rack_policy(py::module_& module) {
  bind_player(module);
  py::class_<LoadedRackPolicy, std::shared_ptr<LoadedRackPolicy>>(
      module, "RackPolicy",
      "The policy of a rack's servers: from a blob's bytes, or from the path of a blob or of a compiled "
      "policy\n"
      "(.so, which is code: load only what you built). Raises ValueError (one line) for a file that is\n"
      "corrupt, truncated, of load balancers or of another schema.")
      .def(py::init(&open_policy), py::arg("source"))
      .def_property_readonly("num_servers", &LoadedRackPolicy::num_servers)
      .def_property_readonly("num_inputs", &LoadedRackPolicy::num_inputs)
      .def_property_readonly("schema_hash", &LoadedRackPolicy::schema_hash)
      .def_property_readonly("compiled", &LoadedRackPolicy::compiled)
      .def("player", &LoadedRackPolicy::player, py::arg("server"), py::arg("workers"),
           py::arg("num_types") = 1)
      .def("rule", &rule_of, "The native.RackRule that plays it on a rack.")
      .def("costs", &costs, py::arg("calls") = 10000,
           "Mean times [ns]: load_message_ns, window_ns (both distributions), migrate_ns, steal_ns.");
  module.def(
      "encode_rack_policy", &encode, py::arg("config"), py::arg("actors"), py::arg("weights") = "float32",
      "Policy file (bytes). actors: (N, 2 N (K + 1)) float32, per server the weight of migration (N, K),\n"
      "its bias (N,), the same of stealing; weights: float32 or bfloat16, to which they are rounded.");
  module.def(
      "decode_rack_policy", &decode, py::arg("blob"),
      "Inverse of encode_rack_policy: config, fields (the configuration's 64-bit values by name),\n"
      "num_servers, num_inputs, schema, schema_hash, weights, actors. Raises ValueError for a bad file.");
}
