#include "native/sim/rack_darc.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace steelyard::sim {
namespace {

int cores_for(double share, int cores) {
  const double exact = share * cores;
  const double whole = std::floor(exact);
  const int rounded = static_cast<int>(exact - whole > 0.5 ? whole + 1 : whole);
  return std::max(1, rounded);
}

}  // namespace

DarcPlan darc_plan(std::span<const double> means_s, std::span<const double> ratios, int cores,
                   double within) {
  const size_t types = means_s.size();
  std::vector<size_t> order(types);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return means_s[a] < means_s[b]; });
  DarcPlan plan;
  plan.group_of.resize(types);
  double total = 0, previous = 0;
  for (size_t k = 0; k < types; ++k) {
    const size_t t = order[k];
    // A type that does not come makes no group of its own.
    if (plan.share.empty() || (ratios[t] > 0 && previous > 0 && means_s[t] > previous * within))
      plan.share.push_back(0);
    plan.group_of[t] = static_cast<uint16_t>(plan.share.size() - 1);
    plan.share.back() += means_s[t] * ratios[t];
    total += means_s[t] * ratios[t];
    if (ratios[t] > 0) previous = means_s[t];
  }
  for (double& share : plan.share) share = total > 0 ? share / total : 1.0 / static_cast<double>(types);
  for (size_t g = 0; g < plan.share.size(); ++g) {
    const int left = cores - static_cast<int>(plan.level.size());
    if (left == 0) {
      plan.level.back() = static_cast<uint16_t>(g);
      continue;
    }
    const bool last = g + 1 == plan.share.size();
    const int granted = last ? left : std::min(left, cores_for(plan.share[g], cores));
    plan.level.insert(plan.level.end(), granted, static_cast<uint16_t>(g));
  }
  return plan;
}

Darc::Darc(std::span<const double> means_s, std::span<const double> ratios, int cores, double within,
           double shift, int window)
    : cores_(cores),
      window_(window),
      within_(within),
      shift_(shift),
      means_s_(means_s.begin(), means_s.end()),
      ratios_(ratios.begin(), ratios.end()),
      time_s_(means_s.size()),
      count_(means_s.size()),
      idle_(cores, 1),
      lines_(means_s.size()) {
  plan_ = darc_plan(means_s_, ratios_, cores_, within_);
}

uint32_t Darc::place(uint32_t slot, uint32_t type) {
  const uint16_t group = plan_.group_of[type];
  const auto first = std::lower_bound(plan_.level.begin(), plan_.level.end(), group);
  for (auto core = first; core != plan_.level.end(); ++core) {
    const size_t c = static_cast<size_t>(core - plan_.level.begin());
    if (idle_[c] == 0) continue;
    idle_[c] = 0;
    return static_cast<uint32_t>(c);
  }
  lines_[type].push_back({clock_++, slot});
  return kNone;
}

uint32_t Darc::next(uint32_t core) {
  if (core >= static_cast<uint32_t>(cores_)) return kNone;  // it has retired
  // The shortest group first, within it the task that came first.
  size_t best = lines_.size();
  for (size_t t = 0; t < lines_.size(); ++t) {
    if (lines_[t].empty() || plan_.group_of[t] > plan_.level[core]) continue;
    const bool better =
        best == lines_.size() || plan_.group_of[t] < plan_.group_of[best] ||
        (plan_.group_of[t] == plan_.group_of[best] && lines_[t].front().stamp < lines_[best].front().stamp);
    if (better) best = t;
  }
  idle_[core] = best == lines_.size() ? 1 : 0;
  return best == lines_.size() ? kNone : lines_[best].pop_front().slot;
}

bool Darc::completed(uint32_t type, double service_s) {
  time_s_[type] += service_s;
  ++count_[type];
  if (++counted_ < window_) return false;
  counted_ = 0;
  const std::vector<double> time_s = time_s_;
  const std::vector<uint32_t> count = count_;
  std::fill(time_s_.begin(), time_s_.end(), 0.0);
  std::fill(count_.begin(), count_.end(), 0u);
  const double total = std::accumulate(time_s.begin(), time_s.end(), 0.0);
  if (total <= 0) return false;
  std::vector<double> share(plan_.share.size());
  for (size_t t = 0; t < time_s.size(); ++t) share[plan_.group_of[t]] += time_s[t] / total;
  bool moved = false;
  for (size_t g = 0; g < share.size(); ++g) moved = moved || std::abs(share[g] - plan_.share[g]) > shift_;
  if (!moved) return false;
  for (size_t t = 0; t < time_s.size(); ++t) {
    ratios_[t] = count[t];
    if (count[t] > 0) means_s_[t] = time_s[t] / count[t];
  }
  plan_ = darc_plan(means_s_, ratios_, cores_, within_);
  return true;
}

uint32_t Darc::take_waiting(bool newest) {
  size_t best = lines_.size();
  for (size_t t = 0; t < lines_.size(); ++t) {
    if (lines_[t].empty()) continue;
    if (best == lines_.size() || plan_.group_of[t] > plan_.group_of[best]) best = t;
  }
  if (best == lines_.size()) return kNone;
  return newest ? lines_[best].pop_back().slot : lines_[best].pop_front().slot;
}

void Darc::set_cores(std::vector<uint8_t> idle) {
  idle_ = std::move(idle);
  cores_ = static_cast<int>(idle_.size());
  plan_ = darc_plan(means_s_, ratios_, cores_, within_);
}

std::vector<uint32_t> Darc::empty_lines() {
  std::vector<Waiting> all;
  for (Ring<Waiting>& line : lines_) {
    while (!line.empty()) all.push_back(line.pop_front());
  }
  std::sort(all.begin(), all.end(), [](const Waiting& a, const Waiting& b) { return a.stamp < b.stamp; });
  std::vector<uint32_t> slots;
  for (const Waiting& waiting : all) slots.push_back(waiting.slot);
  return slots;
}

uint32_t Darc::any_idle() {
  for (size_t core = 0; core < idle_.size(); ++core) {
    if (idle_[core] == 0) continue;
    idle_[core] = 0;
    return static_cast<uint32_t>(core);
  }
  return kNone;
}

size_t Darc::waiting() const {
  size_t sum = 0;
  for (const auto& line : lines_) sum += line.size();
  return sum;
}

}  // namespace steelyard::sim
