// Memory for tables that are read at random: in huge pages where the kernel gives them on request, since
// otherwise nearly every look at a large table also waits for the page's address.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace steelyard::core {

template <class T>
struct HugePages {
  using value_type = T;
  static constexpr size_t kPage = size_t{2} << 20;

  HugePages() = default;
  template <class U>
  HugePages(const HugePages<U>&) {}  // NOLINT: as allocators are

  T* allocate(size_t count) {
    const size_t wanted = count * sizeof(T);
    const bool large = wanted >= kPage / 2;
    const size_t unit = large ? kPage : std::max(alignof(T), alignof(std::max_align_t));
    const size_t bytes = (wanted + unit - 1) / unit * unit;
    void* memory = std::aligned_alloc(unit, bytes);
    if (memory == nullptr) throw std::bad_alloc();
    if (large) madvise(memory, bytes, MADV_HUGEPAGE);  // a wish: without them all works, slower
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t) { std::free(memory); }
  friend bool operator==(const HugePages&, const HugePages&) { return true; }
};

}  // namespace steelyard::core
