// Python face of ClusterConfig: plain attributes, enums as words. Vectors are assigned whole.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "native/bind/words.h"
#include "native/sim/cluster_config.h"

namespace py = pybind11;
using namespace steelyard;
using namespace steelyard::sim;

namespace {

using bind::def_word;
using bind::Words;

constexpr Words<StageKind, 2> kStages{{{"cpu", StageKind::kCpu}, {"io", StageKind::kIo}}};
constexpr Words<CpuMode, 2> kModes{{{"fifo", CpuMode::kFifo}, {"ps", CpuMode::kBlockedPs}}};
constexpr Words<ArrivalKind, 4> kArrivals{{{"poisson", ArrivalKind::kPoisson},
                                           {"mmpp", ArrivalKind::kMmpp},
                                           {"diurnal", ArrivalKind::kDiurnal},
                                           {"trace", ArrivalKind::kTrace}}};
constexpr Words<EventKind, 7> kEvents{{{"speed", EventKind::kSpeed},
                                       {"workers", EventKind::kWorkers},
                                       {"leave", EventKind::kLeave},
                                       {"join", EventKind::kJoin},
                                       {"balancer_fail", EventKind::kBalancerFail},
                                       {"balancer_recover", EventKind::kBalancerRecover},
                                       {"arrival_scale", EventKind::kArrivalScale}}};
constexpr Words<DistributionKind, 10> kDistributions{
    {{"exponential", DistributionKind::kExponential},
     {"deterministic", DistributionKind::kDeterministic},
     {"uniform", DistributionKind::kUniform},
     {"lognormal", DistributionKind::kLognormal},
     {"lognormal_mixture", DistributionKind::kLognormalMixture},
     {"pareto", DistributionKind::kPareto},
     {"discrete", DistributionKind::kDiscrete},
     {"hyperexponential", DistributionKind::kHyperexponential},
     {"empirical", DistributionKind::kEmpirical},
     {"trace", DistributionKind::kTrace}}};

void bind_parts(py::module_& module) {
  py::class_<Distribution> distribution(module, "Distribution",
                                        "A distribution; see native/sim/distribution.h for a and b.");
  distribution.def(py::init<>()).def_readwrite("a", &Distribution::a).def_readwrite("b", &Distribution::b);
  def_word<&Distribution::kind>(distribution, "kind", kDistributions);
  distribution
      .def("prepare", &Distribution::prepare, py::arg("key"),
           "Checks the parameters; ValueError names `key`.")
      .def("mean", &Distribution::mean, "Expected value [s]; NaN for a trace.")
      .def("sample", &Distribution::sample, py::arg("word"),
           "The draw [s] that belongs to one 64-bit random word.");

  py::class_<StageConfig> stage(module, "StageConfig");
  stage.def(py::init<>()).def_readwrite("demand", &StageConfig::demand);
  def_word<&StageConfig::kind>(stage, "kind", kStages);

  py::class_<ServerConfig> server(module, "ServerConfig");
  server.def(py::init<>())
      .def_readwrite("workers", &ServerConfig::workers)
      .def_readwrite("speed", &ServerConfig::speed)
      .def_readwrite("ps_cap", &ServerConfig::ps_cap)
      .def_readwrite("present", &ServerConfig::present);
  def_word<&ServerConfig::cpu>(server, "cpu", kModes);

  py::class_<ArrivalConfig> arrival(module, "ArrivalConfig");
  arrival.def(py::init<>())
      .def_readwrite("rate", &ArrivalConfig::rate)
      .def_readwrite("mmpp_rates", &ArrivalConfig::mmpp_rates)
      .def_readwrite("mmpp_mean_s", &ArrivalConfig::mmpp_mean_s)
      .def_readwrite("diurnal_amplitude", &ArrivalConfig::diurnal_amplitude)
      .def_readwrite("diurnal_period_s", &ArrivalConfig::diurnal_period_s)
      .def_readwrite("diurnal_phase", &ArrivalConfig::diurnal_phase)
      .def_readwrite("time_scale", &ArrivalConfig::time_scale);
  def_word<&ArrivalConfig::kind>(arrival, "kind", kArrivals);
}

void bind_event(py::module_& module) {
  py::class_<EventConfig> event(module, "EventConfig");
  event.def(py::init<>())
      .def_readwrite("t_low_s", &EventConfig::t_low_s)
      .def_readwrite("t_high_s", &EventConfig::t_high_s)
      .def_readwrite("value_low", &EventConfig::value_low)
      .def_readwrite("value_high", &EventConfig::value_high)
      .def_readwrite("log_uniform", &EventConfig::log_uniform)
      .def_readwrite("targets", &EventConfig::targets)
      .def_readwrite("count", &EventConfig::count)
      .def_readwrite("common_value", &EventConfig::common_value)
      .def_readwrite("duration_s", &EventConfig::duration_s);
  def_word<&EventConfig::kind>(event, "kind", kEvents);
}

}  // namespace

void bind_config(py::module_& module) {
  bind_parts(module);
  bind_event(module);
  py::class_<ClusterConfig, std::shared_ptr<ClusterConfig>>(module, "ClusterConfig",
                                                            "A cluster world; filled by envs.scenario.")
      .def(py::init<>())
      .def_readwrite("num_load_balancers", &ClusterConfig::num_load_balancers)
      .def_readwrite("servers", &ClusterConfig::servers)
      .def_readwrite("stages", &ClusterConfig::stages)
      .def_readwrite("arrival", &ClusterConfig::arrival)
      .def_property(
          "trace", [](const ClusterConfig& self) { return std::const_pointer_cast<Trace>(self.trace); },
          [](ClusterConfig& self, std::shared_ptr<Trace> trace) { self.trace = std::move(trace); })
      .def_readwrite("admission_limit", &ClusterConfig::admission_limit)
      .def_readwrite("reject_sojourn_s", &ClusterConfig::reject_sojourn_s)
      .def_readwrite("hop_low_s", &ClusterConfig::hop_low_s)
      .def_readwrite("hop_high_s", &ClusterConfig::hop_high_s)
      .def_readwrite("node_low_s", &ClusterConfig::node_low_s)
      .def_readwrite("node_high_s", &ClusterConfig::node_high_s)
      .def_readwrite("flow_table_buckets", &ClusterConfig::flow_table_buckets)
      .def_readwrite("flow_table_ways", &ClusterConfig::flow_table_ways)
      .def_readwrite("features", &ClusterConfig::features)
      .def_readwrite("reservoir_size", &ClusterConfig::reservoir_size)
      .def_readwrite("hidden_features", &ClusterConfig::hidden_features)
      .def_readwrite("observation_delay_s", &ClusterConfig::observation_delay_s)
      .def_readwrite("step_s", &ClusterConfig::step_s)
      .def_readwrite("actuation_delay_s", &ClusterConfig::actuation_delay_s)
      .def_readwrite("horizon_s", &ClusterConfig::horizon_s)
      .def_readwrite("warmup_s", &ClusterConfig::warmup_s)
      .def_readwrite("events", &ClusterConfig::events)
      .def("prepare", &ClusterConfig::prepare,
           "Checks everything; ValueError names key, value and what is allowed.");
}
