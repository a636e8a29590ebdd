// Python face of request traces: read-only NumPy views over the columns of an immutable Trace.
#include "native/sim/trace.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace py = pybind11;

namespace {

using steelyard::sim::Trace;

// Python has no const: the class is bound without setters, and its holder drops the const of the C++ door.
std::shared_ptr<Trace> held(const std::shared_ptr<const Trace>& trace) {
  return std::const_pointer_cast<Trace>(trace);
}

template <typename T>
py::array view(const py::object& owner, std::span<const T> column) {
  py::array array(py::dtype::of<T>(), {column.size()}, {sizeof(T)}, column.data(), owner);
  array.attr("setflags")(py::arg("write") = false);
  return array;
}

// One-dimensional input. No forcecast: a lossy conversion is a TypeError, not a silent copy.
template <typename T>
std::vector<T> column(const py::array_t<T, py::array::c_style>& array, const char* name) {
  if (array.ndim() != 1) {
    throw py::value_error(std::string(name) + " has " + std::to_string(array.ndim()) + " dimensions; need 1");
  }
  return {array.data(), array.data() + array.size()};
}

std::shared_ptr<Trace> from_arrays(const py::array_t<double, py::array::c_style>& arrival_s,
                                   const py::array_t<std::uint16_t, py::array::c_style>& class_id,
                                   const py::array_t<double, py::array::c_style>& service_s,
                                   const py::array_t<std::uint64_t, py::array::c_style>& bytes,
                                   std::vector<std::string> class_names) {
  return std::make_shared<Trace>(column(arrival_s, "arrival_s"), column(class_id, "class_id"),
                                 column(service_s, "service_s"), column(bytes, "bytes"),
                                 std::move(class_names));
}

std::vector<std::string> names(const Trace& trace) {
  return {trace.class_names().begin(), trace.class_names().end()};
}

std::string representation(const Trace& trace) {
  return "<steelyard.native.Trace: " + std::to_string(trace.size()) + " requests of " +
         std::to_string(trace.class_names().size()) + " classes in " + std::to_string(trace.period_s()) +
         " s>";
}

void bind_class(py::module_& module) {
  py::class_<Trace, std::shared_ptr<Trace>>(
      module, "Trace",
      "A recorded request trace of n requests, immutable.\n\n"
      "Columns are read-only views of shape (n,): arrival_s float64 [s] (starts at 0, never decreases), "
      "class_id uint16\n"
      "(index into class_names), service_s float64 [s] (work of one worker, above 0), bytes uint64.\n"
      "Columns that break these rules are a ValueError.")
      .def(py::init(&from_arrays), py::arg("arrival_s"), py::arg("class_id"), py::arg("service_s"),
           py::arg("bytes"), py::arg("class_names"))
      .def("__len__", &Trace::size)
      .def("__repr__", &representation)
      .def_property_readonly(
          "arrival_s",
          [](const py::object& self) { return view(self, self.cast<const Trace&>().arrival_s()); })
      .def_property_readonly(
          "class_id", [](const py::object& self) { return view(self, self.cast<const Trace&>().class_id()); })
      .def_property_readonly(
          "service_s",
          [](const py::object& self) { return view(self, self.cast<const Trace&>().service_s()); })
      .def_property_readonly(
          "bytes", [](const py::object& self) { return view(self, self.cast<const Trace&>().bytes()); })
      .def_property_readonly("class_names", &names)
      .def_property_readonly("period_s", &Trace::period_s,
                             "Length of one turn of a circular replay: last arrival plus one mean gap [s].")
      .def_property_readonly("mean_rate", &Trace::mean_rate, "Requests per second of a circular replay.")
      .def_property_readonly("mean_service_s", &Trace::mean_service_s)
      .def(py::pickle(
          [](const py::object& self) -> py::tuple {
            return py::make_tuple(self.attr("arrival_s"), self.attr("class_id"), self.attr("service_s"),
                                  self.attr("bytes"), self.attr("class_names"));
          },
          [](const py::tuple& state) {
            if (state.size() != 5) throw py::value_error("not the pickled state of a Trace");
            return from_arrays(state[0].cast<py::array_t<double, py::array::c_style>>(),
                               state[1].cast<py::array_t<std::uint16_t, py::array::c_style>>(),
                               state[2].cast<py::array_t<double, py::array::c_style>>(),
                               state[3].cast<py::array_t<std::uint64_t, py::array::c_style>>(),
                               state[4].cast<std::vector<std::string>>());
          }));
}

}  // namespace

void bind_trace(py::module_& module) {
  bind_class(module);
  module.def(
      "load_trace", [](const std::string& path) { return held(steelyard::sim::load_trace(path)); },
      py::arg("path"),
      "Read a trace file. A bad line is a ValueError 'PATH:LINE: column C: VALUE is not allowed; need ...'.");
  module.def(
      "parse_trace",
      [](const py::bytes& text, const std::string& name) {
        return held(steelyard::sim::parse_trace(static_cast<std::string_view>(text), name));
      },
      py::arg("text"), py::arg("name") = "trace", "Read the bytes of a trace file; name stands in messages.");
}
