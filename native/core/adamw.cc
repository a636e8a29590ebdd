#include "native/core/adamw.h"

namespace steelyard::core {

void AdamW::update(const AdamWConfig& config, float* parameters, float* gradient) {
  ++steps_;
  mean_left_ *= static_cast<double>(config.beta1);
  square_left_ *= static_cast<double>(config.beta2);
  const double rate = static_cast<double>(config.learning_rate);
  const float step = static_cast<float>(rate / (1.0 - mean_left_));
  const float unbias = static_cast<float>(1.0 / __builtin_sqrt(1.0 - square_left_));
  const float keep = static_cast<float>(1.0 - rate * static_cast<double>(config.weight_decay));
  const float beta1 = config.beta1, beta2 = config.beta2, epsilon = config.epsilon;
  const float fresh1 = 1.0F - beta1, fresh2 = 1.0F - beta2;
  float* __restrict p = parameters;
  float* __restrict g = gradient;
  float* __restrict m = mean_.data();
  float* __restrict v = square_.data();
  const size_t size = mean_.size();
  for (size_t i = 0; i < size; ++i) {
    m[i] = beta1 * m[i] + fresh1 * g[i];
    v[i] = beta2 * v[i] + fresh2 * (g[i] * g[i]);
    p[i] = keep * p[i] - step * m[i] / (__builtin_sqrtf(v[i]) * unbias + epsilon);
    g[i] = 0.0F;
  }
}

}  // namespace steelyard::core
