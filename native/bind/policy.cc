// Python face of inference: a loaded policy, stepped by hand.
#include "native/bind/policy.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "native/core/policy.h"

namespace py = pybind11;

namespace steelyard::bind {
namespace {

py::array_t<float> activation(const std::string& kind, const py::array_t<float, py::array::c_style>& x) {
  py::array_t<float> y = copied_array(x.data(), {x.shape(), x.shape() + x.ndim()});
  core::policy_activate(static_cast<core::Activation>(word_index("kind", kind, activation_words())),
                        y.mutable_data(), static_cast<size_t>(y.size()));
  return y;
}

PolicyHandle open_policy(const py::object& source, int num_agents) {
  std::string error;
  PolicyHandle handle;
  if (py::isinstance<py::bytes>(source)) {
    const std::string_view view = py::reinterpret_borrow<py::bytes>(source);
    handle.loaded =
        core::load_policy_bytes(reinterpret_cast<const uint8_t*>(view.data()), view.size(), &error);
  } else {
    const std::string path = py::str(py::module_::import("os").attr("fspath")(source));
    handle.loaded = core::load_policy_file(path, &error);
  }
  if (!handle.loaded) throw py::value_error(error);
  const core::LoadedPolicy& policy = *handle.loaded;
  const int made_for = policy.central() ? policy.central_agents() : policy.num_actors();
  handle.hosted = core::HostedPolicy(handle.loaded, num_agents == 0 ? made_for : num_agents);
  return handle;
}

void check_agent(const PolicyHandle& policy, int agent) {
  if (agent >= 0 && agent < policy.hosted.num_agents()) return;
  throw py::value_error("agent is " + std::to_string(agent) + "; must be in 0.." +
                        std::to_string(policy.hosted.num_agents() - 1));
}

py::array_t<float> infer(PolicyHandle& policy, int agent, const py::array& obs) {
  check_agent(policy, agent);
  const auto size = static_cast<py::ssize_t>(policy.loaded->obs_size());
  const py::array_t<float, py::array::c_style> values(float32_array("obs", obs, 1));
  if (values.size() != size) {
    throw py::value_error("obs has shape " + shape_text({values.size()}) + "; expected " +
                          shape_text({size}));
  }
  py::array_t<float> action(static_cast<py::ssize_t>(policy.loaded->action_size()));
  if (policy.hosted.act(agent, values.data(), action.mutable_data())) return action;
  throw py::value_error("obs or the policy's result is not finite; NaN and infinity are refused");
}

// Mean time of one inference in nanoseconds; the agents' states advance.
double infer_ns(PolicyHandle& policy, int calls) {
  if (calls < 1) throw py::value_error("calls is " + std::to_string(calls) + "; must be at least 1");
  const std::vector<float> obs(policy.loaded->obs_size(), 0.5F);
  std::vector<float> action(policy.loaded->action_size());
  const auto begin = std::chrono::steady_clock::now();
  bool finite = true;
  for (int i = 0; i < calls; ++i) finite &= policy.hosted.act(0, obs.data(), action.data());
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  if (!finite) throw py::value_error("the policy's result is not finite");
  return took.count() / calls;
}

py::array_t<float> state_of(const PolicyHandle& policy) {
  return copied_array(policy.hosted.state().data(),
                      {policy.hosted.num_agents(), static_cast<py::ssize_t>(policy.loaded->state_size())});
}

void bind_class(py::module_& module) {
  py::class_<PolicyHandle, std::shared_ptr<PolicyHandle>>(
      module, "Policy",
      "A policy under native inference: from a blob's bytes, or from the path of a blob or of a compiled "
      "policy\n"
      "(.so, which is code: load only what you built). num_agents: of the game that it plays; by default one "
      "per\n"
      "actor, or those of a central policy, which is one agent for all of them and keeps one state. Raises "
      "ValueError (one line) for a file that is corrupt, truncated or made for another schema.")
      .def(py::init(&open_policy), py::arg("source"), py::kw_only(), py::arg("num_agents") = 0)
      .def_property_readonly("num_servers",
                             [](const PolicyHandle& self) { return self.loaded->num_servers(); })
      .def_property_readonly("num_actors", [](const PolicyHandle& self) { return self.loaded->num_actors(); })
      .def_property_readonly(
          "num_agents", [](const PolicyHandle& self) { return self.hosted.num_agents(); },
          "How many keep a state: one per balancer, 1 if central.")
      .def_property_readonly(
          "central_agents", [](const PolicyHandle& self) { return self.loaded->central_agents(); },
          "Balancers that a central policy decides for at once; 0 if every balancer is its own agent.")
      .def_property_readonly("schema_hash",
                             [](const PolicyHandle& self) { return self.loaded->schema_hash(); })
      .def_property_readonly("obs_size", [](const PolicyHandle& self) { return self.loaded->obs_size(); })
      .def_property_readonly("action_size",
                             [](const PolicyHandle& self) { return self.loaded->action_size(); })
      .def_property_readonly("state", &state_of,
                             "Copy of the recurrent states, (num_agents, state_size) float32.")
      .def(
          "reset", [](PolicyHandle& self) { self.hosted.reset(); },
          "Zero every agent's state: a new episode.")
      .def("infer", &infer, py::arg("agent"), py::arg("obs"),
           "One step of an agent: obs (obs_size,) float32 -> action (action_size,) float32 in [-1, 1]; a "
           "server's\n"
           "weight is 2^(2a). Of a central policy both are the balancers' end to end, and agent is 0. Raises "
           "ValueError for another shape or dtype and for NaN or infinity; the "
           "state is\n"
           "then as it was.")
      .def("infer_ns", &infer_ns, py::arg("calls") = 10000,
           "Mean wall time of one inference [ns] over `calls` steps of agent 0, whose state advances.")
      .def(
          "__copy__", [](const PolicyHandle& self) { return PolicyHandle(self); },
          "A copy with states of its own; the weights are shared.");
}

void bind_activation(py::module_& module) {
  module.def("activation", &activation, py::arg("kind"), py::arg("x").noconvert(),
             "The kernel's activation (none, relu, tanh, sigmoid) of a float32 array.");
}

}  // namespace
}  // namespace steelyard::bind

void bind_policy(py::module_& module) {
  steelyard::bind::bind_class(module);
  steelyard::bind::bind_policy_spec(module);
  steelyard::bind::bind_activation(module);
}
