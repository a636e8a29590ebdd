// Tapes: everything that one load balancer's decisions follow from, and the decisions, so that any host's can
// be made again anywhere. Little-endian.
//
//   offset  size        field
//   0       8           magic "SLYDTAP1"
//   8       4           version (1)
//   12      4           bytes of the header, weights included
//   16      8           observation schema hash (schema.h)
//   24      8           seed of the episode; 0 of a live host
//   32      8           64-bit FNV-1a of the policy's file; 0 without one
//   40      4           servers
//   44      4           load balancers that share them
//   48      4           index of this one
//   52      4           buckets of its flow table
//   56      4           ways of its flow table
//   60      4           size of its reservoirs
//   64      4           1 if it keeps features
//   68      4           1 if a hosted policy sets its weights
//   72      4           families of features that the policy does not see, a bit each (feature_families.h)
//   76      4           1 if balancer i goes by actor i mod K, whatever their numbers
//   80      32          rule, zero-padded
//   112     56          interval_s, noise, decay_s, newest, probes, probe_age_s, rif_quantile (float64)
//   168     4           weights that follow: 0 or as many as servers
//   172     4           0
//   176     8 x weights weights (float64)
//   then records of 24 bytes: time [ns], key, kind (uint32), value (uint32)
//   last 32             the end mark, a record of the number of records before it and the digest of the
//   decisions,
//                       and a checksum of all words before
//
// The digest of decisions: d <- mix64(d ^ (k golden + server + 1)) for decision k, as in the simulator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "native/core/load_balancer.h"
#include "native/core/rng.h"

namespace steelyard::tape {

inline constexpr char kTapeMagic[9] = "SLYDTAP1";
inline constexpr uint32_t kTapeVersion = 1;
inline constexpr size_t kHeaderBytes = 176;

enum class Kind : uint32_t {
  kRestart = 1,   // key: stream
  kOpen = 2,      // key: hash; value: server + 1
  kFirstAck = 3,  // key: hash
  kClose = 4,     // key: hash; value: completed
  kLoad = 5,      // key: server; value: load
  kReply = 6,     // key: hash; value: queue; an item with the bits of the service time before it
  kProbe = 7,     // key: server + 2^32 requests in flight; value: bits of the latency
  kMembers = 8,   // value: items before it, each a server
  kTick = 9,      // value: items before it, each a probed load
  kPolicy = 10,
  kAction = 11,  // value: items before it, each the bits of a float32
  kApply = 12,
  kWeights = 13,  // value: items before it, each the bits of a float64
  kItem = 14,     // key: a number of the list that is closed by the next record of another kind
  kEnd = 15,      // time: records before it; key: digest
  kNames = 16,    // value: items before it, each by what every balancer knows a server
};

struct Record {
  int64_t now = 0;
  uint64_t key = 0;
  uint32_t kind = 0;
  uint32_t value = 0;
};
static_assert(sizeof(Record) == 24);

struct TapeHeader {
  uint64_t schema_hash = 0;
  uint64_t seed = 0;
  uint64_t policy_digest = 0;
  uint32_t num_servers = 0;
  uint32_t num_load_balancers = 1;
  uint32_t balancer = 0;
  uint32_t flow_table_buckets = 65536;
  uint32_t flow_table_ways = 4;
  uint32_t reservoir_size = core::Reservoir::kMaxSize;
  bool features = true;
  bool hosted = false;
  uint32_t hidden = 0;
  bool cycle_actors = false;
  core::RuleConfig rule;  // without its policy

  core::BalancerConfig balancer_config() const;
};

// The header of one of the balancers of `config` under `rule`, whose policy is left out but noted as hosted.
TapeHeader header_of(const core::BalancerConfig& config, const core::RuleConfig& rule, uint32_t balancer);
// Empty, or why decisions under this rule cannot be made again from a tape.
std::string check_rule(const core::RuleConfig& rule);

// The digest after one more decision.
inline uint64_t add_decision(uint64_t digest, uint64_t index, core::ServerId server) {
  return core::mix64(digest ^ (index * core::kGolden + static_cast<uint64_t>(server + 1)));
}
inline uint64_t add_word(uint64_t checksum, uint64_t word) { return core::mix64(checksum ^ word); }

std::vector<uint8_t> encode_header(const TapeHeader& header);

// A whole tape. `data` must outlive it.
struct Tape {
  TapeHeader header;
  const uint8_t* records = nullptr;  // as they lie in the file
  uint64_t num_records = 0;          // without the end mark
  uint64_t digest = 0;               // of the decisions, as the recording host made them

  Record record(uint64_t index) const;
};
// False, with a one-line *error, for a tape that is truncated, damaged, or of another version or schema.
bool read_tape(const uint8_t* data, size_t size, Tape* tape, std::string* error);
bool read_file(const std::string& path, std::vector<uint8_t>* bytes, std::string* error);

}  // namespace steelyard::tape
