// A recorded request trace: what a real server was asked, when, and how long it worked on each request.
//
// File format (documented for people in envs/traces/README.md):
//   # steelyard-trace-v1
//   # any number of comment lines
//   arrival_us,class,service_us,bytes
//   0,php,7421,312
//   ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace steelyard::sim {

// Largest number any column may hold: 10^15 microseconds are 31 years, 10^15 bytes a petabyte, and every
// whole number up to it is exact in a double.
inline constexpr std::uint64_t kTraceMaxNumber = 1'000'000'000'000'000;
inline constexpr std::size_t kTraceMaxClasses = 4096;
inline constexpr std::size_t kTraceMaxClassName = 64;
inline constexpr std::size_t kTraceMaxFileBytes = std::size_t{1} << 30;

// Immutable columns of one trace, all of the same length size() >= 2.
//
// Invariants, checked by every way to build one (std::invalid_argument otherwise):
//   arrival_s   starts at 0, never decreases, ends above 0, finite            [s]
//   service_s   above 0, finite: time of one worker, without any waiting      [s]
//   class_id    below class_names().size()
//   class_names distinct, each 1..64 characters of A-Z a-z 0-9 . _ -
class Trace {
 public:
  Trace(std::vector<double> arrival_s, std::vector<std::uint16_t> class_id, std::vector<double> service_s,
        std::vector<std::uint64_t> bytes, std::vector<std::string> class_names);

  std::size_t size() const { return arrival_s_.size(); }
  std::span<const double> arrival_s() const { return arrival_s_; }
  std::span<const std::uint16_t> class_id() const { return class_id_; }
  std::span<const double> service_s() const { return service_s_; }
  std::span<const std::uint64_t> bytes() const { return bytes_; }
  std::span<const std::string> class_names() const { return class_names_; }

  // Length of one turn when the trace is replayed in a circle: the last arrival plus one mean gap, so that
  // the first request of the next turn does not coincide with the last of this one. Above 0.
  double period_s() const { return period_s_; }
  // size() / period_s(): the rate that a circular replay offers [1/s].
  double mean_rate() const { return static_cast<double>(size()) / period_s_; }
  double mean_service_s() const { return mean_service_s_; }

 private:
  std::vector<double> arrival_s_;
  std::vector<std::uint16_t> class_id_;
  std::vector<double> service_s_;
  std::vector<std::uint64_t> bytes_;
  std::vector<std::string> class_names_;
  double period_s_ = 0.0;
  double mean_service_s_ = 0.0;
};

// Reads the text of a trace file. `name` stands in messages for the place it came from.
// Throws std::invalid_argument "NAME:LINE: column C: 'VALUE' ...; need ..." for the first bad line.
std::shared_ptr<const Trace> parse_trace(std::string_view text, std::string_view name = "trace");

// Reads a regular file of at most 1 GiB. Throws std::invalid_argument as above, or with the reason why the
// file cannot be read.
std::shared_ptr<const Trace> load_trace(const std::string& path);

}  // namespace steelyard::sim
