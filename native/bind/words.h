// Enums as words.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <string>
#include <utility>

namespace steelyard::bind {

template <typename E, size_t K>
using Words = std::array<std::pair<const char*, E>, K>;

template <typename E, size_t K>
std::string word_of(const Words<E, K>& words, E value) {
  for (const auto& [word, e] : words) {
    if (e == value) return word;
  }
  return "";
}

template <typename E, size_t K>
E value_of(const Words<E, K>& words, const std::string& text) {
  std::string all;
  for (const auto& [word, e] : words) {
    if (text == word) return e;
    all += (all.empty() ? "" : ", ") + std::string(word);
  }
  throw pybind11::value_error("\"" + text + "\" is not known; use one of " + all);
}

// A property that shows an enum member as a word.
template <auto kMember, typename Class, typename E, size_t K>
void def_word(Class& bound, const char* name, const Words<E, K>& words) {
  using Owner = typename Class::type;
  bound.def_property(
      name, [&words](const Owner& self) { return word_of(words, self.*kMember); },
      [&words](Owner& self, const std::string& text) { self.*kMember = value_of(words, text); });
}

}  // namespace steelyard::bind
