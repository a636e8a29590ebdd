// How a host runs a policy: LoadedPolicy is the immutable artefact (blob or compiled shared object), shared
// by every world; HostedPolicy is the state of the agents that follow it. Loading allocates and reads; acting
// does neither.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace steelyard::core {

// An artefact that has passed every check of its reader. Thread-safe: all methods are const.
class LoadedPolicy {
 public:
  virtual ~LoadedPolicy() = default;
  LoadedPolicy(const LoadedPolicy&) = delete;
  LoadedPolicy& operator=(const LoadedPolicy&) = delete;

  uint64_t schema_hash() const { return info_.schema_hash; }
  int num_servers() const { return info_.num_servers; }
  int num_actors() const { return info_.num_actors; }
  // Balancers that a central policy decides for at once; 0 when every balancer is an agent of its own.
  int central_agents() const { return info_.central_agents; }
  bool central() const { return info_.central_agents > 0; }
  size_t obs_size() const { return info_.obs_size; }  // floats, of all balancers if central
  size_t action_size() const {                        // floats, of all balancers if central
    return static_cast<size_t>(info_.num_servers) * static_cast<size_t>(central() ? info_.central_agents : 1);
  }
  size_t state_size() const { return info_.state_size; }      // floats per agent
  size_t scratch_size() const { return info_.scratch_size; }  // floats

  // See policy_infer in policy.h; actor in [0, num_actors).
  [[nodiscard]] virtual bool infer(int actor, const float* obs, float* state, float* scratch,
                                   float* action) const = 0;

 protected:
  struct Info {
    uint64_t schema_hash = 0;
    int num_servers = 0;
    int num_actors = 0;
    int central_agents = 0;
    size_t obs_size = 0;
    size_t state_size = 0;
    size_t scratch_size = 0;
  };
  explicit LoadedPolicy(const Info& info) : info_(info) {}

 private:
  Info info_;
};

// A policy blob in memory; the bytes are copied. Null and a one-line *error when it is refused.
std::shared_ptr<const LoadedPolicy> load_policy_bytes(const uint8_t* data, size_t size, std::string* error);
// A policy file: a blob, or a shared object made by `steelyard export --to cpp` (told apart by their first
// bytes). A shared object is code and runs with the rights of the host: load only what you built.
std::shared_ptr<const LoadedPolicy> load_policy_file(const std::string& path, std::string* error);

// Empty when `policy` can serve `num_balancers` over `num_servers` servers that observe by
// `schema_hash`; else one line that says what differs. cycle: balancer i may go by actor i mod num_actors,
// whatever their numbers.
std::string check_policy_fits(const LoadedPolicy& policy, uint64_t schema_hash, int num_servers,
                              int num_balancers, bool cycle = false);

// The agents of one world that follow one policy: one per balancer, or agent 0 alone if the policy is
// central. Copies share the weights and own their recurrent states, so copying is how a simulator takes a
// snapshot; assigning between copies allocates nothing.
class HostedPolicy {
 public:
  HostedPolicy() = default;  // hosts nothing; act() refuses
  // Throws std::invalid_argument when `policy` is null, has neither 1 nor `num_balancers` actors (unless
  // `cycle`), or is central for another number of balancers.
  HostedPolicy(std::shared_ptr<const LoadedPolicy> policy, int num_balancers, bool cycle = false);

  const std::shared_ptr<const LoadedPolicy>& policy() const { return policy_; }
  int num_agents() const { return num_agents_; }

  // obs: (obs_size,) float32; action_out: (action_size,) float32 in [-1, 1]. False, with the agent's state
  // and action_out untouched, when the policy gives no finite action or `agent` is out of range.
  [[nodiscard]] bool act(int agent, const float* obs, float* action_out);
  void reset();  // the start of an episode, for all agents
  void reset(int agent);
  // (num_agents * state_size,) recurrent state, agent-major.
  const std::vector<float>& state() const { return state_; }

 private:
  std::shared_ptr<const LoadedPolicy> policy_;
  int num_agents_ = 0;
  std::vector<float> state_;
  std::vector<float> scratch_;
};

}  // namespace steelyard::core
