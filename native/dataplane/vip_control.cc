// What is changed in a VIP while it runs.
#include <algorithm>
#include <bit>
#include <stdexcept>

#include "native/core/rng.h"
#include "native/dataplane/vip.h"

namespace steelyard::dataplane {
namespace {

constexpr uint32_t kLeastConnections = 64, kMostConnections = 1u << 24;
constexpr size_t kMostServers = 1024;

uint32_t buckets_of(const VipConfig& config) {
  return std::bit_ceil(config.connections) / ConnectionTable::kWays;
}

core::RuleConfig rule_of(const VipConfig& config) {
  core::RuleConfig rule;
  rule.traits = core::find_rule(config.rule);
  rule.decay_s = config.decay_s;
  for (const ServerConfig& server : config.servers) rule.weights.push_back(server.weight);
  return rule;
}

// What packets from clients alone can tell: a balancer before servers that answer directly sees no reply, and
// no server is asked.
std::string why_not_hosted(const core::RuleTraits& rule) {
  using core::Score;
  const bool local = rule.score == Score::kLocal || rule.score == Score::kRandom ||
                     rule.score == Score::kLeastRequest || rule.score == Score::kPeakEwma;
  if (local && rule.weighting != core::Weighting::kProbed) return "";
  std::string names;
  for (const core::RuleTraits& other : core::all_rules()) {
    if (&other == &rule || (other.score != Score::kLocal && other.score != Score::kRandom &&
                            other.score != Score::kLeastRequest && other.score != Score::kPeakEwma)) {
      continue;
    }
    if (other.weighting == core::Weighting::kProbed) continue;
    names += (names.empty() ? "" : ", ") + std::string(other.name);
  }
  return "rule: " + std::string(rule.name) + " needs what only servers know; here are possible: " + names;
}

bool same_core(const VipConfig& a, const VipConfig& b) {
  const auto weights = [](const VipConfig& config) { return rule_of(config).weights; };
  return a.rule == b.rule && a.decay_s == b.decay_s && a.reservoir_size == b.reservoir_size &&
         weights(a) == weights(b);
}

std::string check_server(const VipConfig& config, const ServerConfig& server) {
  const bool same_family = server.address.is_v4() == config.address.is_v4();
  const bool rewritten = config.forwarding == Forwarding::kL3Dsr || config.forwarding == Forwarding::kNat;
  if (rewritten && !same_family) {
    return "server.address: " + text_of(server.address) + " is not of the VIP's family, which " +
           (config.forwarding == Forwarding::kNat ? "nat" : "l3-dsr") + " needs";
  }
  if (server.address.none() || server.address.multicast()) {
    return "server.address: " + text_of(server.address) + " is no address of a server";
  }
  for (const ServerConfig& other : config.servers) {
    if (&other != &server && other.address == server.address) {
      return "server.address: " + text_of(server.address) + " is there twice";
    }
    if (&other != &server && other.name == server.name) {
      return "server.name: \"" + server.name + "\" is there twice";
    }
  }
  return "";
}

}  // namespace

std::string check_vip(const VipConfig& config) {
  const core::RuleTraits* rule = core::find_rule(config.rule);
  if (rule == nullptr) return "rule: \"" + config.rule + "\" is not a rule; see `steelyard simulate --help`";
  if (std::string why = why_not_hosted(*rule); !why.empty()) return why;
  if (config.servers.empty() || config.servers.size() > kMostServers) {
    return "server: " + std::to_string(config.servers.size()) + " given; use 1 to " +
           std::to_string(kMostServers);
  }
  if (config.connections < kLeastConnections || config.connections > kMostConnections) {
    return "connections: " + std::to_string(config.connections) + " is not allowed; use " +
           std::to_string(kLeastConnections) + " to " + std::to_string(kMostConnections);
  }
  if (config.address.none() || config.address.multicast()) {
    return "address: " + text_of(config.address) + " is no address of a service";
  }
  for (const ServerConfig& server : config.servers) {
    if (std::string why = check_server(config, server); !why.empty()) return why;
  }
  try {
    rule_of(config).check(static_cast<int>(config.servers.size()), 1);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

std::string check_change(const VipConfig& running, const VipConfig& next) {
  if (running.connections != next.connections) {
    return "connections: cannot change from " + std::to_string(running.connections) + " to " +
           std::to_string(next.connections) + " while the balancer runs";
  }
  if (running.tape != next.tape) return "tape: cannot change while the balancer runs";
  return "";
}

Vip::Vip(const VipConfig& config, const PolicyArtefact& policy, int balancer, int num_balancers,
         uint64_t stream)
    : config_(config),
      balancer_(balancer),
      num_balancers_(num_balancers),
      stream_(stream),
      udp_(config.protocol == kUdp),
      table_(buckets_of(config)) {
  place_endpoints();
  renew_core();
  apply_limits();
  host_policy(policy);
}

void Vip::reconfigure(const VipConfig& config, const PolicyArtefact& policy, TimeNs now) {
  const bool same = same_core(config_, config);
  config_ = config;
  const bool moved = place_endpoints();
  if (moved || !same) {
    renew_core();
  } else {
    apply_members();
    if (log_ != nullptr) log_->on_members(core_->members(), now);
  }
  apply_limits();
  host_policy(policy);
  next_update_ = now;
}

// Gives each configured server an endpoint: its own if it has one. True when a server has another index in
// the core than before, or is new.
bool Vip::place_endpoints() {
  const std::vector<int> before = endpoint_of_;
  bool added = false;
  std::vector<bool> kept(endpoints_.size());
  for (Endpoint& endpoint : endpoints_) endpoint.server = core::kNoServer;
  endpoint_of_.assign(config_.servers.size(), kNoEndpoint);
  const auto give = [&](size_t j, Endpoint* endpoint) {
    const ServerConfig& server = config_.servers[j];
    endpoint->name = server.name;
    endpoint->server = static_cast<core::ServerId>(j);
    endpoint->draining = server.drain;
    endpoint->fixed_mac = server.mac.has_value();
    if (server.mac) endpoint->mac = *server.mac;
    endpoint->has_mac = endpoint->has_mac || endpoint->fixed_mac;
    endpoint_of_[j] = static_cast<int>(endpoint - endpoints_.data());
  };
  for (size_t j = 0; j < config_.servers.size(); ++j) {
    for (Endpoint& endpoint : endpoints_) {
      if (endpoint.address == config_.servers[j].address) give(j, &endpoint);
    }
  }
  for (size_t j = 0; j < config_.servers.size(); ++j) {
    if (endpoint_of_[j] != kNoEndpoint) continue;
    auto unused = std::find_if(endpoints_.begin(), endpoints_.end(), [](const Endpoint& endpoint) {
      return endpoint.server == core::kNoServer && endpoint.bound == 0;
    });
    if (unused == endpoints_.end()) unused = endpoints_.emplace(endpoints_.end());
    *unused = Endpoint();
    unused->address = config_.servers[j].address;
    give(j, &*unused);
    added = true;
  }
  for (Endpoint& endpoint : endpoints_) {
    const bool tunnel = config_.forwarding == Forwarding::kGre && endpoint.address.is_v4();
    const bool as_is = config_.forwarding == Forwarding::kL2Dsr;
    endpoint.plain_way = tunnel ? PlainWay::kTunnel : as_is ? PlainWay::kAsIs : PlainWay::kOther;
  }
  return added || endpoint_of_ != before;
}

std::vector<uint64_t> Vip::names() const {
  std::vector<uint64_t> names;
  for (const int endpoint : endpoint_of_) names.push_back(name_of(endpoints_[endpoint].address));
  return names;
}

void Vip::apply_members() {
  std::vector<core::ServerId> active, all;
  for (size_t j = 0; j < endpoint_of_.size(); ++j) {
    all.push_back(static_cast<core::ServerId>(j));
    if (!endpoints_[endpoint_of_[j]].draining) active.push_back(all.back());
  }
  core_->set_names(names());
  core_->set_members(active);
  consistent_.build(all, names());
  has_consistent_ = !all.empty();
}

core::RuleConfig Vip::rule_config() const { return rule_of(config_); }

core::BalancerConfig Vip::balancer_config() const {
  return {.num_servers = static_cast<int>(config_.servers.size()),
          .num_load_balancers = num_balancers_,
          .flow_table_buckets = static_cast<int>(buckets_of(config_)),
          .flow_table_ways = ConnectionTable::kWays,
          .reservoir_size = config_.reservoir_size,
          .features = true,
          .preallocate = true};
}

void Vip::renew_core() {
  const std::unique_ptr<core::LoadBalancer> before = std::move(core_);
  core_ = std::make_unique<core::LoadBalancer>(balancer_config(), rule_config());
  core_stream_ = core::stream_key(stream_, renewals_++);
  core_->restart(core_stream_);
  log_ = nullptr;
  apply_members();
  if (before == nullptr) return;
  for (uint32_t place = 0; place < table_.places(); ++place) {
    if (!table_.taken(place) || !table_.at(place).counted) continue;
    Connection& flow = table_.at(place);
    const core::ServerId server = endpoints_[flow.endpoint].server;
    flow.counted = server != core::kNoServer && core_->adopt(flow.hash, server, *before);
  }
}

void Vip::set_log(core::BalancerLog* log, TimeNs now) {
  log_ = log;
  if (log_ == nullptr) return;
  log_->on_restart(core_stream_);
  log_->on_names(names(), now);
  log_->on_members(core_->members(), now);
}

void Vip::apply_limits() {
  const auto ns = [](double seconds) { return static_cast<TimeNs>(seconds * core::kNanosPerSecond); };
  const Timeouts& t = config_.timeouts;
  const TimeNs established = ns(udp_ ? t.udp_s : t.established_s);
  timeout_ = {ns(udp_ ? t.udp_s : t.opening_s), established, ns(t.closing_s), established, established};
  half_open_limit_ = config_.half_open > 0 ? config_.half_open : config_.connections / 4;
}

void Vip::host_policy(const PolicyArtefact& policy) {
  PolicyPlace place;
  place.reservoir_size = config_.reservoir_size;
  place.balancer = balancer_;
  place.num_balancers = num_balancers_;
  for (const ServerConfig& server : config_.servers) place.servers.push_back(text_of(server.address));
  shared_.resize(config_.servers.size());
  policy_.share(config_.shared_memory, place, static_cast<TimeNs>(config_.max_age_s * core::kNanosPerSecond));
  if (config_.rule != "policy" || config_.follows) return policy_.stop();
  if (policy_.host(policy, place)) log_ = nullptr;  // a tape names one policy
}

void Vip::follow_action(std::span<const float> action, TimeNs now) {
  core_->set_action(action.data());
  core_->apply_action();
  if (log_ == nullptr) return;
  log_->on_action(action, now);
  log_->on_apply(now);
}

void Vip::follow_weights(std::span<const double> weights, TimeNs now) {
  core_->set_weights(weights);
  if (log_ != nullptr) log_->on_weights(weights, now);
}

}  // namespace steelyard::dataplane
