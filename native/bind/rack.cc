// Python face of the rack world and of whole episodes.
#include "native/bind/rack.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <string>

#include "native/sim/categorical_decider.h"
#include "native/sim/rack_runner.h"

namespace py = pybind11;
using namespace steelyard;

namespace {

using sim::LatencyStats;
using sim::RackWorld;
using FloatMatrix = py::array_t<float, py::array::c_style | py::array::forcecast>;

core::TimeNs nanos(double t_s) { return static_cast<core::TimeNs>(std::llround(t_s * 1e9)); }

void add_latency(py::dict& d, const LatencyStats& s) {
  d["tasks"] = s.tasks;
  d["latency_mean_us"] = s.mean_us;
  d["slowdown_mean"] = s.slowdown_mean;
  const char* names[] = {"p50", "p90", "p99", "p999"};
  for (size_t k = 0; k < sim::kRackQuantiles.size(); ++k) {
    d[("latency_" + std::string(names[k]) + "_us").c_str()] = s.quantile_us[k];
    d[("slowdown_" + std::string(names[k])).c_str()] = s.slowdown[k];
  }
}

}  // namespace

std::shared_ptr<const sim::RackConfig> steelyard::bind::frozen(const sim::RackConfig& config) {
  auto copy = std::make_shared<sim::RackConfig>(config);
  copy->prepare();
  return copy;
}

py::dict steelyard::bind::stats_dict(const sim::RackStats& s) {
  py::dict d;
  add_latency(d, s.all);
  py::list by_type;
  for (const LatencyStats& type : s.by_type) {
    py::dict row;
    add_latency(row, type);
    by_type.append(row);
  }
  d["by_type"] = by_type;
  d["migrations"] = s.migrations;
  d["steals"] = s.steals;
  d["steal_requests"] = s.steal_requests;
  d["messages"] = s.messages;
  d["preemptions"] = s.preemptions;
  d["clones"] = s.clones;
  d["clones_dropped"] = s.clones_dropped;
  d["bounced"] = s.bounced;
  d["plans"] = s.plans;
  d["imbalance_mean_us"] = s.imbalance_mean_us;
  d["busy_mean"] = s.busy_mean;
  d["arrived"] = s.arrived;
  d["events"] = s.events;
  return d;
}

namespace {

using bind::frozen;
using bind::stats_dict;

py::dict timeline_dict(const std::vector<sim::RackMoment>& moments, py::ssize_t n) {
  const py::ssize_t count = static_cast<py::ssize_t>(moments.size());
  py::array_t<double> t(count);
  py::array_t<float> tasks({count, n}), wait({count, n});
  for (py::ssize_t k = 0; k < count; ++k) {
    const sim::RackMoment& moment = moments[static_cast<size_t>(k)];
    t.mutable_at(k) = moment.t_s;
    std::copy(moment.tasks.begin(), moment.tasks.end(), tasks.mutable_data(k, 0));
    std::copy(moment.wait_us.begin(), moment.wait_us.end(), wait.mutable_data(k, 0));
  }
  py::dict d;
  d["t_s"] = t;
  d["tasks"] = tasks;
  d["expected_wait_us"] = wait;
  return d;
}

py::list simulate_rack(const sim::RackConfig& config, const sim::RackRule& rule,
                       const std::vector<uint64_t>& seeds, int threads, bool drain, bool timeline) {
  if (threads < 1)
    throw py::value_error("threads: " + std::to_string(threads) + " is not allowed; use 1 or more");
  const auto checked = frozen(config);
  rule.check(*checked);
  std::vector<sim::RackResult> results;
  bool interrupted = false;
  {
    const py::gil_scoped_release release;
    results = sim::run_racks(checked, rule, seeds, threads, drain, timeline, [&] {
      const py::gil_scoped_acquire acquire;
      interrupted = PyErr_CheckSignals() != 0;
      return interrupted;
    });
  }
  if (interrupted) throw py::error_already_set();
  py::list out;
  for (const sim::RackResult& result : results) {
    py::dict d = stats_dict(result.stats);
    d["seed"] = result.seed;
    d["digest"] = result.digest;
    d["cpu_s"] = result.cpu_s;
    if (timeline) d["timeline"] = timeline_dict(result.timeline, checked->num_servers());
    out.append(d);
  }
  return out;
}

void set_policy(RackWorld& world, const FloatMatrix& migrate, const FloatMatrix& steal) {
  auto* decider = dynamic_cast<sim::CategoricalDecider*>(world.decider());
  if (decider == nullptr) throw py::value_error("set_policy: only the rule \"categorical\" takes one");
  const py::ssize_t n = world.num_servers();
  for (const auto& [name, p] : {std::pair{"migrate", &migrate}, std::pair{"steal", &steal}}) {
    if (p->ndim() != 2 || p->shape(0) != n || p->shape(1) != n)
      throw py::value_error(std::string(name) + ": needs shape (" + std::to_string(n) + ", " +
                            std::to_string(n) + ")");
    for (py::ssize_t i = 0; i < n; ++i) {
      double sum = 0;
      for (py::ssize_t j = 0; j < n; ++j) {
        const float value = p->at(i, j);
        if (!(value >= 0 && std::isfinite(value)))
          throw py::value_error(std::string(name) + ": " + std::to_string(value) +
                                " is not allowed; use probabilities of at least 0");
        sum += value;
      }
      if (!(sum > 0))
        throw py::value_error(std::string(name) + ": row " + std::to_string(i) + " sums to 0; use 1");
    }
  }
  const size_t size = static_cast<size_t>(n * n);
  decider->set({migrate.data(), size}, {steal.data(), size});
}

void need_pallas(const RackWorld& world) {
  if (world.rule().traits->kind != sim::RackKind::kShaped)
    throw py::value_error("shape: only the rule \"pallas\" has one");
}

py::array_t<float> views(RackWorld& world) {
  const py::ssize_t m = world.num_deciders(), n = world.num_servers();
  py::array_t<float> out({m, n});
  for (py::ssize_t i = 0; i < m; ++i) {
    const auto row = world.view(static_cast<int>(i));
    std::copy(row.begin(), row.end(), out.mutable_data(i, 0));
  }
  return out;
}

// One number per server.
template <typename F>
py::array_t<double> per_server(const RackWorld& world, F f) {
  py::array_t<double> out(world.num_servers());
  for (int j = 0; j < world.num_servers(); ++j)
    out.mutable_at(j) = static_cast<double>(f(static_cast<uint32_t>(j)));
  return out;
}

void bind_state(py::class_<RackWorld>& world) {
  world
      .def(
          "loads",
          [](const RackWorld& self) {
            return per_server(self, [&](uint32_t j) { return self.node(static_cast<int>(j)).in_system; });
          },
          "(N,) tasks in each server now.")
      .def(
          "waiting",
          [](const RackWorld& self) { return per_server(self, [&](uint32_t j) { return self.waiting(j); }); },
          "(N,) tasks that wait in each server now.")
      .def(
          "work_left_s",
          [](const RackWorld& self) {
            return per_server(self, [&](uint32_t j) { return self.work_left_s(j); });
          },
          "(N,) remaining work over workers x speed [s].")
      .def(
          "expected_waits_us",
          [](RackWorld& self) {
            const auto x = self.expected_waits_us();
            return py::array_t<float>(static_cast<py::ssize_t>(x.size()), x.data());
          },
          "(N,) float32, tasks / true service rate: the x of Malcolm's game [us].")
      .def(
          "true_rates",
          [](const RackWorld& self) {
            return per_server(self, [&](uint32_t j) { return self.true_rate(static_cast<int>(j)); });
          },
          "(N,) workers x speed / mean service [tasks/s].")
      .def(
          "estimated_rates",
          [](const RackWorld& self) {
            return per_server(self, [&](uint32_t j) { return self.estimated_rate(j); });
          },
          "(N,) as the servers estimate them (rules that use them, and categorical) [tasks/s].")
      .def("views", &views, "(M, N) float32: the load of each server as each decider knows it now.")
      .def(
          "counts",
          [](const RackWorld& self) {
            py::dict d;
            d["migrations"] = per_server(self, [&](uint32_t j) { return self.totals(j).migrations; });
            d["steals"] = per_server(self, [&](uint32_t j) { return self.totals(j).steals; });
            d["arrivals"] = per_server(self, [&](uint32_t j) { return self.totals(j).arrivals; });
            d["completions"] = per_server(self, [&](uint32_t j) { return self.totals(j).completions; });
            return d;
          },
          "Since reset, (N,) each: tasks given away, stolen by, arrived at (rules that decide at servers), "
          "served.");
}

}  // namespace

void bind_rack(py::module_& module) {
  module.def("simulate_rack", &simulate_rack, py::arg("config"), py::arg("rule"), py::arg("seeds"),
             py::arg("threads") = 1, py::arg("drain") = true, py::arg("timeline") = false,
             "One episode per seed, natively. Returns one dict per seed, in their order; Ctrl-C stops "
             "between episodes.");
  py::class_<RackWorld> world(
      module, "RackWorld", "One rack, stepped by hand. clone() is a snapshot, restore() goes back to one.");
  world
      .def(py::init([](const sim::RackConfig& config, const sim::RackRule& rule, uint64_t seed) {
             return std::make_unique<RackWorld>(frozen(config), rule, seed);
           }),
           py::arg("config"), py::arg("rule"), py::arg("seed"))
      .def("reset", &RackWorld::reset, py::arg("seed"))
      .def(
          "run_until",
          [](RackWorld& self, double t_s) {
            if (!(nanos(t_s) >= self.now()))
              throw py::value_error("t_s: " + std::to_string(t_s) + " is in the past");
            const py::gil_scoped_release release;
            self.run_until(nanos(t_s));
          },
          py::arg("t_s"), "All events up to and including t_s [s].")
      .def(
          "step_window",
          [](RackWorld& self) {
            const py::gil_scoped_release release;
            self.run_until(self.next_window());
          },
          "To the next window: the loads of a period have been broadcast and heard.")
      .def(
          "drain",
          [](RackWorld& self) {
            const py::gil_scoped_release release;
            self.drain();
          },
          "Until every task that arrived before the horizon is done.")
      .def("set_policy", &set_policy, py::arg("migrate"), py::arg("steal"),
           "Of the rule categorical: (N, N) each, row i the probabilities of server i; own column: keeps the "
           "task, does not steal.")
      .def(
          "shape",
          [](const RackWorld& self) {
            need_pallas(self);
            py::dict d;
            d["group_of"] = self.shape_plan().group_of;
            d["cores"] = self.shape_plan().cores;
            return d;
          },
          "Of the rule pallas: group_of (T,), cores (G, N): which types go together and their dispatch "
          "weights.")
      .def(
          "set_shape",
          [](RackWorld& self, std::vector<int> group_of, std::vector<std::vector<double>> cores) {
            need_pallas(self);
            sim::RackRule rule = self.rule();
            rule.shaping.plan = {std::move(group_of), std::move(cores)};
            rule.check(self.config());
            self.set_shape(*rule.shaping.plan);
          },
          py::arg("group_of"), py::arg("cores"), "A plan in the place of the present one, in force at once.")
      .def("clone", [](const RackWorld& self) { return std::make_unique<RackWorld>(self); })
      .def(
          "restore", [](RackWorld& self, const RackWorld& other) { self = other; }, py::arg("other"))
      .def(
          "stats", [](const RackWorld& self) { return stats_dict(self.stats()); },
          "Of the tasks that are done so far; the keys of simulate_rack.")
      .def_property_readonly("num_servers", &RackWorld::num_servers)
      .def_property_readonly("num_deciders", &RackWorld::num_deciders)
      .def_property_readonly("live_tasks", &RackWorld::live_tasks)
      .def_property_readonly("now_s",
                             [](const RackWorld& self) { return static_cast<double>(self.now()) * 1e-9; })
      .def_property_readonly("done", [](const RackWorld& self) { return self.now() >= self.horizon_ns(); })
      .def_property_readonly("digest", &RackWorld::digest);
  bind_state(world);
}
