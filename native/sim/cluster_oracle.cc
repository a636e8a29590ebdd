// What only an all-knowing observer can compute of the cluster world: remaining work and exact completions.
#include <algorithm>
#include <limits>

#include "native/core/rng.h"
#include "native/sim/cluster.h"

namespace steelyard::sim {
namespace {

using core::ServerId;

// Runs one server forward with the jobs it has plus one, and no later arrival.
class Forecast {
 public:
  struct Job {
    double left_ns;  // of the current stage
    size_t stage;
    std::vector<double> later;  // demands of the following stages, by stage index
  };

  Forecast(const Device& cpu, const std::vector<StageConfig>& stages) : cpu_(cpu), stages_(stages) {}

  void add_running(Job job, bool io) { (io ? io_jobs_ : cpu_jobs_).push_back(std::move(job)); }
  void add_waiting(Job job) { line_.push_back(std::move(job)); }

  // Time until `newcomer` is done [ns].
  double completion(Job newcomer) {
    enter(std::move(newcomer), true);
    double clock = 0;
    while (!done_) clock += advance();
    return clock;
  }

 private:
  struct Tagged : Job {
    Tagged(Job job) : Job(std::move(job)) {}
    bool newcomer = false;
  };

  double rate() const {
    const int n = static_cast<int>(cpu_jobs_.size());
    return n <= cpu_.workers() ? cpu_.speed() : cpu_.speed() * cpu_.workers() / n;
  }
  // Moves to the next completion; returns the time it took [ns].
  double advance() {
    const double cpu_rate = rate();
    const double io_rate = io_jobs_.empty() ? 1.0 : 1.0 / static_cast<double>(io_jobs_.size());
    const auto less = [](const Tagged& a, const Tagged& b) { return a.left_ns < b.left_ns; };
    const auto cpu_first = std::min_element(cpu_jobs_.begin(), cpu_jobs_.end(), less);
    const auto io_first = std::min_element(io_jobs_.begin(), io_jobs_.end(), less);
    const double inf = std::numeric_limits<double>::infinity();
    const double cpu_wait = cpu_first == cpu_jobs_.end() ? inf : cpu_first->left_ns / cpu_rate;
    const double io_wait = io_first == io_jobs_.end() ? inf : io_first->left_ns / io_rate;
    const bool io = io_wait < cpu_wait;
    const double wait = io ? io_wait : cpu_wait;
    for (Tagged& job : cpu_jobs_) job.left_ns -= wait * cpu_rate;
    for (Tagged& job : io_jobs_) job.left_ns -= wait * io_rate;
    leave(io ? io_jobs_ : cpu_jobs_, io ? io_first : cpu_first);
    return wait;
  }
  void leave(std::vector<Tagged>& from, std::vector<Tagged>::iterator job) {
    Tagged next = std::move(*job);
    from.erase(job);
    while (!line_.empty() && static_cast<int>(cpu_jobs_.size()) < cpu_.cap()) {
      cpu_jobs_.push_back(std::move(line_.front()));
      line_.erase(line_.begin());
    }
    ++next.stage;
    const bool newcomer = next.newcomer;
    enter(std::move(next), newcomer);
  }
  // Puts a job at the head of its next stage that has work.
  void enter(Tagged job, bool newcomer) {
    job.newcomer = newcomer;
    while (job.stage < stages_.size() && job.later[job.stage] <= 0) ++job.stage;
    if (job.stage == stages_.size()) {
      done_ = done_ || newcomer;
      return;
    }
    job.left_ns = job.later[job.stage];
    if (stages_[job.stage].kind == StageKind::kIo) {
      io_jobs_.push_back(std::move(job));
    } else if (line_.empty() && static_cast<int>(cpu_jobs_.size()) < cpu_.cap()) {
      cpu_jobs_.push_back(std::move(job));
    } else {
      line_.push_back(std::move(job));
    }
  }

  const Device& cpu_;
  const std::vector<StageConfig>& stages_;
  std::vector<Tagged> cpu_jobs_, io_jobs_, line_;
  bool done_ = false;
};

}  // namespace

uint64_t ClusterWorld::untracked() const {
  uint64_t total = untracked_by_failed_;
  for (const core::LoadBalancer& balancer : balancers_) total += balancer.untracked();
  return total;
}

void ClusterWorld::add_counts(EpisodeStats& stats) const {
  stats.untracked = untracked();
  stats.arrived = arrived();
  stats.messages = messages_;
}

std::vector<uint32_t> ClusterWorld::waiting() const {
  std::vector<uint32_t> out;
  for (const Server& server : servers_) out.push_back(server.waiting);
  return out;
}

// Seconds until the new flow would be done at server j if nothing came after it.
double ClusterWorld::forecast(int j, const Arriving& arriving) const {
  const Server& server = servers_[j];
  const size_t stages = config_->stages.size();
  const auto job_of = [&](uint64_t id, uint32_t row, size_t stage, double left_ns) {
    Forecast::Job job{left_ns, stage, std::vector<double>(stages)};
    for (size_t s = stage; s < stages; ++s) job.later[s] = stage_work_ns(id, row, s);
    return job;
  };
  Forecast forecast(server.cpu, config_->stages);
  for (const bool io : {false, true}) {
    const Device& device = io ? server.io : server.cpu;
    for (const Device::Job& job : device.jobs()) {
      const Flow& flow = flows_[job.slot];
      forecast.add_running(job_of(flow.id, flow.trace_row, flow.stage, device.remaining_ns(job, now_)), io);
    }
  }
  for (uint32_t slot = server.line_head; slot != kNoSlot; slot = flows_[slot].next) {
    const Flow& flow = flows_[slot];
    forecast.add_waiting(job_of(flow.id, flow.trace_row, flow.stage, flow.work_ns));
  }
  return forecast.completion(job_of(arriving.id, arriving.trace_row, 0, 0)) * 1e-9;
}

ServerId ClusterWorld::choose_exact(uint64_t hash, const Arriving& arriving) const {
  const std::vector<ServerId>& members = balancers_[0].members();
  if (members.empty()) return core::kNoServer;
  const uint64_t word = core::mix64(hash);
  const uint32_t n = static_cast<uint32_t>(members.size());
  const auto cost = [&](ServerId j) {
    return rule_.traits->own_work ? forecast(j, arriving) : server_remaining(j, -1);
  };
  if (rule_.traits->sampling == core::Sampling::kTwo && n > 1) {
    const core::Pair pair = core::two_below(word, n);
    return cost(members[pair.second]) < cost(members[pair.first]) ? members[pair.second]
                                                                  : members[pair.first];
  }
  ServerId best = core::kNoServer;
  double best_cost = std::numeric_limits<double>::infinity();
  uint32_t at = core::below(word, n);
  for (uint32_t i = 0; i < n; ++i, at = at + 1 == n ? 0 : at + 1) {
    const double next = cost(members[at]);
    if (next < best_cost || best == core::kNoServer) {
      best = members[at];
      best_cost = next;
    }
  }
  return best;
}

void ClusterWorld::remaining_time(int balancer, double* out) const {
  for (int j = 0; j < num_servers(); ++j) out[j] = server_remaining(j, balancer);
}

// Event by event, so that every arrival is found while its slot is still its own.
void ClusterWorld::place_until(core::TimeNs t, double* out) {
  const size_t n = servers_.size();
  std::fill(out, out + balancers_.size() * n, 0.0);
  std::vector<double> cpu(n), io(n);
  for (size_t j = 0; j < n; ++j) {
    cpu[j] = capacity(static_cast<int>(j));
    io[j] = servers_[j].io.speed();
  }
  for (bool last = false; !last;) {
    const core::TimeNs at = std::min({arrivals_.next(), queue_.next_time(), t});
    const uint64_t first = next_id_;
    last = at >= t;
    run_until(at);
    if (next_id_ == first) continue;
    for (const Flow& flow : flows_) {
      if (flow.id < first) continue;
      double& sum = out[flow.balancer * n + static_cast<size_t>(flow.server)];
      for (size_t s = 0; s < num_stages_; ++s) {
        const double rate = config_->stages[s].kind == StageKind::kCpu ? cpu[flow.server] : io[flow.server];
        sum += stage_work_ns(flow.id, flow.trace_row, s) * 1e-9 / rate;
      }
    }
  }
}

// CPU work over the capacity of all workers plus IO work, of all stages to come [s].
double ClusterWorld::server_remaining(int j, int balancer) const {
  const Server& server = servers_[j];
  double total_s = 0;
  const auto add = [&](const Flow& flow, double left_ns) {
    if (balancer >= 0 && flow.balancer != balancer) return;
    for (size_t s = flow.stage; s < config_->stages.size(); ++s) {
      const double work_ns = s == flow.stage ? left_ns : stage_work_ns(flow.id, flow.trace_row, s);
      total_s +=
          work_ns * 1e-9 / (config_->stages[s].kind == StageKind::kCpu ? capacity(j) : server.io.speed());
    }
  };
  for (const Device* device : {&server.cpu, &server.io}) {
    for (const Device::Job& job : device->jobs()) add(flows_[job.slot], device->remaining_ns(job, now_));
  }
  for (uint32_t slot = server.line_head; slot != kNoSlot; slot = flows_[slot].next)
    add(flows_[slot], flows_[slot].work_ns);
  return total_s;
}

}  // namespace steelyard::sim
