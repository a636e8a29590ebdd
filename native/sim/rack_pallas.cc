#include "native/sim/rack_pallas.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace steelyard::sim {
namespace {

struct Point {
  double x, y;
};

double distance2(const Point& a, const Point& b) {
  return (a.x - b.x) * (a.x - b.x) + (a.y - b.y) * (a.y - b.y);
}

size_t nearest(const Point& p, const std::vector<Point>& centres) {
  size_t best = 0;
  for (size_t g = 1; g < centres.size(); ++g)
    if (distance2(p, centres[g]) < distance2(p, centres[best])) best = g;
  return best;
}

// Centres far apart: the first point, then always the point farthest from all centres.
std::vector<Point> first_centres(const std::vector<Point>& points, size_t k) {
  std::vector<Point> centres{points[0]};
  while (centres.size() < k) {
    size_t farthest = 0;
    double most = 0;
    for (size_t t = 0; t < points.size(); ++t) {
      const double away = distance2(points[t], centres[nearest(points[t], centres)]);
      if (away > most) {
        most = away;
        farthest = t;
      }
    }
    if (most == 0) break;
    centres.push_back(points[farthest]);
  }
  return centres;
}

}  // namespace

std::vector<int> group_types(std::span<const double> means_s, std::span<const double> ratios, int k) {
  const size_t types = means_s.size();
  const double longest = *std::max_element(means_s.begin(), means_s.end());
  const double commonest = *std::max_element(ratios.begin(), ratios.end());
  std::vector<Point> points;
  for (size_t t = 0; t < types; ++t) points.push_back({means_s[t] / longest, ratios[t] / commonest});
  std::vector<Point> centres = first_centres(points, static_cast<size_t>(k));
  std::vector<size_t> of(types, 0);
  for (int round = 0; round < 100; ++round) {
    std::vector<size_t> now(types);
    for (size_t t = 0; t < types; ++t) now[t] = nearest(points[t], centres);
    if (round > 0 && now == of) break;
    of = now;
    for (size_t g = 0; g < centres.size(); ++g) {
      Point sum{0, 0};
      double count = 0;
      for (size_t t = 0; t < types; ++t) {
        if (of[t] != g) continue;
        sum.x += points[t].x;
        sum.y += points[t].y;
        ++count;
      }
      if (count > 0) centres[g] = {sum.x / count, sum.y / count};
    }
  }
  // Numbered from short to long, without gaps.
  std::vector<double> mean(centres.size(), 0), weight(centres.size(), 0);
  for (size_t t = 0; t < types; ++t) {
    mean[of[t]] += means_s[t] * ratios[t];
    weight[of[t]] += ratios[t];
  }
  std::vector<size_t> order;
  for (size_t g = 0; g < centres.size(); ++g)
    if (weight[g] > 0) order.push_back(g);
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return mean[a] * weight[b] < mean[b] * weight[a]; });
  std::vector<int> groups(types);
  for (size_t t = 0; t < types; ++t)
    groups[t] = static_cast<int>(std::find(order.begin(), order.end(), of[t]) - order.begin());
  return groups;
}

ShapePlan provision(const std::vector<int>& group_of, std::span<const double> means_s,
                    std::span<const double> ratios, std::span<const double> capacities) {
  const size_t groups = static_cast<size_t>(*std::max_element(group_of.begin(), group_of.end())) + 1;
  std::vector<double> demand(groups, 0);
  for (size_t t = 0; t < group_of.size(); ++t) demand[group_of[t]] += means_s[t] * ratios[t];
  const double all = std::accumulate(demand.begin(), demand.end(), 0.0);
  const double capacity = std::accumulate(capacities.begin(), capacities.end(), 0.0);
  ShapePlan plan{group_of, {}};
  plan.cores.assign(groups, std::vector<double>(capacities.size(), 0.0));
  size_t server = 0;
  double room = capacities[0];
  for (size_t g = 0; g < groups; ++g) {
    double wanted = demand[g] / all * capacity;
    const double least = 1e-6 * capacity;  // rounding must not make a hybrid
    while (wanted > least && server < capacities.size()) {
      const double given = std::min(wanted, room);
      plan.cores[g][server] += given;
      wanted -= given;
      room -= given;
      if (room > least) break;
      if (++server < capacities.size()) room = capacities[server];
    }
    // A group of next to no demand shares the server where it would begin.
    const double total = std::accumulate(plan.cores[g].begin(), plan.cores[g].end(), 0.0);
    if (total == 0) plan.cores[g][std::min(server, capacities.size() - 1)] = 1e-3;
  }
  return plan;
}

ShapePlan without_hybrids(const ShapePlan& plan, std::span<const double> capacities) {
  ShapePlan whole = plan;
  bool hybrids = false;
  for (size_t j = 0; j < capacities.size(); ++j) {
    size_t most = 0, hosted = 0;
    for (size_t g = 0; g < plan.cores.size(); ++g) {
      hosted += plan.cores[g][j] > 0 ? 1 : 0;
      if (plan.cores[g][j] > plan.cores[most][j]) most = g;
    }
    hybrids = hybrids || hosted > 1;
    for (size_t g = 0; g < plan.cores.size(); ++g) whole.cores[g][j] = g == most ? capacities[j] : 0.0;
  }
  for (const std::vector<double>& cores : whole.cores)
    hybrids = hybrids && std::accumulate(cores.begin(), cores.end(), 0.0) > 0;
  return hybrids ? whole : ShapePlan{};
}

Shaper::Shaper(const RackShaping& config, ShapePlan plan, std::span<const double> means_s,
               std::span<const double> ratios, std::span<const double> capacities)
    : config_(config),
      means_s_(means_s.begin(), means_s.end()),
      ratios_(ratios.begin(), ratios.end()),
      capacities_(capacities.begin(), capacities.end()),
      window_ns_(std::max<core::TimeNs>(1, static_cast<core::TimeNs>(config.burst_s * 1e9))),
      arrived_(means_s.size()),
      completed_(means_s.size()),
      served_s_(means_s.size()) {
  const double total = std::accumulate(ratios_.begin(), ratios_.end(), 0.0);
  for (double& ratio : ratios_) ratio /= total;
  set_plan(std::move(plan));
}

void Shaper::set_plan(ShapePlan plan) {
  plan_ = std::move(plan);
  planned_ = shares();
  const size_t groups = plan_.cores.size();
  credit_.assign(groups, std::vector<double>(capacities_.size(), 0.0));
  total_.assign(groups, 0);
  limit_.assign(groups, 0);
  in_window_.assign(groups, 0);
  for (size_t g = 0; g < groups; ++g) {
    total_[g] = std::accumulate(plan_.cores[g].begin(), plan_.cores[g].end(), 0.0);
    double mean_s = 0, ratio = 0;
    for (size_t t = 0; t < means_s_.size(); ++t) {
      if (plan_.group_of[t] != static_cast<int>(g)) continue;
      mean_s += means_s_[t] * ratios_[t];
      ratio += ratios_[t];
    }
    const double finished = ratio > 0 ? config_.burst_s * total_[g] * ratio / mean_s : 0.0;
    limit_[g] = std::max(1.0, std::floor(finished));
  }
}

std::vector<double> Shaper::shares() const {
  std::vector<double> share(means_s_.size());
  double all = 0;
  for (size_t t = 0; t < share.size(); ++t) all += share[t] = means_s_[t] * ratios_[t];
  for (double& s : share) s /= all;
  return share;
}

int Shaper::next_of(int group) {
  std::vector<double>& credit = credit_[group];
  const std::vector<double>& cores = plan_.cores[group];
  size_t best = credit.size();
  for (size_t j = 0; j < credit.size(); ++j) {
    if (cores[j] == 0) continue;
    credit[j] += cores[j];
    if (best == credit.size() || credit[j] > credit[best]) best = j;
  }
  credit[best] -= total_[group];
  return static_cast<int>(best);
}

int Shaper::count_arrival(uint32_t type, core::TimeNs now) {
  ++arrived_[type];
  if (!config_.clone || plan_.num_groups() < 2) return -1;
  if (now >= window_end_) {
    std::fill(in_window_.begin(), in_window_.end(), 0u);
    window_end_ = (now / window_ns_ + 1) * window_ns_;
  }
  const int group = plan_.group_of[type];
  if (++in_window_[group] <= limit_[group]) return -1;
  int least = -1;
  for (int g = 0; g < plan_.num_groups(); ++g) {
    if (g == group || in_window_[g] >= limit_[g]) continue;
    if (least < 0 || in_window_[g] * limit_[least] < in_window_[least] * limit_[g]) least = g;
  }
  return least;
}

bool Shaper::demand_moved() {
  const double arrived = std::accumulate(arrived_.begin(), arrived_.end(), 0.0);
  if (arrived == 0) return false;
  for (size_t t = 0; t < means_s_.size(); ++t) {
    ratios_[t] += config_.ewma * (arrived_[t] / arrived - ratios_[t]);
    if (completed_[t] > 0) means_s_[t] += config_.ewma * (served_s_[t] / completed_[t] - means_s_[t]);
    arrived_[t] = completed_[t] = 0;
    served_s_[t] = 0;
  }
  const std::vector<double> now = shares();
  double moved = 0;
  for (size_t t = 0; t < now.size(); ++t) moved += std::abs(now[t] - planned_[t]);
  return moved > config_.delta;
}

bool Shaper::dedicated(int server) const {
  int hosted = 0;
  for (const std::vector<double>& cores : plan_.cores) hosted += cores[server] > 0 ? 1 : 0;
  return hosted < 2;
}

}  // namespace steelyard::sim
