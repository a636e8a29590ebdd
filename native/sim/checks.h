// One-line refusals of bad configuration, shared by the worlds.
#pragma once

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace steelyard::sim {

[[noreturn]] inline void refuse(const std::string& key, double value, const std::string& allowed) {
  std::string text = std::to_string(value);
  if (value == std::floor(value) && std::abs(value) < 1e15)
    text = std::to_string(static_cast<int64_t>(value));
  throw std::invalid_argument(key + ": " + text + " is not allowed; use " + allowed);
}

inline void in_range(const std::string& key, double value, double low, double high) {
  if (value >= low && value <= high) return;
  refuse(key, value, "a number in [" + std::to_string(low) + ", " + std::to_string(high) + "]");
}

inline void positive(const std::string& key, double value) {
  if (!(value > 0 && std::isfinite(value))) refuse(key, value, "a finite number above 0");
}

}  // namespace steelyard::sim
