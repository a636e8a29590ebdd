// Who gets a task: rows of loads as deciders know them, and choices on a row.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>

#include "native/core/lanes.h"
#include "native/core/rng.h"
#include "native/sim/rack.h"

namespace steelyard::sim {

using core::below;
using core::draw;
using core::f32x8;
using core::i32x8;

namespace {

constexpr uint32_t kMostDrawn = 64;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

f32x8 load_lanes(const float* x) {
  f32x8 lanes;
  std::memcpy(&lanes, x, sizeof lanes);
  return lanes;
}

// Bit k is set where lane k is true (-1).
uint32_t bits_of(i32x8 truth) {
  using i8x8 = int8_t __attribute__((vector_size(8)));
  const i8x8 bytes = __builtin_convertvector(truth, i8x8);
  return static_cast<uint32_t>(
      ((std::bit_cast<uint64_t>(bytes) & 0x0101010101010101ULL) * 0x0102040810204080ULL) >> 56);
}

float least_lane(f32x8 v) {
  const f32x8 halves = __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
  v = halves < v ? halves : v;
  const f32x8 quarters = __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
  v = quarters < v ? quarters : v;
  return v[0] < v[1] ? v[0] : v[1];
}

// A set of servers as bits, and one of them by chance or the first.
class Chosen {
 public:
  void add(uint32_t block, uint32_t bits) {
    words_[block >> 3] |= static_cast<uint64_t>(bits) << (8 * (block & 7));
    count_ += static_cast<uint32_t>(std::popcount(bits));
  }
  explicit Chosen(uint32_t servers) {
    words_[0] = 0;
    for (uint32_t w = 1; 64 * w < servers; ++w) words_[w] = 0;
  }
  uint32_t count() const { return count_; }
  bool holds(uint32_t j) const { return (words_[j >> 6] >> (j & 63) & 1) != 0; }
  int one(uint64_t word, bool first) const {
    uint32_t skip = first || count_ == 1 ? 0 : below(word, count_);
    for (uint32_t w = 0;; ++w) {
      uint64_t bits = words_[w];
      const uint32_t here = static_cast<uint32_t>(std::popcount(bits));
      if (skip >= here) {
        skip -= here;
        continue;
      }
      for (; skip > 0; --skip) bits &= bits - 1;
      return static_cast<int>(64 * w) + std::countr_zero(bits);
    }
  }

 private:
  uint32_t count_ = 0;
  uint64_t words_[core::kMaxServers / 64];
};

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
  workers_row_.assign(stride_, 0.0F);
  for (uint32_t j = 0; j < n; ++j) workers_row_[j] = static_cast<float>(config_->servers[j].workers);
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

float RackWorld::load_of(uint32_t j) const {
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

// The loads by which decider i goes now: `stride_` floats.
const float* RackWorld::row_of(uint32_t i) {
  if (reads_true_row_) return true_row_.data();
  if (info_ == LoadInfo::kExact) {
    for (uint32_t j = 0; j < nodes_.size(); ++j) scratch_[j] = load_of(j);
    return scratch_.data();
  }
  float* row = &rows_[i * stride_];
  if (patches_own_) row[i] = load_of(i);
  return row;
}

int RackWorld::least(const float* row, uint32_t i, uint64_t word) const {
  const float add = add_;
  if (rule_.estimated_rates) {
    const float* rates = &rates_[i * stride_];
    return least_of(i, word,
                    [=](uint32_t at) { return (load_lanes(row + at) + add) / load_lanes(rates + at); });
  }
  const float* scale = scale_.data();
  return least_of(i, word,
                  [=](uint32_t at) { return (load_lanes(row + at) + add) * load_lanes(scale + at); });
}

// The server of the least key; `keys(at)` are those of the eight from `at` on.
template <typename F>
int RackWorld::least_of(uint32_t i, uint64_t word, F keys) const {
  f32x8 low = keys(0);
  for (uint32_t at = 8; at < stride_; at += 8) {
    const f32x8 next = keys(at);
    low = next < low ? next : low;
  }
  const float best = least_lane(low);
  Chosen ties(stride_);
  for (uint32_t at = 0; at < stride_; at += 8) ties.add(at >> 3, bits_of(keys(at) == best));
  if (rule_.keep && at_servers_ && ties.holds(i)) return static_cast<int>(i);
  return ties.one(word, rule_.first);
}

// Of the servers whose load is below the limit one by chance, or the first; of all when there is none.
int RackWorld::pick(const float* row, const float* limits, float limit, uint32_t i, uint64_t word) const {
  Chosen ones(stride_);
  for (uint32_t at = 0; at < stride_; at += 8) {
    const f32x8 bound = limits != nullptr ? load_lanes(limits + at) : f32x8{} + limit;
    ones.add(at >> 3, bits_of(load_lanes(row + at) < bound));
  }
  if (ones.count() == 0) return static_cast<int>(below(word, static_cast<uint32_t>(nodes_.size())));
  if (rule_.keep && at_servers_ && ones.holds(i)) return static_cast<int>(i);
  return ones.one(word, rule_.first);
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

int RackWorld::choose(uint32_t i, const RackTask& task) {
  const uint64_t word = draw(choice_stream_, task.id);
  switch (kind_) {
    case RackKind::kLocal:
      return at_servers_ ? static_cast<int>(i) : static_cast<int>(i % nodes_.size());
    case RackKind::kRoundRobin:
      turn_[i] = turn_[i] + 1 == nodes_.size() ? 0 : turn_[i] + 1;
      return static_cast<int>(turn_[i]);
    case RackKind::kPowerOfD:
      return power_of_d(row_of(i), word);
    case RackKind::kLeast:
      return least(row_of(i), i, word);
    case RackKind::kBelow:
      return pick(row_of(i), nullptr, static_cast<float>(rule_.threshold), i, word);
    case RackKind::kIdle:
      return pick(row_of(i), workers_row_.data(), 0, i, word);
    case RackKind::kDecider:
      return decider_->migrate(static_cast<int>(i), task.type, word);
    default:
      return static_cast<int>(below(word, static_cast<uint32_t>(nodes_.size())));
  }
}

}  // namespace steelyard::sim
