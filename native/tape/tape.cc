#include "native/tape/tape.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "native/core/blob_io.h"
#include "native/core/schema.h"

namespace steelyard::tape {
namespace {

using core::BlobReader;
using core::BlobWriter;

constexpr size_t kNameBytes = 32;
constexpr size_t kEndBytes = sizeof(Record) + sizeof(uint64_t);
constexpr uint64_t kMaxFileBytes = uint64_t{16} << 30;
constexpr uint32_t kMaxBuckets = 1u << 24;
constexpr uint32_t kMaxWays = 64;

// The parameters of a rule, in the order of the file.
template <typename Rule, typename F>
void visit_parameters(Rule& rule, F f) {
  f(rule.interval_s);
  f(rule.noise);
  f(rule.decay_s);
  f(rule.newest);
  f(rule.probes);
  f(rule.probe_age_s);
  f(rule.rif_quantile);
}

std::string check_range(const char* name, uint64_t value, uint64_t low, uint64_t high) {
  if (value >= low && value <= high) return "";
  return std::string("damaged tape: ") + name + " is " + std::to_string(value) + "; must be in " +
         std::to_string(low) + ".." + std::to_string(high);
}

std::string check_sizes(const TapeHeader& header, uint32_t num_weights) {
  const struct {
    const char* name;
    uint64_t value, low, high;
  } ranges[] = {
      {"servers", header.num_servers, 1, core::kMaxServers},
      {"load_balancers", header.num_load_balancers, 1, core::kMaxLoadBalancers},
      {"balancer", header.balancer, 0, header.num_load_balancers - uint64_t{1}},
      {"flow_table_buckets", header.flow_table_buckets, 1, kMaxBuckets},
      {"flow_table_ways", header.flow_table_ways, 1, kMaxWays},
      {"reservoir_size", header.reservoir_size, 1, core::Reservoir::kMaxSize},
      {"weights", num_weights, 0, header.num_servers},
  };
  for (const auto& range : ranges) {
    const std::string error = check_range(range.name, range.value, range.low, range.high);
    if (!error.empty()) return error;
  }
  const uint32_t buckets = header.flow_table_buckets;
  return (buckets & (buckets - 1)) == 0 ? "" : "damaged tape: flow_table_buckets is no power of two";
}

std::string read_header(const uint8_t* data, size_t size, TapeHeader* header, size_t* header_bytes) {
  if (size < core::kMagicBytes || std::memcmp(data, kTapeMagic, core::kMagicBytes) != 0)
    return std::string("not a tape: it does not start with ") + kTapeMagic;
  if (size < kHeaderBytes) return "truncated tape: its header is cut";
  BlobReader reader(data + core::kMagicBytes);
  const auto version = reader.number<uint32_t>();
  if (version != kTapeVersion)
    return "tape version is " + std::to_string(version) + "; this build reads version " +
           std::to_string(kTapeVersion);
  *header_bytes = reader.number<uint32_t>();
  header->schema_hash = reader.number<uint64_t>();
  header->seed = reader.number<uint64_t>();
  header->policy_digest = reader.number<uint64_t>();
  header->num_servers = reader.number<uint32_t>();
  header->num_load_balancers = reader.number<uint32_t>();
  header->balancer = reader.number<uint32_t>();
  header->flow_table_buckets = reader.number<uint32_t>();
  header->flow_table_ways = reader.number<uint32_t>();
  header->reservoir_size = reader.number<uint32_t>();
  header->features = reader.number<uint32_t>() != 0;
  header->hosted = reader.number<uint32_t>() != 0;
  header->hidden = reader.number<uint32_t>();
  header->cycle_actors = reader.number<uint32_t>() != 0;
  char name[kNameBytes + 1] = {};
  reader.bytes(name, kNameBytes);
  header->rule.traits = core::find_rule(name);
  if (header->rule.traits == nullptr)
    return "damaged tape, or of another version: it names no rule of this build";
  visit_parameters(header->rule, [&](double& value) { value = reader.number<double>(); });
  const auto num_weights = reader.number<uint32_t>();
  reader.number<uint32_t>();
  const std::string error = check_sizes(*header, num_weights);
  if (!error.empty()) return error;
  if (*header_bytes != kHeaderBytes + sizeof(double) * num_weights)
    return "damaged tape: its header states " + std::to_string(*header_bytes) + " bytes";
  if (size < *header_bytes) return "truncated tape: its header is cut";
  header->rule.weights.resize(num_weights);
  for (double& weight : header->rule.weights) weight = reader.number<double>();
  header->rule.cycle_actors = header->cycle_actors;
  return "";
}

std::string check_header(const TapeHeader& header) {
  const uint64_t schema = core::observation_schema_hash(static_cast<int>(header.num_servers));
  if (header.schema_hash != schema)
    return "tape of another observation schema than this build's for " + std::to_string(header.num_servers) +
           " servers";
  try {
    header.rule.check(static_cast<int>(header.num_servers), static_cast<int>(header.num_load_balancers));
  } catch (const std::invalid_argument& error) {
    return std::string("damaged tape: ") + error.what();
  }
  return check_rule(header.rule);
}

uint64_t checksum_of(const uint8_t* data, size_t size) {
  uint64_t sum = 0;
  BlobReader reader(data);
  for (size_t at = 0; at < size; at += sizeof(uint64_t)) sum = add_word(sum, reader.number<uint64_t>());
  return sum;
}

}  // namespace

core::BalancerConfig TapeHeader::balancer_config() const {
  return {.num_servers = static_cast<int>(num_servers),
          .num_load_balancers = static_cast<int>(num_load_balancers),
          .flow_table_buckets = static_cast<int>(flow_table_buckets),
          .flow_table_ways = static_cast<int>(flow_table_ways),
          .reservoir_size = static_cast<int>(reservoir_size),
          .features = features,
          .preallocate = false};
}

TapeHeader header_of(const core::BalancerConfig& config, const core::RuleConfig& rule, uint32_t balancer) {
  TapeHeader header;
  header.schema_hash = core::observation_schema_hash(config.num_servers);
  header.num_servers = static_cast<uint32_t>(config.num_servers);
  header.num_load_balancers = static_cast<uint32_t>(config.num_load_balancers);
  header.balancer = balancer;
  header.flow_table_buckets = static_cast<uint32_t>(config.flow_table_buckets);
  header.flow_table_ways = static_cast<uint32_t>(config.flow_table_ways);
  header.reservoir_size = static_cast<uint32_t>(config.reservoir_size);
  header.features = config.features;
  header.cycle_actors = rule.cycle_actors;
  header.hosted = rule.policy != nullptr && !rule.policy->central();
  header.rule = rule;
  header.rule.policy = nullptr;
  return header;
}

std::string check_rule(const core::RuleConfig& rule) {
  switch (rule.traits->score) {
    case core::Score::kGlobal:
    case core::Score::kNoisy:
    case core::Score::kExact:
      return "rule " + std::string(rule.traits->name) +
             " knows the true state of the servers, which no tape holds";
    default:
      return "";
  }
}

std::vector<uint8_t> encode_header(const TapeHeader& header) {
  std::vector<uint8_t> bytes;
  BlobWriter writer(&bytes);
  const auto& weights = header.rule.weights;
  writer.bytes(kTapeMagic, core::kMagicBytes);
  writer.number(kTapeVersion);
  writer.number(static_cast<uint32_t>(kHeaderBytes + sizeof(double) * weights.size()));
  writer.number(header.schema_hash);
  writer.number(header.seed);
  writer.number(header.policy_digest);
  for (const uint32_t value :
       {header.num_servers, header.num_load_balancers, header.balancer, header.flow_table_buckets,
        header.flow_table_ways, header.reservoir_size, uint32_t{header.features}, uint32_t{header.hosted},
        header.hidden, uint32_t{header.cycle_actors}}) {
    writer.number(value);
  }
  char name[kNameBytes] = {};
  std::memcpy(name, header.rule.traits->name.data(), header.rule.traits->name.size());
  writer.bytes(name, sizeof name);
  visit_parameters(header.rule, [&](double value) { writer.number(value); });
  writer.number(static_cast<uint32_t>(weights.size()));
  writer.number(uint32_t{0});
  for (const double weight : weights) writer.number(weight);
  return bytes;
}

Record Tape::record(uint64_t index) const {
  Record found;
  std::memcpy(&found, records + index * sizeof found, sizeof found);
  return found;
}

bool read_tape(const uint8_t* data, size_t size, Tape* tape, std::string* error) {
  size_t header_bytes = 0;
  *tape = {};
  *error = read_header(data, size, &tape->header, &header_bytes);
  if (error->empty()) *error = check_header(tape->header);
  if (!error->empty()) return false;
  const size_t left = size - header_bytes;
  if (left < kEndBytes || (left - kEndBytes) % sizeof(Record) != 0) {
    *error = "truncated tape: it has no end mark";
    return false;
  }
  tape->records = data + header_bytes;
  tape->num_records = (left - kEndBytes) / sizeof(Record);
  const Record end = tape->record(tape->num_records);
  if (end.kind != static_cast<uint32_t>(Kind::kEnd)) {
    *error = "truncated tape: it has no end mark";
    return false;
  }
  const uint64_t stated = BlobReader(data + size - sizeof(uint64_t)).number<uint64_t>();
  if (static_cast<uint64_t>(end.now) != tape->num_records ||
      stated != checksum_of(data, size - sizeof(uint64_t))) {
    *error = "damaged tape: its checksum does not match";
    return false;
  }
  tape->digest = end.key;
  return true;
}

bool read_file(const std::string& path, std::vector<uint8_t>* bytes, std::string* error) {
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "rb"));
  if (!file) {
    *error = std::string("cannot open: ") + std::strerror(errno);
    return false;
  }
  std::vector<uint8_t> chunk(1 << 20);
  size_t got;
  while ((got = std::fread(chunk.data(), 1, chunk.size(), file.get())) > 0) {
    if (bytes->size() + got > kMaxFileBytes) {
      *error = "not a tape: larger than 16 GiB";
      return false;
    }
    bytes->insert(bytes->end(), chunk.data(), chunk.data() + got);
  }
  if (std::ferror(file.get()) == 0) return true;
  *error = std::string("cannot read: ") + std::strerror(errno);
  return false;
}

}  // namespace steelyard::tape
