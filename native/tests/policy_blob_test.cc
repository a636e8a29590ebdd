// The policy file: what goes in comes out, and nothing else is let in.
#include "native/core/policy_blob.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "native/core/hosted_policy.h"
#include "native/tests/policy_samples.h"

namespace steelyard::core {
namespace {

constexpr size_t kLayerTable = 56;

PolicySpec small_policy() {
  return PolicyMaker(1).policy(2, PolicyInput::kPerServer, PolicyOutput::kTanh, 3, 2);
}

std::string refusal(const std::vector<uint8_t>& blob) {
  PolicySpec spec;
  std::string error;
  const bool accepted = decode_policy_blob(blob.data(), blob.size(), &spec, &error);
  EXPECT_EQ(accepted, error.empty());
  EXPECT_EQ(error.find('\n'), std::string::npos);
  return error;
}

// The refusal of a blob with `value` written at `offset` and its seal renewed.
template <typename T>
std::string refusal_with(size_t offset, T value) {
  std::vector<uint8_t> blob = blob_of(small_policy());
  std::memcpy(blob.data() + offset, &value, sizeof value);
  seal(&blob);
  return refusal(blob);
}

TEST(PolicyBlob, RoundTripIsExact) {
  for (const PolicyInput input : {PolicyInput::kFlat, PolicyInput::kPerServer}) {
    for (const PolicyOutput output : {PolicyOutput::kTanh, PolicyOutput::kClip, PolicyOutput::kDiscrete3}) {
      const PolicySpec spec = PolicyMaker(2).policy(5, input, output, 7, 3);
      const std::vector<uint8_t> blob = blob_of(spec);
      ASSERT_FALSE(blob.empty());
      PolicySpec back;
      std::string error;
      ASSERT_TRUE(decode_policy_blob(blob.data(), blob.size(), &back, &error)) << error;
      EXPECT_EQ(blob_of(back), blob);
      EXPECT_EQ(back.actors[2].layers[1].hidden_weight, spec.actors[2].layers[1].hidden_weight);
      EXPECT_EQ(back.actors[1].inv_std, spec.actors[1].inv_std);
    }
  }
}

TEST(PolicyBlob, CentralPoliciesRoundTrip) {
  for (const uint32_t agents : {1U, 3U}) {
    const PolicySpec spec =
        PolicyMaker(3).policy(4, PolicyInput::kFlat, PolicyOutput::kDiscrete3, 5, 1, agents);
    const std::vector<uint8_t> blob = blob_of(spec);
    ASSERT_FALSE(blob.empty());
    EXPECT_EQ(blob[12], agents);
    PolicySpec back;
    std::string error;
    ASSERT_TRUE(decode_policy_blob(blob.data(), blob.size(), &back, &error)) << error;
    EXPECT_EQ(back.central_agents, agents);
    EXPECT_EQ(back.actors[0].mean.size(), agents * 53);
    EXPECT_EQ(blob_of(back), blob);
    // For another number of balancers the same bytes do not add up.
    std::vector<uint8_t> other = blob;
    other[12] = static_cast<uint8_t>(agents + 1);
    seal(&other);
    EXPECT_NE(refusal(other).find("(the observation)"), std::string::npos);
  }
}

TEST(PolicyBlob, EveryFlippedBitIsRefused) {
  const std::vector<uint8_t> blob = blob_of(small_policy());
  for (size_t i = 0; i < blob.size(); ++i) {
    std::vector<uint8_t> bad = blob;
    bad[i] ^= static_cast<uint8_t>(1U << (i % 8));
    ASSERT_NE(refusal(bad), "") << "byte " << i;
  }
}

TEST(PolicyBlob, EveryTruncationIsRefused) {
  const std::vector<uint8_t> blob = blob_of(small_policy());
  for (size_t size = 0; size < blob.size(); ++size) {
    ASSERT_NE(refusal(std::vector<uint8_t>(blob.begin(), blob.begin() + static_cast<std::ptrdiff_t>(size))),
              "")
        << size << " bytes";
  }
  std::vector<uint8_t> longer = blob;
  longer.push_back(0);
  EXPECT_NE(refusal(longer), "");
  seal(&longer);
  EXPECT_NE(refusal(longer), "");
}

TEST(PolicyBlob, EveryHeaderFieldIsChecked) {
  EXPECT_EQ(refusal_with(8, uint32_t{3}), "policy file version is 3; this build reads versions 1..2");
  EXPECT_EQ(refusal_with(12, uint32_t{1025}), "central_agents is 1025; must be in 0..1024");
  EXPECT_EQ(refusal_with(12, uint32_t{2}), "num_actors is 2; a central policy has 1");
  EXPECT_NE(refusal_with(24, uint64_t{7}).find("observation schema is 0x0000000000000007"),
            std::string::npos);
  EXPECT_EQ(refusal_with(32, uint32_t{0}), "num_servers is 0; must be in 1..4096");
  EXPECT_NE(refusal_with(32, uint32_t{3}).find("observation schema"), std::string::npos);
  EXPECT_EQ(refusal_with(36, uint32_t{0xffffffff}), "num_actors is 4294967295; must be in 1..1024");
  EXPECT_EQ(refusal_with(40, uint32_t{17}), "num_layers is 17; must be in 1..16");
  EXPECT_EQ(refusal_with(44, uint32_t{2}), "input is 2; must be in 0..1");
  EXPECT_EQ(refusal_with(48, uint32_t{3}), "output is 3; must be in 0..2");
  for (const float clip :
       {0.0F, -1.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_NE(refusal_with(52, clip).find("must be finite and > 0"), std::string::npos) << clip;
  }
  EXPECT_EQ(refusal_with(kLayerTable, uint32_t{2}), "layers[0].kind is 2; must be in 0..1");
  EXPECT_EQ(refusal_with(kLayerTable + 4, uint32_t{4}), "layers[0].activation is 4; must be in 0..3");
  EXPECT_EQ(refusal_with(kLayerTable + 8, uint32_t{30}),
            "layers[0] has 30 inputs; expected 29 (the observation)");
  EXPECT_EQ(refusal_with(kLayerTable + 12, uint32_t{0xffffffff}),
            "layers[0].out is 4294967295; must be in 1..16384");
  EXPECT_EQ(refusal_with(kLayerTable + 16 + 4, uint32_t{1}),
            "layers[1].activation must be none: a gru has its own");
  EXPECT_EQ(refusal_with(kLayerTable + 12, uint32_t{4}),
            "layers[1] has 3 inputs; expected 4 (the layer before)");
  EXPECT_EQ(refusal_with(kLayerTable + 48 + 12, uint32_t{2}),
            "layers[3] has 2 outputs; the last layer must have 1");
}

TEST(PolicyBlob, DimensionsMustAddUpToTheSize) {
  PolicySpec spec = small_policy();
  std::vector<uint8_t> blob = blob_of(spec);
  const uint32_t actors = 1;
  std::memcpy(blob.data() + 36, &actors, sizeof actors);
  seal(&blob);
  EXPECT_NE(refusal(blob).find("its dimensions ask for"), std::string::npos);
}

TEST(PolicyBlob, EveryNumberMustBeUsable) {
  const std::vector<uint8_t> blob = blob_of(small_policy());
  const size_t first = kLayerTable + 4 * 16;
  for (size_t at = first; at + 8 < blob.size(); at += sizeof(float)) {
    EXPECT_NE(refusal_with(at, std::numeric_limits<float>::quiet_NaN()), "") << at;
    EXPECT_NE(refusal_with(at, -std::numeric_limits<float>::infinity()), "") << at;
  }
  const size_t inv_std = first + 29 * sizeof(float);
  EXPECT_EQ(refusal_with(inv_std, -0.5F), "actors[0].inv_std[0] is -0.5; must be finite and > 0");
  EXPECT_EQ(refusal_with(inv_std + 8, 0.0F), "actors[0].inv_std[2] is 0; must be finite and > 0");
  EXPECT_EQ(refusal_with(first + 4, std::numeric_limits<float>::infinity()),
            "actors[0].mean[1] is inf; must be finite");
}

TEST(PolicyBlob, EncodingRefusesWhatReadingWould) {
  const auto refused = [](const PolicySpec& spec) {
    std::vector<uint8_t> blob;
    std::string error;
    EXPECT_FALSE(encode_policy_blob(spec, &blob, &error));
    return error;
  };
  PolicySpec spec = small_policy();
  spec.actors[1].layers.pop_back();
  EXPECT_EQ(refused(spec), "actors[1] has other layers than actors[0]; all actors share one architecture");
  spec = small_policy();
  spec.actors[0].layers[1].hidden_bias.pop_back();
  EXPECT_EQ(refused(spec), "actors[0].layers[1].bias_hh has 8 values; expected 9");
  spec = small_policy();
  spec.actors.clear();
  EXPECT_EQ(refused(spec), "num_actors is 0; must be in 1..1024");
  spec = small_policy();
  spec.schema_hash ^= 1;
  EXPECT_NE(refused(spec).find("observation schema"), std::string::npos);
}

TEST(PolicyFile, NamesThePathInItsErrors) {
  std::string error;
  EXPECT_FALSE(load_policy_file("no/such/file", &error));
  EXPECT_EQ(error, "no/such/file: cannot open: No such file or directory");
  EXPECT_FALSE(load_policy_file(".", &error));
  EXPECT_EQ(error.find(".: cannot read"), 0U);
}

// A shared object that is cut anywhere is refused before the dynamic loader maps it.
TEST(PolicyFile, RefusesBrokenSharedObjects) {
  const std::string path = testing::TempDir() + "steelyard_broken.so";
  const auto refusal_of = [&path](const std::vector<uint8_t>& bytes) {
    std::FILE* file = std::fopen(path.c_str(), "wb");
    if (!bytes.empty()) std::fwrite(bytes.data(), 1, bytes.size(), file);
    std::fclose(file);
    std::string error;
    EXPECT_FALSE(load_policy_file(path, &error));
    return error.substr(path.size() + 2);
  };
  std::vector<uint8_t> bytes = {0x7f, 'E', 'L', 'F'};
  EXPECT_EQ(refusal_of(bytes), "truncated shared object");
  bytes.resize(4096);
  EXPECT_EQ(refusal_of(bytes), "not a 64-bit little-endian shared object");
  bytes[4] = 2;   // 64 bits
  bytes[5] = 1;   // little-endian
  bytes[16] = 3;  // shared object
  EXPECT_EQ(refusal_of(bytes), "corrupt shared object: program headers");
  bytes[54] = 56;    // size of a program header
  bytes[41] = 0xff;  // section table beyond the end
  bytes[60] = 1;
  bytes[58] = 64;
  EXPECT_EQ(refusal_of(bytes), "truncated shared object");
  EXPECT_EQ(refusal_of({}), "not a policy file: it does not start with SLYDPOL1");
  std::remove(path.c_str());
}

}  // namespace
}  // namespace steelyard::core
