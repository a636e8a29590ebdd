// Python face of the rack game's players: how they learn, one server at a time, and what the game pays.
#include "native/core/malcolm.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <vector>

#include "native/bind/policy.h"

namespace py = pybind11;
using namespace steelyard;

namespace {

using core::MalcolmConfig;
using core::MalcolmServer;

const std::vector<std::string> kInputs = {"loads", "ranks", "waits"};
const std::vector<std::string> kFeatures = {"linear", "quadratic", "quartic"};
const std::vector<std::string> kRewards = {"potential", "improvement", "waiting"};
const std::vector<std::string> kAverages = {"inverse", "time"};
const std::vector<std::string> kActors = {"migration", "stealing"};

using Floats = py::array_t<float, py::array::c_style>;

core::ActorKind actor_named(const std::string& actor) {
  return static_cast<core::ActorKind>(bind::word_index("actor", actor, kActors));
}

Floats vector_of(const char* name, const py::object& object, size_t size) {
  Floats values(bind::float32_array(name, object, 1));
  if (static_cast<size_t>(values.size()) == size) return values;
  throw py::value_error(std::string(name) + " has " + std::to_string(values.size()) + " values; expected " +
                        std::to_string(size));
}

// A copy of (N,) loads with the zeros after them that the core reads.
std::vector<float> padded_loads(const py::object& object) {
  const Floats loads(bind::float32_array("loads", object, 1));
  std::vector<float> padded(static_cast<size_t>(loads.size()) + 16);
  std::copy_n(loads.data(), loads.size(), padded.begin());
  return padded;
}

template <class T>
void bind_word(py::class_<MalcolmConfig>& type, const char* name, T MalcolmConfig::* field,
               const std::vector<std::string>& words) {
  type.def_property(
      name, [field, &words](const MalcolmConfig& self) { return words[static_cast<size_t>(self.*field)]; },
      [name, field, &words](MalcolmConfig& self, const std::string& word) {
        self.*field = static_cast<T>(bind::word_index(name, word, words));
      });
}

template <class Part, class T>
void bind_part(py::class_<MalcolmConfig>& type, const char* name, Part MalcolmConfig::* part,
               T Part::* field) {
  type.def_property(
      name, [part, field](const MalcolmConfig& self) { return self.*part.*field; },
      [part, field](MalcolmConfig& self, T value) { self.*part.*field = value; });
}

void bind_config(py::module_& module) {
  py::class_<MalcolmConfig> type(
      module, "MalcolmConfig",
      "How a server of the rack game learns; native/core/malcolm.h says each field.");
  type.def(py::init())
      .def_static("thesis", &MalcolmConfig::thesis, "Algorithm 1 of the thesis.")
      .def_static("live", &MalcolmConfig::live, "Draws from the state at their moment.")
      .def_static("code", &MalcolmConfig::code, "The authors' released code.")
      .def("copy", [](const MalcolmConfig& self) { return self; })
      .def("check", &MalcolmConfig::check, py::arg("num_servers"), py::arg("self_index"), py::arg("workers"))
      .def_readwrite("mean_score", &MalcolmConfig::mean_score)
      .def_readwrite("actor_trace", &MalcolmConfig::actor_trace)
      .def_readwrite("batch", &MalcolmConfig::batch)
      .def_readwrite("consensus_every", &MalcolmConfig::consensus_every)
      .def_readwrite("load_unit_s", &MalcolmConfig::load_unit_s)
      .def_readwrite("load_cap", &MalcolmConfig::load_cap)
      .def_readwrite("reward_scale", &MalcolmConfig::reward_scale)
      .def_readwrite("load_smoothing", &MalcolmConfig::load_smoothing)
      .def_readwrite("initial_service_s", &MalcolmConfig::initial_service_s)
      .def_readwrite("num_types", &MalcolmConfig::num_types)
      .def_readwrite("steal_below", &MalcolmConfig::steal_below)
      .def_readwrite("warm_start", &MalcolmConfig::warm_start)
      .def_readwrite("init_scale", &MalcolmConfig::init_scale)
      .def_readwrite("live_draws", &MalcolmConfig::live_draws)
      .def_readwrite("warm_others", &MalcolmConfig::warm_others)
      .def_readwrite("warm_keep", &MalcolmConfig::warm_keep)
      .def_readwrite("rate_weight", &MalcolmConfig::rate_weight)
      .def_readwrite("seed", &MalcolmConfig::seed);
  bind_word(type, "inputs", &MalcolmConfig::inputs, kInputs);
  bind_word(type, "features", &MalcolmConfig::features, kFeatures);
  bind_word(type, "reward", &MalcolmConfig::reward, kRewards);
  bind_word(type, "rate_average", &MalcolmConfig::rate_average, kAverages);
  bind_part(type, "discount", &MalcolmConfig::td, &core::TemporalDifference::discount);
  bind_part(type, "critic_trace", &MalcolmConfig::td, &core::TemporalDifference::trace);
  bind_part(type, "average_step", &MalcolmConfig::td, &core::TemporalDifference::average_step);
  bind_part(type, "migration_cost", &MalcolmConfig::costs, &core::MoveCosts::migration);
  bind_part(type, "steal_cost", &MalcolmConfig::costs, &core::MoveCosts::steal);
  bind_part(type, "actor_rate", &MalcolmConfig::actor_optimizer, &core::AdamWConfig::learning_rate);
  bind_part(type, "critic_rate", &MalcolmConfig::critic_optimizer, &core::AdamWConfig::learning_rate);
  bind_part(type, "actor_weight_decay", &MalcolmConfig::actor_optimizer, &core::AdamWConfig::weight_decay);
  bind_part(type, "critic_weight_decay", &MalcolmConfig::critic_optimizer, &core::AdamWConfig::weight_decay);
}

MalcolmServer make_server(const MalcolmConfig& config, uint32_t num_servers, uint32_t self,
                          uint32_t workers) {
  config.check(num_servers, self, workers);
  return MalcolmServer(config, num_servers, self, workers);
}

py::array_t<float> parameters_of(const MalcolmServer& server) {
  py::array_t<float> out(static_cast<py::ssize_t>(server.num_parameters()));
  server.export_parameters(out.mutable_data());
  return out;
}

py::dict window(MalcolmServer& server) {
  const core::WindowResult result = server.on_window();
  py::dict out;
  out["learned"] = result.learned;
  out["updated"] = result.updated;
  out["consensus_due"] = result.consensus_due;
  out["reward"] = result.reward;
  out["td_error"] = result.td_error;
  return out;
}

py::object steal(MalcolmServer& server, uint64_t word) {
  const core::ServerId from = server.steal(word);
  return from == core::kNoServer ? py::object(py::none()) : py::object(py::int_(from));
}

void bind_server(py::module_& module) {
  py::class_<MalcolmServer>(module, "MalcolmServer",
                            "One server of the rack game, as every host runs it (native/core/malcolm.h).")
      .def(py::init(&make_server), py::arg("config"), py::arg("num_servers"), py::arg("self_index"),
           py::arg("workers"))
      .def("on_accept", &MalcolmServer::on_accept, py::arg("type") = 0)
      .def("on_completion", &MalcolmServer::on_completion, py::arg("type"), py::arg("service_s"))
      .def("on_stolen", &MalcolmServer::on_stolen, py::arg("type") = 0)
      .def("migrate", &MalcolmServer::migrate, py::arg("word"))
      .def("steal", &steal, py::arg("word"), "The server to ask, or None.")
      .def(
          "broadcast",
          [](MalcolmServer& self) {
            const core::LoadMessage message = self.broadcast();
            return py::make_tuple(message.load_s, message.migrations, message.steals, message.task_s,
                                  message.workers);
          },
          "(load_s, migrations, steals, task_s, workers): arguments of on_load_message.")
      .def(
          "on_load_message",
          [](MalcolmServer& self, int from, float load_s, uint32_t migrations, uint32_t steals, float task_s,
             float workers) { self.on_load_message(from, {load_s, migrations, steals, task_s, workers}); },
          py::arg("server"), py::arg("load_s"), py::arg("migrations") = 0, py::arg("steals") = 0,
          py::arg("task_s") = 0, py::arg("workers") = 0)
      .def("on_window", &window, "Ends a window: learned, updated, consensus_due, reward, td_error.")
      .def("restart", &MalcolmServer::restart)
      .def("set_member", &MalcolmServer::set_member, py::arg("server"), py::arg("member"))
      .def("set_workers", &MalcolmServer::set_workers, py::arg("workers"))
      .def_property("frozen", &MalcolmServer::frozen, &MalcolmServer::set_frozen)
      .def_property("parameters", &parameters_of,
                    [](MalcolmServer& self, const py::object& values) {
                      self.import_parameters(vector_of("parameters", values, self.num_parameters()).data());
                    })
      .def_property(
          "critic_parameters",
          [](const MalcolmServer& self) {
            return bind::copied_array(self.critic_parameters(),
                                      {static_cast<py::ssize_t>(self.critic_size())});
          },
          [](MalcolmServer& self, const py::object& theta) {
            self.set_critic_parameters(vector_of("critic_parameters", theta, self.critic_size()).data());
          })
      .def_property_readonly("load_s", &MalcolmServer::load_s)
      .def_property_readonly("num_tasks", &MalcolmServer::num_tasks)
      .def_property_readonly("updates", &MalcolmServer::updates)
      .def_property_readonly("num_servers", &MalcolmServer::num_servers)
      .def_property_readonly("average_reward",
                             [](const MalcolmServer& self) { return self.critic().average_reward(); })
      .def_property_readonly(
          "loads",
          [](const MalcolmServer& self) { return bind::copied_array(self.loads(), {self.num_servers()}); },
          "(N,) in units of load_unit_s, as known here.")
      .def_property_readonly(
          "inputs",
          [](const MalcolmServer& self) {
            return bind::copied_array(self.actor_inputs(), {self.actors().num_inputs()});
          },
          "(K,) inputs of the actors.")
      .def(
          "probabilities",
          [](const MalcolmServer& self, const std::string& actor) {
            return bind::copied_array(self.actors().probabilities(actor_named(actor)), {self.num_servers()});
          },
          py::arg("actor"))
      .def(
          "logits",
          [](const MalcolmServer& self, const std::string& actor) {
            return bind::copied_array(self.actors().logits(actor_named(actor)), {self.num_servers()});
          },
          py::arg("actor"));
}

py::tuple payoffs(const py::object& loads, const std::vector<uint32_t>& migrations,
                  const std::vector<uint32_t>& steals, float migration_cost, float steal_cost) {
  const std::vector<float> padded = padded_loads(loads);
  const size_t n = padded.size() - 16;
  if (migrations.size() != n || steals.size() != n)
    throw py::value_error("migrations, steals: must have as many values as loads, " + std::to_string(n));
  py::array_t<double> u(static_cast<py::ssize_t>(n));
  const double phi = core::rack_payoffs(padded.data(), static_cast<uint32_t>(n), migrations.data(),
                                        steals.data(), {migration_cost, steal_cost}, u.mutable_data());
  return py::make_tuple(u, phi);
}

}  // namespace

void bind_malcolm(py::module_& module) {
  bind_config(module);
  bind_server(module);
  module.def(
      "malcolm_consensus",
      [](const std::vector<MalcolmServer*>& servers) {
        const uint64_t bytes = MalcolmServer::consensus(servers.data(), servers.size());
        if (bytes == 0 && servers.size() != 1)
          throw py::value_error("servers: needs 1 to 64 servers with critics of one size");
        return bytes;
      },
      py::arg("servers"), "Every critic becomes the mean; returns the bytes that it would send.");
  module.def(
      "load_imbalance",
      [](const py::object& loads) {
        const std::vector<float> padded = padded_loads(loads);
        return core::load_imbalance(padded.data(), static_cast<uint32_t>(padded.size() - 16));
      },
      py::arg("loads"), "I(x) = 1 / (N - 1) sum over ordered pairs of |x_j - x_k|; loads: (N,) float32.");
  module.def(
      "mean_squared_imbalance",
      [](const py::object& loads) {
        const std::vector<float> padded = padded_loads(loads);
        return core::mean_squared_imbalance(padded.data(), static_cast<uint32_t>(padded.size() - 16));
      },
      py::arg("loads"), "Mean over pairs of (x_j - x_k)^2; loads: (N,) float32.");
  module.def("rack_payoffs", &payoffs, py::arg("loads"), py::arg("migrations"), py::arg("steals"),
             py::arg("migration_cost"), py::arg("steal_cost"),
             "(u (N,), phi): u_i = -I(x) - C_i and the potential phi = -I(x) - sum_i C_i.");
}
