// SPDX-License-Identifier: Apache-2.0
// The Python module weir._C.
#include <c10/util/Exception.h>
#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "backend.h"
#include "operation.h"
#include "window.h"

namespace py = pybind11;
using weir::pytorch::Backend;
using weir::pytorch::Window;
using weir::pytorch::WithoutPython;

namespace {

using Milliseconds = std::chrono::milliseconds;

c10::intrusive_ptr<Backend> create_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, Milliseconds timeout,
    const std::string& name, const std::string& group_name, const std::string& description,
    bool deterministic, std::optional<size_t> arena_bytes, bool enable_reconfigure,
    const c10::intrusive_ptr<Backend>& parent, const std::vector<int>& members) {
  auto options = c10::make_intrusive<Backend::Options>(timeout);
  options->group_name = group_name;
  options->group_desc = description;
  options->global_ranks_in_group.assign(members.begin(), members.end());
  options->deterministic = deterministic;
  if (arena_bytes) options->arena_bytes = *arena_bytes;
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  options->enable_reconfigure = enable_reconfigure;
#else
  if (enable_reconfigure) {
    C10_THROW_ERROR(NotImplementedError,
                    "enable_reconfigure: PyTorch has reconfigure from 2.14 on; this is built "
                    "for " WEIR_BUILT_FOR_TORCH);
  }
#endif
  weir::pytorch::DeadRanks dead;
  if (parent != nullptr) {
    dead = [&] {
      std::vector<int> found;  // as ranks of the new group
      for (const int rank : parent->dead_ranks()) {
        const auto member = std::find(members.begin(), members.end(), rank);
        if (member != members.end()) found.push_back(static_cast<int>(member - members.begin()));
      }
      return found;
    };
  }
  return c10::make_intrusive<Backend>(store, rank, size, std::move(options), name, dead);
}

// With TORCH_DISTRIBUTED_DEBUG=DETAIL the group's backend is in PyTorch's wrapper, which is no part
// of every PyTorch's headers.
Backend* wrapped_in(const c10::intrusive_ptr<c10d::Backend>& backend) {
  const py::gil_scoped_acquire python;
  const py::object wrapper = py::cast(backend);
  if (!py::hasattr(wrapper, "wrapped_pg")) return nullptr;
  const py::object wrapped = wrapper.attr("wrapped_pg");
  return py::isinstance<Backend>(wrapped) ? wrapped.cast<Backend*>() : nullptr;
}

// The way of weir.all_reduce, which is short: the group's backend is looked up here.
void all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op,
                const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  const auto found = group->getBackend(c10::DeviceType::CPU);
  auto* backend = dynamic_cast<Backend*>(found.get());
  if (backend == nullptr) [[unlikely]]
    backend = wrapped_in(found);
  TORCH_CHECK_VALUE(backend != nullptr, "the CPU backend of this group is ",
                    found->getBackendName(),
                    ", not Weir: init_process_group(\"weir\"), or start the program with python -m "
                    "weir.run");
  backend->all_reduce_now(tensor, op);
}

py::object arena_usage(Backend& backend) {
  const auto usage = backend.arena_usage();
  if (!usage) return py::none();
  return py::make_tuple(usage->bytes, usage->used_bytes, usage->buffer_count, usage->is_shared != 0,
                        usage->touched_bytes);
}

py::dict counts() {
  py::dict result;
  for (const auto& all :
       {weir::pytorch::operation_counts(), weir::pytorch::window_operation_counts()}) {
    for (const auto& [name, counted] : all) {
      result[py::str(name)] = py::make_tuple(counted.calls, counted.bytes);
    }
  }
  return result;
}

void reset_counts() {
  weir::pytorch::reset_operation_counts();
  weir::pytorch::reset_window_operation_counts();
}

// What weir/_window.py documents.
void define_window(py::module_& module) {
  const py::call_guard<WithoutPython> no_gil;
  py::class_<Window, std::shared_ptr<Window>>(module, "Window")
      // The last reference may be dropped in Python, and the end of a window waits.
      .def(py::init([](const c10::intrusive_ptr<Backend>& backend, const at::Tensor& memory,
                       int64_t signal_count) {
             return std::shared_ptr<Window>(new Window(backend, memory, signal_count),
                                            [](Window* window) {
                                              const WithoutPython without;
                                              delete window;
                                            });
           }),
           py::arg("backend"), py::arg("memory"), py::arg("signal_count"), no_gil)
      .def("bytes_of", &Window::bytes_of, no_gil)
      .def("put", &Window::put, py::arg("data"), py::arg("target"), py::arg("offset_bytes"),
           py::arg("is_async"), py::arg("timeout") = c10d::kUnsetTimeout, no_gil)
      .def("put_signal", &Window::put_signal, no_gil)
      .def("get", &Window::get, no_gil)
      .def("signal", &Window::signal, py::arg("target"), py::arg("signal"), py::arg("value"),
           py::arg("is_async"), py::arg("timeout") = c10d::kUnsetTimeout, no_gil)
      .def("wait_signal", &Window::wait_signal, py::arg("signal"), py::arg("value"),
           py::arg("is_async"), py::arg("timeout") = c10d::kUnsetTimeout, no_gil)
      .def("fetch_add", &Window::fetch_add, no_gil)
      .def("compare_swap", &Window::compare_swap, no_gil)
      .def("signal_value", &Window::signal_value)
      .def("fence", &Window::fence, no_gil)
      .def("flush", &Window::flush, no_gil)
      .def("close", &Window::close, no_gil)
      .def("retire", &Window::retire, no_gil);
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
           py::arg("arena_bytes") = py::none(), py::arg("enable_reconfigure") = false,
           py::arg("parent") = py::none(), py::arg("members") = std::vector<int>(),
           py::call_guard<WithoutPython>())
      // As ProcessGroupGloo's; PyTorch writes the group's name and ranks there.
      .def_property_readonly("options", &Backend::own_options)
      .def("_set_default_timeout", &Backend::setTimeout, py::arg("timeout"))
      // As PyTorch 2.14 has them, also before.
      .def("register_abort_hook", &Backend::registerAbortHook, py::arg("hook_id"), py::arg("hook"))
      .def("unregister_abort_hook", &Backend::unregisterAbortHook, py::arg("hook_id"))
      .def("lost_ranks", &Backend::lost_ranks, py::call_guard<WithoutPython>())
      .def("arena_usage", &arena_usage);

  py::class_<Backend::Options, c10d::Backend::Options, c10::intrusive_ptr<Backend::Options>>(
      backend, "Options")
      .def(py::init(
               [](Milliseconds timeout) { return c10::make_intrusive<Backend::Options>(timeout); }),
           py::arg("timeout") = kBackendDefaultTimeout)
      .def_readwrite("deterministic", &Backend::Options::deterministic)
      .def_readwrite("arena_bytes", &Backend::Options::arena_bytes);

  // First, since to make a ReduceOp in Python of each RedOpType takes time.
  module.def(
      "all_reduce",
      [](const at::Tensor& tensor, c10d::ReduceOp::RedOpType op,
         const c10::intrusive_ptr<c10d::ProcessGroup>& group) { all_reduce(tensor, op, group); },
      py::arg("tensor"), py::arg("op"), py::arg("group"), py::call_guard<WithoutPython>());
  module.def("all_reduce", &all_reduce, py::arg("tensor"), py::arg("op"), py::arg("group"),
             py::call_guard<WithoutPython>());
  define_window(module);

  module.def("operation_counts", &counts);
  module.def("reset_operation_counts", &reset_counts);
  module.def("stop_completions", &weir::pytorch::stop_completions, py::call_guard<WithoutPython>());
  module.def("weir_version", &weir_version);
  module.attr("built_for_torch") = WEIR_BUILT_FOR_TORCH;
}
