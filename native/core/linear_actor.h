// The two linear actors of one server of the rack game (seed 000, Sec. 6.2): pi = softmax(W z + b) over the N
// servers, one for migration, one for stealing. They read the same inputs z, so a change of one input moves
// the logits of both by a column of their weights (eq. 6.1).
//
// Outputs are padded to 4, 8, 16, 32 or 64 lanes. Parameters, and gradients of their shape, lie input by
// input: (num_inputs + 1, 2, lanes) float32, migration before stealing, the bias last; zero in the padding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "native/core/activations.h"
#include "native/core/actor_softmax.h"
#include "native/core/aligned.h"
#include "native/core/types.h"

namespace steelyard::core {

inline constexpr uint32_t kMaxRackServers = 64;
inline constexpr uint32_t kNumActors = 2;
enum class ActorKind : uint32_t { kMigration = 0, kStealing = 1 };

// Lanes that num_servers in 1..64 are padded to.
constexpr uint32_t padded_servers(uint32_t num_servers) {
  uint32_t lanes = 4;
  while (lanes < num_servers) lanes *= 2;
  return lanes;
}

// Number of ascending thresholds that are at most `draw`; lanes: 4, 8, 16, 32 or 64.
inline uint32_t count_at_most(const int32_t* thresholds, uint32_t lanes, int32_t draw) {
  const auto count = [](i32x4 found) {  // -1 where it holds
    found += __builtin_shufflevector(found, found, 2, 3, 0, 1);
    found += __builtin_shufflevector(found, found, 1, 0, 3, 2);
    return static_cast<uint32_t>(-found[0]);
  };
  if (lanes < 8) {
    i32x4 few;
    __builtin_memcpy(&few, thresholds, sizeof few);
    return count(few <= draw);
  }
  const auto in_block = [&](uint32_t b) { return load8(thresholds + 8 * b) <= draw; };
  i32x8 found = in_block(0);
  if (lanes > 8) found += in_block(1);
  if (lanes > 16) found += in_block(2) + in_block(3);
  if (lanes > 32) found += (in_block(4) + in_block(5)) + (in_block(6) + in_block(7));
  return count(__builtin_shufflevector(found, found, 0, 1, 2, 3) +
               __builtin_shufflevector(found, found, 4, 5, 6, 7));
}

class LinearActors {
 public:
  LinearActors() = default;
  // `self`: the server whose actors these are; it is always allowed and means keep (migration) or none
  // (stealing). 1 <= num_servers <= 64. All parameters are 0.
  LinearActors(uint32_t num_servers, uint32_t num_inputs, uint32_t self);

  uint32_t num_servers() const { return num_servers_; }
  uint32_t num_inputs() const { return num_inputs_; }
  uint32_t lanes() const { return lanes_; }
  size_t num_parameters() const { return parameters_.size(); }  // padding included
  float* parameters() { return parameters_.data(); }
  const float* parameters() const { return parameters_.data(); }

  // Row-major, as torch.nn.Linear holds them: weight (N, num_inputs), bias (N,). Logits stay as they are
  // until the next recompute.
  void set_weights(ActorKind actor, const float* weight, const float* bias);
  void get_weights(ActorKind actor, float* weight, float* bias) const;

  // Takes a server out of a distribution, or lets it in again; acts at the next refresh.
  void set_allowed(ActorKind actor, uint32_t server, bool allowed);

  // Logits of both actors from scratch; inputs: (num_inputs,).
  void recompute(const float* inputs);
  // Input k has changed by `delta`: O(N). Each call adds an error of at most 2^-23 (|logit| + |delta W|).
  void add_input(uint32_t k, float delta);
  // Both distributions from the logits. An actor whose logits are not finite keeps (steals nothing).
  void refresh();

  const float* logits(ActorKind actor) const { return logits_.data() + offset(actor); }
  const float* probabilities(ActorKind actor) const { return probability_.data() + offset(actor); }
  // One draw from a random word, whose upper 30 bits count, in integers. Never a server that is not allowed.
  uint32_t draw(ActorKind actor, uint64_t word) const {
    return count_at_most(threshold_.data() + offset(actor), lanes_, static_cast<int32_t>(word >> 34));
  }

 private:
  Distributions distributions();
  [[gnu::noinline, gnu::cold]] void refresh_far();
  size_t offset(ActorKind actor) const { return static_cast<size_t>(actor) * lanes_; }

  uint32_t num_servers_ = 0, num_inputs_ = 0, lanes_ = 0, self_ = 0;
  AlignedFloats parameters_;
  AlignedFloats logits_, probability_;  // (2, lanes)
  AlignedInts threshold_;  // (2, lanes) 2^30 cumulative probability, out of reach from the last allowed on
  // In pairs (actor_softmax.h).
  AlignedInts allowed_;  // all ones or 0
  AlignedInts beyond_;   // kUnreachable from the last allowed server on, 0 before it
};

// One window's part of the actors' gradient. With s the score, d log pi / d logits of what was done, (2,
// lanes), and z the inputs followed by 1, (num_inputs + 1,):
//   trace <- lambda trace + z s^T;  gradient <- gradient + coefficient trace.
// Without a trace (nullptr) lambda counts as 0. trace, gradient: (num_inputs + 1, 2, lanes).
void cache_actor_gradient(uint32_t lanes, uint32_t num_inputs, const float* inputs, const float* score,
                          float coefficient, float lambda, float* trace, float* gradient);

// One draw's part of a window's score: sum <- sum + z (e_drawn - pi)^T in the columns of `actor`; lanes,
// inputs and sum as above, probability: (lanes,) of the distribution that was drawn from.
void add_draw_score(uint32_t lanes, uint32_t num_inputs, ActorKind actor, const float* inputs,
                    const float* probability, uint32_t drawn, float* sum);
// The same from such sums over a window: trace <- lambda trace + sum; gradient <- gradient + coefficient
// trace; sum <- 0. size: of all three.
void cache_scores(size_t size, float coefficient, float lambda, float* trace, float* gradient, float* sum);

}  // namespace steelyard::core
