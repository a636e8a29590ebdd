// The inference kernel against double precision, and what its hosts rely on.
#include "native/core/policy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "native/core/hosted_policy.h"
#include "native/core/policy_spec.h"
#include "native/tests/policy_reference.h"
#include "native/tests/policy_samples.h"

namespace steelyard::core {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kSteps = 150;  // an episode of 60 s has 120

std::vector<float> observation(std::mt19937* draw, uint32_t servers) {
  std::normal_distribution<float> normal(0.0F, 2.0F);
  std::vector<float> obs(static_cast<size_t>(observation_size(static_cast<int>(servers))));
  for (float& value : obs) value = normal(*draw);
  return obs;
}

std::shared_ptr<const LoadedPolicy> loaded(const PolicySpec& spec) {
  const std::vector<uint8_t> blob = blob_of(spec);
  std::string error;
  std::shared_ptr<const LoadedPolicy> policy = load_policy_bytes(blob.data(), blob.size(), &error);
  EXPECT_TRUE(policy) << error;
  return policy;
}

struct Shape {
  PolicyInput input;
  PolicyOutput output;
  uint32_t servers, hidden;
};

class PolicyKernel : public testing::TestWithParam<Shape> {};

// Single precision over a whole episode with the state carried along.
TEST_P(PolicyKernel, AgreesWithDoublePrecision) {
  const Shape& shape = GetParam();
  const PolicySpec spec = PolicyMaker(1).policy(shape.servers, shape.input, shape.output, shape.hidden);
  HostedPolicy hosted(loaded(spec), 1);
  PolicyReference reference(spec);
  std::mt19937 draw(2);
  std::vector<float> action(shape.servers);
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<float> obs = observation(&draw, shape.servers);
    const std::vector<double> expected = reference.action(obs);
    ASSERT_TRUE(hosted.act(0, obs.data(), action.data()));
    for (uint32_t j = 0; j < shape.servers; ++j) {
      ASSERT_NEAR(action[j], expected[j], 4e-6) << "server " << j << " at step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, PolicyKernel,
                         testing::Values(Shape{PolicyInput::kFlat, PolicyOutput::kTanh, 8, 64},
                                         Shape{PolicyInput::kFlat, PolicyOutput::kClip, 1, 0},
                                         Shape{PolicyInput::kFlat, PolicyOutput::kTanh, 9, 33},
                                         Shape{PolicyInput::kFlat, PolicyOutput::kDiscrete3, 3, 17},
                                         Shape{PolicyInput::kPerServer, PolicyOutput::kTanh, 8, 32},
                                         Shape{PolicyInput::kPerServer, PolicyOutput::kClip, 1, 5},
                                         Shape{PolicyInput::kPerServer, PolicyOutput::kDiscrete3, 13, 24},
                                         Shape{PolicyInput::kPerServer, PolicyOutput::kTanh, 4, 0}));

// A central policy is a flat one over the balancers' observations end to end.
TEST(PolicyKernelCentral, AgreesWithDoublePrecision) {
  for (const PolicyOutput output : {PolicyOutput::kTanh, PolicyOutput::kDiscrete3}) {
    const PolicySpec spec = PolicyMaker(21).policy(4, PolicyInput::kFlat, output, 33, 1, 2);
    HostedPolicy hosted(loaded(spec), 2);
    EXPECT_EQ(hosted.num_agents(), 1);
    PolicyReference reference(spec);
    std::mt19937 draw(2);
    std::vector<float> action(hosted.policy()->action_size());
    ASSERT_EQ(action.size(), 8U);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<float> obs;
      for (int i = 0; i < 2; ++i) {
        const std::vector<float> one = observation(&draw, 4);
        obs.insert(obs.end(), one.begin(), one.end());
      }
      ASSERT_EQ(obs.size(), hosted.policy()->obs_size());
      const std::vector<double> expected = reference.action(obs);
      ASSERT_TRUE(hosted.act(0, obs.data(), action.data()));
      for (size_t j = 0; j < action.size(); ++j) ASSERT_NEAR(action[j], expected[j], 4e-6) << j;
    }
    EXPECT_FALSE(hosted.act(1, std::vector<float>(action.size() * 20).data(), action.data()));
  }
}

// A copy of `values` that starts one float after a 64-byte boundary: every vector access is then misaligned.
class Misaligned {
 public:
  Misaligned(const float* values, size_t count) : memory_(count + 32) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    at_ = memory_.data() + (64 - address % 64) / sizeof(float) + 1;
    if (count > 0) std::memcpy(at_, values, count * sizeof(float));
  }
  float* get() { return at_; }

 private:
  std::vector<float> memory_;
  float* at_;
};

TEST(Policy, AlignmentChangesNoBit) {
  const PolicySpec spec = PolicyMaker(3).policy(8, PolicyInput::kFlat, PolicyOutput::kTanh, 40);
  const PackedPolicy packed(spec);
  const PolicyView& view = packed.set().actors[0];
  std::vector<LayerView> layers(view.layers, view.layers + view.num_layers);
  std::vector<std::unique_ptr<Misaligned>> kept;
  const auto move = [&kept](const float** values, size_t count) {
    if (*values == nullptr) return;
    kept.push_back(std::make_unique<Misaligned>(*values, count));
    *values = kept.back()->get();
  };
  for (LayerView& layer : layers) {
    const uint32_t gates = layer.kind == LayerKind::kGru ? 3 : 1;
    move(&layer.weights, packed_matrix_size(gates, layer.out, layer.in));
    move(&layer.hidden_weights, packed_matrix_size(gates, layer.out, layer.out));
    move(&layer.bias, gates * round_up_lanes(layer.out));
    move(&layer.hidden_bias, gates * round_up_lanes(layer.out));
  }
  PolicyView shifted = view;
  shifted.layers = layers.data();
  const std::vector<float> zeros(policy_scratch_size(view) + policy_state_size(view));
  Misaligned state(zeros.data(), policy_state_size(view));
  Misaligned scratch(zeros.data(), policy_scratch_size(view));
  std::vector<float> plain_state(policy_state_size(view));
  std::vector<float> plain_scratch(policy_scratch_size(view));
  std::mt19937 draw(4);
  for (int step = 0; step < 20; ++step) {
    const std::vector<float> obs = observation(&draw, 8);
    Misaligned other_obs(obs.data(), obs.size());
    float plain[8];
    float other[9];
    ASSERT_TRUE(policy_infer(view, obs.data(), plain_state.data(), plain_scratch.data(), plain));
    ASSERT_TRUE(policy_infer(shifted, other_obs.get(), state.get(), scratch.get(), other + 1));
    ASSERT_EQ(std::memcmp(plain, other + 1, sizeof plain), 0) << "step " << step;
  }
}

TEST(Policy, PackingPadsEveryGate) {
  const std::vector<float> weights = {1, 2, 3, 4, 5, 6};  // 3 gates of 1 output, 2 inputs
  std::vector<float> packed(packed_matrix_size(3, 1, 2), -1);
  pack_matrix(weights.data(), 3, 1, 2, packed.data());
  ASSERT_EQ(packed.size(), 48U);
  for (size_t i = 0; i < packed.size(); ++i) {
    const bool held = i % 8 == 0;
    EXPECT_EQ(packed[i], held ? weights[(i % 24) / 8 * 2 + i / 24] : 0.0F) << i;
  }
}

TEST(Policy, DiscreteTakesTheFirstOfEqualLogits) {
  PolicySpec spec = PolicyMaker(5).policy(2, PolicyInput::kFlat, PolicyOutput::kDiscrete3, 0);
  LayerSpec& layer = spec.actors[0].layers[0];
  layer.weight.assign(layer.weight.size(), 0.0F);
  layer.bias = {1, 1, 1, 0, 2, 2};
  HostedPolicy hosted(loaded(spec), 1);
  const std::vector<float> obs(29);
  float action[2];
  ASSERT_TRUE(hosted.act(0, obs.data(), action));
  EXPECT_EQ(action[0], 0.0F);
  EXPECT_FLOAT_EQ(action[1], static_cast<float>(std::log2(1.5) / 2));
}

TEST(Policy, RefusesWhatIsNotFinite) {
  const PolicySpec spec = PolicyMaker(6).policy(4, PolicyInput::kFlat, PolicyOutput::kTanh, 16);
  HostedPolicy hosted(loaded(spec), 1);
  std::mt19937 draw(7);
  std::vector<float> obs = observation(&draw, 4);
  float action[4] = {9, 9, 9, 9};
  ASSERT_TRUE(hosted.act(0, obs.data(), action));
  const std::vector<float> state = hosted.state();
  const std::vector<float> before(action, action + 4);
  for (const float bad : {kNan, kInf, -kInf}) {
    for (const size_t at : {size_t{0}, size_t{30}, obs.size() - 1}) {
      const float kept = std::exchange(obs[at], bad);
      EXPECT_FALSE(hosted.act(0, obs.data(), action));
      EXPECT_EQ(hosted.state(), state);
      EXPECT_EQ(std::vector<float>(action, action + 4), before);
      obs[at] = kept;
    }
  }
  EXPECT_TRUE(hosted.act(0, obs.data(), action));
}

// Finite weights whose sums overflow: inf - inf must not come out as an action.
TEST(Policy, RefusesItsOwnOverflow) {
  for (const PolicyOutput output : {PolicyOutput::kTanh, PolicyOutput::kClip, PolicyOutput::kDiscrete3}) {
    PolicySpec spec = PolicyMaker(8).policy(2, PolicyInput::kFlat, output, 0);
    for (float& weight : spec.actors[0].layers[0].weight) weight = 3e38F;
    HostedPolicy hosted(loaded(spec), 1);
    const std::vector<float> obs(29, 100.0F);
    float action[2] = {9, 9};
    EXPECT_FALSE(hosted.act(0, obs.data(), action));
    EXPECT_EQ(action[0], 9.0F);
  }
}

TEST(HostedPolicy, GivesEachAgentItsActorAndState) {
  const PolicySpec spec = PolicyMaker(9).policy(3, PolicyInput::kFlat, PolicyOutput::kTanh, 8, 2);
  HostedPolicy both(loaded(spec), 2);
  std::mt19937 draw(10);
  for (int step = 0; step < 5; ++step) {
    const std::vector<float> obs = observation(&draw, 3);
    float action[3];
    for (int agent = 0; agent < 2; ++agent) {
      ASSERT_TRUE(both.act(agent, obs.data(), action));
      PolicySpec alone = spec;
      alone.actors = {spec.actors[static_cast<size_t>(agent)]};
      HostedPolicy single(loaded(alone), 3);  // one actor serves any number of agents
      float expected[3];
      std::mt19937 again(10);
      for (int past = 0; past <= step; ++past) {
        ASSERT_TRUE(single.act(2, observation(&again, 3).data(), expected));
      }
      EXPECT_EQ(std::memcmp(action, expected, sizeof action), 0);
    }
  }
}

TEST(HostedPolicy, CopiesAreSnapshots) {
  HostedPolicy hosted(loaded(PolicyMaker(11).policy(3, PolicyInput::kPerServer, PolicyOutput::kTanh, 8)), 2);
  std::mt19937 draw(12);
  const std::vector<float> obs = observation(&draw, 3);
  float first[3];
  float again[3];
  ASSERT_TRUE(hosted.act(1, obs.data(), first));
  const HostedPolicy snapshot = hosted;
  ASSERT_TRUE(hosted.act(1, obs.data(), first));
  hosted = snapshot;
  ASSERT_TRUE(hosted.act(1, obs.data(), again));
  EXPECT_EQ(std::memcmp(first, again, sizeof first), 0);
  EXPECT_EQ(hosted.policy(), snapshot.policy());

  hosted.reset(1);
  EXPECT_EQ(hosted.state(), std::vector<float>(hosted.state().size()));
  ASSERT_TRUE(hosted.act(0, obs.data(), first));
  hosted.reset(1);
  EXPECT_NE(hosted.state(), std::vector<float>(hosted.state().size()));
  hosted.reset();
  EXPECT_EQ(hosted.state(), std::vector<float>(hosted.state().size()));
}

TEST(HostedPolicy, RefusesWhatDoesNotFit) {
  const std::shared_ptr<const LoadedPolicy> two =
      loaded(PolicyMaker(13).policy(4, PolicyInput::kFlat, PolicyOutput::kTanh, 0, 2));
  EXPECT_THROW(HostedPolicy(nullptr, 1), std::invalid_argument);
  EXPECT_THROW(HostedPolicy(two, 0), std::invalid_argument);
  EXPECT_THROW(HostedPolicy(two, 3), std::invalid_argument);
  HostedPolicy hosted(two, 2);
  const std::vector<float> obs(static_cast<size_t>(observation_size(4)));
  float action[4];
  EXPECT_FALSE(hosted.act(-1, obs.data(), action));
  EXPECT_FALSE(hosted.act(2, obs.data(), action));
  EXPECT_FALSE(HostedPolicy().act(0, obs.data(), action));
  EXPECT_EQ(check_policy_fits(*two, observation_schema_hash(4), 4, 2), "");
  EXPECT_EQ(check_policy_fits(*two, observation_schema_hash(5), 5, 2),
            "policy is for 4 servers; this pool has 5");
  EXPECT_EQ(check_policy_fits(*two, observation_schema_hash(4), 4, 3),
            "policy has 2 actors; needs 1 or 3, one per load balancer");
  EXPECT_NE(check_policy_fits(*two, observation_schema_hash(4) + 1, 4, 2), "");
  EXPECT_NE(check_policy_fits(*two, observation_schema_hash(4) + 1, 4, 3, true), "");
  EXPECT_EQ(check_policy_fits(*two, observation_schema_hash(4), 4, 3, true), "");
  const auto central = loaded(PolicyMaker(13).policy(4, PolicyInput::kFlat, PolicyOutput::kTanh, 0, 1, 2));
  EXPECT_EQ(check_policy_fits(*central, observation_schema_hash(4), 4, 2), "");
  EXPECT_EQ(check_policy_fits(*central, observation_schema_hash(4), 4, 1),
            "policy is central, for 2 load balancers; this pool has 1");
  EXPECT_THROW(HostedPolicy(central, 1), std::invalid_argument);
}

TEST(HostedPolicy, CyclesItsActorsOverMoreAgents) {
  const std::shared_ptr<const LoadedPolicy> two =
      loaded(PolicyMaker(13).policy(4, PolicyInput::kFlat, PolicyOutput::kTanh, 0, 2));
  HostedPolicy hosted(two, 3, true);
  const std::vector<float> obs(static_cast<size_t>(observation_size(4)), 0.5f);
  std::vector<float> first(4), second(4), third(4);
  ASSERT_TRUE(hosted.act(0, obs.data(), first.data()));
  ASSERT_TRUE(hosted.act(1, obs.data(), second.data()));
  ASSERT_TRUE(hosted.act(2, obs.data(), third.data()));
  EXPECT_EQ(third, first);
  EXPECT_NE(second, first);
}

}  // namespace
}  // namespace steelyard::core
