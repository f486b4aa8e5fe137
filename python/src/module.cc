// SPDX-License-Identifier: Apache-2.0
// The Python module weir._C.
#include <c10/util/Exception.h>
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "backend.h"
#include "operation.h"

namespace py = pybind11;
using weir::pytorch::Backend;

namespace {

using Milliseconds = std::chrono::milliseconds;

c10::intrusive_ptr<Backend> create_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int size, Milliseconds timeout, const std::string& name,
                                           const std::string& group_name,
                                           const std::string& description, bool deterministic) {
  auto options = c10::make_intrusive<Backend::Options>(timeout);
  options->group_name = group_name;
  options->group_desc = description;
  options->deterministic = deterministic;
  return c10::make_intrusive<Backend>(store, rank, size, std::move(options), name);
}

// The way of weir.all_reduce, which is short: the group's backend is looked up here.
void all_reduce(const at::Tensor& tensor, c10d::ReduceOp::RedOpType op,
                const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  auto* backend = dynamic_cast<Backend*>(group->getBackend(c10::DeviceType::CPU).get());
  TORCH_CHECK_VALUE(backend != nullptr, "the CPU backend of this group is ",
                    group->getBackend(c10::DeviceType::CPU)->getBackendName(),
                    ", not Weir: init_process_group(\"weir\"), or start the program with python -m "
                    "weir.run");
  backend->all_reduce_now(tensor, op);
}

py::dict counts() {
  py::dict result;
  for (const auto& [name, counted] : weir::pytorch::operation_counts()) {
    result[py::str(name)] = py::make_tuple(counted.calls, counted.bytes);
  }
  return result;
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  // The base classes.
  py::module_::import("torch._C._distributed_c10d");

  py::class_<Backend, c10d::Backend, c10::intrusive_ptr<Backend>> backend(module, "Backend");
  backend
      .def(py::init(&create_backend), py::arg("store"), py::arg("rank"), py::arg("size"),
           py::arg("timeout"), py::arg("name"), py::arg("group_name") = "",
           py::arg("description") = "", py::arg("deterministic") = false,
           py::call_guard<py::gil_scoped_release>())
      // As ProcessGroupGloo's; PyTorch writes the group's name and ranks there.
      .def_property_readonly("options", &Backend::own_options)
      .def("_set_default_timeout", &Backend::setTimeout, py::arg("timeout"))
      .def("lost_ranks", &Backend::lost_ranks, py::call_guard<py::gil_scoped_release>());

  py::class_<Backend::Options, c10d::Backend::Options, c10::intrusive_ptr<Backend::Options>>(
      backend, "Options")
      .def(py::init(
               [](Milliseconds timeout) { return c10::make_intrusive<Backend::Options>(timeout); }),
           py::arg("timeout") = kBackendDefaultTimeout)
      .def_readwrite("deterministic", &Backend::Options::deterministic);

  module.def("all_reduce", &all_reduce, py::arg("tensor"), py::arg("op"), py::arg("group"),
             py::call_guard<py::gil_scoped_release>());
  module.def("operation_counts", &counts);
  module.def("reset_operation_counts", &weir::pytorch::reset_operation_counts);
  module.def("stop_completions", &weir::pytorch::stop_completions,
             py::call_guard<py::gil_scoped_release>());
  module.def("weir_version", &weir_version);
  module.attr("built_for_torch") = WEIR_BUILT_FOR_TORCH;
}
