// Python face of the cluster world and of whole episodes.
#include "native/bind/cluster.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cmath>
#include <stdexcept>

#include "native/sim/flow_schedule.h"
#include "native/sim/payoff.h"
#include "native/sim/runner.h"

namespace py = pybind11;
using namespace steelyard;

namespace steelyard::bind {

std::shared_ptr<const sim::ClusterConfig> frozen(const sim::ClusterConfig& config) {
  auto copy = std::make_shared<sim::ClusterConfig>(config);
  copy->prepare();
  return copy;
}

sim::Convention convention_of(const std::string& word) {
  if (word == "uncensored") return sim::Convention::kUncensored;
  if (word == "peer") return sim::Convention::kPeer;
  throw py::value_error("convention: \"" + word + "\" is not known; use uncensored or peer");
}

py::dict stats_dict(const sim::EpisodeStats& s) {
  py::dict d;
  d["flows"] = s.flows;
  d["rejected"] = s.rejected;
  d["sojourn_mean_s"] = s.sojourn_mean_s;
  d["sojourn_p50_s"] = s.sojourn_p50_s;
  d["sojourn_p90_s"] = s.sojourn_p90_s;
  d["sojourn_p95_s"] = s.sojourn_p95_s;
  d["sojourn_p99_s"] = s.sojourn_p99_s;
  d["sojourn_p999_s"] = s.sojourn_p999_s;
  d["slowdown_mean"] = s.slowdown_mean;
  d["waiting_mean_s"] = s.waiting_mean_s;
  d["jain_mean"] = s.jain_mean;
  d["makespan_mean"] = s.makespan_mean;
  d["overprovision_mean"] = s.overprovision_mean;
  d["untracked"] = s.untracked;
  d["arrived"] = s.arrived;
  d["messages"] = s.messages;
  d["messages_per_flow"] = static_cast<double>(s.messages) / static_cast<double>(s.arrived);
  d["events"] = s.events;
  return d;
}

}  // namespace steelyard::bind

namespace {

using sim::ClusterWorld;

core::TimeNs nanos(double t_s) { return static_cast<core::TimeNs>(std::llround(t_s * 1e9)); }

template <typename T>
py::array_t<T> array_of(const std::vector<T>& values, std::vector<py::ssize_t> shape) {
  return py::array_t<T>(std::move(shape), values.data());
}

void add_details(py::dict& d, const sim::EpisodeResult& result, int m, int n) {
  std::vector<float> opened, sojourn;
  std::vector<uint8_t> rejected;
  for (const sim::FlowRecord& flow : result.flows) {
    opened.push_back(flow.opened_s);
    sojourn.push_back(flow.sojourn_s);
    rejected.push_back(flow.rejected ? 1 : 0);
  }
  const py::ssize_t count = static_cast<py::ssize_t>(opened.size());
  d["arrival_s"] = array_of(opened, {count});
  d["sojourn_s"] = array_of(sojourn, {count});
  d["was_rejected"] = array_of(rejected, {count});
  std::vector<double> t;
  std::vector<float> weights, in_system;
  for (const sim::TimelinePoint& point : result.timeline) {
    t.push_back(point.t_s);
    weights.insert(weights.end(), point.weights.begin(), point.weights.end());
    in_system.insert(in_system.end(), point.in_system.begin(), point.in_system.end());
  }
  const py::ssize_t points = static_cast<py::ssize_t>(t.size());
  py::dict timeline;
  timeline["t_s"] = array_of(t, {points});
  timeline["weights"] = array_of(weights, {points, m, n});
  timeline["in_system"] = array_of(in_system, {points, n});
  d["timeline"] = timeline;
}

py::list simulate(const sim::ClusterConfig& config, const core::RuleConfig& rule,
                  const std::vector<uint64_t>& seeds, int threads, const std::string& convention,
                  bool details) {
  if (threads < 1)
    throw py::value_error("threads: " + std::to_string(threads) + " is not allowed; use 1 or more");
  const auto frozen = bind::frozen(config);
  rule.check(frozen->num_servers(), frozen->num_load_balancers);
  const sim::Convention chosen = bind::convention_of(convention);
  std::vector<sim::EpisodeResult> results;
  bool interrupted = false;
  {
    const py::gil_scoped_release release;
    results = sim::run_episodes(frozen, rule, seeds, threads, chosen, details, [&] {
      const py::gil_scoped_acquire acquire;
      interrupted = PyErr_CheckSignals() != 0;
      return interrupted;
    });
  }
  if (interrupted) throw py::error_already_set();
  py::list out;
  for (const sim::EpisodeResult& result : results) {
    py::dict d = bind::stats_dict(result.stats);
    d["seed"] = result.seed;
    d["digest"] = result.digest;
    d["cpu_s"] = result.cpu_s;
    if (details) add_details(d, result, frozen->num_load_balancers, frozen->num_servers());
    out.append(d);
  }
  return out;
}

py::dict flow_schedule(const sim::ClusterConfig& config, uint64_t seed) {
  const sim::FlowSchedule flows = sim::flow_schedule(bind::frozen(config), seed);
  const py::ssize_t count = static_cast<py::ssize_t>(flows.arrival_s.size());
  py::dict d;
  d["arrival_s"] = array_of(flows.arrival_s, {count});
  d["demand_s"] = array_of(flows.demand_s, {count});
  d["trace_row"] = array_of(flows.trace_row, {count});
  return d;
}

py::array_t<float> observe(ClusterWorld& world, int agent) {
  if (agent < 0 || agent >= world.num_balancers())
    throw py::index_error("agent: " + std::to_string(agent) + " is not in the pool");
  py::array_t<float> out(core::observation_size(world.num_servers()));
  world.observe(agent, out.mutable_data());
  return out;
}

py::array_t<float> observe_all(ClusterWorld& world) {
  const py::ssize_t size = core::observation_size(world.num_servers());
  py::array_t<float> out({static_cast<py::ssize_t>(world.num_balancers()), size});
  for (int i = 0; i < world.num_balancers(); ++i) world.observe(i, out.mutable_data() + i * size);
  return out;
}

void act(ClusterWorld& world, int agent, const py::array_t<float, py::array::c_style>& action) {
  if (agent < 0 || agent >= world.num_balancers())
    throw py::index_error("agent: " + std::to_string(agent) + " is not in the pool");
  if (action.ndim() != 1 || action.size() != world.num_servers()) {
    throw py::value_error("action: needs shape (" + std::to_string(world.num_servers()) + ",)");
  }
  world.act(agent, action.data());
}

py::array_t<double> remaining_time(const ClusterWorld& world, int agent) {
  if (agent < -1 || agent >= world.num_balancers())
    throw py::index_error("agent: " + std::to_string(agent) + " is not in the pool");
  py::array_t<double> out(world.num_servers());
  world.remaining_time(agent, out.mutable_data());
  return out;
}

py::array_t<double> place_until(ClusterWorld& world, double t_s) {
  if (!(nanos(t_s) >= world.now())) throw py::value_error("t_s: " + std::to_string(t_s) + " is in the past");
  py::array_t<double> out(
      {static_cast<py::ssize_t>(world.num_balancers()), static_cast<py::ssize_t>(world.num_servers())});
  world.place_until(nanos(t_s), out.mutable_data());
  return out;
}

void set_weights(ClusterWorld& world, int agent, const std::vector<double>& weights) {
  if (agent < 0 || agent >= world.num_balancers())
    throw py::index_error("agent: " + std::to_string(agent) + " is not in the pool");
  if (static_cast<int>(weights.size()) != world.num_servers())
    throw py::value_error("weights: needs shape (" + std::to_string(world.num_servers()) + ",)");
  for (const double weight : weights) {
    if (!(weight > 0 && weight <= core::kMaxWeight))
      throw py::value_error("weights: " + std::to_string(weight) +
                            " is not allowed; use numbers above 0, at most 65535");
  }
  world.set_weights(agent, weights);
}

py::dict state(const ClusterWorld& world) {
  py::dict d;
  d["in_system"] = world.in_system();
  d["waiting"] = world.waiting();
  d["live_flows"] = world.live_flows();
  py::list flows_on, weights;
  for (int i = 0; i < world.num_balancers(); ++i) {
    flows_on.append(world.balancer(i).flows_on());
    std::vector<double> w;
    for (const core::WeightQ16 q : world.balancer(i).weights())
      w.push_back(static_cast<double>(q) / core::kUnitWeight);
    weights.append(w);
  }
  d["flows_on"] = flows_on;
  d["weights"] = weights;
  std::vector<double> capacity;
  for (int j = 0; j < world.num_servers(); ++j) capacity.push_back(world.capacity(j));
  d["capacity"] = capacity;
  return d;
}

py::array_t<float> payoff(ClusterWorld& world, const std::string& reward, const std::string& measure) {
  py::array_t<float> out(world.num_balancers());
  sim::Payoff(reward, measure)(world, out.mutable_data());
  return out;
}

}  // namespace

void bind_cluster(py::module_& module) {
  module.def("simulate", &simulate, py::arg("config"), py::arg("rule"), py::arg("seeds"),
             py::arg("threads") = 1, py::arg("convention") = "uncensored", py::arg("details") = false,
             "One episode per seed, natively. Returns one dict per seed, in their order; Ctrl-C stops "
             "between episodes.");
  module.def("flow_schedule", &flow_schedule, py::arg("config"), py::arg("seed"),
             "The flows of a seed: arrival_s, demand_s, trace_row, each (n,). For scenarios of CPU stages "
             "whose rate no event changes.");
  py::class_<ClusterWorld>(
      module, "World",
      "One cluster world, stepped by hand. clone() is a snapshot, restore() goes back to one.")
      .def(py::init([](const sim::ClusterConfig& config, const core::RuleConfig& rule, uint64_t seed) {
             return std::make_unique<ClusterWorld>(bind::frozen(config), rule, seed);
           }),
           py::arg("config"), py::arg("rule"), py::arg("seed"))
      .def("reset", &ClusterWorld::reset, py::arg("seed"))
      .def(
          "run_until",
          [](ClusterWorld& self, double t_s) {
            if (!(nanos(t_s) >= self.now()))
              throw py::value_error("t_s: " + std::to_string(t_s) + " is in the past");
            const py::gil_scoped_release release;
            self.run_until(nanos(t_s));
          },
          py::arg("t_s"), "All events up to and including t_s [s].")
      .def(
          "drain",
          [](ClusterWorld& self) {
            const py::gil_scoped_release release;
            self.drain();
          },
          "Until every flow that opened before the horizon is done.")
      .def("observe", &observe, py::arg("agent"), "(D,) float32.")
      .def("observe_all", &observe_all, "(M, D) float32.")
      .def("act", &act, py::arg("agent"), py::arg("action"), "action: (N,) float32 in [-1, 1].")
      .def("remaining_time", &remaining_time, py::arg("agent") = -1,
           "(N,) true remaining time [s] per server; of one agent's flows, or all (-1).")
      .def("place_until", &place_until, py::arg("t_s"),
           "As run_until; (M, N) remaining time [s] that each agent's new flows bring to each server, before "
           "service.")
      .def("set_weights", &set_weights, py::arg("agent"), py::arg("weights"),
           "weights: (N,), in force until the rule or an action sets others.")
      .def("reward", &payoff, py::arg("kind"), py::arg("measure") = "durations", "(M,) float32.")
      .def("state", &state)
      .def("clone", [](const ClusterWorld& self) { return std::make_unique<ClusterWorld>(self); })
      .def(
          "restore", [](ClusterWorld& self, const ClusterWorld& other) { self = other; }, py::arg("other"))
      .def(
          "stats",
          [](const ClusterWorld& self, const std::string& word) {
            sim::EpisodeStats stats = self.metrics().summarise(bind::convention_of(word));
            self.add_counts(stats);
            return bind::stats_dict(stats);
          },
          py::arg("convention") = "uncensored", "Of the flows that are done so far; the keys of simulate.")
      .def_property_readonly("now_s",
                             [](const ClusterWorld& self) { return static_cast<double>(self.now()) * 1e-9; })
      .def_property_readonly("done", [](const ClusterWorld& self) { return self.now() >= self.horizon_ns(); })
      .def_property_readonly("digest", &ClusterWorld::digest);
}
