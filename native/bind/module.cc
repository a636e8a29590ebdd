// The extension module: binds what the rooms below offer; no logic of its own.
#include <pybind11/pybind11.h>

namespace py = pybind11;

void bind_policy(py::module_& module);
void bind_trace(py::module_& module);
void bind_config(py::module_& module);
void bind_rules(py::module_& module);
void bind_client(py::module_& module);
void bind_cluster(py::module_& module);
void bind_batch(py::module_& module);
void bind_rack_config(py::module_& module);
void bind_rack(py::module_& module);
void bind_rack_malcolm(py::module_& module);
void bind_rack_policy(py::module_& module);
void bind_tape(py::module_& module);
void bind_rack_batch(py::module_& module);
void bind_malcolm(py::module_& module);
void bind_malcolm_kernels(py::module_& module);
void bind_shm(py::module_& module);

PYBIND11_MODULE(_native, module) {
  module.doc() = "Steelyard's native core: decisions, simulator, inference.";
  bind_policy(module);
  bind_trace(module);
  bind_config(module);
  bind_rules(module);
  bind_client(module);
  bind_cluster(module);
  bind_batch(module);
  bind_rack_config(module);
  bind_rack(module);
  bind_rack_batch(module);
  bind_malcolm(module);
  bind_malcolm_kernels(module);
  bind_rack_malcolm(module);
  bind_shm(module);
  bind_rack_policy(module);
  bind_tape(module);
}
