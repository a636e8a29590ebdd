// NumPy arrays that native code writes in place: checked, never copied.
#pragma once

#include <pybind11/numpy.h>

#include <string>
#include <vector>

namespace steelyard::bind {

// The memory of a writeable C-contiguous array of this shape and type. Throws ValueError for any other.
template <typename T>
T* buffer(const pybind11::array& array, const char* name, const std::vector<pybind11::ssize_t>& shape) {
  namespace py = pybind11;
  std::string wanted = "(";
  for (const py::ssize_t extent : shape) wanted += std::to_string(extent) + ",";
  wanted += ") of " + std::string(py::str(py::dtype::of<T>()));
  bool fits = array.ndim() == static_cast<py::ssize_t>(shape.size()) && array.dtype().is(py::dtype::of<T>());
  for (size_t i = 0; fits && i < shape.size(); ++i)
    fits = array.shape(static_cast<py::ssize_t>(i)) == shape[i];
  if (!fits || (array.flags() & py::array::c_style) == 0 || !array.writeable()) {
    throw py::value_error(std::string(name) + ": needs a writeable C-contiguous array of shape " + wanted);
  }
  return static_cast<T*>(const_cast<void*>(array.data()));
}

}  // namespace steelyard::bind
