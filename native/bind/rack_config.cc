// Python face of RackConfig and RackRule: plain attributes, enums as words. Vectors are assigned whole.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "native/bind/words.h"
#include "native/sim/categorical_decider.h"
#include "native/sim/malcolm_decider.h"
#include "native/sim/rack_rule.h"

namespace py = pybind11;
using namespace steelyard;
using namespace steelyard::sim;

namespace {

using bind::def_word;
using bind::Words;

constexpr Words<Discipline, 4> kDisciplines{{{"fcfs", Discipline::kFcfs},
                                             {"ps", Discipline::kPs},
                                             {"quantum", Discipline::kQuantum},
                                             {"darc", Discipline::kDarc}}};
constexpr Words<LoadInfo, 4> kInfos{{{"exact", LoadInfo::kExact},
                                     {"broadcast", LoadInfo::kBroadcast},
                                     {"piggyback", LoadInfo::kPiggyback},
                                     {"outstanding", LoadInfo::kOutstanding}}};
constexpr Words<LoadMeasure, 3> kMeasures{
    {{"tasks", LoadMeasure::kTasks}, {"waiting", LoadMeasure::kWaiting}, {"work", LoadMeasure::kWork}}};
constexpr Words<BroadcastPhase, 3> kPhases{{{"together", BroadcastPhase::kTogether},
                                            {"staggered", BroadcastPhase::kStaggered},
                                            {"random", BroadcastPhase::kRandom}}};
constexpr Words<StealFrom, 2> kStealFroms{{{"oldest", StealFrom::kOldest}, {"newest", StealFrom::kNewest}}};
constexpr Words<StealBy, 3> kStealBys{
    {{"none", StealBy::kNone}, {"random", StealBy::kRandom}, {"longest", StealBy::kLongest}}};
constexpr Words<RackEventKind, 5> kEventKinds{{{"split", RackEventKind::kSplit},
                                               {"arrival_scale", RackEventKind::kArrivalScale},
                                               {"speed", RackEventKind::kSpeed},
                                               {"workers", RackEventKind::kWorkers},
                                               {"mix", RackEventKind::kMix}}};

void bind_parts(py::module_& module) {
  py::class_<RackServer>(module, "RackServer")
      .def(py::init([](int workers, double speed) { return RackServer{workers, speed}; }),
           py::arg("workers") = 1, py::arg("speed") = 1.0)
      .def_readwrite("workers", &RackServer::workers)
      .def_readwrite("speed", &RackServer::speed);
  py::class_<RackType>(module, "RackType", "A class of tasks: its share of arrivals and its service times.")
      .def(py::init([](const Distribution& service, double ratio) { return RackType{ratio, service}; }),
           py::arg("service"), py::arg("ratio") = 1.0)
      .def_readwrite("ratio", &RackType::ratio)
      .def_readwrite("service", &RackType::service);
  py::class_<RackDelay>(module, "RackDelay", "A network delay [s]: a constant, and what `jitter` adds.")
      .def(py::init([](double constant_s, std::optional<Distribution> jitter) {
             return RackDelay{constant_s, std::move(jitter)};
           }),
           py::arg("constant_s") = 0.0, py::arg("jitter") = py::none())
      .def_readwrite("constant_s", &RackDelay::constant_s)
      .def_readwrite("jitter", &RackDelay::jitter);
  py::class_<RackEvent> event(module, "RackEvent", "A line of the timetable.");
  event
      .def(py::init([](const std::string& kind, double t_s, double value, std::vector<int> targets,
                       std::vector<double> split) {
             return RackEvent{bind::value_of(kEventKinds, kind), t_s, value, std::move(targets),
                              std::move(split)};
           }),
           py::arg("kind"), py::arg("t_s"), py::arg("value") = 1.0, py::arg("targets") = std::vector<int>(),
           py::arg("split") = std::vector<double>())
      .def_readwrite("t_s", &RackEvent::t_s)
      .def_readwrite("value", &RackEvent::value)
      .def_readwrite("targets", &RackEvent::targets)
      .def_readwrite("split", &RackEvent::split);
  def_word<&RackEvent::kind>(event, "kind", kEventKinds);
}

template <typename Class>
void bind_words_of_config(Class& config) {
  def_word<&RackConfig::discipline>(config, "discipline", kDisciplines);
  def_word<&RackConfig::load_info>(config, "load_info", kInfos);
  def_word<&RackConfig::load_measure>(config, "load_measure", kMeasures);
  def_word<&RackConfig::broadcast_phase>(config, "broadcast_phase", kPhases);
  def_word<&RackConfig::steal_from>(config, "steal_from", kStealFroms);
}

void bind_shaping(py::module_& module) {
  py::class_<RackShaping>(module, "RackShaping", "Parameters of the rule pallas; see docs/rack.md.")
      .def(py::init<>())
      .def_readwrite("candidate_tasks", &RackShaping::candidate_tasks)
      .def_readwrite("by_slowdown", &RackShaping::by_slowdown)
      .def_readwrite("adapt", &RackShaping::adapt)
      .def_readwrite("monitor_s", &RackShaping::monitor_s)
      .def_readwrite("ewma", &RackShaping::ewma)
      .def_readwrite("delta", &RackShaping::delta)
      .def_readwrite("clone", &RackShaping::clone)
      .def_readwrite("burst_s", &RackShaping::burst_s)
      .def(
          "set_plan",
          [](RackShaping& self, std::vector<int> group_of, std::vector<std::vector<double>> cores) {
            self.plan = ShapePlan{std::move(group_of), std::move(cores)};
          },
          py::arg("group_of"), py::arg("cores"), "The plan to begin with: (T,) groups, (G, N) cores.");
}

RackRule make_rule(const std::string& name) {
  RackRule rule;
  rule.traits = find_rack_rule(name);
  if (rule.traits == nullptr) {
    std::string all;
    for (const RackTraits& known : all_rack_rules())
      all += (all.empty() ? "" : ", ") + std::string(known.name);
    throw py::value_error("rule: \"" + name + "\" is not known; use one of " + all);
  }
  if (name == "categorical") rule.decider = std::make_shared<CategoricalDecider>();
  if (name == "malcolm") rule.decider = std::make_shared<MalcolmDecider>(MalcolmSetup());
  return rule;
}

void bind_rule(py::module_& module) {
  py::class_<RackRule> rule(module, "RackRule", "A rule of a rack by name, with its parameters.");
  rule.def(py::init([](const std::string& name, int d, double threshold, bool first, bool increments,
                       bool keep, bool estimated_rates, int bound, double rtt_s,
                       const std::optional<std::string>& info, const std::string& steal,
                       std::vector<double> weights, const std::optional<RackShaping>& shaping) {
             RackRule made = make_rule(name);
             made.d = d;
             made.threshold = threshold;
             made.first = first;
             made.increments = increments;
             made.keep = keep;
             made.estimated_rates = estimated_rates;
             made.bound = bound;
             made.rtt_s = rtt_s;
             if (info) made.info = bind::value_of(kInfos, *info);
             made.steal = bind::value_of(kStealBys, steal);
             made.weights = std::move(weights);
             made.shaping = shaping.value_or(RackShaping());
             return made;
           }),
           py::arg("name"), py::kw_only(), py::arg("d") = 2, py::arg("threshold") = 30.0,
           py::arg("first") = false, py::arg("increments") = false, py::arg("keep") = false,
           py::arg("estimated_rates") = false, py::arg("bound") = 2, py::arg("rtt_s") = 0.0,
           py::arg("info") = py::none(), py::arg("steal") = "none",
           py::arg("weights") = std::vector<double>(), py::arg("shaping") = py::none())
      .def_property_readonly("name", [](const RackRule& self) { return self.traits->name; })
      .def_readwrite("d", &RackRule::d)
      .def_readwrite("threshold", &RackRule::threshold)
      .def_readwrite("first", &RackRule::first)
      .def_readwrite("increments", &RackRule::increments)
      .def_readwrite("keep", &RackRule::keep)
      .def_readwrite("estimated_rates", &RackRule::estimated_rates)
      .def_readwrite("bound", &RackRule::bound)
      .def_readwrite("rtt_s", &RackRule::rtt_s)
      .def_readwrite("weights", &RackRule::weights)
      .def_readwrite("shaping", &RackRule::shaping)
      .def_property(
          "info",
          [](const RackRule& self) -> std::optional<std::string> {
            if (!self.info) return std::nullopt;
            return bind::word_of(kInfos, *self.info);
          },
          [](RackRule& self, const std::optional<std::string>& word) {
            self.info.reset();
            if (word) self.info = bind::value_of(kInfos, *word);
          })
      .def("check", &RackRule::check, py::arg("config"),
           "Checks the rule for a world; ValueError names key, value and what is allowed.");
  def_word<&RackRule::steal>(rule, "steal", kStealBys);
}

}  // namespace

void bind_rack_config(py::module_& module) {
  bind_parts(module);
  module.def(
      "rack_rules",
      [] {
        py::list out;
        for (const RackTraits& rule : all_rack_rules()) out.append(py::make_tuple(rule.name, rule.summary));
        return out;
      },
      "All rules of a rack: (name, summary).");
  py::class_<RackConfig, std::shared_ptr<RackConfig>> config(module, "RackConfig",
                                                             "A rack world; see docs/rack.md.");
  config.def(py::init<>())
      .def_readwrite("servers", &RackConfig::servers)
      .def_readwrite("types", &RackConfig::types)
      .def_readwrite("arrival", &RackConfig::arrival)
      .def_property(
          "trace", [](const RackConfig& self) { return std::const_pointer_cast<Trace>(self.trace); },
          [](RackConfig& self, std::shared_ptr<Trace> trace) { self.trace = std::move(trace); })
      .def_readwrite("dispatchers", &RackConfig::dispatchers)
      .def_readwrite("split", &RackConfig::split)
      .def_readwrite("quantum_s", &RackConfig::quantum_s)
      .def_readwrite("switch_s", &RackConfig::switch_s)
      .def_readwrite("darc_within", &RackConfig::darc_within)
      .def_readwrite("darc_shift", &RackConfig::darc_shift)
      .def_readwrite("darc_window", &RackConfig::darc_window)
      .def_readwrite("task_delay", &RackConfig::task_delay)
      .def_readwrite("message_delay", &RackConfig::message_delay)
      .def_readwrite("reply_delay", &RackConfig::reply_delay)
      .def_readwrite("steal_delay", &RackConfig::steal_delay)
      .def_readwrite("migration_work_s", &RackConfig::migration_work_s)
      .def_readwrite("steal_work_s", &RackConfig::steal_work_s)
      .def_readwrite("latency_with_reply", &RackConfig::latency_with_reply)
      .def_readwrite("broadcast_period_s", &RackConfig::broadcast_period_s)
      .def_readwrite("own_load_exact", &RackConfig::own_load_exact)
      .def_readwrite("count_in_flight", &RackConfig::count_in_flight)
      .def_readwrite("steal_threshold", &RackConfig::steal_threshold)
      .def_readwrite("steal_least", &RackConfig::steal_least)
      .def_readwrite("rate_ewma", &RackConfig::rate_ewma)
      .def_readwrite("rate_of_inverses", &RackConfig::rate_of_inverses)
      .def_readwrite("horizon_s", &RackConfig::horizon_s)
      .def_readwrite("warmup_s", &RackConfig::warmup_s)
      .def_readwrite("events", &RackConfig::events)
      .def("mean_service_s", &RackConfig::mean_service_s, "Over all types, at speed 1. [s]")
      .def("prepare", &RackConfig::prepare,
           "Checks everything; ValueError names key, value and what is allowed.");
  bind_words_of_config(config);
  bind_shaping(module);
  bind_rule(module);
}
