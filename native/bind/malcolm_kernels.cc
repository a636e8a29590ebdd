// Python face of the single kernels of the rack game, for tests and measurements.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <time.h>

#include <algorithm>
#include <string>
#include <vector>

#include "native/bind/policy.h"
#include "native/core/adamw.h"
#include "native/core/linear_actor.h"
#include "native/core/linear_critic.h"
#include "native/core/rng.h"

namespace py = pybind11;
using namespace steelyard;

namespace {

using core::ActorKind;
using core::LinearActors;
using core::LinearCritic;
using Floats = py::array_t<float, py::array::c_style>;

const std::vector<std::string> kActors = {"migration", "stealing"};
const std::vector<std::string> kFeatures = {"linear", "quadratic", "quartic"};

ActorKind actor_named(const std::string& actor) {
  return static_cast<ActorKind>(bind::word_index("actor", actor, kActors));
}

core::CriticFeatures features_named(const std::string& features) {
  return static_cast<core::CriticFeatures>(bind::word_index("features", features, kFeatures));
}

Floats array_of(const char* name, const py::object& object, std::vector<py::ssize_t> shape) {
  Floats values(bind::float32_array(name, object, static_cast<py::ssize_t>(shape.size())));
  const std::vector<py::ssize_t> found(values.shape(), values.shape() + values.ndim());
  if (found == shape) return values;
  throw py::value_error(std::string(name) + " has shape " + bind::shape_text(found) + "; expected " +
                        bind::shape_text(shape));
}

void check_servers(uint32_t num_servers) {
  if (num_servers >= 1 && num_servers <= core::kMaxRackServers) return;
  throw py::value_error("num_servers is " + std::to_string(num_servers) + "; must be in 1..64");
}

LinearActors make_actors(uint32_t num_servers, uint32_t num_inputs, uint32_t self) {
  check_servers(num_servers);
  if (self >= num_servers) throw py::value_error("self_index: must be below num_servers");
  return LinearActors(num_servers, num_inputs, self);
}

py::array_t<float> copied(const float* values, uint32_t count) {
  return bind::copied_array(values, {static_cast<py::ssize_t>(count)});
}

py::array_t<int64_t> draw_counts(const LinearActors& actors, const std::string& actor, uint64_t stream,
                                 uint64_t draws) {
  py::array_t<int64_t> counts(static_cast<py::ssize_t>(actors.num_servers()));
  std::fill_n(counts.mutable_data(), counts.size(), 0);
  const ActorKind kind = actor_named(actor);
  for (uint64_t k = 0; k < draws; ++k) ++counts.mutable_data()[actors.draw(kind, core::draw(stream, k))];
  return counts;
}

// From lanes to (N,) and back: (inputs + 1, 2, lanes) to (2, inputs + 1, N).
py::array_t<float> unpacked(const LinearActors& actors, const float* packed) {
  const py::ssize_t inputs = actors.num_inputs() + 1, servers = actors.num_servers();
  py::array_t<float> out({py::ssize_t{2}, inputs, servers});
  auto view = out.mutable_unchecked<3>();
  for (py::ssize_t actor = 0; actor < 2; ++actor) {
    for (py::ssize_t k = 0; k < inputs; ++k) {
      for (py::ssize_t i = 0; i < servers; ++i)
        view(actor, k, i) = packed[(k * 2 + actor) * actors.lanes() + i];
    }
  }
  return out;
}

// d log pi(drawn) / d parameters at these inputs, (2, inputs + 1, N); logits and distributions move there.
py::array_t<float> draw_score(LinearActors& actors, const std::string& actor, const py::object& inputs,
                              uint32_t drawn) {
  const Floats z = array_of("inputs", inputs, {static_cast<py::ssize_t>(actors.num_inputs())});
  if (drawn >= actors.num_servers()) throw py::value_error("drawn: must be below num_servers");
  const ActorKind kind = actor_named(actor);
  actors.recompute(z.data());
  actors.refresh();
  core::AlignedFloats sum(actors.num_parameters());
  core::add_draw_score(actors.lanes(), actors.num_inputs(), kind, z.data(), actors.probabilities(kind), drawn,
                       sum.data());
  return unpacked(actors, sum.data());
}

// The gradient after a sequence of windows: inputs (T, K), score (T, 2, N), coefficient (T,).
py::array_t<float> actor_gradient(const LinearActors& actors, const py::object& inputs,
                                  const py::object& score, const py::object& coefficient, float lambda) {
  const Floats steps(bind::float32_array("coefficient", coefficient, 1));
  const py::ssize_t windows = steps.size(), n = actors.num_servers();
  const Floats z = array_of("inputs", inputs, {windows, static_cast<py::ssize_t>(actors.num_inputs())});
  const Floats s = array_of("score", score, {windows, 2, n});
  core::AlignedFloats gradient(actors.num_parameters()), trace(actors.num_parameters());
  core::AlignedFloats padded(size_t{2} * actors.lanes());
  for (py::ssize_t t = 0; t < windows; ++t) {
    std::copy_n(s.data(t, 0, 0), n, padded.data());
    std::copy_n(s.data(t, 1, 0), n, padded.data() + actors.lanes());
    core::cache_actor_gradient(actors.lanes(), actors.num_inputs(), z.data(t, 0), padded.data(), steps.at(t),
                               lambda, lambda > 0 ? trace.data() : nullptr, gradient.data());
  }
  return unpacked(actors, gradient.data());
}

void bind_actors(py::module_& module) {
  py::class_<LinearActors>(module, "LinearActors", "Both actors of one server (native/core/linear_actor.h).")
      .def(py::init(&make_actors), py::arg("num_servers"), py::arg("num_inputs"), py::arg("self_index") = 0)
      .def(
          "set_weights",
          [](LinearActors& self, const std::string& actor, const py::object& weight, const py::object& bias) {
            const py::ssize_t n = self.num_servers(), k = self.num_inputs();
            self.set_weights(actor_named(actor), array_of("weight", weight, {n, k}).data(),
                             array_of("bias", bias, {n}).data());
          },
          py::arg("actor"), py::arg("weight"), py::arg("bias"), "weight (N, K), bias (N,) float32.")
      .def(
          "set_allowed",
          [](LinearActors& self, const std::string& actor, uint32_t server, bool allowed) {
            self.set_allowed(actor_named(actor), server, allowed);
          },
          py::arg("actor"), py::arg("server"), py::arg("allowed"))
      .def(
          "recompute",
          [](LinearActors& self, const py::object& inputs) {
            self.recompute(array_of("inputs", inputs, {static_cast<py::ssize_t>(self.num_inputs())}).data());
          },
          py::arg("inputs"))
      .def(
          "add_input",
          [](LinearActors& self, uint32_t k, float delta) {
            if (k >= self.num_inputs()) throw py::value_error("k: must be below num_inputs");
            self.add_input(k, delta);
          },
          py::arg("k"), py::arg("delta"))
      .def("refresh", &LinearActors::refresh)
      .def(
          "logits",
          [](const LinearActors& self, const std::string& actor) {
            return copied(self.logits(actor_named(actor)), self.num_servers());
          },
          py::arg("actor"))
      .def(
          "probabilities",
          [](const LinearActors& self, const std::string& actor) {
            return copied(self.probabilities(actor_named(actor)), self.num_servers());
          },
          py::arg("actor"))
      .def(
          "draw",
          [](const LinearActors& self, const std::string& actor, uint64_t word) {
            return self.draw(actor_named(actor), word);
          },
          py::arg("actor"), py::arg("word"))
      .def("draw_score", &draw_score, py::arg("actor"), py::arg("inputs"), py::arg("drawn"),
           "Gradient of log pi(drawn) at these inputs, (2, K + 1, N): weights by input, the bias last.")
      .def("draw_counts", &draw_counts, py::arg("actor"), py::arg("stream"), py::arg("draws"),
           "How often each server is drawn by the words draw(stream, 0..draws-1).")
      .def(
          "gradient", &actor_gradient, py::arg("inputs"), py::arg("score"), py::arg("coefficient"),
          py::arg("trace") = 0.0F,
          "Cached gradient (2, K + 1, N) after T windows: inputs (T, K), score (T, 2, N), coefficient (T,).");
}

// loads (N,) with the zeros after them that the core reads.
std::vector<float> padded_loads(const py::object& object, uint32_t num_servers) {
  const Floats loads = array_of("loads", object, {static_cast<py::ssize_t>(num_servers)});
  std::vector<float> padded(num_servers + 16U);
  std::copy_n(loads.data(), num_servers, padded.begin());
  return padded;
}

struct CriticHandle {
  uint32_t num_servers;
  LinearCritic critic;
};

void bind_critic(py::module_& module) {
  py::class_<CriticHandle>(module, "LinearCritic", "One server's critic (native/core/linear_critic.h).")
      .def(py::init([](const std::string& features, uint32_t num_servers) {
             check_servers(num_servers);
             return CriticHandle{num_servers, LinearCritic(features_named(features), num_servers)};
           }),
           py::arg("features"), py::arg("num_servers"))
      .def_property_readonly("size", [](const CriticHandle& self) { return self.critic.size(); })
      .def_property(
          "parameters",
          [](const CriticHandle& self) { return copied(self.critic.parameters(), self.critic.size()); },
          [](CriticHandle& self, const py::object& values) {
            const Floats theta =
                array_of("parameters", values, {static_cast<py::ssize_t>(self.critic.size())});
            std::copy_n(theta.data(), theta.size(), self.critic.parameters());
            self.critic.revalue();
          })
      .def_property_readonly(
          "gradient", [](CriticHandle& self) { return copied(self.critic.gradient(), self.critic.size()); })
      .def_property_readonly(
          "trace", [](const CriticHandle& self) { return copied(self.critic.trace(), self.critic.size()); })
      .def_property_readonly("value", [](const CriticHandle& self) { return self.critic.value(); })
      .def_property_readonly("average_reward",
                             [](const CriticHandle& self) { return self.critic.average_reward(); })
      .def(
          "start",
          [](CriticHandle& self, const py::object& loads) {
            self.critic.start(padded_loads(loads, self.num_servers).data());
          },
          py::arg("loads"))
      .def(
          "observe",
          [](CriticHandle& self, const py::object& loads, float reward, float discount, float trace,
             float average_step, float share) {
            return self.critic.observe(padded_loads(loads, self.num_servers).data(), reward,
                                       {discount, trace, average_step}, share);
          },
          py::arg("loads"), py::arg("reward"), py::kw_only(), py::arg("discount") = 1.0F,
          py::arg("trace") = 0.0F, py::arg("average_step") = 0.0F, py::arg("share") = 1.0F,
          "A transition; returns the TD error.");
  module.def(
      "critic_features",
      [](const std::string& features, const py::object& loads) {
        const auto n = static_cast<uint32_t>(py::len(loads));
        check_servers(n);
        const core::CriticFeatures kind = features_named(features);
        std::vector<float> out(core::critic_buffer(kind, n));
        core::critic_features(kind, n, padded_loads(loads, n).data(), out.data());
        return copied(out.data(), core::critic_size(kind, n));
      },
      py::arg("features"), py::arg("loads"), "Features of loads (N,) float32.");
  module.def(
      "average_parameters",
      [](const py::object& vectors) {
        const Floats all(bind::float32_array("vectors", vectors, 2));
        if (all.shape(0) == 0) throw py::value_error("vectors: needs at least one");
        std::vector<const float*> rows;
        for (py::ssize_t i = 0; i < all.shape(0); ++i) rows.push_back(all.data(i, 0));
        py::array_t<float> mean(all.shape(1));
        core::average_parameters(rows.data(), rows.size(), static_cast<size_t>(all.shape(1)),
                                 mean.mutable_data());
        return mean;
      },
      py::arg("vectors"), "Consensus: the mean over rows, (M, D) float32 -> (D,).");
  module.def("consensus_bytes", &core::consensus_bytes, py::arg("count"), py::arg("size"));
}

void bind_adamw(py::module_& module) {
  py::class_<core::AdamW>(module, "AdamW", "AdamW over one flat array (native/core/adamw.h).")
      .def(py::init<size_t>(), py::arg("size"))
      .def(
          "update",
          [](core::AdamW& self, py::array_t<float, py::array::c_style>& parameters,
             const py::object& gradient, float rate, float beta1, float beta2, float epsilon,
             float weight_decay) {
            const Floats g = array_of("gradient", gradient, {parameters.size()});
            if (static_cast<size_t>(parameters.size()) != self.size())
              throw py::value_error("parameters: wrong size");
            std::vector<float> scratch(g.data(), g.data() + g.size());
            self.update({rate, beta1, beta2, epsilon, weight_decay}, parameters.mutable_data(),
                        scratch.data());
          },
          py::arg("parameters").noconvert(), py::arg("gradient"), py::arg("learning_rate") = 1e-3F,
          py::arg("beta1") = 0.9F, py::arg("beta2") = 0.999F, py::arg("epsilon") = 1e-6F,
          py::arg("weight_decay") = 1e-4F, "One step in place, down the gradient; both (size,) float32.")
      .def_property_readonly("steps", &core::AdamW::steps);
}

double thread_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}

template <class F>
double time_ns(int calls, F&& call) {
  if (calls < 1) throw py::value_error("calls is " + std::to_string(calls) + "; must be at least 1");
  const double began = thread_ns();
  for (int i = 0; i < calls; ++i) call(i);
  return (thread_ns() - began) / calls;
}

double distributions_ns(uint32_t num_servers, int calls) {
  LinearActors actors = make_actors(num_servers, num_servers, 0);
  return time_ns(calls, [&](int) { actors.refresh(); });
}

// Both actors and a quadratic critic. Gradients are set anew now and then, or the averages would become
// denormal.
double adamw_ns(uint32_t num_servers, int calls) {
  check_servers(num_servers);
  const LinearActors actors(num_servers, num_servers, 0);
  const LinearCritic critic(core::CriticFeatures::kQuadratic, num_servers);
  const size_t of_actors = actors.num_parameters(), all = of_actors + critic.padded_size();
  core::AlignedFloats weights(all), gradient(all);
  core::AdamW actor_optimizer(of_actors), critic_optimizer(critic.padded_size());
  const core::AdamWConfig config;
  return time_ns(calls, [&](int i) {
    if (i % 256 == 0) std::fill_n(gradient.data(), all, 0.5F);
    actor_optimizer.update(config, weights.data(), gradient.data());
    critic_optimizer.update(config, weights.data() + of_actors, gradient.data() + of_actors);
  });
}

}  // namespace

void bind_malcolm_kernels(py::module_& module) {
  bind_actors(module);
  bind_critic(module);
  bind_adamw(module);
  module.def("malcolm_distributions_ns", &distributions_ns, py::arg("num_servers"), py::arg("calls"),
             "Mean CPU time of drawing up both distributions [ns].");
  module.def("malcolm_adamw_ns", &adamw_ns, py::arg("num_servers"), py::arg("calls"),
             "Mean CPU time of one AdamW step of both actors and a quadratic critic [ns].");
}
