#include "native/tape/replay.h"

#include <bit>
#include <limits>
#include <vector>

#include "native/core/feature_families.h"
#include "native/core/weights.h"

namespace steelyard::tape {
namespace {

constexpr double kGreatestWeight = std::numeric_limits<float>::max();  // what acts is limited by LoadBalancer
constexpr core::TimeNs kLatest = core::TimeNs{1} << 61;  // [ns], 73 years: differences of times fit

using core::LoadBalancer;
using core::ServerId;

class Player {
 public:
  Player(const TapeHeader& header, const core::RuleConfig& rule)
      : header_(header), rule_(rule), balancer_(header.balancer_config(), rule) {
    if (header.hosted) {
      hosted_ =
          core::HostedPolicy(rule.policy, static_cast<int>(header.num_load_balancers), header.cycle_actors);
    }
    std::vector<std::string> families;
    for (size_t f = 0; f < core::kFeatureFamilies.size(); ++f) {
      if ((header.hidden >> f & 1u) != 0) families.emplace_back(core::kFeatureFamilies[f]);
    }
    hidden_ = core::feature_indices(servers(), families);
    observation_.resize(static_cast<size_t>(core::observation_size(servers())));
    action_.resize(header.num_servers);
  }

  // Empty, or what is wrong with the record.
  std::string play(const Record& record, Replay* result) {
    const auto kind = static_cast<Kind>(record.kind);
    if (kind == Kind::kItem) {
      if (items_.size() == header_.num_servers) return "a list is longer than the servers";
      items_.push_back(record.key);
      return "";
    }
    if (record.now < 0 || record.now > kLatest) return "its time is out of range";
    const std::string error = started_ || kind == Kind::kRestart ? play_event(kind, record, result)
                                                                 : "it comes before the first restart";
    items_.clear();
    return error;
  }

 private:
  int servers() const { return static_cast<int>(header_.num_servers); }
  bool is_server(uint64_t key) const { return key < header_.num_servers; }

  std::string play_event(Kind kind, const Record& record, Replay* result) {
    switch (kind) {
      case Kind::kRestart:
        balancer_.restart(record.key);
        started_ = true;
        return "";
      case Kind::kOpen:
        return open(record, result);
      case Kind::kFirstAck:
        balancer_.first_ack(record.key, record.now);
        return "";
      case Kind::kClose:
        balancer_.close(record.key, record.value != 0, record.now);
        return "";
      case Kind::kPolicy:
        return act(record.now, result);
      case Kind::kApply:
        balancer_.apply_action();
        return "";
      case Kind::kLoad:
      case Kind::kReply:
      case Kind::kProbe:
        return hear(kind, record);
      case Kind::kMembers:
      case Kind::kNames:
      case Kind::kTick:
      case Kind::kAction:
      case Kind::kWeights:
        if (items_.size() != record.value) return "its list is cut";
        return take_list(kind, record);
      default:
        return "its kind is " + std::to_string(record.kind);
    }
  }

  std::string open(const Record& record, Replay* result) {
    if (record.value > header_.num_servers)
      return "server " + std::to_string(record.value - 1) + " is not in the pool";
    const ServerId chosen = balancer_.choose(record.key, record.now, nullptr);
    const ServerId server =
        chosen == core::kNoServer ? chosen : balancer_.open(record.key, chosen, record.now);
    result->digest = add_decision(result->digest, result->decisions++, server);
    if (server + 1 != static_cast<ServerId>(record.value)) ++result->different;
    if (result->decisions == 1) result->first = record.now;
    result->last = record.now;
    return "";
  }

  std::string act(core::TimeNs now, Replay* result) {
    if (!header_.hosted) return "the header names no hosted policy";
    balancer_.observe(now, observation_.data());
    for (const int index : hidden_) observation_[static_cast<size_t>(index)] = 0;
    if (hosted_.act(static_cast<int>(header_.balancer), observation_.data(), action_.data())) {
      balancer_.set_action(action_.data());
    } else {
      ++result->refused;
    }
    return "";
  }

  std::string hear(Kind kind, const Record& record) {
    if (kind == Kind::kReply) {
      if (items_.size() != 1) return "its service time is missing";
      balancer_.learn_reply(record.key, record.value, float_of(items_[0]), record.now);
      return "";
    }
    const uint64_t server = kind == Kind::kLoad ? record.key : record.key & UINT32_MAX;
    if (!is_server(server)) return "server " + std::to_string(server) + " is not in the pool";
    if (kind == Kind::kLoad) {
      balancer_.learn_load(static_cast<ServerId>(server), record.value, record.now);
    } else {
      balancer_.learn_probe(static_cast<ServerId>(server), static_cast<uint32_t>(record.key >> 32),
                            std::bit_cast<float>(record.value), record.now);
    }
    return "";
  }

  std::string take_list(Kind kind, const Record& record) {
    if (kind == Kind::kMembers) return set_members();
    const bool optional = kind == Kind::kTick && items_.empty();
    if (!optional && items_.size() != header_.num_servers) return "its list has not one number per server";
    if (kind == Kind::kTick) {
      const std::vector<uint32_t> loads(items_.begin(), items_.end());
      balancer_.tick(record.now, loads.empty() ? nullptr : loads.data());
      return "";
    }
    if (kind == Kind::kNames) {
      balancer_.set_names(items_);
      return "";
    }
    if (kind == Kind::kAction) {
      for (size_t j = 0; j < items_.size(); ++j) action_[j] = float_of(items_[j]);
      for (const float value : action_) {
        if (!(value - value == 0.0F)) return "an action is not finite";
      }
      balancer_.set_action(action_.data());
      return "";
    }
    std::vector<double> weights;
    for (const uint64_t bits : items_) weights.push_back(std::bit_cast<double>(bits));
    for (const double weight : weights) {
      if (!(weight >= 0 && weight <= kGreatestWeight)) return "a weight is out of range";
    }
    balancer_.set_weights(weights);
    return "";
  }

  std::string set_members() {
    std::vector<ServerId> members;
    for (const uint64_t key : items_) {
      if (!is_server(key)) return "server " + std::to_string(key) + " is not in the pool";
      members.push_back(static_cast<ServerId>(key));
    }
    for (size_t k = 1; k < members.size(); ++k) {
      if (members[k] <= members[k - 1]) return "its servers do not ascend";
    }
    balancer_.set_members(members);
    return "";
  }

  static float float_of(uint64_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits)); }

  const TapeHeader& header_;
  core::RuleConfig rule_;
  LoadBalancer balancer_;
  core::HostedPolicy hosted_;
  std::vector<int> hidden_;
  std::vector<float> observation_, action_;
  std::vector<uint64_t> items_;
  bool started_ = false;
};

std::string check_policy(const TapeHeader& header, const core::LoadedPolicy* policy) {
  if (!header.hosted)
    return policy == nullptr ? "" : "the tape's weights come from no hosted policy; replay it without one";
  if (policy == nullptr) return "the tape's weights come from a hosted policy; give that policy";
  if (policy->central()) return "a central policy sees all balancers; a tape holds one";
  return core::check_policy_fits(*policy, header.schema_hash, static_cast<int>(header.num_servers),
                                 static_cast<int>(header.num_load_balancers), header.cycle_actors);
}

}  // namespace

bool replay(const Tape& tape, std::shared_ptr<const core::LoadedPolicy> policy, Replay* result,
            std::string* error) {
  *error = check_policy(tape.header, policy.get());
  if (!error->empty()) return false;
  core::RuleConfig rule = tape.header.rule;
  rule.policy = std::move(policy);
  Player player(tape.header, rule);
  *result = {};
  for (uint64_t k = 0; k < tape.num_records; ++k) {
    *error = player.play(tape.record(k), result);
    if (error->empty()) continue;
    *error = "damaged tape: record " + std::to_string(k) + ": " + *error;
    return false;
  }
  return true;
}

}  // namespace steelyard::tape
