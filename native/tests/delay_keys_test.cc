// Choosing by keys eight at a time is choosing by the plain loop of integers: any pool, any loads, any
// weights.
#include "native/core/delay_keys.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "native/core/load_balancer.h"
#include "native/core/select.h"
#include "native/tests/worlds.h"

namespace steelyard::core {
namespace {

using testing::rule;
using testing::seconds;
using testing::word;

constexpr WeightQ16 kGreatest = 65535u << 16;
constexpr int kServers = 20;  // of a balancer that has keys
static_assert(kServers >= DelayKeys::kFewest);

struct Pool {
  std::vector<ServerId> members;  // of them, one in four is left out
  std::vector<uint32_t> load;
  std::vector<WeightQ16> weight;
};

uint32_t load_of(uint64_t kind, uint64_t word) {
  switch (kind % 4) {
    case 0:
      return 0;
    case 1:
      return below(word, 3);
    case 2:
      return below(word, 1000);
    default:
      return below(word, DelayKeys::kExactLoad);
  }
}

WeightQ16 weight_of(uint64_t kind, uint64_t word) {
  switch (kind % 4) {
    case 0:
      return kUnitWeight;
    case 1:
      return kUnitWeight << below(word, 3);
    case 2:
      return 1 + below(word, kGreatest);
    default:
      return word % 2 != 0 ? kGreatest - below(mix64(word), 4) : 1 + below(mix64(word), 4);
  }
}

Pool pool_of(int servers, uint64_t trial) {
  const uint64_t stream = stream_key(11, trial);
  Pool pool{{}, std::vector<uint32_t>(servers), std::vector<WeightQ16>(servers)};
  for (int j = 0; j < servers; ++j) {
    const uint64_t drawn = draw(stream, static_cast<uint64_t>(j));
    pool.load[j] = load_of(trial, drawn);
    pool.weight[j] = weight_of(trial / 4, mix64(drawn ^ kGolden));
    if (drawn % 4 != 0) pool.members.push_back(j);
  }
  if (pool.members.empty()) pool.members.push_back(servers - 1);
  return pool;
}

ServerId by_keys(const DelayKeys& keys, const std::vector<ServerId>& members, uint64_t word) {
  return members[keys.first_least(below(word, static_cast<uint32_t>(members.size())))];
}

void expect_the_same(const DelayKeys& keys, const Pool& pool, uint64_t trial, uint64_t words) {
  for (uint64_t k = 0; k < words; ++k) {
    const uint64_t drawn = word(trial * 64 + k);
    ASSERT_EQ(by_keys(keys, pool.members, drawn),
              argmin_expected_delay(pool.members, pool.load.data(), pool.weight.data(), drawn))
        << pool.members.size() << " of " << pool.load.size() << " servers, trial " << trial;
  }
}

TEST(DelayKeys, ChooseAsThePlainLoop) {
  std::vector<int> sizes = {191, 192, 193, 255, 256, 257, 1000, kMaxServers - 1, kMaxServers};
  for (int n = 1; n <= 140; ++n) sizes.push_back(n);
  for (const int n : sizes) {
    for (uint64_t trial = 0; trial < 16; ++trial) {
      const Pool pool = pool_of(n, trial);
      DelayKeys keys(n);
      keys.build(pool.members, pool.load.data(), pool.weight.data());
      expect_the_same(keys, pool, trial, 24);
    }
  }
}

TEST(DelayKeys, FollowChangesOfThePoolAndOfServersOutsideIt) {
  for (const int n : {1, 5, 64, 70, 200}) {
    DelayKeys keys(n);
    for (uint64_t trial = 0; trial < 16; ++trial) {
      Pool pool = pool_of(n, trial);
      keys.build(pool.members, pool.load.data(), pool.weight.data());
      for (uint64_t k = 0; k < 100; ++k) {
        const uint64_t drawn = word(trial * 1000 + k);
        const auto server = static_cast<ServerId>(below(drawn, static_cast<uint32_t>(n)));
        pool.load[server] = load_of(trial, mix64(drawn));
        keys.update(server, pool.load[server], pool.weight[server]);
        expect_the_same(keys, pool, k, 1);
      }
    }
  }
}

// For an odd b the quotients b / a and (b - 2) / c, a = (b - 1) / 2 + t b and c = (b - 3) / 2 + t (b - 2),
// differ by 1 / (a c), the least that two different ones can; so do b / a and (2 b - 2) / (a + c). The first
// is less.
struct Neighbours {
  Neighbours(uint64_t b, uint64_t t) : a((b - 1) / 2 + t * b), c((b - 3) / 2 + t * (b - 2)) {}
  uint64_t a, c;
};

TEST(DelayKeys, TellTheNearestQuotientsApart) {
  const std::vector<ServerId> both = {0, 1};
  DelayKeys keys(2);
  for (uint32_t b = DelayKeys::kExactLoad - 1; b > DelayKeys::kExactLoad - 200; b -= 2) {
    for (uint32_t t = 0; t < 2046; t += 33) {
      const Neighbours weights(b, t);
      for (const bool beyond : {false, true}) {  // one load is not below kExactLoad
        const std::array<uint32_t, 2> load = {b - 1, beyond ? 2 * b - 3 : b - 3};
        const std::array<WeightQ16, 2> weight = {
            static_cast<WeightQ16>(weights.a),
            static_cast<WeightQ16>(beyond ? weights.a + weights.c : weights.c)};
        keys.build(both, load.data(), weight.data());
        ASSERT_EQ(keys.first_least(0), 0U) << b << ", " << t;
        ASSERT_EQ(keys.first_least(1), 0U) << b << ", " << t;
      }
    }
  }
}

TEST(DelayKeys, GiveWayToIntegersWhereLoadsAreTooGreat) {
  const uint32_t b = (kGreatest >> 8) - 1;  // weights come in single precision
  const Neighbours loads(b, 200);
  std::vector<uint32_t> load(kServers);
  load[0] = static_cast<uint32_t>(loads.a - 1);
  load[1] = static_cast<uint32_t>(loads.c - 1);
  LoadBalancer balancer({.num_servers = kServers, .features = false}, rule("policy"));
  balancer.restart(1);
  std::vector<double> weights(kServers, 1);
  weights[0] = b / 256.0;
  weights[1] = (b - 2) / 256.0;
  balancer.set_weights(weights);
  balancer.set_members(std::vector<ServerId>{0, 1});
  ASSERT_EQ(balancer.weights()[0], b << 8);
  ASSERT_EQ(balancer.weights()[1], (b - 2) << 8);
  balancer.show(load, {}, {}, Reservoir());
  DelayKeys keys(kServers);
  keys.build(balancer.members(), load.data(), balancer.weights().data());
  EXPECT_EQ(keys.first_least(0), 0U);  // equal keys
  EXPECT_EQ(keys.first_least(1), 1U);
  for (uint64_t k = 0; k < 100; ++k) EXPECT_EQ(balancer.choose(word(k), 0, nullptr), 1);
}

// Changes of the pool and of its weights from time to time.
void change(LoadBalancer& balancer, uint64_t k, TimeNs now) {
  if (k % 25 == 0) balancer.tick(now, nullptr);
  if (k % 300 == 0) {
    std::vector<ServerId> members = {static_cast<ServerId>(k / 300 % kServers)};
    for (int j = members[0] + 1; j < kServers; ++j) {
      if (word(k + static_cast<uint64_t>(j)) % 3 != 0) members.push_back(j);
    }
    balancer.set_members(members);
  }
  if (k % 170 == 0) {
    std::vector<float> action;
    for (uint64_t j = 0; j < kServers; ++j)
      action.push_back(static_cast<float>(unit_open(word(kServers * k + j))));
    balancer.set_action(action.data());
    balancer.apply_action();
  }
  if (k == 2500) balancer.restart(2);
}

// Whatever happens to a balancer, it chooses by its counts and weights of that moment.
TEST(DelayKeys, AreThoseOfTheBalancerThatHasThem) {
  std::vector<double> weights;
  for (int j = 0; j < kServers; ++j) weights.push_back(1 + j % 3);
  for (const char* name : {"lsq", "sed", "hlb", "policy"}) {
    LoadBalancer balancer({.num_servers = kServers, .flow_table_buckets = 64}, rule(name, weights));
    balancer.restart(1);
    for (uint64_t k = 0; k < 4000; ++k) {
      const TimeNs now = seconds(0.01 * static_cast<double>(k));
      const uint64_t by = LoadBalancer::choice_word(word(k));
      const ServerId chosen = balancer.choose(word(k), now, nullptr);
      ASSERT_EQ(chosen, argmin_expected_delay(balancer.members(), balancer.flows_on().data(),
                                              balancer.weights().data(), by))
          << name << ", flow " << k;
      balancer.open(word(k), chosen, now);
      balancer.first_ack(word(k), now + 1000);
      if (k >= 40) balancer.close(word(k - 10 - k % 30), k % 5 != 0, now);
      change(balancer, k, now);
    }
  }
}

}  // namespace
}  // namespace steelyard::core
