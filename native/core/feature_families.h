// The families of features in an observation, by name: what a study can switch off one at a time. A family is
// a kind of measurement (all its reductions) or a reduction (of all reservoirs).
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "native/core/schema.h"

namespace steelyard::core {

inline constexpr std::array<std::string_view, 10> kFeatureFamilies{
    "n_flow_on", "flow_duration", "fct", "inter_arrival", "previous_action",
    "mean",      "p90",           "std", "dmean",         "wdmean"};
inline constexpr size_t kFirstReduction = 5;

inline bool is_feature_family(std::string_view name) {
  return std::find(kFeatureFamilies.begin(), kFeatureFamilies.end(), name) != kFeatureFamilies.end();
}

// Indices into an observation of `num_servers` servers that belong to one of `names`, ascending. Names that
// are no family have none.
inline std::vector<int> feature_indices(int num_servers, std::span<const std::string> names) {
  const auto named = [&](size_t family) {
    return std::find(names.begin(), names.end(), kFeatureFamilies[family]) != names.end();
  };
  std::vector<int> indices;
  const auto add = [&](int index, bool belongs) {
    if (belongs) indices.push_back(index);
  };
  const auto add_reservoir = [&](int first, size_t family) {
    for (int r = 0; r < kReducedScalars; ++r) add(first + r, named(family) || named(kFirstReduction + r));
  };
  for (int j = 0; j < num_servers; ++j) {
    const int first = j * kServerFeatures;
    add(first, named(0));
    add_reservoir(first + 1, 1);
    add_reservoir(first + 1 + kReducedScalars, 2);
  }
  const int shared = num_servers * kServerFeatures;
  add_reservoir(shared, 3);
  for (int j = 0; j < num_servers; ++j) add(shared + kGlobalFeatures + j, named(4));
  return indices;
}

}  // namespace steelyard::core
