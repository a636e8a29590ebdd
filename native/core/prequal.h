// Prequal: choose among the answers to asynchronous probes (Wydrowski et al., NSDI'24, Sec. 4).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "native/core/types.h"

namespace steelyard::core {

struct PrequalConfig {
  double rif_quantile = 0.84;  // Q_RIF: hot above it; 0: all are hot, 1: all are cold (Sec. 5.2)
  double probes = 3;           // r_probe, per flow
  TimeNs age = kNanosPerSecond;
};

// What a server knows of its own latency: at a probe it reports the median of the latencies of those among
// its last 64 flows that had found as many flows in it as there are now, or nearly as many (the paper: "at or
// near"). Nearly: the 15 flows of the nearest counts, of equally near ones the latest.
class LatencyByRif {
 public:
  static constexpr int kKept = 64;
  static constexpr int kNear = 15;

  // A flow is done that found `rif` others and stayed `latency_s`.
  void add(uint32_t rif, float latency_s) { kept_[count_++ % kKept] = {rif, latency_s}; }
  // Of a flow that comes now and finds `rif` others [s]; of an even number the lower middle; 0 before the
  // first flow is done.
  float estimate(uint32_t rif) const;

 private:
  struct Done {
    uint32_t rif;
    float latency_s;
  };
  std::array<Done, kKept> kept_{};
  uint64_t count_ = 0;
};

// The probe pool of a balancer. Numbers are those of the paper's testbed (Sec. 5): 16 answers, one removal
// per flow, alternately of the oldest and of the worst, delta = 1.
class ProbePool {
 public:
  static constexpr int kSize = 16;       // m
  static constexpr int kHistory = 64;    // answers by which hot is told from cold: "recent" in the paper
  static constexpr double kRemoved = 1;  // r_remove
  static constexpr double kDelta = 1;
  static constexpr int kMaxProbes = 16;

  // `stream` keys the rounding of the reuse budget.
  explicit ProbePool(const PrequalConfig& config = {}, uint64_t stream = 0)
      : config_(config), stream_(stream) {}

  // Writes the servers to probe for a flow, different ones drawn uniformly by `word`; returns how many:
  // `probes`, a fraction rounded at random, and no more than there are members.
  int targets(std::span<const ServerId> members, uint64_t word, ServerId* out) const;
  // How many flows an answer may guide, eq. (1): max(1, (1 + delta) / ((1 - m / n) r_probe - r_remove)).
  // Without limit (0) where the pool can hold every server and the quotient is not positive: answers are then
  // replaced.
  static double reuse_budget(double probes, int members);
  // An answer replaces an earlier one of its server; a full pool loses its oldest.
  void add(ServerId server, uint32_t rif, float latency_s, int members, TimeNs now);
  // Hot-cold lexicographic rule: the cold answer of least latency; when all are hot, that of least RIF.
  // kNoServer when fewer than two are young enough: the caller then takes a server at random.
  ServerId choose(TimeNs now);
  // The flow goes to `server`: its pooled RIF rises by 1, and one answer is removed.
  void settle(ServerId server);
  void keep(std::span<const ServerId> members);

  int size() const { return size_; }
  // The greatest RIF that counts as cold; -1: none does.
  int64_t hot_above() const;

 private:
  struct Answer {
    ServerId server;
    uint32_t rif;
    float latency_s;
    uint32_t uses_left;
    TimeNs received;
  };
  template <typename Keep>
  void filter(const Keep& keep);
  void remove(int at);
  int worst() const;

  PrequalConfig config_;
  std::array<Answer, kSize> answers_{};  // in order of their arrival
  int size_ = 0;
  std::array<uint32_t, kHistory> history_{};
  uint64_t received_ = 0;
  uint64_t stream_;
  bool worst_next_ = false;
};

}  // namespace steelyard::core
