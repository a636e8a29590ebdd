#include "native/core/linear_actor.h"

#include <cstring>
#include <type_traits>

namespace steelyard::core {
namespace {

// Calls f.operator()<Lanes>() with the lanes of one actor.
template <class F>
void with_lanes(uint32_t lanes, F&& f) {
  switch (lanes) {
    case 4:
      return f.template operator()<4>();
    case 8:
      return f.template operator()<8>();
    case 16:
      return f.template operator()<16>();
    case 32:
      return f.template operator()<32>();
    default:
      return f.template operator()<64>();
  }
}

// As much of one actor as is worked on at once.
template <uint32_t Lanes>
using RowVector = std::conditional_t<Lanes == 4, f32x4, f32x8>;
template <uint32_t Lanes>
constexpr uint32_t kWidth = sizeof(RowVector<Lanes>) / sizeof(float);

template <class Vector>
Vector load(const float* from) {
  Vector value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Four lanes in half a vector each: what one message stores the next one loads, and 16 bytes come back a
// cycle sooner than 32.
template <uint32_t Lanes>
void add_scaled(float* to, const float* column, float factor) {
  using Vector = RowVector<Lanes>;
#pragma GCC unroll 16
  for (uint32_t i = 0; i < kNumActors * Lanes; i += kWidth<Lanes>) {
    const Vector moved = load<Vector>(to + i) + load<Vector>(column + i) * factor;
    std::memcpy(to + i, &moved, sizeof moved);
  }
}

// A broadcast on its way from memory takes no place among the operations that wait for a coefficient; the
// compiler would multiply first and broadcast then.
inline f32x8 fill8_from(const float* x) {
#ifdef __AVX__
  return __builtin_ia32_vbroadcastss256(x);
#else
  return fill8(*x);
#endif
}

template <uint32_t Lanes>
inline void add_row(const f32x8* s, f32x8 factor, float* gradient) {
#pragma GCC unroll 16
  for (uint32_t i = 0; i < kNumActors * Lanes; i += 8)
    store8(gradient + i, load8(gradient + i) + s[i / 8] * factor);
}

// Inputs are as many as servers in most racks, and lanes where these are a power of two. Here and below,
// parameters have the places of cache_actor_gradient's, so that its call is a jump.
template <uint32_t Lanes>
[[gnu::noinline]] void cache_gradient(uint32_t, uint32_t num_inputs, const float* inputs, const float* score,
                                      float coefficient, float, float*, float* gradient) {
  constexpr uint32_t kRow = kNumActors * Lanes;
  f32x8 s[kRow / 8];
#pragma GCC unroll 16
  for (uint32_t b = 0; b < kRow / 8; ++b) s[b] = load8(score + 8 * b);
  const f32x8 factor = fill8(coefficient);
  if (num_inputs == Lanes) {
#pragma GCC unroll 8
    for (uint32_t k = 0; k < Lanes; ++k, gradient += kRow)
      add_row<Lanes>(s, fill8_from(inputs + k) * factor, gradient);
  } else {
    for (uint32_t k = 0; k < num_inputs; ++k, gradient += kRow)
      add_row<Lanes>(s, fill8_from(inputs + k) * factor, gradient);
  }
  add_row<Lanes>(s, factor, gradient);
}

template <uint32_t Lanes>
[[gnu::noinline]] void cache_traced_gradient(uint32_t, uint32_t num_inputs, const float* inputs,
                                             const float* score, float coefficient, float lambda,
                                             float* trace, float* gradient) {
  constexpr uint32_t kRow = kNumActors * Lanes;
  for (uint32_t k = 0; k <= num_inputs; ++k, trace += kRow, gradient += kRow) {
    const float z = k < num_inputs ? inputs[k] : 1.0F;
#pragma GCC unroll 16
    for (uint32_t i = 0; i < kRow; i += 8) {
      const f32x8 part = load8(score + i) * z + load8(trace + i) * lambda;
      store8(trace + i, part);
      store8(gradient + i, load8(gradient + i) + part * coefficient);
    }
  }
}

}  // namespace

LinearActors::LinearActors(uint32_t num_servers, uint32_t num_inputs, uint32_t self)
    : num_servers_(num_servers),
      num_inputs_(num_inputs),
      lanes_(padded_servers(num_servers)),
      self_(self),
      parameters_(static_cast<size_t>(num_inputs + 1) * kNumActors * lanes_),
      logits_(static_cast<size_t>(kNumActors) * lanes_),
      probability_(logits_.size()),
      threshold_(logits_.size()),
      allowed_(logits_.size()),
      beyond_(logits_.size()) {
  for (const ActorKind actor : {ActorKind::kMigration, ActorKind::kStealing}) {
    for (uint32_t i = 0; i < num_servers; ++i) set_allowed(actor, i, true);
  }
  refresh();
}

void LinearActors::set_weights(ActorKind actor, const float* weight, const float* bias) {
  for (uint32_t k = 0; k <= num_inputs_; ++k) {
    float* column = parameters_.data() + static_cast<size_t>(k) * kNumActors * lanes_ + offset(actor);
    for (uint32_t i = 0; i < num_servers_; ++i) {
      column[i] = k < num_inputs_ ? weight[static_cast<size_t>(i) * num_inputs_ + k] : bias[i];
    }
  }
}

void LinearActors::get_weights(ActorKind actor, float* weight, float* bias) const {
  for (uint32_t k = 0; k <= num_inputs_; ++k) {
    const float* column = parameters_.data() + static_cast<size_t>(k) * kNumActors * lanes_ + offset(actor);
    for (uint32_t i = 0; i < num_servers_; ++i) {
      (k < num_inputs_ ? weight[static_cast<size_t>(i) * num_inputs_ + k] : bias[i]) = column[i];
    }
  }
}

void LinearActors::set_allowed(ActorKind actor, uint32_t server, bool allowed) {
  if (server >= num_servers_) return;
  const auto at = [&](uint32_t i) { return place_in_pairs(static_cast<uint32_t>(actor), i); };
  allowed_[at(server)] = allowed || server == self_ ? -1 : 0;
  uint32_t last = num_servers_ - 1;
  while (allowed_[at(last)] == 0) --last;
  for (uint32_t i = 0; i < lanes_; ++i) beyond_[at(i)] = i < last ? 0 : kUnreachable;
}

void LinearActors::recompute(const float* inputs) {
  const size_t stride = logits_.size();
  std::memcpy(logits_.data(), parameters_.data() + num_inputs_ * stride, stride * sizeof(float));
  for (uint32_t k = 0; k < num_inputs_; ++k) add_input(k, inputs[k]);
}

void LinearActors::add_input(uint32_t k, float delta) {
  float* to = logits_.data();
  const float* column = parameters_.data() + k * logits_.size();
  with_lanes(lanes_, [&]<uint32_t Lanes>() { add_scaled<Lanes>(to, column, delta); });
}

Distributions LinearActors::distributions() {
  return {logits_.data(), allowed_.data(), beyond_.data(), probability_.data(), threshold_.data()};
}

void LinearActors::refresh() {
  with_lanes(lanes_, [this]<uint32_t Lanes>() {
    if (!softmax<Lanes>(distributions(), self_)) refresh_far();
  });
}

void LinearActors::refresh_far() {
  with_lanes(lanes_, [this]<uint32_t Lanes>() { softmax_of_far_logits<Lanes>(distributions(), self_); });
}

void cache_actor_gradient(uint32_t lanes, uint32_t num_inputs, const float* inputs, const float* score,
                          float coefficient, float lambda, float* trace, float* gradient) {
  with_lanes(lanes, [&]<uint32_t Lanes>() {
    if (trace != nullptr) {
      cache_traced_gradient<Lanes>(lanes, num_inputs, inputs, score, coefficient, lambda, trace, gradient);
    } else {
      cache_gradient<Lanes>(lanes, num_inputs, inputs, score, coefficient, lambda, trace, gradient);
    }
  });
}

void add_draw_score(uint32_t lanes, uint32_t num_inputs, ActorKind actor, const float* inputs,
                    const float* probability, uint32_t drawn, float* sum) {
  with_lanes(lanes, [&]<uint32_t Lanes>() {
    using Vector = RowVector<Lanes>;
    const float lane[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    const Vector chosen = Vector{} + static_cast<float>(drawn);
    Vector score[Lanes / kWidth<Lanes>];
#pragma GCC unroll 8
    for (uint32_t i = 0; i < Lanes; i += kWidth<Lanes>) {
      const Vector one =
          load<Vector>(lane) + static_cast<float>(i) == chosen ? Vector{} + 1.0F : Vector{} + 0.0F;
      score[i / kWidth<Lanes>] = one - load<Vector>(probability + i);
    }
    float* row = sum + static_cast<size_t>(actor) * Lanes;
    for (uint32_t k = 0; k <= num_inputs; ++k, row += kNumActors * Lanes) {
      const float z = k < num_inputs ? inputs[k] : 1.0F;
#pragma GCC unroll 8
      for (uint32_t i = 0; i < Lanes; i += kWidth<Lanes>) {
        const Vector moved = load<Vector>(row + i) + score[i / kWidth<Lanes>] * z;
        std::memcpy(row + i, &moved, sizeof moved);
      }
    }
  });
}

void cache_scores(size_t size, float coefficient, float lambda, float* trace, float* gradient, float* sum) {
  for (size_t i = 0; i < size; i += 8) {
    f32x8 part = load8(sum + i);
    if (trace != nullptr) {
      part += load8(trace + i) * lambda;
      store8(trace + i, part);
    }
    store8(gradient + i, load8(gradient + i) + part * coefficient);
    store8(sum + i, f32x8{});
  }
}

}  // namespace steelyard::core
