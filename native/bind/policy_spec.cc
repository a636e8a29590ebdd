// Policies between Python dictionaries and the policy file format.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "native/bind/policy.h"
#include "native/core/policy_blob.h"

namespace py = pybind11;

namespace steelyard::bind {
namespace {

using core::Activation;
using core::ActorSpec;
using core::LayerKind;
using core::LayerSpec;
using core::LayerView;
using core::PackedPolicy;
using core::PolicyInput;
using core::PolicyOutput;
using core::PolicySet;
using core::PolicySpec;
using core::PolicyView;

// The words of the spec, in the order of the enums.
const std::vector<std::string> kWeights = {"float32", "bfloat16"};
const std::vector<std::string> kScopes = {"per_agent", "central"};
const std::vector<std::string> kInputs = {"flat", "per_server"};
const std::vector<std::string> kOutputs = {"tanh", "clip", "discrete3"};
const std::vector<std::string> kKinds = {"dense", "gru"};

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

template <typename Enum>
Enum parse_word(const std::string& name, const py::handle& value, const std::vector<std::string>& words) {
  return static_cast<Enum>(word_index(name, py::str(value), words));
}

template <typename Enum>
py::str word_of(Enum value, const std::vector<std::string>& words) {
  return py::str(words[static_cast<size_t>(value)]);
}

// A dictionary whose keys are checked against a list: a key that is missing or unknown is an error.
class Table {
 public:
  Table(const py::handle& object, std::string name, const std::vector<std::string>& keys,
        const std::vector<std::string>& optional = {})
      : name_(std::move(name)) {
    if (!py::isinstance<py::dict>(object)) throw py::value_error(name_ + " must be a dict");
    dict_ = py::reinterpret_borrow<py::dict>(object);
    for (const auto& item : dict_) {
      const std::string key = py::str(item.first);
      if (!contains(keys, key) && !contains(optional, key)) {
        throw py::value_error(name_ + " has the unknown key '" + key + "'; allowed: " + join(keys));
      }
    }
    for (const std::string& key : keys) {
      if (!has(key)) throw py::value_error(name_ + " misses the key '" + key + "'");
    }
  }

  bool has(const std::string& key) const { return dict_.contains(key.c_str()); }
  py::object at(const std::string& key) const { return dict_[key.c_str()]; }
  std::string path(const std::string& key) const { return name_ + "." + key; }

  template <typename T>
  T number(const std::string& key) const {
    try {
      return at(key).cast<T>();
    } catch (const py::cast_error&) {
      throw py::value_error(path(key) + " is " + std::string(py::repr(at(key))) +
                            "; must be a number in range");
    }
  }

 private:
  static bool contains(const std::vector<std::string>& words, const std::string& word) {
    for (const std::string& other : words) {
      if (other == word) return true;
    }
    return false;
  }

  std::string name_;
  py::dict dict_;
};

// The values in row-major order; the shape must be `expected`.
std::vector<float> values_of(const Table& table, const std::string& key,
                             const std::vector<py::ssize_t>& expected) {
  const std::string name = table.path(key);
  const auto dims = static_cast<py::ssize_t>(expected.size());
  const py::array_t<float, py::array::c_style> array(float32_array(name, table.at(key), dims));
  const std::vector<py::ssize_t> shape(array.shape(), array.shape() + array.ndim());
  if (shape != expected) {
    throw py::value_error(name + " has shape " + shape_text(shape) + "; expected " + shape_text(expected));
  }
  return {array.data(), array.data() + array.size()};
}

LayerSpec dense_from(const Table& table) {
  const py::array weight = float32_array(table.path("weight"), table.at("weight"), 2);
  const py::ssize_t out = weight.shape(0);
  const py::ssize_t in = weight.shape(1);
  LayerSpec layer;
  layer.activation =
      parse_word<Activation>(table.path("activation"), table.at("activation"), activation_words());
  layer.in = static_cast<uint32_t>(in);
  layer.out = static_cast<uint32_t>(out);
  layer.weight = values_of(table, "weight", {out, in});
  layer.bias = values_of(table, "bias", {out});
  return layer;
}

LayerSpec gru_from(const Table& table) {
  const py::array hidden = float32_array(table.path("weight_hh"), table.at("weight_hh"), 2);
  const py::array input = float32_array(table.path("weight_ih"), table.at("weight_ih"), 2);
  const py::ssize_t out = hidden.shape(1);
  const py::ssize_t in = input.shape(1);
  LayerSpec layer;
  layer.kind = LayerKind::kGru;
  layer.in = static_cast<uint32_t>(in);
  layer.out = static_cast<uint32_t>(out);
  layer.weight = values_of(table, "weight_ih", {3 * out, in});
  layer.hidden_weight = values_of(table, "weight_hh", {3 * out, out});
  layer.bias = values_of(table, "bias_ih", {3 * out});
  layer.hidden_bias = values_of(table, "bias_hh", {3 * out});
  return layer;
}

LayerSpec layer_from(const py::handle& object, const std::string& name) {
  if (!py::isinstance<py::dict>(object)) throw py::value_error(name + " must be a dict");
  const auto dict = py::reinterpret_borrow<py::dict>(object);
  if (!dict.contains("kind")) throw py::value_error(name + " misses the key 'kind'");
  if (parse_word<LayerKind>(name + ".kind", dict["kind"], kKinds) == LayerKind::kGru) {
    return gru_from(Table(dict, name, {"kind", "weight_ih", "weight_hh", "bias_ih", "bias_hh"}));
  }
  return dense_from(Table(dict, name, {"kind", "weight", "bias", "activation"}));
}

py::list list_of(const Table& table, const std::string& key) {
  const py::object object = table.at(key);
  if (!py::isinstance<py::list>(object) && !py::isinstance<py::tuple>(object)) {
    throw py::value_error(table.path(key) + " must be a list");
  }
  return py::list(object);
}

ActorSpec actor_from(const py::handle& object, const std::string& name, py::ssize_t size) {
  const Table table(object, name, {"mean", "inv_std", "layers"});
  ActorSpec actor;
  actor.mean = values_of(table, "mean", {size});
  actor.inv_std = values_of(table, "inv_std", {size});
  const py::list layers = list_of(table, "layers");
  for (size_t l = 0; l < layers.size(); ++l) {
    actor.layers.push_back(layer_from(layers[l], name + ".layers[" + std::to_string(l) + "]"));
  }
  return actor;
}

// Balancers of a central policy; 0 for any other.
uint32_t central_agents_of(const Table& table) {
  if (!table.has("scope") || word_index("scope", py::str(table.at("scope")), kScopes) == 0) {
    if (table.has("num_agents"))
      throw py::value_error("policy.num_agents is given; only a central scope has it");
    return 0;
  }
  if (!table.has("num_agents"))
    throw py::value_error("policy misses the key 'num_agents' of a central scope");
  const auto agents = table.number<uint32_t>("num_agents");
  const std::string error = core::check_range("num_agents", agents, 1, core::kMaxPolicyActors);
  if (!error.empty()) throw py::value_error(error);
  return agents;
}

PolicySpec spec_from(const py::dict& dict) {
  const Table table(dict, "policy", {"num_servers", "input", "output", "clip", "actors"},
                    {"schema_hash", "scope", "num_agents", "weights"});
  PolicySpec spec;
  spec.num_servers = table.number<uint32_t>("num_servers");
  std::string error = core::check_range("num_servers", spec.num_servers, 1, core::kMaxPolicyServers);
  if (!error.empty()) throw py::value_error(error);
  spec.schema_hash = table.has("schema_hash")
                         ? table.number<uint64_t>("schema_hash")
                         : core::observation_schema_hash(static_cast<int>(spec.num_servers));
  spec.central_agents = central_agents_of(table);
  spec.input = parse_word<PolicyInput>("input", table.at("input"), kInputs);
  spec.output = parse_word<PolicyOutput>("output", table.at("output"), kOutputs);
  spec.clip = table.number<float>("clip");
  const py::list actors = list_of(table, "actors");
  const auto size = static_cast<py::ssize_t>(core::observed_size(core::header_of(spec)));
  for (size_t a = 0; a < actors.size(); ++a) {
    spec.actors.push_back(actor_from(actors[a], "actors[" + std::to_string(a) + "]", size));
  }
  return spec;
}

py::bytes encode_policy(const py::dict& spec) {
  std::vector<uint8_t> blob;
  std::string error;
  PolicySpec policy = spec_from(spec);
  const bool rounds =
      spec.contains("weights") && word_index("weights", py::str(spec["weights"]), kWeights) == 1;
  if (rounds) {
    error = core::check_policy(policy);
    if (!error.empty() || !core::round_weights(&policy, &error)) throw py::value_error(error);
  }
  if (!core::encode_policy_blob(policy, &blob, &error)) throw py::value_error(error);
  return {reinterpret_cast<const char*>(blob.data()), blob.size()};
}

PolicySpec decoded(const py::bytes& blob) {
  const std::string_view view = blob;
  PolicySpec spec;
  std::string error;
  if (!core::decode_policy_blob(reinterpret_cast<const uint8_t*>(view.data()), view.size(), &spec, &error)) {
    throw py::value_error(error);
  }
  return spec;
}

py::dict layer_dict(const LayerSpec& layer) {
  const auto in = static_cast<py::ssize_t>(layer.in);
  const auto out = static_cast<py::ssize_t>(layer.out);
  py::dict dict;
  dict["kind"] = word_of(layer.kind, kKinds);
  if (layer.kind == LayerKind::kGru) {
    dict["weight_ih"] = copied_array(layer.weight.data(), {3 * out, in});
    dict["weight_hh"] = copied_array(layer.hidden_weight.data(), {3 * out, out});
    dict["bias_ih"] = copied_array(layer.bias.data(), {3 * out});
    dict["bias_hh"] = copied_array(layer.hidden_bias.data(), {3 * out});
  } else {
    dict["weight"] = copied_array(layer.weight.data(), {out, in});
    dict["bias"] = copied_array(layer.bias.data(), {out});
    dict["activation"] = word_of(layer.activation, activation_words());
  }
  return dict;
}

// What the spec and the packed form share.
template <typename Policy>
py::dict header_dict(const Policy& policy, PolicyInput input, PolicyOutput output, float clip) {
  py::dict dict;
  dict["schema_hash"] = policy.schema_hash;
  dict["scope"] = kScopes[policy.central_agents > 0 ? 1 : 0];
  if (policy.central_agents > 0) dict["num_agents"] = policy.central_agents;
  dict["num_servers"] = policy.num_servers;
  dict["input"] = word_of(input, kInputs);
  dict["output"] = word_of(output, kOutputs);
  dict["clip"] = clip;
  return dict;
}

py::dict decode_policy(const py::bytes& blob) {
  const PolicySpec spec = decoded(blob);
  const auto size = static_cast<py::ssize_t>(core::observed_size(core::header_of(spec)));
  py::list actors;
  for (const ActorSpec& actor : spec.actors) {
    py::list layers;
    for (const LayerSpec& layer : actor.layers) layers.append(layer_dict(layer));
    py::dict dict;
    dict["mean"] = copied_array(actor.mean.data(), {size});
    dict["inv_std"] = copied_array(actor.inv_std.data(), {size});
    dict["layers"] = layers;
    actors.append(dict);
  }
  py::dict dict = header_dict(spec, spec.input, spec.output, spec.clip);
  if (spec.bfloat16) dict["weights"] = kWeights[1];
  dict["actors"] = actors;
  return dict;
}

py::dict packed_layer_dict(const LayerView& layer) {
  const bool gru = layer.kind == LayerKind::kGru;
  const uint32_t gates = gru ? 3 : 1;
  const auto bias = static_cast<py::ssize_t>(gates * core::round_up_lanes(layer.out));
  const auto matrix = [&](uint32_t in) {
    return static_cast<py::ssize_t>(core::packed_matrix_size(gates, layer.out, in));
  };
  py::dict dict;
  dict["kind"] = word_of(layer.kind, kKinds);
  dict["activation"] = word_of(layer.activation, activation_words());
  dict["in"] = layer.in;
  dict["out"] = layer.out;
  dict["weights"] = copied_array(layer.weights, {matrix(layer.in)});
  dict["bias"] = copied_array(layer.bias, {bias});
  if (gru) {
    dict["hidden_weights"] = copied_array(layer.hidden_weights, {matrix(layer.out)});
    dict["hidden_bias"] = copied_array(layer.hidden_bias, {bias});
  }
  return dict;
}

py::dict pack_policy(const py::bytes& blob) {
  const PackedPolicy packed(decoded(blob));
  const PolicySet& set = packed.set();
  const PolicyView& first = set.actors[0];
  const auto size = static_cast<py::ssize_t>(core::policy_obs_size(first));
  py::list actors;
  for (uint32_t a = 0; a < set.num_actors; ++a) {
    const PolicyView& actor = set.actors[a];
    py::list layers;
    for (uint32_t l = 0; l < actor.num_layers; ++l) layers.append(packed_layer_dict(actor.layers[l]));
    py::dict dict;
    dict["mean"] = copied_array(actor.mean, {size});
    dict["inv_std"] = copied_array(actor.inv_std, {size});
    dict["layers"] = layers;
    actors.append(dict);
  }
  py::dict dict = header_dict(set, first.input, first.output, first.clip);
  dict["actors"] = actors;
  return dict;
}

}  // namespace

std::string shape_text(const std::vector<py::ssize_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

size_t word_index(const std::string& name, const std::string& word, const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == word) return i;
  }
  throw py::value_error(name + " is '" + word + "'; must be one of " + join(words));
}

const std::vector<std::string>& activation_words() {
  static const std::vector<std::string> words = {"none", "relu", "tanh", "sigmoid"};
  return words;
}

py::array float32_array(const std::string& name, const py::object& object, py::ssize_t dims) {
  if (!py::isinstance<py::array>(object)) throw py::value_error(name + " must be a numpy float32 array");
  const auto array = py::reinterpret_borrow<py::array>(object);
  if (!py::isinstance<py::array_t<float>>(array)) {
    throw py::value_error(name + " has dtype " + std::string(py::str(array.dtype())) + "; must be float32");
  }
  if (array.ndim() == dims) return array;
  const std::vector<py::ssize_t> shape(array.shape(), array.shape() + array.ndim());
  throw py::value_error(name + " has shape " + shape_text(shape) + "; must have " + std::to_string(dims) +
                        " dimension" + (dims == 1 ? "" : "s"));
}

py::array_t<float> copied_array(const float* values, const std::vector<py::ssize_t>& shape) {
  py::array_t<float> array(shape);
  if (array.size() > 0) std::memcpy(array.mutable_data(), values, static_cast<size_t>(array.nbytes()));
  return array;
}

void bind_policy_spec(py::module_& module) {
  module.def(
      "encode_policy", &encode_policy, py::arg("spec"),
      "Policy file (bytes) of a spec {num_servers, input, output, clip, actors: [{mean, inv_std, layers}]}.\n"
      "scope (optional): 'per_agent', or 'central' with num_agents = M and one flat actor, whose "
      "observation\n"
      "is (M (12 N + 5),) and whose outputs are those of M balancers, end to end.\n"
      "weights (optional): 'float32', or 'bfloat16', to which the layers' matrices are rounded.\n"
      "Layers are {kind: 'dense', weight (out, in), bias (out,), activation} or {kind: 'gru', weight_ih,\n"
      "weight_hh, bias_ih, bias_hh} as in torch.nn.GRU; all arrays float32. Raises ValueError naming the\n"
      "layer and the expected shape.");
  module.def("decode_policy", &decode_policy, py::arg("blob"),
             "Inverse of encode_policy, bit for bit, plus schema_hash. Raises ValueError for a bad file.");
  module.def("pack_policy", &pack_policy, py::arg("blob"),
             "The policy as the kernel reads it: matrices and biases in packed order, 1-D float32.");
}

}  // namespace steelyard::bind
