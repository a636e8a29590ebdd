#include "native/sim/malcolm_decider.h"

#include <cmath>
#include <string>

#include "native/core/rack_payoff.h"
#include "native/sim/checks.h"
#include "native/sim/rack_config.h"

namespace steelyard::sim {

using core::MalcolmServer;

core::MalcolmConfig MalcolmDecider::config_for(const RackConfig& config) const {
  core::MalcolmConfig learner = setup_.config;
  learner.num_types = static_cast<uint32_t>(config.types.size());
  return learner;
}

void MalcolmDecider::check(const RackConfig& config) const {
  const uint32_t n = static_cast<uint32_t>(config.num_servers());
  const core::MalcolmConfig learner = config_for(config);
  in_range("rack.servers", n, 2, core::kMaxRackServers);
  in_range("workload.types", learner.num_types, 1, MalcolmServer::kMaxTypes);
  for (uint32_t i = 0; i < n; ++i) learner.check(n, i, static_cast<uint32_t>(config.servers[i].workers));
  in_range("malcolm.curve_windows", setup_.curve_windows, 1, 1e9);
  const MalcolmServer server(learner, n, 0, 1);
  const auto fits = [n](const char* key, size_t found, size_t each) {
    if (found == 0 || found == n * each) return;
    refuse(key, static_cast<double>(found), std::to_string(n * each) + " of this rack and variant, or none");
  };
  fits("malcolm.parameters", setup_.parameters.size(), server.num_parameters());
  fits("malcolm.learning", setup_.learning.size(), server.learning_bytes());
  for (const float value : setup_.parameters) {
    if (!std::isfinite(value))
      refuse("malcolm.parameters", static_cast<double>(value), "finite numbers alone");
  }
}

void MalcolmDecider::reset(const RackConfig& config, uint64_t seed) {
  (void)seed;
  const uint32_t n = static_cast<uint32_t>(config.num_servers());
  const core::MalcolmConfig learner = config_for(config);
  servers_.clear();
  servers_.reserve(n);
  for (uint32_t i = 0; i < n; ++i) {
    MalcolmServer& server =
        servers_.emplace_back(learner, n, i, static_cast<uint32_t>(config.servers[i].workers));
    if (!setup_.parameters.empty()) server.import_parameters(&setup_.parameters[i * server.num_parameters()]);
    const size_t bytes = server.learning_bytes();
    if (!setup_.learning.empty()) server.import_learning(&setup_.learning[i * bytes], bytes);
    server.set_frozen(setup_.frozen);
  }
  told_us_.assign(n + 8, 0.0F);
  sums_ = {};
  curve_.clear();
  windows_ = consensus_rounds_ = consensus_bytes_ = 0;
  moves_migrated_ = moves_stolen_ = 0;
}

int MalcolmDecider::migrate(int i, uint32_t type, uint64_t word) {
  (void)type;
  return servers_[i].migrate(word);
}

int MalcolmDecider::steal(int i, uint64_t word) { return servers_[i].steal(word); }

LoadReport MalcolmDecider::on_broadcast(int i, const LoadReport& report) {
  const core::LoadMessage told = servers_[i].broadcast();
  told_us_[i] = told.load_s * 1e6F;
  moves_migrated_ += told.migrations;
  moves_stolen_ += told.steals;
  return {told.load_s, report.tasks, 1.0F / told.task_s, told.migrations, told.steals, told.workers};
}

void MalcolmDecider::on_load(int i, int j, const LoadReport& report) {
  servers_[i].on_load_message(static_cast<core::ServerId>(j), {report.load, report.migrations, report.steals,
                                                               1.0F / report.rate, report.workers});
}

void MalcolmDecider::on_accept(int i, uint32_t type) { servers_[i].on_accept(type); }

void MalcolmDecider::on_completion(int i, uint32_t type, double service_s) {
  servers_[i].on_completion(type, static_cast<float>(service_s));
}

void MalcolmDecider::on_stolen(int i, uint32_t type) { servers_[i].on_stolen(type); }

void MalcolmDecider::on_workers(int i, uint32_t workers) { servers_[i].set_workers(workers); }

void MalcolmDecider::on_window(core::TimeNs now) {
  bool consensus_due = false;
  double reward = 0, error = 0, kept = 0;
  for (MalcolmServer& server : servers_) {
    const core::WindowResult result = server.on_window();
    consensus_due |= result.consensus_due;
    reward += static_cast<double>(result.reward);
    error += static_cast<double>(std::fabs(result.td_error));
    kept += static_cast<double>(server.actors().probabilities(core::ActorKind::kMigration)[server.self()]);
  }
  const double share = 1.0 / static_cast<double>(servers_.size());
  sums_.reward += share * reward;
  sums_.td_error += share * error;
  sums_.kept += share * kept;
  note_window(now);
  if (!consensus_due) return;
  MalcolmServer* all[core::kMaxRackServers];
  for (size_t i = 0; i < servers_.size(); ++i) all[i] = &servers_[i];
  consensus_bytes_ += MalcolmServer::consensus(all, servers_.size());
  ++consensus_rounds_;
}

// A point of the curves, if one is full.
void MalcolmDecider::note_window(core::TimeNs now) {
  ++windows_;
  const core::MalcolmConfig& learner = setup_.config;
  const double imbalance_us =
      static_cast<double>(core::load_imbalance(told_us_.data(), static_cast<uint32_t>(servers_.size())));
  const double cost = static_cast<double>(learner.costs.of(moves_migrated_, moves_stolen_));
  sums_.imbalance += imbalance_us;
  sums_.potential -= imbalance_us * 1e-6 / static_cast<double>(learner.load_unit_s) + cost;
  sums_.migrations += moves_migrated_;
  sums_.steals += moves_stolen_;
  moves_migrated_ = moves_stolen_ = 0;
  if (windows_ % setup_.curve_windows != 0) return;
  const double share = 1.0 / setup_.curve_windows;
  curve_.push_back({static_cast<double>(now) * 1e-9, sums_.reward * share, sums_.potential * share,
                    sums_.imbalance * share, sums_.td_error * share, sums_.migrations * share,
                    sums_.steals * share, sums_.kept * share});
  sums_ = {};
}

std::vector<float> MalcolmDecider::parameters() const {
  std::vector<float> all;
  for (const MalcolmServer& server : servers_) {
    const size_t before = all.size();
    all.resize(before + server.num_parameters());
    server.export_parameters(&all[before]);
  }
  return all;
}

std::vector<uint8_t> MalcolmDecider::learning() const {
  std::vector<uint8_t> all;
  for (const MalcolmServer& server : servers_) {
    const size_t before = all.size();
    all.resize(before + server.learning_bytes());
    server.export_learning(&all[before]);
  }
  return all;
}

void MalcolmDecider::set_frozen(bool frozen) {
  for (MalcolmServer& server : servers_) server.set_frozen(frozen);
}

}  // namespace steelyard::sim
