// Any bytes are either a Trace that keeps its invariants or one error line that says where: never a crash.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "native/sim/trace.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check_invariants(const steelyard::sim::Trace& trace) {
  const std::size_t count = trace.size();
  require(count >= 2);
  require(trace.class_id().size() == count && trace.service_s().size() == count &&
          trace.bytes().size() == count);
  require(trace.arrival_s()[0] == 0.0 && std::isfinite(trace.period_s()));
  require(trace.period_s() > trace.arrival_s()[count - 1] && trace.mean_service_s() > 0.0);
  for (std::size_t i = 0; i < count; ++i) {
    require(i == 0 || trace.arrival_s()[i] >= trace.arrival_s()[i - 1]);
    require(trace.service_s()[i] > 0.0 && std::isfinite(trace.service_s()[i]));
    require(trace.class_id()[i] < trace.class_names().size());
    require(trace.bytes()[i] <= steelyard::sim::kTraceMaxNumber);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    check_invariants(*steelyard::sim::parse_trace({reinterpret_cast<const char*>(data), size}, "T"));
  } catch (const std::invalid_argument& error) {
    const std::string_view message = error.what();
    // One printable line, "T:LINE: ..." or "T: ..." where the whole text is at fault.
    require(message.substr(0, 2) == "T:" && message.size() < 300);
    for (const char c : message) require(c >= ' ' && c <= '~');
  }
  return 0;
}
