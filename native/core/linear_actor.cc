#include "native/core/linear_actor.h"

#include <cstring>

namespace steelyard::core {
namespace {

constexpr float kHighestTotal = 1e30F;
constexpr float kLowestLogit = -0x1p126F;
constexpr float kDraws = 0x1p30F;            // draws are integers below it
constexpr int32_t kUnreachable = INT32_MAX;  // a threshold above every draw

// Calls f.operator()<Blocks>() with the number of 8-lane blocks of one actor.
template <class F>
void with_blocks(uint32_t lanes, F&& f) {
  switch (lanes) {
    case 8:
      return f.template operator()<1>();
    case 16:
      return f.template operator()<2>();
    case 32:
      return f.template operator()<4>();
    default:
      return f.template operator()<8>();
  }
}

float horizontal_max(f32x8 x) {
  x = x > __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3)
          ? x
          : __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3);
  const float a = x[0] > x[1] ? x[0] : x[1];
  const float b = x[2] > x[3] ? x[2] : x[3];
  return a > b ? a : b;
}

// Running sums of the lanes.
i32x8 prefix_sum(i32x8 x) {
  const i32x8 zero = {};
  x += __builtin_shufflevector(x, zero, 8, 0, 1, 2, 3, 4, 5, 6);
  x += __builtin_shufflevector(x, zero, 8, 8, 0, 1, 2, 3, 4, 5);
  x += __builtin_shufflevector(x, zero, 8, 8, 8, 8, 0, 1, 2, 3);
  return x;
}

template <uint32_t Blocks>
void add_scaled(float* to, const float* column, float factor) {
#pragma GCC unroll 16
  for (uint32_t b = 0; b < kNumActors * Blocks; ++b) {
    store8(to + 8 * b, load8(to + 8 * b) + load8(column + 8 * b) * factor);
  }
}

// Where all probability is on `self`.
void keep(uint32_t lanes, uint32_t self, float* probability, int32_t* threshold) {
  for (uint32_t i = 0; i < lanes; ++i) {
    probability[i] = i == self ? 1.0F : 0.0F;
    threshold[i] = i < self ? 0 : kUnreachable;
  }
}

f32x8 only(const f32x8& values, const int32_t* allowed) {
  i32x8 bits;
  __builtin_memcpy(&bits, &values, sizeof bits);
  bits &= load8(allowed);
  f32x8 kept;
  __builtin_memcpy(&kept, &bits, sizeof kept);
  return kept;
}

// Both actors' arrays, (2, lanes) each.
struct Distributions {
  const float* logits;
  const int32_t* allowed;
  const int32_t* beyond;
  float* probability;
  int32_t* threshold;
};

template <uint32_t Blocks>
float highest_allowed(const float* logits, const int32_t* allowed) {
  f32x8 top = fill8(kLowestLogit);
  for (uint32_t b = 0; b < Blocks; ++b) {
    const f32x8 f = load8(allowed + 8 * b) != 0 ? load8(logits + 8 * b) : fill8(kLowestLogit);
    top = f > top ? f : top;
  }
  return horizontal_max(top);
}

// e^(logit - shift) of what is allowed, and their sum.
template <uint32_t Blocks>
inline float exponentials(const float* logits, const int32_t* allowed, float shift, f32x8* e) {
  f32x8 sums = {};
#pragma GCC unroll 8
  for (uint32_t b = 0; b < Blocks; ++b) {
    e[b] = only(exp8(load8(logits + 8 * b) - shift), allowed + 8 * b);
    sums += e[b];
  }
  return horizontal_sum(sums);
}

template <uint32_t Blocks>
inline void write_distribution(const f32x8* e, float total, const int32_t* beyond, float* probability,
                               int32_t* threshold) {
  const float scale = 1.0F / total;
  i32x8 before = {};
#pragma GCC unroll 8
  for (uint32_t b = 0; b < Blocks; ++b) {
    const f32x8 p = e[b] * scale;
    const i32x8 sums = prefix_sum(__builtin_convertvector(p * kDraws, i32x8));
    const i32x8 reached = (sums + before) | load8(beyond + 8 * b);
    before += __builtin_shufflevector(sums, sums, 7, 7, 7, 7, 7, 7, 7, 7);
    store8(probability + 8 * b, p);
    std::memcpy(threshold + 8 * b, &reached, sizeof reached);
  }
}

// Both softmaxes side by side, which hides latencies. The shift cancels out: its own logit is at hand at once
// and nearly always good enough, the greatest one is taken when others lie far above it.
template <uint32_t Blocks>
void softmax(const Distributions& d, uint32_t self) {
  constexpr uint32_t kLanesEach = 8 * Blocks;
  f32x8 e[kNumActors * Blocks];
  float total[kNumActors];
#pragma GCC unroll 2
  for (uint32_t actor = 0; actor < kNumActors; ++actor) {
    const uint32_t at = actor * kLanesEach;
    total[actor] =
        exponentials<Blocks>(d.logits + at, d.allowed + at, d.logits[at + self], e + actor * Blocks);
  }
#pragma GCC unroll 2
  for (uint32_t actor = 0; actor < kNumActors; ++actor) {
    const uint32_t at = actor * kLanesEach;
    if (!(total[actor] <= kHighestTotal)) {
      const float highest = highest_allowed<Blocks>(d.logits + at, d.allowed + at);
      total[actor] = exponentials<Blocks>(d.logits + at, d.allowed + at, highest, e + actor * Blocks);
      if (!(total[actor] <= kHighestTotal)) {
        keep(kLanesEach, self, d.probability + at, d.threshold + at);
        continue;
      }
    }
    write_distribution<Blocks>(e + actor * Blocks, total[actor], d.beyond + at, d.probability + at,
                               d.threshold + at);
  }
}

template <uint32_t Blocks, bool Traced>
void cache_gradient(uint32_t num_inputs, const float* inputs, const float* score, float coefficient,
                    float lambda, float* trace, float* gradient) {
  constexpr uint32_t kVectors = kNumActors * Blocks;
  f32x8 s[kVectors];
#pragma GCC unroll 16
  for (uint32_t b = 0; b < kVectors; ++b) s[b] = load8(score + 8 * b);
  for (uint32_t k = 0; k <= num_inputs; ++k) {
    const float z = k < num_inputs ? inputs[k] : 1.0F;
    const float factor = Traced ? z : z * coefficient;
#pragma GCC unroll 16
    for (uint32_t b = 0; b < kVectors; ++b) {
      f32x8 part = s[b] * factor;
      if constexpr (Traced) {
        part += load8(trace + 8 * b) * lambda;
        store8(trace + 8 * b, part);
        part *= coefficient;
      }
      store8(gradient + 8 * b, load8(gradient + 8 * b) + part);
    }
    gradient += 8 * kVectors;
    if constexpr (Traced) trace += 8 * kVectors;
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
    for (uint32_t i = 0; i < num_servers; ++i) allowed_[offset(actor) + i] = -1;
    set_allowed(actor, self, true);
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
  int32_t* flags = allowed_.data() + offset(actor);
  flags[server] = allowed || server == self_ ? -1 : 0;
  uint32_t last = num_servers_ - 1;
  while (flags[last] == 0) --last;
  for (uint32_t i = 0; i < lanes_; ++i) beyond_[offset(actor) + i] = i < last ? 0 : kUnreachable;
}

void LinearActors::recompute(const float* inputs) {
  const size_t stride = logits_.size();
  std::memcpy(logits_.data(), parameters_.data() + num_inputs_ * stride, stride * sizeof(float));
  for (uint32_t k = 0; k < num_inputs_; ++k) add_input(k, inputs[k]);
}

void LinearActors::add_input(uint32_t k, float delta) {
  float* to = logits_.data();
  const float* column = parameters_.data() + k * logits_.size();
  with_blocks(lanes_, [&]<uint32_t Blocks>() { add_scaled<Blocks>(to, column, delta); });
}

void LinearActors::refresh() {
  with_blocks(lanes_, [&]<uint32_t Blocks>() {
    softmax<Blocks>({logits_.data(), allowed_.data(), beyond_.data(), probability_.data(), threshold_.data()},
                    self_);
  });
}

void cache_actor_gradient(uint32_t lanes, uint32_t num_inputs, const float* inputs, const float* score,
                          float coefficient, float lambda, float* trace, float* gradient) {
  with_blocks(lanes, [&]<uint32_t Blocks>() {
    if (trace != nullptr) {
      cache_gradient<Blocks, true>(num_inputs, inputs, score, coefficient, lambda, trace, gradient);
    } else {
      cache_gradient<Blocks, false>(num_inputs, inputs, score, coefficient, 0.0F, nullptr, gradient);
    }
  });
}

void add_draw_score(uint32_t lanes, uint32_t num_inputs, ActorKind actor, const float* inputs,
                    const float* probability, uint32_t drawn, float* sum) {
  with_blocks(lanes, [&]<uint32_t Blocks>() {
    constexpr uint32_t kStride = kNumActors * 8 * Blocks;
    f32x8 score[Blocks];
    const f32x8 lane = {0, 1, 2, 3, 4, 5, 6, 7};
    const f32x8 chosen = fill8(static_cast<float>(drawn));
#pragma GCC unroll 8
    for (uint32_t b = 0; b < Blocks; ++b) {
      const f32x8 one = lane + static_cast<float>(8 * b) == chosen ? fill8(1.0F) : fill8(0.0F);
      score[b] = one - load8(probability + 8 * b);
    }
    float* row = sum + static_cast<size_t>(actor) * 8 * Blocks;
    for (uint32_t k = 0; k <= num_inputs; ++k, row += kStride) {
      const float z = k < num_inputs ? inputs[k] : 1.0F;
#pragma GCC unroll 8
      for (uint32_t b = 0; b < Blocks; ++b) store8(row + 8 * b, load8(row + 8 * b) + score[b] * z);
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
