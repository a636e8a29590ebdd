// Time of the rack game's kernels: steelyard_bench --benchmark_filter=Rack. The argument is the number of
// servers.
#include <benchmark/benchmark.h>

#include <vector>

#include "native/core/malcolm.h"
#include "native/core/rng.h"

namespace steelyard::core {
namespace {

uint32_t servers_of(const benchmark::State& state) { return static_cast<uint32_t>(state.range(0)); }

LinearActors actors_of(uint32_t servers) {
  LinearActors actors(servers, servers, 0);
  std::vector<float> weight(size_t{servers} * servers), inputs(servers);
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<float>(unit_open(draw(1, i))) - 0.5F;
  for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = static_cast<float>(unit_open(draw(2, i)));
  for (const ActorKind kind : {ActorKind::kMigration, ActorKind::kStealing})
    actors.set_weights(kind, weight.data(), inputs.data());
  actors.recompute(inputs.data());
  actors.refresh();
  return actors;
}

void fill(AlignedFloats& values, uint64_t stream) {
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(unit_open(draw(stream, i))) - 0.5F;
}

// One load message, both actors.
void RackIncrementalLogits(benchmark::State& state) {
  const uint32_t servers = servers_of(state);
  LinearActors actors = actors_of(servers);
  uint32_t k = 0;
  float delta = 0.25F;
  for (auto _ : state) {
    actors.add_input(k, delta);
    k = k + 1 == servers ? 0 : k + 1;
    delta = -delta;
    benchmark::ClobberMemory();
  }
}

void RackDistributions(benchmark::State& state) {
  LinearActors actors = actors_of(servers_of(state));
  for (auto _ : state) {
    actors.refresh();
    benchmark::ClobberMemory();
  }
}

// One action, the random word included.
void RackDraw(benchmark::State& state) {
  const LinearActors actors = actors_of(servers_of(state));
  uint64_t key = 0;
  for (auto _ : state) benchmark::DoNotOptimize(actors.draw(ActorKind::kMigration, draw(3, key++)));
}

// One window: features, V, TD error, critic gradient, both actors' gradients. Second argument: features.
void RackGradients(benchmark::State& state) {
  const uint32_t servers = servers_of(state);
  const LinearActors actors = actors_of(servers);
  LinearCritic critic(static_cast<CriticFeatures>(state.range(1)), servers);
  AlignedFloats loads(servers + 16), score(2 * size_t{actors.lanes()}), gradient(actors.num_parameters());
  fill(score, 4);
  for (uint32_t i = 0; i < servers; ++i) loads[i] = static_cast<float>(unit_open(draw(5, i)));
  critic.start(loads.data());
  const TemporalDifference td{0.99F, 0.0F, 0.0F};
  float reward = 0.5F;
  for (auto _ : state) {
    reward = -reward;
    const float error = critic.observe(loads.data(), reward, td, 1.0F / 16);
    cache_actor_gradient(actors.lanes(), servers, loads.data(), score.data(), error, 0, nullptr,
                         gradient.data());
    benchmark::ClobberMemory();
  }
}

// Both actors and the critic, as a server updates them. Gradients are drawn up anew now and then, or the
// averages would become denormal. Second argument: features.
void RackAdamW(benchmark::State& state) {
  const uint32_t servers = servers_of(state);
  LinearActors actors = actors_of(servers);
  LinearCritic critic(static_cast<CriticFeatures>(state.range(1)), servers);
  AlignedFloats gradient(actors.num_parameters());
  AdamW of_actors(actors.num_parameters()), of_critic(critic.padded_size());
  const AdamWConfig config;
  uint64_t step = 0;
  for (auto _ : state) {
    if (step++ % 256 == 0) {
      state.PauseTiming();
      fill(gradient, step);
      for (uint32_t i = 0; i < critic.size(); ++i) critic.gradient()[i] = 0.5F;
      state.ResumeTiming();
    }
    of_actors.update(config, actors.parameters(), gradient.data());
    of_critic.update(config, critic.parameters(), critic.gradient());
    benchmark::ClobberMemory();
  }
}

// A whole window of one server: every message, the decisions' share left out, and what is learned from it.
void RackWindow(benchmark::State& state) {
  const uint32_t servers = servers_of(state);
  MalcolmServer server(state.range(1) == 0 ? MalcolmConfig::thesis() : MalcolmConfig::code(), servers, 0, 8);
  uint64_t key = 0;
  for (auto _ : state) {
    for (uint32_t j = 1; j < servers; ++j) {
      const float load = 1e-4F * static_cast<float>(draw(6, key++) >> 62);
      server.on_load_message(static_cast<ServerId>(j), {load, 1, 0});
    }
    server.migrate(draw(7, key));
    benchmark::DoNotOptimize(server.on_window());
  }
}

// A decision of the live variant: a task joins or leaves this server, the inputs and logits follow, both
// distributions are drawn up and one action is drawn. Its workers are busy, so that every task moves its
// wait. Second argument: whether the draw's score is kept.
void RackLiveDecision(benchmark::State& state) {
  const uint32_t servers = servers_of(state);
  MalcolmServer server(MalcolmConfig::live(), servers, 0, 8);
  server.set_frozen(state.range(1) == 0);
  for (uint32_t j = 1; j < servers; ++j)
    server.on_load_message(static_cast<ServerId>(j), {5e-5F, 0, 0, 6.25e-6F, 8});
  server.on_window();
  for (uint32_t task = 0; task < 8; ++task) server.on_accept(0);
  uint64_t key = 0;
  for (auto _ : state) {
    if (key % 2 == 0) {
      server.on_accept(0);
    } else {
      server.on_stolen(0);
    }
    benchmark::DoNotOptimize(server.migrate(draw(8, key++)));
  }
}

BENCHMARK(RackIncrementalLogits)->Arg(4)->Arg(8)->Arg(16)->Arg(32)->Arg(64);
BENCHMARK(RackDistributions)->Arg(4)->Arg(8)->Arg(16)->Arg(32)->Arg(64);
BENCHMARK(RackDraw)->Arg(4)->Arg(8)->Arg(16)->Arg(32)->Arg(64);
BENCHMARK(RackGradients)->ArgsProduct({{4, 8, 16, 32}, {0, 1}});
BENCHMARK(RackAdamW)->ArgsProduct({{4, 8, 16, 32}, {0, 1}});
BENCHMARK(RackLiveDecision)->ArgsProduct({{4, 8, 16, 32}, {0, 1}});
BENCHMARK(RackWindow)->ArgsProduct({{8, 32}, {0, 1}});

}  // namespace
}  // namespace steelyard::core
