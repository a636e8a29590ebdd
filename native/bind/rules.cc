// Python face of rules, rewards, the observation schema and seeds.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "native/bind/policy.h"
#include "native/core/feature_families.h"
#include "native/core/rng.h"
#include "native/core/rule.h"
#include "native/core/schema.h"
#include "native/core/weights.h"
#include "native/sim/rewards.h"

namespace py = pybind11;
using namespace steelyard;

namespace {

using Vector = py::array_t<double, py::array::c_style | py::array::forcecast>;

std::span<const double> span_of(const Vector& l, const char* name) {
  if (l.ndim() != 1 || l.size() == 0)
    throw py::value_error(std::string(name) + ": needs a vector of shape (N,), N >= 1");
  return {l.data(), static_cast<size_t>(l.size())};
}

core::RuleConfig rule_named(const std::string& name) {
  core::RuleConfig rule;
  rule.traits = core::find_rule(name);
  if (rule.traits == nullptr)
    throw py::value_error("rule: \"" + name + "\" is not known; see native.rule_names()");
  if (rule.traits->name == "awcmp") rule.interval_s = 0.5;                   // seed 004 Sec. 6.4.3
  if (rule.traits->score == core::Score::kPredicted) rule.interval_s = 1.0;  // seed 004 Sec. 4.2
  if (rule.traits->score == core::Score::kNoisy) rule.noise = 2.0;
  return rule;
}

// Top bit set: no evaluation seed (a small number) is ever a training seed.
uint64_t train_seed(uint64_t run_seed, uint64_t episode) {
  return core::draw(core::stream_key(run_seed, 0x747261696eULL), episode) | (uint64_t{1} << 63);
}

void bind_rewards(py::module_& module) {
  module.def("reward_names", [] {
    std::vector<std::string> names;
    for (const sim::RewardTraits& reward : sim::all_rewards()) names.emplace_back(reward.name);
    return names;
  });
  module.def("reward_summary", [](const std::string& name) {
    const sim::RewardTraits* reward = sim::find_reward(name);
    if (reward == nullptr)
      throw py::value_error("reward.kind: \"" + name + "\" is not known; see native.reward_names()");
    return std::string(reward->summary);
  });
  module.def(
      "reward",
      [](const std::string& name, const Vector& l) {
        const sim::RewardTraits* reward = sim::find_reward(name);
        if (reward == nullptr)
          throw py::value_error("reward.kind: \"" + name + "\" is not known; see native.reward_names()");
        if (reward->form == sim::RewardForm::kMarginalVbf)
          throw py::value_error("reward.kind: marginal_vbf takes two vectors; call native.marginal_vbf");
        return sim::fairness(reward->form, span_of(l, "l"));
      },
      py::arg("name"), py::arg("l"), "A reward as a pure function of the load per server, l: (N,).");
  module.def(
      "marginal_vbf",
      [](const Vector& own, const Vector& others) {
        if (own.size() != others.size())
          throw py::value_error("marginal_vbf: own and others differ in length");
        return sim::marginal_vbf(span_of(own, "own"), span_of(others, "others"));
      },
      py::arg("own"), py::arg("others"), "F(l) - F(l_-i) = -Var(l_i) - 2 Cov(l_i, l_-i); both (N,).");
}

}  // namespace

void bind_rules(py::module_& module) {
  bind_rewards(module);
  module.def("observation_size", &core::observation_size, py::arg("num_servers"));
  module.def("observation_schema_text", &core::observation_schema_text, py::arg("num_servers"));
  module.def("observation_schema_hash", &core::observation_schema_hash, py::arg("num_servers"));
  module.def("feature_families", [] {
    return std::vector<std::string>(core::kFeatureFamilies.begin(), core::kFeatureFamilies.end());
  });
  module.def("weight_of_action", &core::weight_of_action, py::arg("action"), "2^(2 a), a in [-1, 1].");
  module.def("train_seed", &train_seed, py::arg("run_seed"), py::arg("episode"),
             "A seed with the top bit set: disjoint from evaluation seeds.");
  module.def("rule_names", [] {
    std::vector<std::string> names;
    for (const core::RuleTraits& rule : core::all_rules()) names.emplace_back(rule.name);
    return names;
  });
  py::class_<core::RuleConfig>(module, "RuleConfig",
                               "A rule by name with its parameters; unknown names are a ValueError.")
      .def(py::init(&rule_named), py::arg("name"))
      .def_property_readonly("name",
                             [](const core::RuleConfig& self) { return std::string(self.traits->name); })
      .def_property_readonly("summary",
                             [](const core::RuleConfig& self) { return std::string(self.traits->summary); })
      .def_property_readonly("uses_weights",
                             [](const core::RuleConfig& self) {
                               return self.traits->weighting == core::Weighting::kConfigured ||
                                      self.traits->weighting == core::Weighting::kProbed;
                             })
      .def_readwrite("weights", &core::RuleConfig::weights)
      .def_readwrite("interval_s", &core::RuleConfig::interval_s)
      .def_readwrite("noise", &core::RuleConfig::noise)
      .def_readwrite("cycle_actors", &core::RuleConfig::cycle_actors)
      .def_readwrite("decay_s", &core::RuleConfig::decay_s)
      .def_readwrite("probes", &core::RuleConfig::probes)
      .def_readwrite("probe_age_s", &core::RuleConfig::probe_age_s)
      .def_readwrite("rif_quantile", &core::RuleConfig::rif_quantile)
      .def_property(
          "policy", [](const core::RuleConfig& self) { return self.policy != nullptr; },
          [](core::RuleConfig& self, const bind::PolicyHandle& handle) { self.policy = handle.loaded; },
          "Set it to a native.Policy; reads as a bool.")
      .def("check", &core::RuleConfig::check, py::arg("num_servers"), py::arg("num_load_balancers"));
}
