// Python face of Malcolm inside a running rack: the rule that hosts it, and what it has learned.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>
#include <utility>
#include <vector>

#include "native/bind/policy.h"
#include "native/sim/malcolm_decider.h"
#include "native/sim/rack.h"

namespace py = pybind11;
using namespace steelyard;

namespace {

using sim::MalcolmDecider;
using sim::MalcolmPoint;
using sim::RackWorld;

MalcolmDecider& decider_of(RackWorld& world) {
  auto* decider = dynamic_cast<MalcolmDecider*>(world.decider());
  if (decider == nullptr) throw py::value_error("world: does not play by the rule \"malcolm\"");
  return *decider;
}

sim::RackRule malcolm_rule(const core::MalcolmConfig& config, bool frozen, const py::object& parameters,
                           const py::object& learning, uint32_t curve_windows) {
  sim::MalcolmSetup setup;
  setup.config = config;
  setup.frozen = frozen;
  setup.curve_windows = curve_windows;
  if (!parameters.is_none()) {
    const py::array_t<float, py::array::c_style> values(bind::float32_array("parameters", parameters, 2));
    setup.parameters.assign(values.data(), values.data() + values.size());
  }
  if (!learning.is_none()) {
    const std::string bytes = py::cast<py::bytes>(learning);
    setup.learning.assign(bytes.begin(), bytes.end());
  }
  sim::RackRule rule;
  rule.traits = sim::find_rack_rule("malcolm");
  rule.decider = std::make_shared<MalcolmDecider>(std::move(setup));
  return rule;
}

py::dict curve_of(RackWorld& world) {
  const std::vector<MalcolmPoint>& points = decider_of(world).curve();
  const auto column = [&](double MalcolmPoint::* field) {
    py::array_t<double> out(static_cast<py::ssize_t>(points.size()));
    for (size_t k = 0; k < points.size(); ++k) out.mutable_at(static_cast<py::ssize_t>(k)) = points[k].*field;
    return out;
  };
  py::dict d;
  d["t_s"] = column(&MalcolmPoint::t_s);
  d["reward"] = column(&MalcolmPoint::reward);
  d["potential"] = column(&MalcolmPoint::potential);
  d["imbalance_us"] = column(&MalcolmPoint::imbalance);
  d["td_error"] = column(&MalcolmPoint::td_error);
  d["migrations"] = column(&MalcolmPoint::migrations);
  d["steals"] = column(&MalcolmPoint::steals);
  d["kept"] = column(&MalcolmPoint::kept);
  return d;
}

py::dict counts_of(RackWorld& world) {
  const MalcolmDecider& decider = decider_of(world);
  py::dict d;
  d["windows"] = decider.windows();
  d["updates"] = decider.servers().empty() ? 0 : decider.servers().front().updates();
  d["consensus_rounds"] = decider.consensus_rounds();
  d["consensus_bytes"] = decider.consensus_bytes();
  return d;
}

}  // namespace

void bind_rack_malcolm(py::module_& module) {
  module.def(
      "malcolm_rule", &malcolm_rule, py::arg("config"), py::arg("frozen") = false,
      py::arg("parameters") = py::none(), py::arg("learning") = py::none(), py::arg("curve_windows") = 100,
      "The rule malcolm: every server learns by `config` as the rack runs, or plays frozen. It starts "
      "from `parameters`, (N, P) float32 as malcolm_parameters has them, and goes on from `learning`, "
      "bytes of malcolm_learning; without either its parameters are drawn by config.seed. Each episode "
      "starts there.");
  module.def(
      "malcolm_parameters",
      [](RackWorld& world) {
        const std::vector<float> values = decider_of(world).parameters();
        const py::ssize_t n = world.num_servers();
        return bind::copied_array(values.data(), {n, static_cast<py::ssize_t>(values.size()) / n});
      },
      py::arg("world"),
      "(N, P) float32: per server the weight of migration (N, K), its bias (N,), the same of stealing, "
      "theta.");
  module.def(
      "malcolm_learning",
      [](RackWorld& world) {
        const std::vector<uint8_t> bytes = decider_of(world).learning();
        return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      },
      py::arg("world"), "All that learning goes on from in another episode; of this build alone.");
  module.def("malcolm_curve", &curve_of, py::arg("world"),
             "Means over curve_windows windows since reset, (points,) float64 each: t_s, reward, potential, "
             "imbalance_us, td_error, migrations and steals per window, kept.");
  module.def("malcolm_counts", &counts_of, py::arg("world"),
             "Since reset: windows, updates (of all episodes), consensus_rounds, consensus_bytes.");
  module.def(
      "malcolm_freeze", [](RackWorld& world, bool frozen) { decider_of(world).set_frozen(frozen); },
      py::arg("world"), py::arg("frozen"), "Stops learning, or goes on with it, until the next reset.");
}
