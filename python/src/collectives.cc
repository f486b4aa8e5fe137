// SPDX-License-Identifier: Apache-2.0
// Broadcast, gather, scatter, all-gather, all-to-all, barrier: what moves tensors.
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>

#include "backend.h"
#include "launch.h"
#include "tensors.h"

namespace weir::pytorch {

namespace {

using c10d::OpType;
using Tensors = std::vector<at::Tensor>;

// From so many bytes a list of tensors is received where it lies; below, in one piece that is
// copied.
constexpr size_t kListInPlaceBytes = 64 << 10;

size_t bytes_of(const Tensors& tensors) {
  size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

const Tensors& only_list(const std::vector<Tensors>& lists, int size, const char* what) {
  TORCH_CHECK_VALUE(lists.size() == 1, what, ": one list of tensors is expected, not ",
                    lists.size());
  TORCH_CHECK_VALUE(lists[0].size() == static_cast<size_t>(size), what, ": a list of ", size,
                    " tensors is expected, one per rank, not of ", lists[0].size());
  return lists[0];
}

bool have_equal_sizes(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.numel() == tensors.front().numel();
  });
}

// Where the tensors of a list lie, as weir.h's displacements from the first of them in memory.
struct Blocks {
  void* base = nullptr;
  std::vector<size_t> counts;
  std::vector<size_t> displacements;
};

Blocks blocks_of(const Tensors& tensors, const Elements& elements) {
  Blocks blocks;
  const size_t element_bytes =
      tensors.empty() ? 1 : tensors[0].element_size() / elements.per_element;
  uintptr_t base = UINTPTR_MAX;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() != 0) base = std::min(base, reinterpret_cast<uintptr_t>(tensor.data_ptr()));
  }
  if (base == UINTPTR_MAX) base = 0;
  for (const at::Tensor& tensor : tensors) {
    blocks.counts.push_back(count_of(tensor, elements));
    const auto address = reinterpret_cast<uintptr_t>(tensor.data_ptr());
    blocks.displacements.push_back(tensor.numel() == 0 ? 0 : (address - base) / element_bytes);
  }
  blocks.base = reinterpret_cast<void*>(base);
  return blocks;
}

// The distances between the tensors are whole numbers of elements.
bool are_aligned(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % tensor.element_size() == 0;
  });
}

// Tensors to receive into: those of the program where they are flat, and else new ones.
Tensors receivable(const Tensors& tensors) {
  const bool aligned = are_aligned(tensors);
  Tensors result;
  for (const at::Tensor& tensor : tensors) {
    result.push_back(aligned && is_flat(tensor) ? tensor : flat_like(tensor));
  }
  return result;
}

}  // namespace

// ---- Broadcast, gather, scatter ---------------------------------------------------------------

Backend::WorkPointer Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  Launch launch(*this, OpType::BROADCAST, "broadcast", options.timeout, options.asyncOp);
  const at::Tensor& tensor = only_one(tensors, launch.name());
  check_rank(options.rootRank, launch.name());
  const bool is_root = options.rootRank == getRank();
  const at::Tensor flat = is_root           ? flat_input(tensor)
                          : is_flat(tensor) ? tensor
                                            : flat_like(tensor);
  const Elements elements = elements_to_move(tensor.scalar_type());
  void* data = flat.data_ptr();
  launch.keep(flat);
  launch.call([&](weir_request_t* request) {
    return weir_broadcast(comm(), data, data, count_of(flat, elements), elements.type,
                          static_cast<int>(options.rootRank), request);
  });
  if (!is_root && !flat.is_same(tensor)) {
    launch.then([tensor, flat] { copy_back(tensor, flat); });
  }
  return launch.finish(tensors, tensors, tensor.nbytes());
}

// `received` is defined on the root alone.
void Backend::call_gather(Launch& launch, const at::Tensor& flat, const at::Tensor& received,
                          int root) {
  const Elements elements = elements_to_move(flat.scalar_type());
  void* data = received.defined() ? received.data_ptr() : nullptr;
  launch.keep(flat);
  launch.keep(received);
  launch.call([&](weir_request_t* request) {
    return weir_gather(comm(), flat.const_data_ptr(), data, count_of(flat, elements), elements.type,
                       root, request);
  });
}

Backend::WorkPointer Backend::gather(TensorLists& outputs, Tensors& inputs,
                                     const c10d::GatherOptions& options) {
  Launch launch(*this, OpType::GATHER, "gather", options.timeout, options.asyncOp);
  const at::Tensor& input = only_one(inputs, launch.name());
  check_rank(options.rootRank, launch.name());
  const bool is_root = options.rootRank == getRank();
  const at::Tensor flat = flat_input(input);
  at::Tensor received;
  if (is_root) {
    const Tensors& list = only_list(outputs, getSize(), launch.name());
    for (const at::Tensor& output : list) {
      check_same_type(output, input, launch.name());
      TORCH_CHECK_VALUE(output.numel() == input.numel(), launch.name(), ": rank ", getRank(),
                        " receives ", output.numel(), " elements from a rank where each sends ",
                        input.numel());
    }
    received = follow_each_other(list) ? list.front()
                                       : at::empty({getSize() * input.numel()}, input.options());
  } else {
    TORCH_CHECK_VALUE(outputs.empty(), launch.name(), ": rank ", getRank(),
                      " is not the root and passes a list to receive into");
  }
  call_gather(launch, flat, received, static_cast<int>(options.rootRank));
  if (is_root && !received.is_same(outputs[0].front())) {
    launch.then([list = outputs[0], received] {
      const auto parts = received.chunk(static_cast<int64_t>(list.size()));
      for (size_t i = 0; i < list.size() && i < parts.size(); ++i) copy_back(list[i], parts[i]);
    });
  }
  return launch.finish(inputs, outputs, input.nbytes());
}

#ifdef C10D_BACKEND_HAS_WINDOW
// `output` of other ranks than the root is not looked at.
Backend::WorkPointer Backend::gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                 const c10d::GatherOptions& options) {
  Launch launch(*this, OpType::GATHER, "gather", options.timeout, options.asyncOp);
  check_cpu(input, launch.name());
  check_rank(options.rootRank, launch.name());
  const bool is_root = options.rootRank == getRank();
  const at::Tensor flat = flat_input(input);
  at::Tensor received;
  if (is_root) {
    check_same_type(output, input, launch.name());
    TORCH_CHECK_VALUE(output.numel() == input.numel() * getSize(), launch.name(),
                      ": output tensor size must be equal to world_size times input tensor size: ",
                      output.numel(), " elements for ", getSize(), " times ", input.numel());
    received = is_flat(output) ? output : flat_like(output);
  }
  call_gather(launch, flat, received, static_cast<int>(options.rootRank));
  if (is_root && !received.is_same(output)) {
    launch.then([output, received] { copy_back(output, received); });
  }
  return launch.finish(Tensors{input}, is_root ? Tensors{output} : Tensors(), input.nbytes());
}
#endif

Backend::WorkPointer Backend::scatter(Tensors& outputs, TensorLists& inputs,
                                      const c10d::ScatterOptions& options) {
  Launch launch(*this, OpType::SCATTER, "scatter", options.timeout, options.asyncOp);
  const at::Tensor& output = only_one(outputs, launch.name());
  check_rank(options.rootRank, launch.name());
  const bool is_root = options.rootRank == getRank();
  const Elements elements = elements_to_move(output.scalar_type());
  at::Tensor sent;
  if (is_root) {
    const Tensors& list = only_list(inputs, getSize(), launch.name());
    for (const at::Tensor& input : list) {
      check_same_type(input, output, launch.name());
      TORCH_CHECK_VALUE(input.numel() == output.numel(), launch.name(), ": a tensor of ",
                        input.numel(), " elements for ranks that receive ", output.numel());
    }
    if (follow_each_other(list)) {
      sent = list.front();
    } else {
      Tensors parts;
      for (const at::Tensor& input : list) parts.push_back(flat_input(input).view({-1}));
      sent = at::cat(parts);
    }
  } else {
    TORCH_CHECK_VALUE(inputs.empty(), launch.name(), ": rank ", getRank(),
                      " is not the root and passes a list to send from");
  }
  const at::Tensor flat = is_flat(output) ? output : flat_like(output);
  void* data = flat.data_ptr();
  launch.keep(flat);
  launch.keep(sent);
  for (const Tensors& list : inputs) {
    for (const at::Tensor& input : list) launch.keep(input);
  }
  launch.call([&](weir_request_t* request) {
    return weir_scatter(comm(), is_root ? sent.const_data_ptr() : nullptr, data,
                        count_of(flat, elements), elements.type, static_cast<int>(options.rootRank),
                        request);
  });
  if (!flat.is_same(output)) launch.then([output, flat] { copy_back(output, flat); });
  return launch.finish(is_root ? inputs[0] : Tensors(), outputs, output.nbytes());
}

// ---- All-gather -------------------------------------------------------------------------------

void Backend::gather_all_flat(Launch& launch, const at::Tensor& output, const at::Tensor& input) {
  check_cpu(input, launch.name());
  check_same_type(output, input, launch.name());
  TORCH_CHECK_VALUE(output.numel() == input.numel() * getSize(), launch.name(),
                    ": output tensor size must be equal to world_size times input tensor size: ",
                    output.numel(), " elements for ", getSize(), " times ", input.numel());
  const Elements elements = elements_to_move(input.scalar_type());
  const at::Tensor flat = flat_input(input);
  const at::Tensor received = is_flat(output) ? output : flat_like(output);
  void* data = received.data_ptr();
  launch.keep(flat);
  launch.keep(received);
  launch.call([&](weir_request_t* request) {
    return weir_all_gather(comm(), flat.const_data_ptr(), data, count_of(flat, elements),
                           elements.type, request);
  });
  if (!received.is_same(output)) launch.then([output, received] { copy_back(output, received); });
}

void Backend::gather_all_lists(Launch& launch, const Tensors& outputs, const at::Tensor& input) {
  for (const at::Tensor& output : outputs) check_same_type(output, input, launch.name());
  TORCH_CHECK_VALUE(outputs[static_cast<size_t>(getRank())].numel() == input.numel(), launch.name(),
                    ": rank ", getRank(), " sends ", input.numel(),
                    " elements and its own place in the list has ",
                    outputs[static_cast<size_t>(getRank())].numel());
  const at::Tensor flat = flat_input(input);
  launch.keep(flat);
  for (const at::Tensor& output : outputs) launch.keep(output);
  // Which call it is follows from the sizes alone, which are the same on all ranks.
  if (have_equal_sizes(outputs) && bytes_of(outputs) < kListInPlaceBytes) {
    const bool direct = follow_each_other(outputs);
    const at::Tensor received =
        direct ? outputs.front() : at::empty({getSize() * input.numel()}, input.options());
    launch.keep(received);
    const Elements elements = elements_to_move(input.scalar_type());
    void* data = received.data_ptr();
    launch.call([&](weir_request_t* request) {
      return weir_all_gather(comm(), flat.const_data_ptr(), data, count_of(flat, elements),
                             elements.type, request);
    });
    if (!direct) {
      launch.then([outputs, received] {
        const auto parts = received.chunk(static_cast<int64_t>(outputs.size()));
        for (size_t i = 0; i < outputs.size() && i < parts.size(); ++i) {
          copy_back(outputs[i], parts[i]);
        }
      });
    }
    return;
  }
  const Elements elements = elements_to_move(input.scalar_type());
  const Tensors received = receivable(outputs);
  for (const at::Tensor& tensor : received) launch.keep(tensor);
  const Blocks blocks = blocks_of(received, elements);
  launch.call([&](weir_request_t* request) {
    return weir_all_gather_v(comm(), flat.const_data_ptr(), blocks.base, blocks.counts.data(),
                             blocks.displacements.data(), elements.type, request);
  });
  launch.then([outputs, received] {
    for (size_t i = 0; i < outputs.size(); ++i) copy_back(outputs[i], received[i]);
  });
}

Backend::WorkPointer Backend::allgather(TensorLists& outputs, Tensors& inputs,
                                        const c10d::AllgatherOptions& options) {
  Launch launch(*this, OpType::ALLGATHER, "all_gather", options.timeout, options.asyncOp);
  const at::Tensor& input = only_one(inputs, launch.name());
  gather_all_lists(launch, only_list(outputs, getSize(), launch.name()), input);
  return launch.finish(inputs, outputs, input.nbytes());
}

Backend::WorkPointer Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                              const c10d::AllgatherOptions& options) {
  Launch launch(*this, OpType::_ALLGATHER_BASE, "_all_gather_base", options.timeout,
                options.asyncOp);
  gather_all_flat(launch, output, input);
  return launch.finish(input, output, input.nbytes());
}

Backend::WorkPointer Backend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                  const c10d::AllgatherOptions& options) {
  Launch launch(*this, OpType::ALLGATHER_COALESCED, "all_gather", options.timeout, options.asyncOp);
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(getSize()), launch.name(), ": a list of ",
                    getSize(), " lists is expected, not of ", outputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_cpu(inputs[i], launch.name());
    Tensors of_ranks;
    for (const Tensors& list : outputs) {
      TORCH_CHECK_VALUE(list.size() == inputs.size(), launch.name(), ": lists of ", list.size(),
                        " and ", inputs.size(), " tensors");
      of_ranks.push_back(list[i]);
    }
    gather_all_lists(launch, of_ranks, inputs[i]);
  }
  return launch.finish(inputs, outputs, bytes_of(inputs));
}

Backend::WorkPointer Backend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  Launch launch(*this, OpType::COALESCED, "allgather_into_tensor_coalesced", options.timeout,
                options.asyncOp);
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), launch.name(), ": ", outputs.size(),
                    " outputs for ", inputs.size(), " inputs");
  for (size_t i = 0; i < inputs.size(); ++i) gather_all_flat(launch, outputs[i], inputs[i]);
  return launch.finish(inputs, outputs, bytes_of(inputs));
}

// ---- All-to-all -------------------------------------------------------------------------------

namespace {

// Elements of each rank's part along the first dimension. `splits` empty: equal parts.
std::vector<size_t> parts_of(const at::Tensor& tensor, const std::vector<int64_t>& splits, int size,
                             const Elements& elements, const char* what) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % size == 0, what,
                      ": Tensor's dim 0 does not divide equally across group size: ", rows,
                      " rows for ", size, " ranks");
    return std::vector<size_t>(static_cast<size_t>(size),
                               count_of(tensor, elements) / static_cast<size_t>(size));
  }
  TORCH_CHECK_VALUE(splits.size() == static_cast<size_t>(size), what,
                    ": Number of tensor splits not equal to group size: ", splits.size(), " for ",
                    size, " ranks");
  int64_t sum = 0;
  for (const int64_t split : splits) {
    TORCH_CHECK_VALUE(split >= 0, what, ": a split of ", split, " rows");
    sum += split;
  }
  TORCH_CHECK_VALUE(sum == rows, what, ": Split sizes doesn't match total dim 0 size: ", sum,
                    " for ", rows);
  const size_t row = rows == 0 ? 0 : count_of(tensor, elements) / static_cast<size_t>(rows);
  std::vector<size_t> counts;
  for (const int64_t split : splits) counts.push_back(static_cast<size_t>(split) * row);
  return counts;
}

}  // namespace

Backend::WorkPointer Backend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                            std::vector<int64_t>& output_splits,
                                            std::vector<int64_t>& input_splits,
                                            const c10d::AllToAllOptions& options) {
  Launch launch(*this, OpType::ALLTOALL_BASE, "all_to_all", options.timeout, options.asyncOp);
  check_cpu(input, launch.name());
  check_same_type(output, input, launch.name());
  const Elements elements = elements_to_move(input.scalar_type());
  const auto send_counts = parts_of(input, input_splits, getSize(), elements, launch.name());
  const auto recv_counts = parts_of(output, output_splits, getSize(), elements, launch.name());
  const at::Tensor flat = flat_input(input);
  const at::Tensor received = is_flat(output) ? output : flat_like(output);
  void* data = received.data_ptr();
  launch.keep(flat);
  launch.keep(received);
  if (input_splits.empty() && output_splits.empty()) {
    TORCH_CHECK_VALUE(input.numel() == output.numel(), launch.name(), ": ", input.numel(),
                      " elements to send and ", output.numel(), " to receive");
    launch.call([&](weir_request_t* request) {
      return weir_all_to_all(comm(), flat.const_data_ptr(), data, send_counts.front(),
                             elements.type, request);
    });
  } else {
    launch.call([&](weir_request_t* request) {
      return weir_all_to_all_v(comm(), flat.const_data_ptr(), send_counts.data(), nullptr, data,
                               recv_counts.data(), nullptr, elements.type, request);
    });
  }
  if (!received.is_same(output)) launch.then([output, received] { copy_back(output, received); });
  return launch.finish(input, output, input.nbytes());
}

Backend::WorkPointer Backend::alltoall(Tensors& outputs, Tensors& inputs,
                                       const c10d::AllToAllOptions& options) {
  Launch launch(*this, OpType::ALLTOALL, "all_to_all", options.timeout, options.asyncOp);
  const auto expected = static_cast<size_t>(getSize());
  TORCH_CHECK_VALUE(inputs.size() == expected && outputs.size() == expected, launch.name(),
                    ": lists of ", expected, " tensors are expected, not of ", inputs.size(),
                    " and ", outputs.size());
  Tensors sent;
  const bool aligned = are_aligned(inputs);
  for (size_t i = 0; i < expected; ++i) {
    check_same_type(inputs[i], inputs[0], launch.name());
    check_same_type(outputs[i], inputs[0], launch.name());
    sent.push_back(aligned ? flat_input(inputs[i]) : flat_input(inputs[i]).clone());
    launch.keep(sent.back());
  }
  const Tensors received = receivable(outputs);
  for (const at::Tensor& tensor : received) launch.keep(tensor);
  const Elements elements = elements_to_move(inputs[0].scalar_type());
  const Blocks from = blocks_of(sent, elements);
  const Blocks to = blocks_of(received, elements);
  launch.call([&](weir_request_t* request) {
    return weir_all_to_all_v(comm(), from.base, from.counts.data(), from.displacements.data(),
                             to.base, to.counts.data(), to.displacements.data(), elements.type,
                             request);
  });
  launch.then([outputs, received] {
    for (size_t i = 0; i < outputs.size(); ++i) copy_back(outputs[i], received[i]);
  });
  return launch.finish(inputs, outputs, bytes_of(inputs));
}

Backend::WorkPointer Backend::barrier(const c10d::BarrierOptions& options) {
  Launch launch(*this, OpType::BARRIER, "barrier", options.timeout, options.asyncOp);
  launch.call([&](weir_request_t* request) { return weir_barrier(comm(), request); });
  return launch.finish(Tensors(), Tensors(), 0);
}

}  // namespace weir::pytorch
