// The kernel's meaning in double precision, row-major and unpacked: what policy_test.cc compares with.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "native/core/policy_spec.h"

namespace steelyard::core {

class PolicyReference {
 public:
  explicit PolicyReference(const PolicySpec& spec, size_t actor = 0)
      : spec_(spec), actor_(spec.actors[actor]) {
    for (const LayerSpec& layer : actor_.layers) {
      state_.emplace_back(rows() * (layer.kind == LayerKind::kGru ? layer.out : 0), 0.0);
    }
  }

  // Outputs of the last layer, server by server: (num_servers, 1 or 3).
  std::vector<double> outputs(const std::vector<float>& obs) {
    std::vector<double> x(obs.size());
    for (size_t i = 0; i < obs.size(); ++i) {
      x[i] = (double{obs[i]} - actor_.mean[i]) * actor_.inv_std[i];
      x[i] = std::clamp(x[i], -double{spec_.clip}, double{spec_.clip});
    }
    std::vector<double> all;
    for (size_t row = 0; row < rows(); ++row) {
      std::vector<double> y = spec_.input == PolicyInput::kFlat ? x : row_of(x, row);
      for (size_t l = 0; l < actor_.layers.size(); ++l) y = run(l, row, y);
      all.insert(all.end(), y.begin(), y.end());
    }
    return all;
  }

  std::vector<double> action(const std::vector<float>& obs) {
    const std::vector<double> y = outputs(obs);
    std::vector<double> action;
    for (size_t j = 0; j < spec_.num_servers * (spec_.central_agents == 0 ? 1 : spec_.central_agents); ++j) {
      if (spec_.output == PolicyOutput::kDiscrete3) {
        const auto* logits = y.data() + 3 * j;
        action.push_back(std::log2(1.0 + 0.5 * (std::max_element(logits, logits + 3) - logits)) / 2);
      } else {
        action.push_back(spec_.output == PolicyOutput::kTanh ? std::tanh(y[j]) : std::clamp(y[j], -1.0, 1.0));
      }
    }
    return action;
  }

 private:
  size_t rows() const { return spec_.input == PolicyInput::kFlat ? 1 : spec_.num_servers; }

  static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

  std::vector<double> row_of(const std::vector<double>& x, size_t server) const {
    const size_t n = spec_.num_servers;
    const auto own = [&](size_t j, size_t k) { return k < 11 ? x[11 * j + k] : x[11 * n + 5 + j]; };
    std::vector<double> row;
    for (size_t k = 0; k < 12; ++k) row.push_back(own(server, k));
    for (size_t k = 0; k < 5; ++k) row.push_back(x[11 * n + k]);
    for (size_t k = 0; k < 12; ++k) {
      double sum = 0;
      for (size_t j = 0; j < n; ++j) sum += own(j, k);
      row.push_back(sum / static_cast<double>(n));
    }
    return row;
  }

  static std::vector<double> affine(const std::vector<float>& weight, const std::vector<float>& bias,
                                    const double* x, size_t in) {
    std::vector<double> y(bias.begin(), bias.end());
    for (size_t o = 0; o < y.size(); ++o) {
      for (size_t i = 0; i < in; ++i) y[o] += double{weight[o * in + i]} * x[i];
    }
    return y;
  }

  std::vector<double> run(size_t l, size_t row, const std::vector<double>& x) {
    const LayerSpec& layer = actor_.layers[l];
    std::vector<double> y = affine(layer.weight, layer.bias, x.data(), layer.in);
    if (layer.kind == LayerKind::kGru) {
      const size_t h = layer.out;
      double* state = state_[l].data() + row * h;
      const std::vector<double> from_state = affine(layer.hidden_weight, layer.hidden_bias, state, h);
      std::vector<double> next(h);
      for (size_t i = 0; i < h; ++i) {
        const double r = sigmoid(y[i] + from_state[i]);
        const double z = sigmoid(y[h + i] + from_state[h + i]);
        const double n = std::tanh(y[2 * h + i] + r * from_state[2 * h + i]);
        next[i] = (1 - z) * n + z * state[i];
      }
      std::copy(next.begin(), next.end(), state);
      return next;
    }
    for (double& value : y) {
      if (layer.activation == Activation::kRelu) value = std::max(value, 0.0);
      if (layer.activation == Activation::kTanh) value = std::tanh(value);
      if (layer.activation == Activation::kSigmoid) value = sigmoid(value);
    }
    return y;
  }

  PolicySpec spec_;
  ActorSpec actor_;
  std::vector<std::vector<double>> state_;
};

}  // namespace steelyard::core
