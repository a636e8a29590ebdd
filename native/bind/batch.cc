// Python face of the batched simulator: NumPy buffers bound once, the GIL released while worlds run.
#include "native/sim/batch.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cmath>

#include "native/bind/buffers.h"
#include "native/bind/cluster.h"

namespace py = pybind11;
using namespace steelyard;

namespace {

using bind::buffer;

// The native batch together with the arrays whose memory it writes.
struct Batch {
  Batch(const sim::ClusterConfig& config, int num_envs, int threads, const std::string& reward,
        const std::string& measure)
      : worlds(bind::frozen(config), num_envs, threads, reward, measure) {}
  sim::ClusterBatch worlds;
  py::object observations, rewards, truncated;
};

void bind_buffers(Batch& batch, const py::array& observations, const py::array& rewards,
                  const py::array& truncated) {
  const py::ssize_t b = batch.worlds.num_envs();
  const py::ssize_t m = batch.worlds.num_agents();
  const py::ssize_t d = core::observation_size(batch.worlds.num_servers());
  batch.worlds.bind({.observations = buffer<float>(observations, "observations", {b, m, d}),
                     .rewards = buffer<float>(rewards, "rewards", {b, m}),
                     .truncated = buffer<uint8_t>(truncated, "truncated", {b})});
  batch.observations = observations;
  batch.rewards = rewards;
  batch.truncated = truncated;
}

void need_bound(const Batch& batch) {
  if (!batch.worlds.bound())
    throw py::value_error("bind: no buffers yet; call bind(observations, rewards, truncated) first");
}

void reset(Batch& batch, const py::array_t<uint64_t, py::array::c_style>& seeds) {
  need_bound(batch);
  if (seeds.ndim() != 1 || seeds.size() != batch.worlds.num_envs()) {
    throw py::value_error("seeds: needs shape (" + std::to_string(batch.worlds.num_envs()) + ",)");
  }
  const uint64_t* data = seeds.data();
  const py::gil_scoped_release release;
  batch.worlds.reset(data);
}

void reset_world(Batch& batch, int index, uint64_t seed) {
  need_bound(batch);
  if (index < 0 || index >= batch.worlds.num_envs())
    throw py::index_error("index: " + std::to_string(index) + " is not in the batch");
  batch.worlds.reset_world(index, seed);
}

void step(Batch& batch, const py::array_t<float, py::array::c_style>& actions, const py::object& active) {
  need_bound(batch);
  const py::ssize_t b = batch.worlds.num_envs();
  if (actions.ndim() != 3 || actions.shape(0) != b || actions.shape(1) != batch.worlds.num_agents() ||
      actions.shape(2) != batch.worlds.num_servers()) {
    throw py::value_error("actions: needs shape (" + std::to_string(b) + ", " +
                          std::to_string(batch.worlds.num_agents()) + ", " +
                          std::to_string(batch.worlds.num_servers()) + ")");
  }
  py::array_t<uint8_t, py::array::c_style> mask;
  if (!active.is_none()) {
    mask = active.cast<py::array_t<uint8_t, py::array::c_style>>();
    if (mask.ndim() != 1 || mask.size() != b)
      throw py::value_error("active: needs shape (" + std::to_string(b) + ",)");
  }
  const uint8_t* mask_data = active.is_none() ? nullptr : mask.data();
  const float* data = actions.data();
  const py::gil_scoped_release release;
  batch.worlds.step(data, mask_data);
}

py::dict episode_stats(Batch& batch) {
  const py::ssize_t b = batch.worlds.num_envs();
  py::array_t<double> sojourn(b), jain(b);
  py::array_t<uint64_t> flows(b), rejected(b);
  for (py::ssize_t i = 0; i < b; ++i) {
    const sim::Metrics& metrics = batch.worlds.world(static_cast<int>(i)).metrics();
    sojourn.mutable_at(i) = metrics.running_sojourn_s();
    jain.mutable_at(i) = metrics.running_jain();
    flows.mutable_at(i) = metrics.flows().size();
    rejected.mutable_at(i) = metrics.running_rejected();
  }
  py::dict d;
  d["sojourn_mean_s"] = sojourn;
  d["flows"] = flows;
  d["rejected"] = rejected;
  d["jain_mean"] = jain;
  return d;
}

py::array_t<double> remaining_time(Batch& batch) {
  const py::ssize_t n = batch.worlds.num_servers();
  py::array_t<double> out({static_cast<py::ssize_t>(batch.worlds.num_envs()), n});
  for (int i = 0; i < batch.worlds.num_envs(); ++i)
    batch.worlds.world(i).remaining_time(-1, out.mutable_data(i, 0));
  return out;
}

}  // namespace

void bind_batch(py::module_& module) {
  py::class_<Batch>(
      module, "ClusterBatch",
      "B cluster worlds stepped together. Buffers: observations (B, M, D) float32, rewards (B, M) float32,\n"
      "truncated (B,) uint8. A truncated world stays at its horizon until reset_world.")
      .def(py::init<const sim::ClusterConfig&, int, int, const std::string&, const std::string&>(),
           py::arg("config"), py::arg("num_envs"), py::arg("threads") = 1, py::arg("reward") = "vbf",
           py::arg("measure") = "durations")
      .def("bind", &bind_buffers, py::arg("observations"), py::arg("rewards"), py::arg("truncated"))
      .def("reset", &reset, py::arg("seeds"))
      .def("reset_world", &reset_world, py::arg("index"), py::arg("seed"))
      .def("step", &step, py::arg("actions"), py::arg("active") = py::none(),
           "actions: (B, M, N) float32; active: (B,) bool, worlds with False stay as they are.")
      .def("episode_stats", &episode_stats)
      .def("remaining_time", &remaining_time, "(B, N) true remaining time [s] per server, of all flows.")
      .def_property_readonly("num_envs", [](const Batch& self) { return self.worlds.num_envs(); })
      .def_property_readonly("num_agents", [](const Batch& self) { return self.worlds.num_agents(); })
      .def_property_readonly("num_servers", [](const Batch& self) { return self.worlds.num_servers(); });
}
