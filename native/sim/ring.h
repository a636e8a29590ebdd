// A queue on a ring that grows: what waits in a line, and what is under way for a constant time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/core/types.h"

namespace steelyard::sim {

template <typename T>
class Ring {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  void clear() { head_ = size_ = 0; }

  void push_back(const T& value) {
    if (size_ == items_.size()) grow();
    items_[(head_ + size_++) & (items_.size() - 1)] = value;
  }
  const T& front() const { return items_[head_]; }
  const T& operator[](size_t k) const { return items_[(head_ + k) & (items_.size() - 1)]; }
  T pop_front() {
    const T value = items_[head_];
    head_ = (head_ + 1) & (items_.size() - 1);
    --size_;
    return value;
  }
  T pop_back() { return items_[(head_ + --size_) & (items_.size() - 1)]; }

 private:
  [[gnu::noinline]] void grow() {
    std::vector<T> larger(items_.empty() ? 16 : 2 * items_.size());
    for (size_t k = 0; k < size_; ++k) larger[k] = (*this)[k];
    items_ = std::move(larger);
    head_ = 0;
  }

  std::vector<T> items_;  // a power of two of them
  size_t head_ = 0, size_ = 0;
};

// What comes out after a constant delay, in the order in which it went in.
template <typename T>
class DelayLine {
 public:
  core::TimeNs next_time() const { return next_; }
  void clear() {
    line_.clear();
    next_ = core::kNever;
  }
  // `at` is not before that of the last one pushed.
  void push(core::TimeNs at, const T& what) {
    if (line_.empty()) next_ = at;
    line_.push_back({at, what});
  }
  T pop() {
    const T what = line_.pop_front().what;
    next_ = line_.empty() ? core::kNever : line_.front().at;
    return what;
  }

 private:
  struct Item {
    core::TimeNs at;
    T what;
  };
  Ring<Item> line_;
  core::TimeNs next_ = core::kNever;
};

}  // namespace steelyard::sim
