// Who gets a task: rows of loads as deciders know them, and choices on a row.
#include <algorithm>
#include <limits>
#include <numeric>

#include "native/core/rng.h"
#include "native/sim/choice.h"
#include "native/sim/rack.h"
#include "native/sim/rack_path.h"

namespace steelyard::sim {

using core::below;
using core::draw;

namespace {

constexpr uint32_t kMostDrawn = 64;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

void RackWorld::set_up_views() {
  const uint32_t n = static_cast<uint32_t>(num_servers());
  stride_ = (n + 7) & ~7u;
  true_row_.assign(stride_, kInfinity);
  std::fill_n(true_row_.begin(), n, 0.0F);
  rows_.assign(static_cast<size_t>(num_deciders_) * stride_, kInfinity);
  for (int i = 0; i < num_deciders_; ++i) std::fill_n(&rows_[i * stride_], n, 0.0F);
  scratch_ = true_row_;
  turn_.assign(num_deciders_, 0);
  for (int i = 0; i < num_deciders_; ++i)
    turn_[i] = below(draw(choice_stream_, ~static_cast<uint64_t>(i)), n);
  reads_true_row_ = info_ == LoadInfo::kExact && measure_ == LoadMeasure::kTasks;
  count_early_ = reads_true_row_ && config_->count_in_flight;
  patches_own_ = at_servers_ && config_->own_load_exact && info_ != LoadInfo::kExact;
  tracks_rates_ = rule_.estimated_rates || kind_ == RackKind::kDecider;
  rates_.clear();
  if (rule_.estimated_rates) {
    rates_.assign(rows_.size(), 1.0F);
    for (int i = 0; i < num_deciders_; ++i)
      for (uint32_t j = 0; j < n; ++j) rates_[i * stride_ + j] = static_cast<float>(estimated_rate(j));
  }
  scale_.assign(stride_, 1.0F);
  add_ = rule_.traits->name == "sed" ? 1.0F : 0.0F;
  waits_us_.assign(n, 0.0F);
  limits_.assign(stride_, static_cast<float>(rule_.threshold));
  for (uint32_t j = 0; j < n && kind_ == RackKind::kIdle; ++j)
    limits_[j] = static_cast<float>(config_->servers[j].workers);
  shuffled_.resize(n);
  std::iota(shuffled_.begin(), shuffled_.end(), uint16_t{0});
  set_up_capacities();
  set_up_messages();
}

// What loads are divided by: capacities in tasks per second where the rule knows them.
void RackWorld::set_up_capacities() {
  increment_ = 1;
  if (measure_ == LoadMeasure::kWork) increment_ = static_cast<float>(mean_service_s_);
  const bool weighs = rule_.traits->name == "sed" || !rule_.weights.empty() || kind_ == RackKind::kBounded;
  for (uint32_t j = 0; j < nodes_.size() && weighs; ++j) {
    const RackServer& server = config_->servers[j];  // as configured: nobody tells deciders of a change
    const double weight = rule_.weights.empty() ? server.workers * server.speed : rule_.weights[j];
    scale_[j] = static_cast<float>(1 / weight);
  }
}

// As it has been settled.
float RackWorld::kept_load_of(uint32_t j) const {
  switch (measure_) {
    case LoadMeasure::kTasks:
      return static_cast<float>(nodes_[j].in_system);
    case LoadMeasure::kWaiting:
      return static_cast<float>(waiting(j));
    case LoadMeasure::kWork:
      return static_cast<float>(work_left_s(j));
  }
  return 0;
}

// The same with its own as it is.
const float* RackWorld::row_of(uint32_t i) {
  if (patches_own_) rows_[i * stride_ + i] = load_of(i);
  return told_row(i);
}

int RackWorld::least_by_rates(KnownLoads loads, uint32_t i, int preferred, uint64_t word) {
  const float* rates = &rates_[i * stride_];
  return least_of(stride_, preferred, rule_.first, word,
                  [&](uint32_t at) { return loads(at) / load_lanes(rates + at); });
}

// Of the servers whose load is below its limit one by chance, or the first; of all when there is none.
int RackWorld::pick(uint32_t i, const std::vector<float>& limits, uint64_t word) {
  const float* row = row_of(i);
  const int preferred = rule_.keep && at_servers_ ? static_cast<int>(i) : -1;
  const int one = one_of(stride_, preferred, rule_.first, word,
                         [&](uint32_t at) { return load_lanes(row + at) < load_lanes(&limits[at]); });
  return one >= 0 ? one : static_cast<int>(below(word, static_cast<uint32_t>(nodes_.size())));
}

int RackWorld::power_of_d(const float* row, uint64_t word) const {
  const uint32_t n = static_cast<uint32_t>(nodes_.size());
  const uint32_t d = std::min({static_cast<uint32_t>(rule_.d), n, kMostDrawn});
  if (d == 1) return static_cast<int>(below(word, n));
  if (d == 2) {
    const core::Pair pair = core::two_below(word, n);
    return static_cast<int>(row[pair.second] < row[pair.first] ? pair.second : pair.first);
  }
  // R. Floyd's sample of d different ones; ties by chance.
  uint32_t drawn[kMostDrawn];
  uint32_t count = 0, ties = 0;
  uint32_t best = 0;
  for (uint32_t top = n - d; top < n; ++top) {
    uint32_t candidate = below(draw(word, count), top + 1);
    for (uint32_t k = 0; k < count; ++k) {
      if (drawn[k] == candidate) {
        candidate = top;
        break;
      }
    }
    drawn[count++] = candidate;
    if (count == 1 || row[candidate] < row[best]) {
      best = candidate;
      ties = 1;
    } else if (row[candidate] == row[best] && below(draw(word, kMostDrawn + count), ++ties) == 0) {
      best = candidate;
    }
  }
  return static_cast<int>(best);
}

int RackWorld::choose_otherwise(uint32_t i, uint32_t type, uint64_t word) {
  switch (kind_) {
    case RackKind::kLocal:
      return at_servers_ ? static_cast<int>(i) : static_cast<int>(i % nodes_.size());
    case RackKind::kRoundRobin:
      turn_[i] = turn_[i] + 1 == nodes_.size() ? 0 : turn_[i] + 1;
      return static_cast<int>(turn_[i]);
    case RackKind::kPowerOfD:
      return power_of_d(row_of(i), word);
    case RackKind::kBelow:
    case RackKind::kIdle:
      return pick(i, limits_, word);
    case RackKind::kDecider:
      return decider_->migrate(static_cast<int>(i), type, word);
    default:
      return static_cast<int>(below(word, static_cast<uint32_t>(nodes_.size())));
  }
}

}  // namespace steelyard::sim
