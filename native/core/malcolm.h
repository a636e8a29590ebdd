// One server as a player of the rack game (seed 000): it estimates its load, tells it to the others once a
// period, decides migrations and steals by draws from two distributions, and learns them. The simulator and
// the rack on real sockets host this class; random words are arguments, and it needs no clock: a window is
// from one on_window to the next.
//
// A host calls, in this order, every broadcast period: broadcast() on every server, on_load_message with what
// arrives, on_window() on every server once the messages are in (or whenever they are as fresh as they get).
#pragma once

#include <cstdint>
#include <vector>

#include "native/core/adamw.h"
#include "native/core/linear_actor.h"
#include "native/core/linear_critic.h"
#include "native/core/rack_payoff.h"
#include "native/core/types.h"

namespace steelyard::core {

enum class ActorInputs : uint32_t {
  kLoads = 0,  // x (N): thesis
  kRanks = 1,  // x (N), then log ranks (N): released code. Highest load -1, lowest 1.
  kWaits = 2,  // the wait that a task sent there now would expect (N), its service time there (N); live
};

enum class RackReward : uint32_t {
  kPotential = 0,    // -I(x) - sum_i C_i: thesis, eq. 4.1
  kImprovement = 1,  // M(x) - M(x') - sum_i C_i, M the mean squared imbalance: released code
  kWaiting = 2,      // -sum_j q_j (q_j + 1) / (2 mu_j) - sum_i C_i, q_j the tasks that wait when it ends
};

enum class RateAverage : uint32_t {
  kInverse = 0,  // mean of 1 / service time, as the thesis words it: too high when service times vary
  kTime = 1,     // 1 / mean service time, as the released code does
};

// How a server learns. The presets are the two published variants and one of ours; docs/malcolm.md compares.
struct MalcolmConfig {
  static MalcolmConfig thesis();  // Alg. 1; what it does not state is ours: rates, discount, costs, units, C
  static MalcolmConfig code();    // the authors' released code
  static MalcolmConfig live();    // draws from the state at their moment, own sends counted: ours

  ActorInputs inputs = ActorInputs::kLoads;
  CriticFeatures features = CriticFeatures::kQuadratic;
  RackReward reward = RackReward::kPotential;
  RateAverage rate_average = RateAverage::kTime;
  bool mean_score = false;  // score: counts / total - pi (released code), or their sum over draws (log pi)
  TemporalDifference td{0.9F, 0.0F, 0.0F};
  float actor_trace = 0;
  AdamWConfig actor_optimizer{3e-4F};
  AdamWConfig critic_optimizer{2e-3F};
  uint32_t batch = 16;             // windows per update
  uint32_t consensus_every = 100;  // updates
  MoveCosts costs{1e-4F, 1e-4F};
  float load_cap = 20;          // of loads as inputs and features, in their unit; the reward knows no cap
  float load_unit_s = 100e-6F;  // loads are learned from in this unit
  float reward_scale = 1;       // of -I, or of the improvement of M; costs are in units of the reward
  float load_smoothing = 0;     // weight of the previous broadcast's load in this one
  float initial_service_s = 50e-6F;  // mean service time before the first completion
  uint32_t num_types = 1;
  uint32_t steal_below = 1;       // steals only with fewer tasks than this waiting
  float rate_weight = 1.0F / 64;  // of a new service time in its average, once there are as many
  // Inputs follow every event at the server and every task that it sends, with the tasks told by each server
  // as a start, and a draw is from the distribution of that moment. Else they stand for a window.
  bool live_draws = false;
  float warm_start = 0;      // initial weight of a server's own load: -w migration, +w stealing (waits: 0)
  float warm_others = 0;     // waits: initial -w of the others' waits and of service times
  float warm_keep = 0;       // initial bias: of keeping a task, and against stealing nothing
  float init_scale = 0.01F;  // initial weights are uniform within +- this, in actors and critic
  uint64_t seed = 0;         // of the initial weights

  // Throws std::invalid_argument (one line: key, value, what is allowed).
  void check(uint32_t num_servers, uint32_t self, uint32_t workers) const;
};

// What a server tells every other once a period.
struct LoadMessage {
  float load_s = 0;                     // L / mu: the time that its tasks take it
  uint32_t migrations = 0, steals = 0;  // since its last message
  float task_s = 0;                     // what one task more adds to load_s; live
  float workers = 0;                    // live
};

struct WindowResult {
  bool learned = false;        // a transition was seen
  bool updated = false;        // parameters changed
  bool consensus_due = false;  // the host should average the critics of all servers now
  float reward = 0;
  float td_error = 0;
};

class MalcolmServer {
 public:
  static constexpr uint32_t kMaxTypes = 16;

  // A config that passes check. No heap after construction.
  MalcolmServer(const MalcolmConfig& config, uint32_t num_servers, uint32_t self, uint32_t workers);

  // Own tasks: one joins (kept, migrated here, or stolen), leaves served, leaves unserved (stolen from here).
  void on_accept(uint32_t type);
  void on_completion(uint32_t type, float service_s);
  void on_stolen(uint32_t type);

  // Where a new task goes: another server, or this one (keep). A task is migrated once; the host asks once.
  ServerId migrate(uint64_t word);
  // Whom to ask for a task after a completion; kNoServer: nobody, or enough tasks are waiting here.
  ServerId steal(uint64_t word);

  // Own load now, taken as own part of the state, and the moves since the last call.
  LoadMessage broadcast();
  // Ignored: servers out of range, itself, loads that are not finite.
  void on_load_message(ServerId from, const LoadMessage& message);
  // End of a window: learns from it unless frozen, and draws up the distributions of the next one.
  WindowResult on_window();

  void set_frozen(bool frozen) { frozen_ = frozen; }
  bool frozen() const { return frozen_; }
  // A server that left the rack (or came back) is no destination of moves.
  void set_member(uint32_t server, bool member);
  void set_workers(uint32_t workers) { workers_ = workers; }
  // No task, no message, no estimate, as at the start; what was learned stays.
  void restart();

  // Migration weight (N, K) and bias (N,), the same of stealing, theta (D,), end to end.
  size_t num_parameters() const;
  void export_parameters(float* out) const;
  void import_parameters(const float* in);
  // All that learning goes on from after a restart: parameters, moments of the optimizers, gradients and
  // counts under way. Bytes of this machine; import answers false, and changes nothing, unless their number
  // is learning_bytes().
  size_t learning_bytes() const;
  void export_learning(unsigned char* out) const;
  bool import_learning(const unsigned char* in, size_t bytes);
  // theta alone, for the consensus: (critic_size,) float32.
  const float* critic_parameters() const { return critic_.parameters(); }
  size_t critic_size() const { return critic_.size(); }
  void set_critic_parameters(const float* theta);
  // Alg. 1's consensus over all servers at once: every critic becomes the mean. Returns the bytes that it
  // would send; 0, and nothing changes, unless they are 1 to 64 critics of one size.
  static uint64_t consensus(MalcolmServer* const* servers, size_t count);

  float load_s() const;                                         // own, now
  const float* loads() const { return state_.data(); }          // (N,) in load_unit_s, as known here
  const float* actor_inputs() const { return inputs_.data(); }  // (K,)
  const LinearActors& actors() const { return actors_; }
  const LinearCritic& critic() const { return critic_; }
  const MalcolmConfig& config() const { return config_; }
  uint32_t num_servers() const { return actors_.num_servers(); }
  uint32_t self() const { return self_; }
  uint32_t num_tasks() const { return num_tasks_; }
  uint64_t updates() const { return updates_; }

 private:
  void initialise();
  template <class F>
  void visit_learning(F&& f);
  void set_state(uint32_t server, float load_s);
  void set_input(uint32_t k, float value);
  void see(uint32_t server, float load);
  void see_own();
  void count_sent(uint32_t server);
  float task_s() const { return mean_service_s_ / static_cast<float>(workers_); }
  uint32_t draw_now(ActorKind actor, uint64_t word);
  float waiting() const;
  void update_ranks();
  float reward();
  void cache_gradients(float td_error);
  void score(ActorKind actor, float* out) const;
  bool update();

  MalcolmConfig config_;
  uint32_t self_, workers_;
  bool frozen_ = false;
  LinearActors actors_;
  LinearCritic critic_;
  AdamW actor_optimizer_, critic_optimizer_;
  AlignedFloats actor_gradient_, actor_trace_, score_;
  AlignedFloats state_;          // x, without the cap, followed by zeros
  AlignedFloats inputs_;         // of the actors, as the logits have them
  AlignedFloats window_inputs_;  // as they were when the window began
  AlignedFloats log_rank_;
  // live: in load_unit_s, of each server one task and as many as it has workers; the draws' score so far.
  AlignedFloats task_, full_, draws_score_;
  bool stale_ = false;        // inputs have moved since the distributions were drawn up
  float mean_service_s_ = 0;  // over all types

  uint32_t tasks_[kMaxTypes] = {};
  float mean_[kMaxTypes] = {};  // of service times, or of their inverses
  uint32_t samples_[kMaxTypes] = {};
  uint32_t num_tasks_ = 0;
  float told_load_s_ = 0;

  uint32_t migrated_[kMaxRackServers] = {};  // draws of this window, by outcome
  uint32_t stolen_[kMaxRackServers] = {};
  LoadMessage untold_;                                // own moves since the last broadcast
  uint32_t own_migrations_ = 0, own_steals_ = 0;      // of this window
  uint32_t other_migrations_ = 0, other_steals_ = 0;  // told in this window

  bool started_ = false;
  float imbalance_ = 0;  // of the state in which the window began
  uint32_t cached_ = 0;  // windows since the last update
  uint32_t since_refresh_ = 0;
  uint64_t updates_ = 0;
};

}  // namespace steelyard::core
