// The learning kernels of the rack game against double precision and by hand; the player's bookkeeping.
#include "native/core/malcolm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "native/core/rng.h"

namespace steelyard::core {
namespace {

const uint32_t kSizes[] = {2, 3, 4, 5, 7, 8, 9, 16, 17, 32, 33, 63, 64};

// Reproducible values in (-size, size).
class Source {
 public:
  explicit Source(uint64_t seed) : stream_(stream_key(seed, 1)) {}
  float value(float size) { return size * static_cast<float>(2 * unit_open(draw(stream_, key_++)) - 1); }
  std::vector<float> values(size_t count, float size) {
    std::vector<float> out(count);
    for (float& x : out) x = value(size);
    return out;
  }

 private:
  uint64_t stream_, key_ = 0;
};

struct Rack {
  explicit Rack(uint32_t servers, float far = 0) : n(servers), actors(servers, servers, servers / 2) {
    Source source(7);
    for (const ActorKind kind : {ActorKind::kMigration, ActorKind::kStealing}) {
      weight[static_cast<int>(kind)] = source.values(size_t{n} * n, 0.3F);
      bias[static_cast<int>(kind)] = source.values(n, 0.3F);
      if (kind == ActorKind::kStealing) bias[1][0] += far;
      actors.set_weights(kind, weight[static_cast<int>(kind)].data(), bias[static_cast<int>(kind)].data());
    }
    inputs = source.values(n, 2.0F);
    actors.recompute(inputs.data());
    actors.refresh();
  }
  double logit(int kind, uint32_t i) const {
    double f = bias[kind][i];
    for (uint32_t k = 0; k < n; ++k) f += static_cast<double>(weight[kind][i * n + k]) * inputs[k];
    return f;
  }
  uint32_t n;
  LinearActors actors;
  std::vector<float> weight[2], bias[2], inputs;
};

TEST(LinearActors, LogitsAndSoftmaxAreTheirDefinition) {
  for (const uint32_t n : kSizes) {
    for (const float far : {0.0F, 100.0F}) {  // e^100 is more than a float holds
      const Rack rack(n, far);
      for (int kind = 0; kind < 2; ++kind) {
        const auto actor = static_cast<ActorKind>(kind);
        double total = 0;
        for (uint32_t i = 0; i < n; ++i) {
          EXPECT_NEAR(rack.actors.logits(actor)[i], rack.logit(kind, i), 1e-5 * std::sqrt(n));
          total += std::exp(rack.logit(kind, i));
        }
        for (uint32_t i = 0; i < n; ++i) {
          const double p = std::exp(rack.logit(kind, i)) / total;
          EXPECT_NEAR(rack.actors.probabilities(actor)[i], p, 2e-5 * p + 1e-9) << n;
        }
        for (uint32_t i = n; i < rack.actors.lanes(); ++i)
          EXPECT_EQ(rack.actors.probabilities(actor)[i], 0.0F);
      }
    }
  }
}

// Each message rounds once in the product and once in the sum: at most 2^-23 of the larger of the two, and
// the errors of M messages, of either sign, add up like sqrt(M) at most M-fold.
TEST(LinearActors, IncrementalLogitsStayCloseToRecomputedOnes) {
  constexpr int kMessages = 100'000;
  for (const uint32_t n : {4U, 32U}) {
    Rack rack(n);
    Source source(11);
    float largest = 0;
    for (int m = 0; m < kMessages; ++m) {
      const uint32_t k = below(draw(3, static_cast<uint64_t>(m)), n);
      const float x = source.value(2.0F);
      rack.actors.add_input(k, x - rack.inputs[k]);
      rack.inputs[k] = x;
      for (uint32_t i = 0; i < n; ++i)
        largest = std::max(largest, std::abs(rack.actors.logits(ActorKind::kMigration)[i]));
    }
    std::vector<float> moved(rack.actors.logits(ActorKind::kMigration),
                             rack.actors.logits(ActorKind::kMigration) + n);
    rack.actors.recompute(rack.inputs.data());
    const double bound = 4 * std::sqrt(kMessages) * 0x1p-23 * (largest + 0.3 * 4);
    double worst = 0;
    for (uint32_t i = 0; i < n; ++i)
      worst = std::max<double>(worst, std::abs(moved[i] - rack.actors.logits(ActorKind::kMigration)[i]));
    EXPECT_LT(worst, bound);
    EXPECT_GT(worst, 0) << "rounding must show, or the test does not look at increments";
  }
}

TEST(LinearActors, DrawsFollowTheDistribution) {
  constexpr uint64_t kDraws = 400'000;
  for (const uint32_t n : {4U, 9U, 32U, 64U}) {
    Rack rack(n);
    rack.actors.set_allowed(ActorKind::kStealing, 0, false);
    rack.actors.refresh();
    for (const ActorKind actor : {ActorKind::kMigration, ActorKind::kStealing}) {
      std::vector<double> count(n);
      for (uint64_t k = 0; k < kDraws; ++k) ++count.at(rack.actors.draw(actor, draw(stream_key(n, 5), k)));
      double chi2 = 0, classes = 0;
      for (uint32_t i = 0; i < n; ++i) {
        const double expected = static_cast<double>(kDraws) * rack.actors.probabilities(actor)[i];
        if (expected == 0) {
          EXPECT_EQ(count[i], 0);
          continue;
        }
        chi2 += (count[i] - expected) * (count[i] - expected) / expected;
        ++classes;
      }
      const double freedom = classes - 1;  // mean; the variance is twice that
      EXPECT_LT(chi2, freedom + 4 * std::sqrt(2 * freedom));
    }
  }
}

TEST(LinearActors, EveryWordDrawsAnAllowedServer) {
  Rack rack(13);
  for (uint32_t i = 0; i < 13; ++i) {
    if (i != 3 && i != 9) rack.actors.set_allowed(ActorKind::kMigration, i, false);
  }
  rack.actors.refresh();  // 6 is its own index, which cannot be taken away
  for (const uint64_t word : {uint64_t{0}, ~uint64_t{0}, uint64_t{1} << 63}) {
    const uint32_t drawn = rack.actors.draw(ActorKind::kMigration, word);
    EXPECT_TRUE(drawn == 3 || drawn == 6 || drawn == 9) << drawn;
  }
  EXPECT_EQ(rack.actors.draw(ActorKind::kMigration, 0), 3U);
  EXPECT_EQ(rack.actors.draw(ActorKind::kMigration, ~uint64_t{0}), 9U);
  rack.actors.set_allowed(ActorKind::kMigration, 3, false);
  rack.actors.set_allowed(ActorKind::kMigration, 9, false);
  rack.actors.refresh();
  for (uint64_t k = 0; k < 1000; ++k) EXPECT_EQ(rack.actors.draw(ActorKind::kMigration, draw(1, k)), 6U);
}

TEST(LinearActors, WhatIsNotFiniteKeeps) {
  Rack rack(5);
  rack.actors.add_input(1, NAN);
  rack.actors.refresh();
  for (uint64_t k = 0; k < 100; ++k) EXPECT_EQ(rack.actors.draw(ActorKind::kStealing, draw(1, k)), 2U);
  EXPECT_EQ(rack.actors.probabilities(ActorKind::kStealing)[2], 1.0F);
  rack.actors.recompute(rack.inputs.data());
  rack.actors.add_input(0, 3e38F);
  rack.actors.refresh();
  float total = 0;
  for (uint32_t i = 0; i < 5; ++i) total += rack.actors.probabilities(ActorKind::kMigration)[i];
  EXPECT_NEAR(total, 1, 1e-6);
}

TEST(LinearCritic, FeaturesAreInTheStatedOrder) {
  const float loads[16] = {2, 3, 5};
  float out[48];
  critic_features(CriticFeatures::kLinear, 3, loads, out);
  EXPECT_EQ(std::vector<float>(out, out + 8), (std::vector<float>{2, 3, 5, 1, 0, 0, 0, 0}));
  critic_features(CriticFeatures::kQuartic, 3, loads, out);
  EXPECT_EQ(std::vector<float>(out, out + 16),
            (std::vector<float>{2, 3, 5, 4, 6, 10, 9, 15, 25, 8, 27, 125, 16, 81, 625, 1}));
  for (const uint32_t n : kSizes) {
    for (const auto kind : {CriticFeatures::kLinear, CriticFeatures::kQuadratic, CriticFeatures::kQuartic}) {
      std::vector<float> x(n + 16), features(critic_buffer(kind, n), 7.0F);
      for (uint32_t i = 0; i < n; ++i) x[i] = 2;
      critic_features(kind, n, x.data(), features.data());
      const uint32_t size = critic_size(kind, n);
      EXPECT_EQ(features[size - 1], 1.0F);
      for (size_t i = size; i < (size + 7) / 8 * 8; ++i) EXPECT_EQ(features[i], 0.0F);
    }
  }
}

// The forward sum written out: error_t times sum_k (gamma lambda)^(t-k) f(x_k).
TEST(LinearCritic, TraceIsTheWrittenOutSum) {
  constexpr int kSteps = 40;
  const TemporalDifference td{0.9F, 0.6F, 0.01F};
  for (const uint32_t n : {4U, 11U}) {
    Source source(n);
    LinearCritic critic(CriticFeatures::kQuadratic, n);
    const std::vector<float> theta = source.values(critic.size(), 0.5F);
    std::copy(theta.begin(), theta.end(), critic.parameters());
    std::vector<std::vector<float>> states, features;
    std::vector<double> values;
    for (int t = 0; t <= kSteps; ++t) {
      states.push_back(source.values(n, 1.0F));
      states.back().resize(n + 16);
      features.emplace_back(critic_buffer(critic.kind(), n));
      critic_features(critic.kind(), n, states.back().data(), features.back().data());
      double value = 0;
      for (uint32_t i = 0; i < critic.size(); ++i)
        value += static_cast<double>(theta[i]) * features.back()[i];
      values.push_back(value);
    }
    critic.start(states[0].data());
    std::vector<double> gradient(critic.size());
    double average = 0;
    for (int t = 0; t < kSteps; ++t) {
      const float reward = source.value(1.0F);
      const double error = reward - average + 0.9 * values[t + 1] - values[t];
      EXPECT_NEAR(critic.observe(states[t + 1].data(), reward, td, 0.25F), error, 1e-4);
      average += 0.01 * error;
      EXPECT_NEAR(critic.average_reward(), average, 1e-5);
      for (uint32_t i = 0; i < critic.size(); ++i) {
        double trace = 0;
        for (int k = 0; k <= t; ++k) trace += std::pow(0.54, t - k) * features[k][i];
        gradient[i] -= error / 4 * trace;
      }
    }
    for (uint32_t i = 0; i < critic.size(); ++i) EXPECT_NEAR(critic.gradient()[i], gradient[i], 2e-4);
  }
}

TEST(RackPayoff, ImbalanceIsItsDefinition) {
  for (const uint32_t n : kSizes) {
    std::vector<float> x = Source(n).values(n + 16, 3.0F);  // what follows the loads must not count
    double absolute = 0, square = 0;
    for (uint32_t j = 0; j < n; ++j) {
      for (uint32_t k = 0; k < n; ++k) {
        absolute += std::abs(static_cast<double>(x[j]) - x[k]);
        square += (static_cast<double>(x[j]) - x[k]) * (static_cast<double>(x[j]) - x[k]);
      }
    }
    EXPECT_NEAR(load_imbalance(x.data(), n), absolute / (n - 1), 1e-6 * absolute);
    EXPECT_NEAR(mean_squared_imbalance(x.data(), n), square / n / (n - 1), 1e-5 * square);
  }
}

// At the stage the loads after the move are the same in payoff and potential, whoever moved.
TEST(RackPayoff, PotentialIsExactAtTheStage) {
  const MoveCosts costs{0.25F, 0.125F};
  for (const uint32_t n : {2U, 8U, 32U}) {
    Source source(n);
    for (uint32_t i = 0; i < n; ++i) {
      std::vector<float> before(n + 16), after(n + 16);
      std::vector<uint32_t> migrations(n, 3), steals(n, 1);
      for (uint32_t j = 0; j < n; ++j) before[j] = after[j] = std::floor(source.value(8.0F)) / 4;
      std::vector<double> u(n), v(n);
      const double phi = rack_payoffs(before.data(), n, migrations.data(), steals.data(), costs, u.data());
      after[i] -= 0.25F;
      after[(i + 1) % n] += 0.25F;
      migrations[i] += 1 + i % 3;
      steals[i] += i % 2;
      const double psi = rack_payoffs(after.data(), n, migrations.data(), steals.data(), costs, v.data());
      EXPECT_NEAR(v[i] - u[i], psi - phi, 1e-12);
      EXPECT_NE(psi, phi);
    }
  }
}

TEST(Consensus, IsTheMean) {
  const MalcolmConfig config = MalcolmConfig::thesis();
  std::vector<MalcolmServer> servers;
  for (uint32_t i = 0; i < 3; ++i) servers.emplace_back(config, 3, i, 4);
  std::vector<double> mean(servers[0].critic_size());
  for (const MalcolmServer& server : servers) {
    for (size_t k = 0; k < mean.size(); ++k)
      mean[k] += static_cast<double>(server.critic_parameters()[k]) / 3;
  }
  MalcolmServer* all[] = {&servers[0], &servers[1], &servers[2]};
  EXPECT_EQ(MalcolmServer::consensus(all, 3), 3 * 2 * mean.size() * 4);
  for (const MalcolmServer& server : servers) {
    for (size_t k = 0; k < mean.size(); ++k) EXPECT_NEAR(server.critic_parameters()[k], mean[k], 1e-8);
  }
}

class MalcolmVariants : public testing::TestWithParam<bool> {
 protected:
  static MalcolmConfig config() { return GetParam() ? MalcolmConfig::code() : MalcolmConfig::thesis(); }
};

TEST_P(MalcolmVariants, LoadIsTasksOverRate) {
  MalcolmConfig config = MalcolmVariants::config();
  config.num_types = 2;
  for (const RateAverage average : {RateAverage::kInverse, RateAverage::kTime}) {
    config.rate_average = average;
    MalcolmServer server(config, 4, 1, 8);
    for (int k = 0; k < 300; ++k) {
      server.on_accept(0);
      server.on_accept(1);
      server.on_completion(0, 40e-6F);
      server.on_completion(1, 400e-6F);
    }
    EXPECT_EQ(server.num_tasks(), 0U);
    for (int k = 0; k < 10; ++k) server.on_accept(0);
    server.on_accept(1);
    EXPECT_NEAR(server.load_s(), (10 * 40e-6 + 400e-6) / 8, 1e-9);
    server.on_stolen(1);
    const LoadMessage told = server.broadcast();
    EXPECT_NEAR(told.load_s, 10 * 40e-6 / 8, 1e-9);
    EXPECT_NEAR(server.loads()[1], told.load_s / config.load_unit_s, 1e-6);
  }
}

TEST_P(MalcolmVariants, StealsOnlyWhenFewWait) {
  MalcolmConfig config = MalcolmVariants::config();
  config.steal_below = 1;
  MalcolmServer server(config, 8, 0, 2);
  int asked = 0;
  for (uint64_t k = 0; k < 200; ++k) asked += server.steal(draw(1, k)) != kNoServer;
  EXPECT_GT(asked, 100);
  for (int k = 0; k < 3; ++k) server.on_accept(0);
  for (uint64_t k = 0; k < 200; ++k) EXPECT_EQ(server.steal(draw(1, k)), kNoServer);
  EXPECT_EQ(server.broadcast().steals, static_cast<uint32_t>(asked));
  EXPECT_EQ(server.broadcast().steals, 0U);
}

TEST_P(MalcolmVariants, UpdatesEveryBatchAndNeverWhenFrozen) {
  const MalcolmConfig config = MalcolmVariants::config();
  MalcolmServer server(config, 4, 2, 4);
  std::vector<float> before(server.num_parameters()), after(server.num_parameters());
  server.export_parameters(before.data());
  Source source(3);
  const auto window = [&] {
    for (uint64_t k = 0; k < 6; ++k) server.migrate(draw(9, k));
    for (ServerId j = 0; j < 4; ++j) server.on_load_message(j, {1e-4F * (1 + source.value(1.0F)), 1, 0});
    return server.on_window();
  };
  EXPECT_FALSE(window().learned);
  for (uint32_t w = 1; w < config.batch; ++w) EXPECT_FALSE(window().updated);
  server.export_parameters(after.data());
  EXPECT_EQ(before, after);
  EXPECT_TRUE(window().updated);
  server.export_parameters(after.data());
  EXPECT_NE(before, after);
  server.set_frozen(true);
  before = after;
  for (uint32_t w = 0; w < 3 * config.batch; ++w) EXPECT_FALSE(window().learned);
  server.export_parameters(after.data());
  EXPECT_EQ(before, after);
}

TEST_P(MalcolmVariants, ParametersGoInAsTheyCameOut) {
  MalcolmConfig config = MalcolmVariants::config();
  const MalcolmServer one(config, 12, 5, 4);
  config.seed = 99;
  MalcolmServer other(config, 12, 5, 4);
  std::vector<float> values(one.num_parameters()), found(one.num_parameters());
  one.export_parameters(values.data());
  other.import_parameters(values.data());
  other.export_parameters(found.data());
  EXPECT_EQ(values, found);
  for (uint64_t k = 0; k < 100; ++k) {
    EXPECT_EQ(one.actors().draw(ActorKind::kMigration, draw(1, k)),
              other.actors().draw(ActorKind::kMigration, draw(1, k)));
  }
}

INSTANTIATE_TEST_SUITE_P(Both, MalcolmVariants, testing::Bool());

TEST(Malcolm, RanksFallFromMinusOneToOne) {
  MalcolmConfig config = MalcolmConfig::code();
  MalcolmServer server(config, 4, 3, 1);
  server.on_load_message(0, {2e-4F, 0, 0});
  server.on_load_message(1, {9e-4F, 0, 0});
  server.on_load_message(2, {2e-4F, 0, 0});
  server.on_window();
  const float* rank = server.actor_inputs() + 4;
  EXPECT_FLOAT_EQ(rank[1], -1.0F);
  EXPECT_FLOAT_EQ(rank[3], 1.0F);
  const double half = 0.5 * std::log(4.0);
  EXPECT_NEAR(rank[0], (std::log(2.0) - half) / half, 1e-6);
  EXPECT_NEAR(rank[2], (std::log(3.0) - half) / half, 1e-6);  // a tie goes by index
}

TEST(Malcolm, BadMessagesAndConfigsAreRefused) {
  MalcolmServer server(MalcolmConfig::thesis(), 4, 3, 1);
  for (const ServerId from : {-1, 3, 4, 1000}) server.on_load_message(from, {1.0F, 0, 0});
  server.on_load_message(0, {NAN, 0, 0});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(server.loads()[i], 0.0F);
  MalcolmConfig config = MalcolmConfig::thesis();
  EXPECT_THROW(config.check(1, 0, 1), std::invalid_argument);
  EXPECT_THROW(config.check(65, 0, 1), std::invalid_argument);
  EXPECT_THROW(config.check(4, 4, 1), std::invalid_argument);
  config.td.trace = 1.5F;
  try {
    config.check(4, 0, 1);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "critic_trace is 1.5; must be in [0, 1]");
  }
}

}  // namespace
}  // namespace steelyard::core
