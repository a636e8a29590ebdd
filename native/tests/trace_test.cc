// The trace reader: what it accepts, what it refuses and on which line, and the invariants of a Trace.
#include "native/sim/trace.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace steelyard::sim {
namespace {

const std::string kHead = "# steelyard-trace-v1\narrival_us,class,service_us,bytes\n";
const std::string kGood = kHead + "0,php,7421,312\n1500,static-100k,95,102400\n4500,php,12,0\n";

std::string error_of(const std::string& text) {
  try {
    parse_trace(text, "T");
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Trace, ReadsColumnsInSecondsAndClassesInOrderOfAppearance) {
  const auto trace = parse_trace(kGood);
  ASSERT_EQ(trace->size(), 3U);
  EXPECT_DOUBLE_EQ(trace->arrival_s()[0], 0.0);
  EXPECT_DOUBLE_EQ(trace->arrival_s()[1], 1500e-6);
  EXPECT_DOUBLE_EQ(trace->service_s()[0], 7421e-6);
  EXPECT_EQ(trace->bytes()[1], 102400U);
  ASSERT_EQ(trace->class_names().size(), 2U);
  EXPECT_EQ(trace->class_names()[0], "php");
  EXPECT_EQ(trace->class_names()[1], "static-100k");
  EXPECT_EQ(trace->class_id()[2], 0);
  EXPECT_DOUBLE_EQ(trace->mean_service_s(), (7421 + 95 + 12) * 1e-6 / 3);
}

TEST(Trace, OneTurnEndsOneMeanGapAfterTheLastArrival) {
  const auto trace = parse_trace(kGood);  // 3 requests, gaps 1.5 ms and 3 ms: mean gap 2.25 ms
  EXPECT_DOUBLE_EQ(trace->period_s(), 4500e-6 + 2250e-6);
  EXPECT_DOUBLE_EQ(trace->mean_rate() * trace->period_s(), 3.0);
}

TEST(Trace, AcceptsCommentsWindowsLineEndsAndAMissingLastNewline) {
  const auto trace = parse_trace(
      "# steelyard-trace-v1\r\n# by hand\r\narrival_us,class,service_us,bytes\r\n0,a,1,0\r\n# "
      "note\r\n0,a,1,0\r\n2,b,1,0");
  EXPECT_EQ(trace->size(), 3U);
  EXPECT_EQ(trace->class_names()[1], "b");
}

TEST(Trace, AcceptsTheLargestNumbers) {
  const auto trace = parse_trace(kHead + "0,a,1000000000000000,1000000000000000\n1000000000000000,a,1,0\n");
  EXPECT_DOUBLE_EQ(trace->arrival_s()[1], 1e9);
  EXPECT_EQ(trace->bytes()[0], kTraceMaxNumber);
}

struct BadText {
  const char* what;
  std::string text;
  const char* message;
};

TEST(Trace, RefusesBadTextNamingLineColumnValueAndWhatIsAllowed) {
  const std::string number = "is not allowed; need a whole number from ";
  const std::vector<BadText> cases = {
      {"empty file", "", "T: the file is empty"},
      {"another file", "PK\x03\x04 junk", "T:1: 'PK?? junk' is not a version line"},
      {"later version", "# steelyard-trace-v2\n", "need '# steelyard-trace-v1'"},
      {"no columns", "# steelyard-trace-v1\n# note\n",
       "T: no column header; need the line 'arrival_us,class,"},
      {"other columns", "# steelyard-trace-v1\na,b\n", "T:2: 'a,b' is not the column header"},
      {"no rows", kHead, "T: 0 requests; need at least 2"},
      {"one row", kHead + "0,a,1,1\n", "T: 1 requests; need at least 2"},
      {"no time passes", kHead + "0,a,1,1\n0,a,1,1\n", "T: every arrival_us is 0"},
      {"late start", kHead + "7,a,1,1\n",
       "T:3: column arrival_us: '7' is not allowed; need 0 in the first row"},
      {"backwards", kGood + "4499,a,1,1\n",
       "T:6: column arrival_us: '4499' is not allowed; need at least 4500"},
      {"negative time", kGood + "-1,a,1,1\n",
       "T:6: column arrival_us: '-1' is not allowed; need a whole number"},
      {"NaN", kGood + "5000,a,NaN,1\n",
       "T:6: column service_us: 'NaN' is not allowed; need a whole number from 1"},
      {"fraction", kGood + "5000,a,1.5,1\n", "T:6: column service_us: '1.5'"},
      {"no service", kGood + "5000,a,0,1\n", "T:6: column service_us: '0'"},
      {"empty cell", kGood + "5000,a,,1\n", "T:6: column service_us: ''"},
      {"blank", kGood + "5000,a, 7,1\n", "T:6: column service_us: ' 7'"},
      {"plus sign", kGood + "5000,a,+7,1\n", "T:6: column service_us: '+7'"},
      {"too large", kGood + "5000,a,1000000000000001,1\n", "T:6: column service_us: '1000000000000001'"},
      {"overflow", kGood + "5000,a,1,99999999999999999999999\n",
       "T:6: column bytes: '99999999999999999999999'"},
      {"negative bytes", kGood + "5000,a,1,-1\n",
       "T:6: column bytes: '-1' is not allowed; need a whole number from 0"},
      {"no class", kGood + "5000,,1,1\n", "T:6: column class: '' is not allowed; need 1 to 64 characters"},
      {"odd class", kGood + "5000,a b,1,1\n", "T:6: column class: 'a b'"},
      {"long class", kGood + "5000," + std::string(65, 'x') + ",1,1\n", "T:6: column class: 'xxxxxxxx"},
      {"three columns", kGood + "5000,a,1\n", "T:6: 3 columns; need 4"},
      {"five columns", kGood + "5000,a,1,1,1\n", "T:6: 5 columns; need 4"},
      {"empty line", kGood + "\n", "T:6: empty line; need 4"},
      {"NUL bytes", kGood + std::string(8, '\0'), "T:6: 1 columns; need 4"},
  };
  for (const BadText& bad : cases) {
    const std::string error = error_of(bad.text);
    EXPECT_NE(error.find(bad.message), std::string::npos) << bad.what << ": " << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << bad.what;
    EXPECT_LT(error.size(), 200U) << bad.what;
  }
}

TEST(Trace, RefusesMoreClassesThanAnIdCanName) {
  std::string text = kHead;
  for (std::size_t i = 0; i <= kTraceMaxClasses; ++i)
    text += std::to_string(i) + ",c" + std::to_string(i) + ",1,1\n";
  EXPECT_NE(error_of(text).find("T:4099: column class: 'c4096' is not allowed; need at most 4096"),
            std::string::npos);
}

TEST(Trace, ReadsAFileAndNamesItInErrors) {
  const auto folder = std::filesystem::path(testing::TempDir());
  const std::string good = folder / "steelyard_trace_good.csv";
  const std::string bad = folder / "steelyard_trace_bad.csv";
  std::ofstream(good, std::ios::binary) << kGood;
  std::ofstream(bad, std::ios::binary) << kGood << "x";
  EXPECT_EQ(load_trace(good)->size(), 3U);
  const auto message = [](const std::string& path) -> std::string {
    try {
      load_trace(path);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message(bad).rfind(bad + ":6: 1 columns", 0), 0U) << message(bad);
  EXPECT_NE(message(folder / "steelyard_no_such_file").find("no such file"), std::string::npos);
  EXPECT_NE(message(folder).find("not a regular file"), std::string::npos);
  std::filesystem::remove(good);
  std::filesystem::remove(bad);
}

struct Arrays {
  std::vector<double> arrival_s = {0.0, 1.0, 1.0};
  std::vector<std::uint16_t> class_id = {0, 1, 0};
  std::vector<double> service_s = {0.5, 0.25, 0.125};
  std::vector<std::uint64_t> bytes = {1, 2, 3};
  std::vector<std::string> class_names = {"a", "b"};

  std::string error() const {
    try {
      const Trace trace(arrival_s, class_id, service_s, bytes, class_names);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "accepted";
  }
};

TEST(Trace, BuildsFromArraysAndRefusesArraysThatBreakAnInvariant) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(Arrays().error(), "accepted");
  const auto refused = [](auto change, const std::string& start) {
    Arrays arrays;
    change(arrays);
    EXPECT_EQ(arrays.error().rfind(start, 0), 0U) << arrays.error();
  };
  refused([](Arrays& a) { a = Arrays{{0.0}, {0}, {1.0}, {1}, {"a"}}; },
          "a trace of 1 requests; need at least 2");
  refused([](Arrays& a) { a.arrival_s = {0.0, 0.0, 0.0}; }, "every arrival_s is 0");
  refused([](Arrays& a) { a.arrival_s[0] = 0.5; }, "arrival_s[0] = 0.5; need 0");
  refused([](Arrays& a) { a.arrival_s[2] = 0.5; }, "arrival_s[2] = 0.5; need a finite time of at least 1");
  refused([nan](Arrays& a) { a.arrival_s[1] = nan; }, "arrival_s[1] = nan");
  refused([inf](Arrays& a) { a.arrival_s[2] = inf; }, "arrival_s[2] = inf");
  refused([](Arrays& a) { a.class_id.pop_back(); }, "class_id has 2 values; need 3");
  refused([](Arrays& a) { a.service_s.pop_back(); }, "service_s has 2 values; need 3");
  refused([](Arrays& a) { a.bytes.push_back(1); }, "bytes has 4 values; need 3");
  refused([](Arrays& a) { a.service_s[1] = 0.0; }, "service_s[1] = 0; need a finite time above 0");
  refused([nan](Arrays& a) { a.service_s[1] = nan; }, "service_s[1] = nan");
  refused([](Arrays& a) { a.service_s = {1e308, 1e308, 1e308}; }, "times of a trace add up to infinity");
  refused([](Arrays& a) { a.class_id[1] = 2; }, "class_id[1] = 2; need less than 2");
  refused([](Arrays& a) { a.class_names.clear(); }, "0 class_names; need 1 to 4096");
  refused([](Arrays& a) { a.class_names[1] = "a"; }, "class_names[1] = 'a'; need distinct names");
  refused([](Arrays& a) { a.class_names[1] = "a\nb"; }, "class_names[1] = 'a?b'; need 1 to 64");
}

}  // namespace
}  // namespace steelyard::sim
