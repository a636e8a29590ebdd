// `native.Policy`: a loaded policy and the agents that Python steps by hand. RuleConfig takes `loaded`.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "native/core/hosted_policy.h"

namespace steelyard::bind {

struct PolicyHandle {
  std::shared_ptr<const core::LoadedPolicy> loaded;
  core::HostedPolicy hosted;
};

// A float32 array with `dims` dimensions; ValueError naming `name` for any other object. Other dtypes are
// refused rather than rounded.
pybind11::array float32_array(const std::string& name, const pybind11::object& object,
                              pybind11::ssize_t dims);
// A new array of `shape` with a copy of `values`.
pybind11::array_t<float> copied_array(const float* values, const std::vector<pybind11::ssize_t>& shape);
std::string shape_text(const std::vector<pybind11::ssize_t>& shape);
// The place of `word` in `words`; ValueError naming `name` and all words when it has none.
size_t word_index(const std::string& name, const std::string& word, const std::vector<std::string>& words);
// The words for core::Activation, in the order of the enum.
const std::vector<std::string>& activation_words();

// encode_policy, decode_policy, pack_policy.
void bind_policy_spec(pybind11::module_& module);

}  // namespace steelyard::bind
