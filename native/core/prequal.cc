#include "native/core/prequal.h"

#include <algorithm>
#include <limits>

#include "native/core/rng.h"

namespace steelyard::core {
namespace {

constexpr uint32_t kNoLimit = UINT32_MAX;
constexpr uint64_t kCountKey = 64;  // of a word's draws the places come first

// x rounded up with probability of its fraction.
uint32_t rounded(double x, uint64_t word) {
  const uint32_t whole = static_cast<uint32_t>(x);
  return whole + (unit_open(word) < x - whole ? 1 : 0);
}

}  // namespace

float LatencyByRif::estimate(uint32_t rif) const {
  const int n = static_cast<int>(std::min<uint64_t>(count_, kKept));
  if (n == 0) return 0;
  std::array<uint64_t, kKept> order;  // distance, then age
  for (int k = 0; k < n; ++k) {
    const uint32_t seen = kept_[(count_ - 1 - k) % kKept].rif;
    order[k] = uint64_t{seen < rif ? rif - seen : seen - rif} << 32 | static_cast<uint64_t>(k);
  }
  const int near = std::min(n, kNear);
  std::nth_element(order.begin(), order.begin() + near - 1, order.begin() + n);
  std::array<float, kNear> latency;
  for (int k = 0; k < near; ++k) {
    latency[k] = kept_[(count_ - 1 - (order[k] & UINT32_MAX)) % kKept].latency_s;
  }
  const auto middle = latency.begin() + (near - 1) / 2;
  std::nth_element(latency.begin(), middle, latency.begin() + near);
  return *middle;
}

// Floyd's sampling: after step k all sets of that many places below last + 1 are equally likely.
int ProbePool::targets(std::span<const ServerId> members, uint64_t word, ServerId* out) const {
  const uint32_t n = static_cast<uint32_t>(members.size());
  const uint32_t count = std::min(rounded(config_.probes, draw(word, kCountKey)), n);
  for (uint32_t k = 0; k < count; ++k) {
    const uint32_t last = n - count + k;
    const ServerId drawn = members[below(draw(word, k), last + 1)];
    out[k] = std::find(out, out + k, drawn) == out + k ? drawn : members[last];
  }
  return static_cast<int>(count);
}

double ProbePool::reuse_budget(double probes, int members) {
  const double inflow = (1 - static_cast<double>(kSize) / members) * probes - kRemoved;
  return inflow > 0 ? std::max(1.0, (1 + kDelta) / inflow) : 0;
}

template <typename Keep>
void ProbePool::filter(const Keep& keep) {
  const auto gone = [&](const Answer& answer) { return !keep(answer); };
  size_ =
      static_cast<int>(std::remove_if(answers_.begin(), answers_.begin() + size_, gone) - answers_.begin());
}

void ProbePool::remove(int at) {
  std::copy(answers_.begin() + at + 1, answers_.begin() + size_, answers_.begin() + at);
  --size_;
}

void ProbePool::add(ServerId server, uint32_t rif, float latency_s, int members, TimeNs now) {
  const uint64_t word = draw(stream_, received_);
  history_[received_++ % kHistory] = rif;
  filter([&](const Answer& answer) { return answer.server != server; });
  if (size_ == kSize) remove(0);
  const double budget = std::min(reuse_budget(config_.probes, members), 1e9);
  answers_[size_++] = {server, rif, latency_s, budget > 0 ? rounded(budget, word) : kNoLimit, now};
}

int64_t ProbePool::hot_above() const {
  const int n = static_cast<int>(std::min<uint64_t>(received_, kHistory));
  const double exact = config_.rif_quantile * n;
  const int rank = static_cast<int>(exact) + (static_cast<int>(exact) < exact ? 1 : 0);
  if (n == 0 || config_.rif_quantile >= 1) return std::numeric_limits<int64_t>::max();
  if (rank == 0) return -1;
  std::array<uint32_t, kHistory> sorted = history_;
  std::nth_element(sorted.begin(), sorted.begin() + rank - 1, sorted.begin() + n);
  return sorted[rank - 1];
}

ServerId ProbePool::choose(TimeNs now) {
  filter([&](const Answer& answer) { return now - answer.received <= config_.age; });
  if (size_ < 2) return kNoServer;
  const int64_t threshold = hot_above();
  const auto better = [&](const Answer& a, const Answer& b) {
    const bool hot = a.rif > threshold;
    if (hot != (b.rif > threshold)) return !hot;
    if (hot || a.latency_s == b.latency_s) return a.rif < b.rif;
    return a.latency_s < b.latency_s;
  };
  const auto best = std::min_element(answers_.begin(), answers_.begin() + size_, better);
  const ServerId server = best->server;
  if (best->uses_left != kNoLimit && --best->uses_left == 0)
    remove(static_cast<int>(best - answers_.begin()));
  return server;
}

// The reverse of the rule: the hot answer of greatest RIF; when none is hot, that of greatest latency.
int ProbePool::worst() const {
  const int64_t threshold = hot_above();
  const auto better = [&](const Answer& a, const Answer& b) {
    const bool hot = a.rif > threshold;
    if (hot != (b.rif > threshold)) return !hot;
    return hot ? a.rif < b.rif : a.latency_s < b.latency_s;
  };
  return static_cast<int>(std::max_element(answers_.begin(), answers_.begin() + size_, better) -
                          answers_.begin());
}

void ProbePool::settle(ServerId server) {
  for (int k = 0; k < size_; ++k) answers_[k].rif += answers_[k].server == server ? 1 : 0;
  if (size_ == 0) return;
  remove(worst_next_ ? worst() : 0);
  worst_next_ = !worst_next_;
}

void ProbePool::keep(std::span<const ServerId> members) {
  filter([&](const Answer& answer) {
    return std::find(members.begin(), members.end(), answer.server) != members.end();
  });
}

}  // namespace steelyard::core
