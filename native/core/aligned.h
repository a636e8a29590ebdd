// Arrays of zeroed 4-byte numbers on a cache-line boundary, sized once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace steelyard::core {

template <class T>
class Aligned {
  static_assert(sizeof(T) == 4);

 public:
  Aligned() = default;
  explicit Aligned(size_t size) : lines_((size + kPerLine - 1) / kPerLine), size_(size) {}

  T* data() { return reinterpret_cast<T*>(lines_.data()); }
  const T* data() const { return reinterpret_cast<const T*>(lines_.data()); }
  T& operator[](size_t i) { return data()[i]; }
  T operator[](size_t i) const { return data()[i]; }
  size_t size() const { return size_; }
  void clear() { lines_.assign(lines_.size(), Line{}); }

 private:
  static constexpr size_t kPerLine = 16;
  struct alignas(64) Line {
    T value[kPerLine] = {};
  };
  std::vector<Line> lines_;
  size_t size_ = 0;
};

using AlignedFloats = Aligned<float>;
using AlignedInts = Aligned<int32_t>;

}  // namespace steelyard::core
