// The policy of a rack: what goes into a file comes out, nothing else is let in, and what plays it draws as
// the learner that it was taken from.
#include "native/core/rack_policy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "native/core/blob_io.h"
#include "native/core/hosted_rack_policy.h"
#include "native/core/malcolm_fields.h"
#include "native/core/rack_policy_blob.h"
#include "native/core/rng.h"
#include "native/tests/policy_samples.h"
#include "native/tests/rack_policy_samples.h"

namespace steelyard::core {
namespace {

std::string refusal(const std::vector<uint8_t>& blob) {
  RackPolicySpec spec;
  std::string error;
  EXPECT_FALSE(decode_rack_policy(blob.data(), blob.size(), &spec, &error));
  EXPECT_EQ(error.find('\n'), std::string::npos);
  return error;
}

template <typename T>
std::string refusal_with(std::vector<uint8_t> blob, size_t at, T value) {
  std::memcpy(blob.data() + at, &value, sizeof value);
  seal(&blob);
  return refusal(blob);
}

std::shared_ptr<const LoadedRackPolicy> loaded(const RackPolicySpec& spec) {
  const std::vector<uint8_t> blob = rack_blob_of(spec);
  std::string error;
  auto policy = load_rack_policy_bytes(blob.data(), blob.size(), &error);
  EXPECT_EQ(error, "");
  return policy;
}

TEST(RackPolicy, ComesOutOfItsFileAsItWent) {
  for (const bool code : {false, true}) {
    for (const uint32_t n : {2u, 8u, 11u, 64u}) {
      RackPolicySpec spec = sample_rack_policy(n, code);
      spec.config.load_smoothing = 0.25F;
      spec.config.seed = UINT64_MAX - 5;
      const std::vector<uint8_t> blob = rack_blob_of(spec);
      RackPolicySpec found;
      std::string error;
      ASSERT_TRUE(decode_rack_policy(blob.data(), blob.size(), &found, &error)) << error;
      EXPECT_EQ(found.actors, spec.actors);
      EXPECT_EQ(found.num_servers, n);
      EXPECT_EQ(found.config.seed, spec.config.seed);
      EXPECT_EQ(found.config.load_smoothing, 0.25F);
      EXPECT_EQ(found.config.load_unit_s, spec.config.load_unit_s);
      EXPECT_EQ(found.config.inputs, spec.config.inputs);
      EXPECT_EQ(found.config.features, spec.config.features);
      EXPECT_EQ(rack_blob_of(found), blob);
    }
  }
}

TEST(RackPolicy, RefusesWhatIsDamaged) {
  const std::vector<uint8_t> blob = rack_blob_of(sample_rack_policy(4));
  for (size_t cut = 0; cut < blob.size(); cut += 7)
    EXPECT_NE(refusal({blob.begin(), blob.begin() + static_cast<std::ptrdiff_t>(cut)}), "");
  for (size_t at = 0; at < blob.size(); at += 5) {
    std::vector<uint8_t> flipped = blob;
    flipped[at] ^= 1;
    EXPECT_NE(refusal(flipped), "");
  }
  EXPECT_EQ(refusal_with(blob, 8, uint32_t{2}), "policy file version is 2; this build reads version 1");
  EXPECT_EQ(refusal_with(blob, 12, uint32_t{2}), "weights is 2; must be 0 (float32) or 1 (bfloat16)");
  EXPECT_EQ(refusal_with(blob, 32, uint32_t{1}), "num_servers is 1; must be in 2..64");
  EXPECT_NE(refusal_with(blob, 24, uint64_t{7}).find("rack schema is 0x0000000000000007"), std::string::npos);
  EXPECT_NE(refusal_with(blob, 40, 'x').find("unknown field 'xnputs'"), std::string::npos);
  EXPECT_NE(refusal_with(blob, 40 + 32, uint64_t{9}).find("inputs has the bits 9"), std::string::npos);
  const size_t last = blob.size() - 12;
  EXPECT_NE(refusal_with(blob, last, std::numeric_limits<float>::quiet_NaN()).find("must be finite"),
            std::string::npos);
}

TEST(RackPolicy, RefusesALoadUnitThatIsNoNumber) {
  RackPolicySpec spec = sample_rack_policy(4);
  std::vector<uint8_t> blob;
  std::string error;
  spec.config.load_unit_s = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(encode_rack_policy(spec, &blob, &error));
  EXPECT_EQ(error, "load_unit_s is not finite");
  spec.config.load_unit_s = 1e-4F;
  spec.actors.pop_back();
  EXPECT_FALSE(encode_rack_policy(spec, &blob, &error));
  EXPECT_EQ(error, "actors has 159 values; expected 160");
}

TEST(RackPolicy, TheTwoKindsOfPolicyAreToldApart) {
  const std::vector<uint8_t> rack = rack_blob_of(sample_rack_policy(4));
  const std::vector<uint8_t> cluster =
      blob_of(PolicyMaker(1).policy(4, PolicyInput::kFlat, PolicyOutput::kTanh, 0));
  EXPECT_EQ(refusal(cluster), "a policy of load balancers, not of a rack's servers");
  PolicySpec spec;
  std::string error;
  EXPECT_FALSE(decode_policy_blob(rack.data(), rack.size(), &spec, &error));
  EXPECT_EQ(error, "a policy of a rack's servers, not of load balancers");
}

TEST(RackPolicy, DrawsAsTheServerThatLearnedIt) {
  for (const bool code : {false, true}) {
    const RackPolicySpec spec = sample_rack_policy(8, code);
    const auto policy = loaded(spec);
    for (const uint32_t self : {0u, 5u}) {
      MalcolmServer learner(spec.config, 8, self, 3);
      std::vector<float> parameters(learner.num_parameters());
      learner.export_parameters(parameters.data());
      const size_t each = rack_actor_floats(spec.config, 8);
      std::memcpy(parameters.data(), &spec.actors[self * each], each * sizeof(float));
      learner.import_parameters(parameters.data());
      learner.set_frozen(true);
      auto player = policy->player(self, 3, 1);
      for (uint64_t k = 0; k < 4000; ++k) {
        const uint64_t word = draw(9, k);
        if (k % 3 == 0) {
          learner.on_accept(0);
          player->on_accept(0);
        } else if (k % 7 == 1) {
          learner.on_completion(0, 1e-5F * static_cast<float>(k % 11));
          player->on_completion(0, 1e-5F * static_cast<float>(k % 11));
        }
        const LoadMessage told{2e-5F * static_cast<float>(below(word, 50)), 1, 0};
        const auto from = static_cast<ServerId>(k % 8);
        learner.on_load_message(from, told);
        player->on_load_message(from, told);
        if (k % 10 == 0) {
          EXPECT_EQ(learner.broadcast().load_s, player->broadcast().load_s);
          learner.on_window();
          player->on_window();
        }
        if (k == 2000) player = player->clone();
        ASSERT_EQ(learner.migrate(word), player->migrate(word)) << k;
        ASSERT_EQ(learner.steal(~word), player->steal(~word)) << k;
      }
    }
  }
}

TEST(RackPolicy, PlayersAreRefusedOutOfRange) {
  const auto policy = loaded(sample_rack_policy(4));
  EXPECT_THROW(policy->player(4, 1, 1), std::invalid_argument);
  EXPECT_THROW(policy->player(0, 0, 1), std::invalid_argument);
  EXPECT_THROW(policy->player(0, 1, 17), std::invalid_argument);
}

TEST(RackPolicy, RoundsWeightsToTheNearestBfloat16) {
  RackPolicySpec spec = sample_rack_policy(8);
  const RackPolicySpec before = spec;
  std::string error;
  ASSERT_TRUE(round_weights(&spec, &error)) << error;
  const size_t weights = size_t{8} * 8, period = weights + 8;
  for (size_t i = 0; i < spec.actors.size(); ++i) {
    const float change = std::fabs(spec.actors[i] - before.actors[i]);
    if (i % period >= weights) {
      EXPECT_EQ(change, 0.0F);
    } else {
      EXPECT_LE(change, std::ldexp(std::fabs(before.actors[i]), -8));  // half a step of 8 bits
    }
  }
  const std::vector<uint8_t> blob = rack_blob_of(spec);
  RackPolicySpec found;
  ASSERT_TRUE(decode_rack_policy(blob.data(), blob.size(), &found, &error)) << error;
  EXPECT_EQ(found.actors, spec.actors);
  EXPECT_EQ(rack_blob_of(before).size() - blob.size(), 2 * 16 * weights);
  spec.actors[0] = 0.1F;
  std::vector<uint8_t> refused;
  EXPECT_FALSE(encode_rack_policy(spec, &refused, &error));
  EXPECT_EQ(error, "actors[0] is 0.100000001; not a bfloat16 number");
}

TEST(Bfloat16, RoundsToEvenAndKeepsWhatIsNotFinite) {
  EXPECT_EQ(nearest_bfloat16(1.0F), 1.0F);
  EXPECT_EQ(nearest_bfloat16(1.0F + 0x1p-8F), 1.0F);              // a tie, to the even one
  EXPECT_EQ(nearest_bfloat16(1.0F + 0x3p-8F), 1.0F + 0x4p-8F);    // a tie, to the even one
  EXPECT_EQ(nearest_bfloat16(1.0F + 0x1.1p-8F), 1.0F + 0x2p-8F);  // above the tie
  EXPECT_EQ(nearest_bfloat16(-0.0F), 0.0F);
  EXPECT_TRUE(std::isnan(nearest_bfloat16(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isinf(nearest_bfloat16(std::numeric_limits<float>::max())));
}

}  // namespace
}  // namespace steelyard::core
