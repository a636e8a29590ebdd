// Policies with random weights, and a blob's seal: shared by the tests, the fuzz target and the benchmark.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "native/core/policy_blob.h"

namespace steelyard::core {

class PolicyMaker {
 public:
  explicit PolicyMaker(uint32_t seed) : draw_(seed) {}

  std::vector<float> values(size_t count, float scale) {
    std::normal_distribution<float> normal(0.0F, scale);
    std::vector<float> out(count);
    for (float& value : out) value = normal(draw_);
    return out;
  }

  LayerSpec dense(uint32_t in, uint32_t out, Activation activation) {
    LayerSpec layer;
    layer.activation = activation;
    layer.in = in;
    layer.out = out;
    layer.weight = values(size_t{out} * in, 1.0F / static_cast<float>(1 + in / 16));
    layer.bias = values(out, 0.5F);
    return layer;
  }

  LayerSpec gru(uint32_t in, uint32_t out) {
    LayerSpec layer;
    layer.kind = LayerKind::kGru;
    layer.in = in;
    layer.out = out;
    layer.weight = values(size_t{3} * out * in, 0.3F);
    layer.hidden_weight = values(size_t{3} * out * out, 0.2F);
    layer.bias = values(size_t{3} * out, 0.2F);
    layer.hidden_bias = values(size_t{3} * out, 0.2F);
    return layer;
  }

  // Central for central_agents balancers unless 0.
  // dense(hidden, relu) -> gru(hidden) -> dense(hidden, tanh) -> dense; without layers in between if hidden
  // is 0.
  PolicySpec policy(uint32_t servers, PolicyInput input, PolicyOutput output, uint32_t hidden,
                    uint32_t actors = 1, uint32_t central_agents = 0) {
    const bool rows = input == PolicyInput::kPerServer;
    const uint32_t agents = central_agents == 0 ? 1 : central_agents;
    const auto obs_size = agents * static_cast<uint32_t>(observation_size(static_cast<int>(servers)));
    const uint32_t in = rows ? kRowInputs : obs_size;
    const uint32_t out =
        (output == PolicyOutput::kDiscrete3 ? kNumChoices : 1) * (rows ? 1 : agents * servers);
    const uint64_t schema = observation_schema_hash(static_cast<int>(servers));
    PolicySpec spec{schema, central_agents, servers, input, output, 5.0F, {}};
    for (uint32_t a = 0; a < actors; ++a) {
      ActorSpec actor{values(obs_size, 1.0F), values(obs_size, 1.0F), {}};
      for (float& value : actor.inv_std) value = 0.1F + value * value;
      if (hidden == 0) {
        actor.layers = {dense(in, out, Activation::kNone)};
      } else {
        actor.layers = {dense(in, hidden, Activation::kRelu), gru(hidden, hidden),
                        dense(hidden, hidden, Activation::kTanh), dense(hidden, out, Activation::kNone)};
      }
      spec.actors.push_back(actor);
    }
    return spec;
  }

 private:
  std::mt19937 draw_;
};

inline std::vector<uint8_t> blob_of(const PolicySpec& spec) {
  std::vector<uint8_t> blob;
  std::string error;
  if (!encode_policy_blob(spec, &blob, &error)) blob.clear();
  return blob;
}

// Makes size and checksum right again after a change (see policy_blob.h), so that the change itself is what a
// reader meets.
inline void seal(std::vector<uint8_t>* blob) {
  if (blob->size() < 32) return;
  const uint64_t size = blob->size();
  std::memcpy(blob->data() + 16, &size, sizeof size);
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (size_t i = 0; i + 8 < blob->size(); ++i) hash = (hash ^ (*blob)[i]) * 0x100000001b3ULL;
  std::memcpy(blob->data() + blob->size() - 8, &hash, sizeof hash);
}

}  // namespace steelyard::core
