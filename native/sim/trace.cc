#include "native/sim/trace.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace steelyard::sim {
namespace {

constexpr std::string_view kVersionLine = "# steelyard-trace-v1";
constexpr std::array<std::string_view, 4> kColumns = {"arrival_us", "class", "service_us", "bytes"};
constexpr std::string_view kHeaderLine = "arrival_us,class,service_us,bytes";
constexpr double kMicrosecondsPerSecond = 1e6;  // divided by, so that 10 us is the double nearest to 1e-5

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

bool is_class_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-';
}

bool is_class_name(std::string_view text) {
  return !text.empty() && text.size() <= kTraceMaxClassName &&
         std::all_of(text.begin(), text.end(), is_class_character);
}

// A bad value as it may stand in a one-line message: at most 40 characters, everything unprintable as '?'.
std::string shown(std::string_view text) {
  constexpr std::size_t kMaxShown = 40;
  std::string result = "'";
  for (const char c : text.substr(0, kMaxShown)) result += (c >= ' ' && c <= '~') ? c : '?';
  result += text.size() > kMaxShown ? "...'" : "'";
  return result;
}

std::string number_text(double value) {
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return {buffer.data(), end};
}

struct Columns {
  std::vector<double> arrival_s;
  std::vector<std::uint16_t> class_id;
  std::vector<double> service_s;
  std::vector<std::uint64_t> bytes;
  std::vector<std::string> class_names;
};

// Reads one trace line by line; every message carries the line that is being read.
class Reader {
 public:
  Reader(std::string_view text, std::string_view name) : rest_(text), name_(name) {}

  Columns read() {
    read_header();
    std::string_view line;
    while (next_line(&line)) {
      if (!line.empty() && line.front() == '#') continue;
      read_row(line);
    }
    if (columns_.arrival_s.size() < 2) {
      fail(name_ + ": " + std::to_string(columns_.arrival_s.size()) + " requests; need at least 2");
    }
    if (last_arrival_us_ == 0) fail(name_ + ": every arrival_us is 0; need a last arrival above 0");
    return std::move(columns_);
  }

 private:
  // Next line without its end ("\n" or "\r\n"); false at the end of the text.
  bool next_line(std::string_view* line) {
    if (rest_.empty()) return false;
    ++line_number_;
    const std::size_t end = rest_.find('\n');
    *line = rest_.substr(0, end);
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
    if (!line->empty() && line->back() == '\r') line->remove_suffix(1);
    return true;
  }

  std::string where() const { return name_ + ":" + std::to_string(line_number_) + ": "; }

  void read_header() {
    std::string_view line;
    if (!next_line(&line))
      fail(name_ + ": the file is empty; need the line '" + std::string(kVersionLine) + "' first");
    if (line != kVersionLine) {
      fail(where() + shown(line) + " is not a version line; need '" + std::string(kVersionLine) + "'");
    }
    do {
      if (!next_line(&line)) {
        fail(name_ + ": no column header; need the line '" + std::string(kHeaderLine) + "'");
      }
    } while (!line.empty() && line.front() == '#');
    if (line != kHeaderLine) {
      fail(where() + shown(line) + " is not the column header; need '" + std::string(kHeaderLine) + "'");
    }
  }

  void read_row(std::string_view line) {
    const std::array<std::string_view, 4> cell = split(line);
    const std::uint64_t arrival_us = number(0, cell[0], 0);
    check_arrival(arrival_us, cell[0]);
    const std::uint16_t class_id = class_of(cell[1]);
    const std::uint64_t service_us = number(2, cell[2], 1);
    const std::uint64_t bytes = number(3, cell[3], 0);
    columns_.arrival_s.push_back(static_cast<double>(arrival_us) / kMicrosecondsPerSecond);
    columns_.class_id.push_back(class_id);
    columns_.service_s.push_back(static_cast<double>(service_us) / kMicrosecondsPerSecond);
    columns_.bytes.push_back(bytes);
    last_arrival_us_ = arrival_us;
  }

  std::array<std::string_view, 4> split(std::string_view line) const {
    const auto count = static_cast<std::size_t>(std::count(line.begin(), line.end(), ',')) + 1;
    if (line.empty() || count != kColumns.size()) {
      fail(where() + (line.empty() ? "empty line" : std::to_string(count) + " columns") +
           "; need 4: " + std::string(kHeaderLine));
    }
    std::array<std::string_view, 4> cell;
    for (std::size_t column = 0; column < cell.size(); ++column) {
      const std::size_t end = std::min(line.find(','), line.size());
      cell[column] = line.substr(0, end);
      line.remove_prefix(std::min(end + 1, line.size()));
    }
    return cell;
  }

  [[noreturn]] void bad_cell(std::size_t column, std::string_view cell, const std::string& need) const {
    fail(where() + "column " + std::string(kColumns[column]) + ": " + shown(cell) + " is not allowed; need " +
         need);
  }

  std::uint64_t number(std::size_t column, std::string_view cell, std::uint64_t least) const {
    std::uint64_t value = 0;
    const char* const end = cell.data() + cell.size();
    const auto result = std::from_chars(cell.data(), end, value);
    if (cell.empty() || result.ec != std::errc() || result.ptr != end || value < least ||
        value > kTraceMaxNumber) {
      bad_cell(column, cell,
               "a whole number from " + std::to_string(least) + " to " + std::to_string(kTraceMaxNumber));
    }
    return value;
  }

  void check_arrival(std::uint64_t arrival_us, std::string_view cell) const {
    if (columns_.arrival_s.empty() && arrival_us != 0) bad_cell(0, cell, "0 in the first row");
    if (arrival_us < last_arrival_us_) {
      bad_cell(0, cell, "at least " + std::to_string(last_arrival_us_) + ", the arrival before it");
    }
  }

  std::uint16_t class_of(std::string_view cell) {
    if (!is_class_name(cell)) bad_cell(1, cell, "1 to 64 characters of A-Z a-z 0-9 . _ -");
    const auto next_id = static_cast<std::uint16_t>(columns_.class_names.size());
    const auto [entry, is_new] = class_ids_.try_emplace(std::string(cell), next_id);
    if (is_new) {
      if (columns_.class_names.size() == kTraceMaxClasses) {
        bad_cell(1, cell, "at most " + std::to_string(kTraceMaxClasses) + " distinct classes");
      }
      columns_.class_names.emplace_back(cell);
    }
    return entry->second;
  }

  std::string_view rest_;
  std::string name_;
  std::size_t line_number_ = 0;
  std::uint64_t last_arrival_us_ = 0;
  std::unordered_map<std::string, std::uint16_t> class_ids_;
  Columns columns_;
};

void check_same_length(const char* column, std::size_t length, std::size_t need) {
  if (length != need) {
    fail(std::string(column) + " has " + std::to_string(length) + " values; need " + std::to_string(need) +
         ", the length of arrival_s");
  }
}

[[noreturn]] void bad_value(const char* column, std::size_t index, const std::string& value,
                            const std::string& need) {
  fail(std::string(column) + "[" + std::to_string(index) + "] = " + value + "; need " + need);
}

void check_arrivals(std::span<const double> arrival_s) {
  if (arrival_s.size() < 2)
    fail("a trace of " + std::to_string(arrival_s.size()) + " requests; need at least 2");
  double previous = 0.0;
  for (std::size_t i = 0; i < arrival_s.size(); ++i) {
    const double value = arrival_s[i];
    const bool ordered = i == 0 ? value == 0.0 : value >= previous;  // false for NaN
    if (!ordered || !std::isfinite(value)) {
      bad_value("arrival_s", i, number_text(value),
                i == 0 ? "0 first"
                       : "a finite time of at least " + number_text(previous) + ", the arrival before it");
    }
    previous = value;
  }
  if (previous <= 0.0) fail("every arrival_s is 0; need a last arrival above 0");
}

void check_classes(std::span<const std::uint16_t> class_id, std::span<const std::string> class_names) {
  if (class_names.empty() || class_names.size() > kTraceMaxClasses) {
    fail(std::to_string(class_names.size()) + " class_names; need 1 to " + std::to_string(kTraceMaxClasses));
  }
  std::unordered_set<std::string_view> seen;
  for (std::size_t i = 0; i < class_names.size(); ++i) {
    if (!is_class_name(class_names[i])) {
      bad_value("class_names", i, shown(class_names[i]), "1 to 64 characters of A-Z a-z 0-9 . _ -");
    }
    if (!seen.insert(class_names[i]).second) {
      bad_value("class_names", i, shown(class_names[i]), "distinct names");
    }
  }
  for (std::size_t i = 0; i < class_id.size(); ++i) {
    if (class_id[i] >= class_names.size()) {
      bad_value("class_id", i, std::to_string(class_id[i]),
                "less than " + std::to_string(class_names.size()));
    }
  }
}

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

Trace::Trace(std::vector<double> arrival_s, std::vector<std::uint16_t> class_id,
             std::vector<double> service_s, std::vector<std::uint64_t> bytes,
             std::vector<std::string> class_names)
    : arrival_s_(std::move(arrival_s)),
      class_id_(std::move(class_id)),
      service_s_(std::move(service_s)),
      bytes_(std::move(bytes)),
      class_names_(std::move(class_names)) {
  check_arrivals(arrival_s_);
  check_same_length("class_id", class_id_.size(), size());
  check_same_length("service_s", service_s_.size(), size());
  check_same_length("bytes", bytes_.size(), size());
  check_classes(class_id_, class_names_);
  double total_service_s = 0.0;
  for (std::size_t i = 0; i < size(); ++i) {
    if (!(service_s_[i] > 0.0) || !std::isfinite(service_s_[i])) {
      bad_value("service_s", i, number_text(service_s_[i]), "a finite time above 0");
    }
    total_service_s += service_s_[i];
  }
  const auto count = static_cast<double>(size());
  mean_service_s_ = total_service_s / count;
  period_s_ = arrival_s_.back() * (count / (count - 1.0));
  if (!std::isfinite(mean_service_s_) || !std::isfinite(period_s_))
    fail("times of a trace add up to infinity");
}

std::shared_ptr<const Trace> parse_trace(std::string_view text, std::string_view name) {
  Columns columns = Reader(text, name).read();
  return std::make_shared<const Trace>(std::move(columns.arrival_s), std::move(columns.class_id),
                                       std::move(columns.service_s), std::move(columns.bytes),
                                       std::move(columns.class_names));
}

std::shared_ptr<const Trace> load_trace(const std::string& path) {
  const auto cannot_read = [&path](const std::string& reason) {
    fail("trace file '" + path + "' cannot be read: " + reason);
  };
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) cannot_read("no such file");
  if (!std::filesystem::is_regular_file(status)) cannot_read("not a regular file");
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "rb"));
  if (!file) cannot_read(std::strerror(errno));
  std::string text;
  std::vector<char> block(std::size_t{1} << 16);
  for (std::size_t count = 0; (count = std::fread(block.data(), 1, block.size(), file.get())) > 0;) {
    text.append(block.data(), count);
    if (text.size() > kTraceMaxFileBytes) cannot_read("more than 1 GiB");
  }
  if (std::ferror(file.get()) != 0) cannot_read(std::strerror(errno));
  return parse_trace(text, path);
}

}  // namespace steelyard::sim
