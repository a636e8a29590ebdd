#include "native/core/observation.h"

#include <algorithm>

namespace steelyard::core {

void write_observation(const Measured& measured, TimeNs now, float* out) {
  const bool features = !measured.duration.empty();
  for (size_t j = 0; j < measured.flows_on.size(); ++j) {
    *out = static_cast<float>(measured.flows_on[j]);
    const Reduced duration = features ? measured.duration[j].reduce(now) : Reduced{};
    const Reduced completion = features ? measured.completion[j].reduce(now) : Reduced{};
    duration.write(out + 1);
    completion.write(out + 1 + kReducedScalars);
    out += kServerFeatures;
  }
  measured.inter_arrival->reduce(now).write(out);
  std::copy(measured.action.begin(), measured.action.end(), out + kGlobalFeatures);
}

}  // namespace steelyard::core
