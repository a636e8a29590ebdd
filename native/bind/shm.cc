// Python face of the shared memory between a dataplane and an agent.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "native/bind/policy.h"
#include "native/core/schema.h"
#include "native/shm/bare_dataplane.h"
#include "native/shm/reader.h"

namespace py = pybind11;
using namespace steelyard;

namespace {

// A snapshot, and the observer of the reader that took it.
struct Taken {
  shm::Snapshot snapshot;
  std::shared_ptr<shm::Observer> observer;
};

struct ReaderHandle {
  std::unique_ptr<shm::Reader> reader;
  std::shared_ptr<shm::Observer> observer;
};

// The types of the records, from the structs of the C header.
struct Dtypes {
  py::dtype server, sample;

  static const Dtypes& get() {
    static const auto* dtypes = new Dtypes();
    return *dtypes;
  }

 private:
  struct Field {
    const char* name;
    const char* format;
    size_t offset;
  };

  static py::dtype record(const std::vector<Field>& fields, size_t size) {
    py::list names, formats, offsets;
    for (const Field& field : fields) {
      names.append(field.name);
      formats.append(py::dtype(field.format));
      offsets.append(field.offset);
    }
    return py::dtype(names, formats, offsets, static_cast<py::ssize_t>(size));
  }

  Dtypes()
      : server(record({{"n_flow_on", "u8", offsetof(steelyard_shm_server, n_flow_on)},
                       {"flows_opened", "u8", offsetof(steelyard_shm_server, flows_opened)},
                       {"flows_completed", "u8", offsetof(steelyard_shm_server, flows_completed)},
                       {"packets", "u8", offsetof(steelyard_shm_server, packets)},
                       {"bytes", "u8", offsetof(steelyard_shm_server, bytes)},
                       {"resets", "u8", offsetof(steelyard_shm_server, resets)},
                       {"collisions", "u8", offsetof(steelyard_shm_server, collisions)},
                       {"weight_q16", "u8", offsetof(steelyard_shm_server, weight_q16)},
                       {"action", "f8", offsetof(steelyard_shm_server, action)}},
                      sizeof(steelyard_shm_server))),
        sample(record({{"t_ns", "u8", offsetof(steelyard_shm_sample, t_ns)},
                       {"value", "f8", offsetof(steelyard_shm_sample, value)}},
                      sizeof(steelyard_shm_sample))) {}
};

// A read-only array over memory that `owner` keeps.
py::array view(const py::dtype& dtype, size_t count, const void* data, const py::object& owner) {
  py::array array(dtype, {static_cast<py::ssize_t>(count)}, {dtype.itemsize()}, data, owner);
  array.attr("flags").attr("writeable") = false;
  return array;
}

const Taken& taken(const py::object& self) { return self.cast<const Taken&>(); }

py::array servers_of(const py::object& self) {
  const auto servers = taken(self).snapshot.servers();
  return view(Dtypes::get().server, servers.size(), servers.data(), self);
}

py::array samples_of(const py::object& self, const std::string& name, uint64_t server) {
  const shm::Snapshot& snapshot = taken(self).snapshot;
  if (server >= snapshot.layout().num_servers)
    throw py::value_error("server is " + std::to_string(server) + "; must be in 0.." +
                          std::to_string(snapshot.layout().num_servers - 1));
  const std::vector<std::string> names{"inter_arrival", "flow_duration", "fct"};
  const size_t kind = bind::word_index("name", name, names);
  const uint64_t reservoir = kind == 0   ? STEELYARD_SHM_INTER_ARRIVAL
                             : kind == 1 ? steelyard_shm_flow_duration(server)
                                         : steelyard_shm_fct(server);
  const auto samples = snapshot.samples(reservoir);
  return view(Dtypes::get().sample, samples.size(), samples.data(), self);
}

py::array_t<bool> active_of(const Taken& self) {
  py::array_t<bool> active(static_cast<py::ssize_t>(self.snapshot.layout().num_servers));
  for (py::ssize_t j = 0; j < active.size(); ++j)
    active.mutable_data()[j] = self.snapshot.is_active(static_cast<uint64_t>(j));
  return active;
}

py::array_t<float> observation_of(const Taken& self) {
  const int n = static_cast<int>(self.snapshot.layout().num_servers);
  py::array_t<float> out(core::observation_size(n));
  self.observer->observe(self.snapshot, out.mutable_data());
  return out;
}

std::unique_ptr<ReaderHandle> open_reader(const std::string& path, bool agent) {
  std::string error;
  auto handle = std::make_unique<ReaderHandle>();
  handle->reader =
      shm::Reader::open(path, agent ? shm::Reader::As::kAgent : shm::Reader::As::kReader, &error);
  if (!handle->reader) throw py::value_error(error);
  handle->observer = std::make_shared<shm::Observer>(handle->reader->layout());
  return handle;
}

std::unique_ptr<Taken> snapshot(ReaderHandle& self, int tries) {
  shm::Reader& reader = *self.reader;
  auto result = std::make_unique<Taken>(Taken{shm::Snapshot(reader.layout()), self.observer});
  const uint64_t status = reader.read(&result->snapshot, tries);
  if (status == STEELYARD_SHM_NONE) return nullptr;
  if (status == STEELYARD_SHM_USABLE) return result;
  PyErr_SetString(PyExc_TimeoutError, (reader.path() + ": torn in every try").c_str());
  throw py::error_already_set();
}

// The array keeps the reader, and so the mapping.
py::array counters(const py::object& self, uint64_t publication) {
  const shm::Reader& reader = *self.cast<const ReaderHandle&>().reader;
  const auto* first = steelyard_shm_server_of(&reader.layout(), reader.frame(publication), 0);
  return view(Dtypes::get().server, reader.layout().num_servers, first, self);
}

uint64_t write(ReaderHandle& self, uint64_t kind, const std::vector<double>& values, const Taken& answered,
               py::object now_ns) {
  shm::Reader& reader = *self.reader;
  if (!reader.is_agent()) throw py::value_error("opened for reading; give agent=True");
  if (values.size() != reader.layout().num_servers)
    throw py::value_error(std::to_string(values.size()) + " values; one for each of the " +
                          std::to_string(reader.layout().num_servers) + " servers is needed");
  const core::TimeNs now = now_ns.is_none() ? reader.now() : now_ns.cast<core::TimeNs>();
  return reader.write(kind, values, answered.snapshot.head(), now);
}

void bind_snapshot(py::module_& module) {
  const auto head = [](auto member) {
    return [=](const Taken& self) { return self.snapshot.head().*member; };
  };
  py::class_<Taken>(module, "ShmSnapshot",
                    "What a dataplane published at one moment: a whole copy, never a mixture of two moments.")
      .def_property_readonly("publication", head(&steelyard_shm_state::publication), "Its number, from 1 on.")
      .def_property_readonly("t_ns", head(&steelyard_shm_state::t_ns), "Its moment on the dataplane's clock.")
      .def_property_readonly("writer_generation", head(&steelyard_shm_state::writer_generation),
                             "Dataplanes that have published in this file until then, its writer included.")
      .def_property_readonly("pool_id", head(&steelyard_shm_state::pool_id), "Identity of the servers.")
      .def_property_readonly("untracked", head(&steelyard_shm_state::untracked),
                             "Flows that found no room in the flow table.")
      .def_property_readonly("action_generation", head(&steelyard_shm_state::action_generation),
                             "Of the last action that the dataplane took over; 0: none so far.")
      .def_property_readonly(
          "action_status",
          [](const Taken& self) {
            return std::string(steelyard_shm_status_text(self.snapshot.head().action_status));
          },
          "`usable` while the agent's weights are in force, else why they are not.")
      .def_property_readonly("servers", &servers_of,
                             "(N,) records n_flow_on, flows_opened, flows_completed, packets, bytes, resets, "
                             "collisions, weight_q16 (uint64), action (float64); read-only, of this copy.")
      .def_property_readonly("active", &active_of, "(N,) bool: the servers that get new flows.")
      .def("samples", &samples_of, py::arg("name"), py::arg("server") = 0,
           "(count,) records (t_ns uint64, value float64 [s]) of `inter_arrival` (of no server), "
           "`flow_duration` or `fct`; empty slots are not there.")
      .def("observation", &observation_of,
           "(12 N + 5,) float32: what LoadBalancer.observe gives in the dataplane at this moment, bit for "
           "bit.");
}

void bind_reader(py::module_& module) {
  py::class_<ReaderHandle>(
      module, "ShmReader",
      "The shared memory of one pool, from the agent's side (docs/shared-memory.md). agent=True: may write "
      "actions; one agent at a time. Raises ValueError (one line) when there is no such file, or it is "
      "foreign, "
      "corrupt, of another ABI or schema, open to other users, or its dataplane does not live.")
      .def(py::init(&open_reader), py::arg("path"), py::kw_only(), py::arg("agent") = false)
      .def("snapshot", &snapshot, py::arg("tries") = STEELYARD_SHM_TRIES,
           "A whole copy of the last publication; None before the first. Raises TimeoutError when the "
           "dataplane "
           "wrote over it in every try.")
      .def_property_readonly(
          "latest", [](const ReaderHandle& self) { return self.reader->latest(); },
          "Number of the last publication; 0 before the first.")
      .def("counters", &counters, py::arg("publication"),
           "(N,) records as in ShmSnapshot.servers where they lie in the shared memory, not a copy. Read, "
           "then ask "
           "still_whole: if not, what was read may be of two moments.")
      .def(
          "still_whole",
          [](const ReaderHandle& self, uint64_t publication) {
            return publication != 0 && self.reader->still_whole(publication);
          },
          py::arg("publication"), "Whether the counters of that publication have not been written over.")
      .def(
          "act",
          [](ReaderHandle& self, const std::vector<double>& action, const Taken& answered,
             py::object now_ns) {
            return write(self, STEELYARD_SHM_KIND_ACTION, action, answered, std::move(now_ns));
          },
          py::arg("action"), py::arg("snapshot"), py::arg("now_ns") = py::none(),
          "Write (N,) actions in [-1, 1] in answer to a snapshot; their generation. now_ns: on the "
          "dataplane's "
          "clock, read by default.")
      .def(
          "set_weights",
          [](ReaderHandle& self, const std::vector<double>& weights, const Taken& answered,
             py::object now_ns) {
            return write(self, STEELYARD_SHM_KIND_WEIGHT, weights, answered, std::move(now_ns));
          },
          py::arg("weights"), py::arg("snapshot"), py::arg("now_ns") = py::none(),
          "As act, with (N,) weights >= 0, not all 0.")
      .def(
          "withdraw",
          [](ReaderHandle& self) {
            shm::Reader& reader = *self.reader;
            if (reader.is_agent()) reader.withdraw(reader.now());
          },
          "Tell the dataplane to go on without this agent.")
      .def(
          "now_ns", [](const ReaderHandle& self) { return self.reader->now(); },
          "Now on the dataplane's clock; 0 if that is simulated.")
      .def_property_readonly("num_servers",
                             [](const ReaderHandle& self) { return self.reader->layout().num_servers; })
      .def_property_readonly("reservoir_size",
                             [](const ReaderHandle& self) { return self.reader->layout().reservoir_size; })
      .def_property_readonly("writer_pid",
                             [](const ReaderHandle& self) { return self.reader->header().writer_pid; })
      .def_property_readonly("path", [](const ReaderHandle& self) { return self.reader->path(); })
      .def_property_readonly(
          "writer_lives", [](const ReaderHandle& self) { return self.reader->writer_lives(); },
          "Whether a dataplane has the file open now.")
      .def_property_readonly(
          "is_current", [](const ReaderHandle& self) { return self.reader->is_current(); },
          "False once the path names another file or none; open it again.");
}

std::unique_ptr<shm::BareDataplane> make_dataplane(const std::string& path, int num_servers,
                                                   int reservoir_size, uint64_t pool_id, bool virtual_clock) {
  core::BalancerConfig config;
  config.num_servers = num_servers;
  config.reservoir_size = reservoir_size;
  core::RuleConfig rule;
  rule.traits = core::find_rule("policy");
  shm::PoolSpec spec{.num_servers = num_servers, .reservoir_size = reservoir_size, .pool_id = pool_id};
  if (virtual_clock) spec.clock_id = STEELYARD_SHM_VIRTUAL_CLOCK;
  std::string error;
  auto publisher = shm::Publisher::open(path, spec, &error);
  if (!publisher) throw py::value_error(error);
  core::LoadBalancer balancer(config, rule);
  balancer.restart(0);
  return std::make_unique<shm::BareDataplane>(std::move(balancer), std::move(publisher));
}

// The dataplane's own ids are in range; those of callers are looked at here.
core::ServerId checked(shm::BareDataplane& self, core::ServerId server) {
  if (server >= 0 && server < self.balancer().num_servers()) return server;
  throw py::value_error("server is " + std::to_string(server) + "; must be in 0.." +
                        std::to_string(self.balancer().num_servers() - 1));
}

void bind_dataplane(py::module_& module) {
  using shm::BareDataplane;
  py::class_<BareDataplane>(
      module, "ShmDataplane",
      "A dataplane without packets: a load balancer (rule `policy`) whose flows are told to it, published as "
      "a "
      "real one publishes. Flows are named by their hash; times are nanoseconds. Raises ValueError when the "
      "path is taken.")
      .def(py::init(&make_dataplane), py::arg("path"), py::arg("num_servers"), py::kw_only(),
           py::arg("reservoir_size") = core::Reservoir::kMaxSize, py::arg("pool_id") = 0,
           py::arg("virtual_clock") = false)
      .def("open", &BareDataplane::open, py::arg("hash"), py::arg("now_ns"),
           "Open a flow; its server, -1 when there is none.")
      .def("first_ack", &BareDataplane::first_ack, py::arg("hash"), py::arg("now_ns"))
      .def(
          "count",
          [](BareDataplane& self, core::ServerId server, uint64_t bytes) {
            self.count(checked(self, server), bytes);
          },
          py::arg("server"), py::arg("bytes"), "A packet of a flow of this server.")
      .def(
          "close",
          [](BareDataplane& self, uint64_t hash, core::ServerId server, bool completed, core::TimeNs now) {
            self.close(hash, checked(self, server), completed, now);
          },
          py::arg("hash"), py::arg("server"), py::arg("completed"), py::arg("now_ns"),
          "End a flow, by FIN (completed) or RST.")
      .def(
          "set_members",
          [](BareDataplane& self, const std::vector<core::ServerId>& members) {
            for (const core::ServerId server : members) checked(self, server);
            self.balancer().set_members(members);
          },
          py::arg("members"))
      .def("publish", &BareDataplane::publish, py::arg("now_ns"))
      .def(
          "poll",
          [](BareDataplane& self, core::TimeNs now, core::TimeNs max_age) {
            const shm::ActionView& view = self.poll(now, max_age);
            return py::make_tuple(std::string(view.why()), view.generation, view.age);
          },
          py::arg("now_ns"), py::arg("max_age_ns") = core::kNanosPerSecond,
          "Take over the agent's last action if it can be used: (`usable` or why not, generation, age [ns]).")
      .def(
          "observe",
          [](BareDataplane& self, core::TimeNs now) {
            py::array_t<float> out(core::observation_size(self.balancer().num_servers()));
            self.balancer().observe(now, out.mutable_data());
            return out;
          },
          py::arg("now_ns"), "(12 N + 5,) float32: the balancer's own observation.")
      .def_property_readonly("weights_q16", [](BareDataplane& self) { return self.balancer().weights(); })
      .def_property_readonly("generation", [](BareDataplane& self) { return self.publisher().generation(); })
      .def_property_readonly("agent_lives",
                             [](BareDataplane& self) { return self.publisher().agent_lives(); });
}

}  // namespace

void bind_shm(py::module_& module) {
  bind_snapshot(module);
  bind_reader(module);
  bind_dataplane(module);
  module.def(
      "pool_id_of", [](const std::vector<std::string>& servers) { return shm::pool_id_of(servers); },
      py::arg("servers"), "Identity of servers in their order.");
}
