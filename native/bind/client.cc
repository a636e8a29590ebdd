// Python face of the open-loop client.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>

#include "native/dataplane/open_loop_client.h"

namespace py = pybind11;
using steelyard::dataplane::ClientPlan;
using steelyard::dataplane::OpenLoopClient;
using steelyard::dataplane::Outcome;

namespace {

std::unique_ptr<OpenLoopClient> make_client(const std::string& address, uint16_t port,
                                            const std::vector<int64_t>& due_ns,
                                            const std::vector<std::string>& paths,
                                            const std::vector<uint32_t>& path_of, double timeout_s,
                                            uint32_t max_open) {
  if (!(timeout_s > 0 && timeout_s <= 3600))
    throw py::value_error("timeout_s: must be above 0, at most 3600");
  const auto timeout_ns = static_cast<int64_t>(std::llround(timeout_s * 1e9));
  return std::make_unique<OpenLoopClient>(
      ClientPlan{address, port, due_ns, paths, path_of, timeout_ns, max_open});
}

template <typename Number, typename Get>
py::array_t<Number> column(const std::vector<Outcome>& outcomes, Get get) {
  py::array_t<Number> out(static_cast<py::ssize_t>(outcomes.size()));
  Number* to = out.mutable_data();
  for (const Outcome& outcome : outcomes) *to++ = static_cast<Number>(get(outcome));
  return out;
}

py::dict results(const OpenLoopClient& client) {
  const std::vector<Outcome>& all = client.outcomes();
  py::dict d;
  d["sent_ns"] = column<int64_t>(all, [](const Outcome& o) { return o.sent_ns; });
  d["done_ns"] = column<int64_t>(all, [](const Outcome& o) { return o.done_ns; });
  d["body_bytes"] = column<int64_t>(all, [](const Outcome& o) { return o.body_bytes; });
  d["status"] = column<int32_t>(all, [](const Outcome& o) { return o.status; });
  d["server"] = column<int32_t>(all, [](const Outcome& o) { return o.server; });
  d["problem"] = column<uint8_t>(all, [](const Outcome& o) { return o.problem; });
  return d;
}

}  // namespace

void bind_client(py::module_& module) {
  py::class_<OpenLoopClient>(module, "OpenLoopClient",
                             "HTTP requests at times fixed in advance, each on a connection of its own.")
      .def(py::init(&make_client), py::arg("address"), py::arg("port"), py::arg("due_ns"), py::arg("paths"),
           py::arg("path_of"), py::arg("timeout_s"), py::arg("max_open"),
           "due_ns: (n,) ascending, from the start; path_of: (n,) indices into paths; timeout_s counts from "
           "when a request was due. A request that would be one more than max_open open ones is not sent.")
      .def("run", &OpenLoopClient::run, py::arg("start_ns"), py::call_guard<py::gil_scoped_release>(),
           "Plays the plan once, in the network namespace of the calling thread; start_ns on the monotonic "
           "clock.")
      .def("stop", &OpenLoopClient::stop, "Ends run() within 50 ms; from any thread.")
      .def_property_readonly("sent", &OpenLoopClient::sent)
      .def_property_readonly("done", &OpenLoopClient::done, "Requests that are answered or given up.")
      .def("results", &results,
           "Columns (n,): sent_ns, done_ns (from the start; -1: never), body_bytes, status, server (header "
           "X-Server; -1: none), problem (0 none, 1 no connection, 2 timeout, 3 reset, 4 short, 5 not sent, "
           "6 stopped). After run().");
}
