// Python face of the batched racks: NumPy buffers bound once, the GIL released while racks run.
#include "native/sim/rack_batch.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <string>

#include "native/bind/buffers.h"
#include "native/bind/rack.h"

namespace py = pybind11;
using namespace steelyard;

namespace {

using bind::buffer;
using Floats = py::array_t<float, py::array::c_style>;

// The native batch together with the arrays whose memory it writes.
struct Batch {
  Batch(const sim::RackConfig& config, int num_envs, int threads, const sim::RackReward& reward)
      : worlds(bind::frozen(config), num_envs, threads, reward) {}
  py::ssize_t envs() const { return worlds.num_envs(); }
  py::ssize_t servers() const { return worlds.num_servers(); }
  sim::RackBatch worlds;
  py::object observations, rewards, truncated;
};

std::unique_ptr<Batch> make_batch(const sim::RackConfig& config, int num_envs, int threads,
                                  const std::string& reward, float migration_cost, float steal_cost,
                                  double load_unit_s) {
  if (reward != "payoff" && reward != "phi")
    throw py::value_error("reward: \"" + reward + "\" is not known; use one of payoff, phi");
  const sim::RackReward paid{reward == "phi", {migration_cost, steal_cost}, load_unit_s};
  return std::make_unique<Batch>(config, num_envs, threads, paid);
}

void bind_buffers(Batch& batch, const py::array& observations, const py::array& rewards,
                  const py::array& truncated) {
  const py::ssize_t b = batch.envs(), n = batch.servers();
  const py::ssize_t d = sim::rack_observation_size(batch.worlds.num_servers());
  batch.worlds.bind({.observations = buffer<float>(observations, "observations", {b, n, d}),
                     .rewards = buffer<float>(rewards, "rewards", {b, n}),
                     .truncated = buffer<uint8_t>(truncated, "truncated", {b})});
  batch.observations = observations;
  batch.rewards = rewards;
  batch.truncated = truncated;
}

void need_bound(const Batch& batch) {
  if (!batch.worlds.bound())
    throw py::value_error("bind: no buffers yet; call bind(observations, rewards, truncated) first");
}

int checked(const Batch& batch, const char* name, int index) {
  if (index < 0 || index >= batch.worlds.num_envs())
    throw py::index_error(std::string(name) + ": " + std::to_string(index) + " is not in the batch");
  return index;
}

void reset(Batch& batch, const py::array_t<uint64_t, py::array::c_style>& seeds) {
  need_bound(batch);
  if (seeds.ndim() != 1 || seeds.size() != batch.envs())
    throw py::value_error("seeds: needs shape (" + std::to_string(batch.envs()) + ",)");
  const uint64_t* data = seeds.data();
  const py::gil_scoped_release release;
  batch.worlds.reset(data);
}

// Weights of draws: not negative, none infinite, no row of zeros.
void check_weights(const Batch& batch, const Floats& weights) {
  const py::ssize_t b = batch.envs(), n = batch.servers();
  const std::vector<py::ssize_t> shape{b, 2, n, n};
  bool fits = weights.ndim() == 4;
  for (size_t k = 0; fits && k < 4; ++k) fits = weights.shape(static_cast<py::ssize_t>(k)) == shape[k];
  if (!fits) {
    const std::string servers = std::to_string(n);
    throw py::value_error("weights: needs shape (" + std::to_string(b) + ", 2, " + servers + ", " + servers +
                          ")");
  }
  const float* data = weights.data();
  for (py::ssize_t row = 0; row < b * 2 * n; ++row) {
    float sum = 0;
    for (py::ssize_t j = 0; j < n; ++j) {
      const float value = data[row * n + j];
      if (!(value >= 0 && std::isfinite(value)))
        throw py::value_error("weights: " + std::to_string(value) + " is not allowed; use at least 0");
      sum += value;
    }
    if (!(sum > 0 && std::isfinite(sum)))
      throw py::value_error("weights: a row sums to " + std::to_string(sum) + "; use a sum above 0");
  }
}

void step(Batch& batch, const Floats& weights, const py::object& active) {
  need_bound(batch);
  check_weights(batch, weights);
  py::array_t<uint8_t, py::array::c_style> mask;
  if (!active.is_none()) {
    mask = active.cast<py::array_t<uint8_t, py::array::c_style>>();
    if (mask.ndim() != 1 || mask.size() != batch.envs())
      throw py::value_error("active: needs shape (" + std::to_string(batch.envs()) + ",)");
  }
  const uint8_t* mask_data = active.is_none() ? nullptr : mask.data();
  const float* data = weights.data();
  const py::gil_scoped_release release;
  batch.worlds.step(data, mask_data);
}

py::dict episode_stats(Batch& batch) {
  const py::ssize_t b = batch.envs();
  py::array_t<double> latency(b), imbalance(b);
  py::array_t<uint64_t> tasks(b), migrations(b), steals(b);
  for (py::ssize_t i = 0; i < b; ++i) {
    sim::RackWorld& world = batch.worlds.world(static_cast<int>(i));
    latency.mutable_at(i) = world.metrics().running_latency_us();
    tasks.mutable_at(i) = world.metrics().measured();
    migrations.mutable_at(i) = world.migrations();
    steals.mutable_at(i) = world.steals();
    imbalance.mutable_at(i) = sim::load_imbalance(world.expected_waits_us());
  }
  py::dict d;
  d["latency_mean_us"] = latency;
  d["tasks"] = tasks;
  d["migrations"] = migrations;
  d["steals"] = steals;
  d["imbalance_us"] = imbalance;
  return d;
}

py::array_t<float> expected_waits_us(Batch& batch) {
  py::array_t<float> out({batch.envs(), batch.servers()});
  for (py::ssize_t b = 0; b < batch.envs(); ++b) {
    const auto waits = batch.worlds.world(static_cast<int>(b)).expected_waits_us();
    std::copy(waits.begin(), waits.end(), out.mutable_data(b, 0));
  }
  return out;
}

py::array_t<uint32_t> moves(Batch& batch) {
  const py::ssize_t b = batch.envs(), n = batch.servers();
  py::array_t<uint32_t> out({b, py::ssize_t{2}, n, n});
  for (py::ssize_t i = 0; i < b; ++i) {
    const sim::WindowDecider& decider = batch.worlds.decider(static_cast<int>(i));
    std::copy(decider.migrations().begin(), decider.migrations().end(), out.mutable_data(i, 0, 0, 0));
    std::copy(decider.requests().begin(), decider.requests().end(), out.mutable_data(i, 1, 0, 0));
  }
  return out;
}

void bind_looks(py::class_<Batch>& batch) {
  batch
      .def("episode_stats", &episode_stats,
           "(B,) each: latency_mean_us and tasks done so far, migrations, steals; imbalance_us now.")
      .def("expected_waits_us", &expected_waits_us,
           "(B, N) float32: true x = tasks / true service rate [us].")
      .def("moves", &moves,
           "(B, 2, N, N) uint32 of the last window: tasks that row i kept or gave to column j; its requests "
           "for work.")
      .def(
          "stats",
          [](Batch& self, int index) {
            return bind::stats_dict(self.worlds.world(checked(self, "index", index)).stats());
          },
          py::arg("index"), "Of the tasks of a world that are done so far; the keys of simulate_rack.")
      .def_property_readonly("num_envs", [](const Batch& self) { return self.worlds.num_envs(); })
      .def_property_readonly("num_servers", [](const Batch& self) { return self.worlds.num_servers(); });
}

}  // namespace

void bind_rack_batch(py::module_& module) {
  module.def("rack_observation_size", &sim::rack_observation_size, py::arg("num_servers"),
             "Numbers in one server's observation.");
  py::class_<Batch> batch(
      module, "RackBatch",
      "B racks stepped together, a window at a time. Buffers: observations (B, N, D) float32, rewards (B, "
      "N)\n"
      "float32, truncated (B,) uint8. A truncated world stays at its horizon until reset_world.");
  batch
      .def(py::init(&make_batch), py::arg("config"), py::arg("num_envs"), py::arg("threads") = 1,
           py::arg("reward") = "payoff", py::arg("migration_cost") = 1e-4F, py::arg("steal_cost") = 1e-4F,
           py::arg("load_unit_s") = 100e-6)
      .def("bind", &bind_buffers, py::arg("observations"), py::arg("rewards"), py::arg("truncated"))
      .def("reset", &reset, py::arg("seeds"))
      .def(
          "reset_world",
          [](Batch& self, int index, uint64_t seed) {
            need_bound(self);
            self.worlds.reset_world(checked(self, "index", index), seed);
          },
          py::arg("index"), py::arg("seed"))
      .def(
          "copy_world",
          [](Batch& self, int from, int to) {
            need_bound(self);
            self.worlds.copy_world(checked(self, "source", from), checked(self, "target", to));
          },
          py::arg("source"), py::arg("target"), "The target becomes what the source is, buffers included.")
      .def("step", &step, py::arg("weights"), py::arg("active") = py::none(),
           "weights: (B, 2, N, N) float32 of migration, then stealing: row i of server i, own column keeps "
           "the task, asks nobody. active: (B,) bool, worlds with False stay as they are.");
  bind_looks(batch);
}
