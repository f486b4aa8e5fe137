// SPDX-License-Identifier: Apache-2.0
// All-reduce, reduce, reduce-scatter.
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

#include "backend.h"
#include "launch.h"
#include "tensors.h"

namespace weir::pytorch {

namespace {

using c10d::OpType;
using c10d::ReduceOp;

// A reduction for weir.h; one with a factor is made for one call.
class Operator {
 public:
  Operator(weir_comm_t comm, const ReduceOp& op, const Reduction& reduction, at::ScalarType type,
           const char* what)
      : comm_(comm), op_(reduction.op), is_made_(op.op_ == ReduceOp::PREMUL_SUM) {
    if (!is_made_) return;
    alignas(8) unsigned char factor[8] = {};
    factor_of(op, type, factor);
    check(weir_redop_create_premul_sum(comm, factor, reduction.type, &op_), comm, what);
  }
  // Operations that have started keep the factor.
  ~Operator() {
    if (!is_made_) return;
    [[maybe_unused]] const weir_result_t result = weir_redop_destroy(comm_, op_);
  }
  Operator(const Operator&) = delete;
  Operator& operator=(const Operator&) = delete;

  weir_redop_t get() const { return op_; }

 private:
  weir_comm_t comm_;
  weir_redop_t op_;
  bool is_made_;
};

size_t count_of(const at::Tensor& tensor, const Reduction& reduction) {
  return static_cast<size_t>(tensor.numel()) * (reduction.way == Reduction::Way::kComplex ? 2 : 1);
}

// The tensor's own memory or a copy, as weir.h is to read it.
at::Tensor operand(const at::Tensor& tensor, const Reduction& reduction) {
  if (reduction.way == Reduction::Way::kInt32) return flat_input(tensor).to(at::kInt);
  return flat_input(tensor);
}

at::Tensor result_like(const at::Tensor& tensor, const Reduction& reduction) {
  if (reduction.way == Reduction::Way::kInt32) {
    return at::empty(tensor.sizes(), tensor.options().dtype(at::kInt));
  }
  return is_flat(tensor) ? tensor : flat_like(tensor);
}

// Folds the rows of `rows` in the order of ranks.
at::Tensor fold_bits(const at::Tensor& rows, ReduceOp::RedOpType op) {
  at::Tensor folded = rows[0].clone();
  for (int64_t rank = 1; rank < rows.size(0); ++rank) {
    if (op == ReduceOp::BAND) {
      folded.bitwise_and_(rows[rank]);
    } else if (op == ReduceOp::BOR) {
      folded.bitwise_or_(rows[rank]);
    } else {
      folded.bitwise_xor_(rows[rank]);
    }
  }
  return folded;
}

}  // namespace

// ---- All-reduce, reduce -----------------------------------------------------------------------

void Backend::gather_to_fold(Launch& launch, const at::Tensor& input,
                             std::function<void(const at::Tensor& rows)> use) {
  const Elements elements = elements_to_move(input.scalar_type());
  const at::Tensor flat = flat_input(input);
  const at::Tensor rows = at::empty({getSize(), input.numel()}, input.options());
  void* data = rows.data_ptr();
  launch.keep(flat);
  launch.keep(rows);
  launch.call([&](weir_request_t* request) {
    return weir_all_gather(comm(), flat.const_data_ptr(), data,
                           static_cast<size_t>(flat.numel()) * elements.per_element, elements.type,
                           request);
  });
  launch.then([rows, use = std::move(use)] { use(rows); });
}

void Backend::reduce_all(Launch& launch, const at::Tensor& tensor, const ReduceOp& op) {
  check_cpu(tensor, launch.name());
  const Reduction reduction = reduction_of(op, tensor.scalar_type(), launch.name());
  launch.keep(tensor);
  if (reduction.way == Reduction::Way::kBitwise) {
    gather_to_fold(launch, tensor, [tensor, bits = op.op_](const at::Tensor& rows) {
      copy_back(tensor, fold_bits(rows, bits));
    });
    return;
  }
  const at::Tensor flat = operand(tensor, reduction);
  void* data = flat.data_ptr();
  launch.keep(flat);
  const Operator with(comm(), op, reduction, tensor.scalar_type(), launch.name());
  launch.call([&](weir_request_t* request) {
    return weir_all_reduce(comm(), data, data, count_of(flat, reduction), reduction.type,
                           with.get(), request);
  });
  if (!flat.is_same(tensor)) launch.then([tensor, flat] { copy_back(tensor, flat); });
}

Backend::WorkPointer Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors[0].is_sparse()) return allreduce_sparse(tensors, options);
  Launch launch(*this, OpType::ALLREDUCE, "all_reduce", options.timeout, options.asyncOp);
  TORCH_CHECK_VALUE(tensors.size() == 1, launch.name(), ": one tensor is expected, not ",
                    tensors.size());
  reduce_all(launch, tensors[0], options.reduceOp);
  return launch.finish(tensors, tensors, tensors[0].nbytes());
}

Backend::WorkPointer Backend::allreduce_coalesced(Tensors& tensors,
                                                  const c10d::AllreduceCoalescedOptions& options) {
  Launch launch(*this, OpType::ALLREDUCE_COALESCED, "all_reduce", options.timeout, options.asyncOp);
  size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    reduce_all(launch, tensor, options.reduceOp);
    bytes += tensor.nbytes();
  }
  return launch.finish(tensors, tensors, bytes);
}

void Backend::all_reduce_now(const at::Tensor& tensor, const ReduceOp& op) {
  Launch launch(*this, OpType::ALLREDUCE, "all_reduce", c10d::kUnsetTimeout, false);
  // PyTorch's dispatcher, which this call goes past, makes memory of such a tensor.
  TORCH_CHECK_VALUE(!tensor._is_zerotensor(), launch.name(),
                    ": a zero tensor has no memory for the result: clone() it");
  TORCH_CHECK_VALUE(
      !tensor.unsafeGetTensorImpl()->is_python_dispatch() || tensor.data_ptr() != nullptr,
      launch.name(),
      ": a tensor of a Python class, such as a DTensor, has no memory "
      "of its own: pass its local tensor");
  reduce_all(launch, tensor, op);
  launch.finish_now(tensor.nbytes());
}

Backend::WorkPointer Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  Launch launch(*this, OpType::REDUCE, "reduce", options.timeout, options.asyncOp);
  const at::Tensor& tensor = only_one(tensors, launch.name());
  check_rank(options.rootRank, launch.name());
  const bool is_root = options.rootRank == getRank();
  const Reduction reduction = reduction_of(options.reduceOp, tensor.scalar_type(), launch.name());
  launch.keep(tensor);
  if (reduction.way == Reduction::Way::kBitwise) {
    gather_to_fold(launch, tensor,
                   [tensor, is_root, bits = options.reduceOp.op_](const at::Tensor& rows) {
                     if (is_root) copy_back(tensor, fold_bits(rows, bits));
                   });
    return launch.finish(tensors, tensors, tensor.nbytes());
  }
  const at::Tensor flat = operand(tensor, reduction);
  void* data = flat.data_ptr();
  launch.keep(flat);
  const Operator with(comm(), options.reduceOp, reduction, tensor.scalar_type(), launch.name());
  launch.call([&](weir_request_t* request) {
    return weir_reduce(comm(), data, is_root ? data : nullptr, count_of(flat, reduction),
                       reduction.type, with.get(), static_cast<int>(options.rootRank), request);
  });
  if (is_root && !flat.is_same(tensor)) launch.then([tensor, flat] { copy_back(tensor, flat); });
  return launch.finish(tensors, tensors, tensor.nbytes());
}

// ---- Reduce-scatter ---------------------------------------------------------------------------

// `input` holds one block per rank; `counts` are their elements, of the tensor's type.
void Backend::reduce_scatter_flat(Launch& launch, const at::Tensor& output, const at::Tensor& input,
                                  const std::vector<size_t>& counts, const ReduceOp& op) {
  const Reduction reduction = reduction_of(op, input.scalar_type(), launch.name());
  const auto rank = static_cast<size_t>(getRank());
  launch.keep(input);
  launch.keep(output);
  if (reduction.way == Reduction::Way::kBitwise) {
    const auto begin = static_cast<int64_t>(
        std::accumulate(counts.begin(), counts.begin() + getRank(), size_t{0}));
    gather_to_fold(launch, input,
                   [output, begin, length = static_cast<int64_t>(counts[rank]),
                    bits = op.op_](const at::Tensor& rows) {
                     copy_back(output, fold_bits(rows.narrow(1, begin, length), bits));
                   });
    return;
  }
  const at::Tensor flat = operand(input, reduction);
  const at::Tensor result = result_like(output, reduction);
  void* data = result.data_ptr();
  launch.keep(flat);
  launch.keep(result);
  const size_t factor = reduction.way == Reduction::Way::kComplex ? 2 : 1;
  const bool is_even = std::all_of(counts.begin(), counts.end(),
                                   [&](size_t count) { return count == counts.front(); });
  const Operator with(comm(), op, reduction, input.scalar_type(), launch.name());
  if (is_even) {
    launch.call([&](weir_request_t* request) {
      return weir_reduce_scatter(comm(), flat.const_data_ptr(), data, counts.front() * factor,
                                 reduction.type, with.get(), request);
    });
  } else {
    std::vector<size_t> own(counts);
    for (size_t& count : own) count *= factor;
    launch.call([&](weir_request_t* request) {
      return weir_reduce_scatter_v(comm(), flat.const_data_ptr(), data, own.data(), reduction.type,
                                   with.get(), request);
    });
  }
  if (!result.is_same(output)) launch.then([output, result] { copy_back(output, result); });
}

Backend::WorkPointer Backend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                             const c10d::ReduceScatterOptions& options) {
  Launch launch(*this, OpType::REDUCE_SCATTER, "reduce_scatter", options.timeout, options.asyncOp);
  const at::Tensor& output = only_one(outputs, launch.name());
  TORCH_CHECK_VALUE(inputs.size() == 1 && inputs[0].size() == static_cast<size_t>(getSize()),
                    launch.name(), ": one list of ", getSize(), " tensors is expected");
  const Tensors& list = inputs[0];
  std::vector<size_t> counts;
  for (const at::Tensor& input : list) {
    check_same_type(input, output, launch.name());
    counts.push_back(static_cast<size_t>(input.numel()));
    launch.keep(input);
  }
  TORCH_CHECK_VALUE(counts[static_cast<size_t>(getRank())] == static_cast<size_t>(output.numel()),
                    launch.name(), ": rank ", getRank(), " receives ", output.numel(),
                    " elements and its own place in the list has ",
                    counts[static_cast<size_t>(getRank())]);
  size_t bytes = 0;
  Tensors parts;
  for (const at::Tensor& input : list) {
    bytes += input.nbytes();
    parts.push_back(flat_input(input).view({-1}));
  }
  // Blocks that follow each other are one array already.
  const at::Tensor input = bytes != 0 && follow_each_other(list) ? as_one(list) : at::cat(parts);
  reduce_scatter_flat(launch, output, input, counts, options.reduceOp);
  return launch.finish(list, outputs, bytes);
}

void Backend::reduce_scatter_base(Launch& launch, const at::Tensor& output, const at::Tensor& input,
                                  const ReduceOp& op) {
  check_cpu(input, launch.name());
  check_same_type(output, input, launch.name());
  TORCH_CHECK_VALUE(input.numel() == output.numel() * getSize(), launch.name(),
                    ": input tensor must be the same size as output size times world size: ",
                    input.numel(), " elements for ", getSize(), " times ", output.numel());
  const std::vector<size_t> counts(static_cast<size_t>(getSize()),
                                   static_cast<size_t>(output.numel()));
  reduce_scatter_flat(launch, output, input, counts, op);
}

Backend::WorkPointer Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                   const c10d::ReduceScatterOptions& options) {
  Launch launch(*this, OpType::_REDUCE_SCATTER_BASE, "_reduce_scatter_base", options.timeout,
                options.asyncOp);
  reduce_scatter_base(launch, output, input, options.reduceOp);
  return launch.finish(input, output, input.nbytes());
}

namespace {

// PyTorch 2.11 has no name of its own for the operation.
template <typename Type>
constexpr Type type_of_coalesced_reduce_scatter() {
  if constexpr (requires { Type::REDUCE_SCATTER_TENSOR_COALESCED; }) {
    return Type::REDUCE_SCATTER_TENSOR_COALESCED;
  } else {
    return Type::_REDUCE_SCATTER_BASE;
  }
}

}  // namespace

Backend::WorkPointer Backend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  Launch launch(*this, type_of_coalesced_reduce_scatter<OpType>(),
                "reduce_scatter_tensor_coalesced", options.timeout, options.asyncOp);
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), launch.name(), ": ", outputs.size(),
                    " outputs for ", inputs.size(), " inputs");
  size_t bytes = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    reduce_scatter_base(launch, outputs[i], inputs[i], options.reduceOp);
    bytes += inputs[i].nbytes();
  }
  return launch.finish(inputs, outputs, bytes);
}

// ---- Sparse -----------------------------------------------------------------------------------

namespace {

// The number of entries, of dimensions, and the type of each rank.
struct SparseForm {
  int64_t entries;
  int64_t sparse_dimensions;
  int64_t dense_dimensions;
  int64_t type;
};
static_assert(sizeof(SparseForm) == 4 * sizeof(int64_t));

// Refuses on all ranks alike what does not fit: indices of one rank must not lie outside the tensor
// of another.
std::vector<SparseForm> agree_on_form(weir_comm_t comm, int size, const at::Tensor& own,
                                      const char* name) {
  const SparseForm mine{own._nnz(), own.sparse_dim(), own.dense_dim(),
                        static_cast<int64_t>(own.scalar_type())};
  std::vector<SparseForm> forms(static_cast<size_t>(size));
  check(weir_all_gather(comm, &mine, forms.data(), 4, WEIR_INT64, nullptr), comm, name);
  for (size_t rank = 1; rank < forms.size(); ++rank) {
    const SparseForm& it = forms[rank];
    TORCH_CHECK_VALUE(
        it.sparse_dimensions == forms[0].sparse_dimensions &&
            it.dense_dimensions == forms[0].dense_dimensions && it.type == forms[0].type,
        name, ": rank ", rank, " has ", it.sparse_dimensions, " sparse and ", it.dense_dimensions,
        " dense dimensions of type ", static_cast<at::ScalarType>(it.type), ", and rank 0 ",
        forms[0].sparse_dimensions, " and ", forms[0].dense_dimensions, " of type ",
        static_cast<at::ScalarType>(forms[0].type));
  }
  const auto dimensions = static_cast<size_t>(own.dim());
  std::vector<int64_t> sizes(forms.size() * dimensions);
  check(weir_all_gather(comm, own.sizes().data(), sizes.data(), dimensions, WEIR_INT64, nullptr),
        comm, name);
  const auto sizes_of = [&](size_t rank) {
    return at::IntArrayRef(sizes.data() + rank * dimensions, dimensions);
  };
  for (size_t rank = 1; rank < forms.size(); ++rank) {
    TORCH_CHECK_VALUE(sizes_of(rank) == sizes_of(0), name, ": rank ", rank, " has sizes ",
                      sizes_of(rank), ", and rank 0 ", sizes_of(0));
  }
  return forms;
}

}  // namespace

// The form of the tensors, then indices and values of all ranks, then one sum here. Waits.
Backend::WorkPointer Backend::allreduce_sparse(Tensors& tensors,
                                               const c10d::AllreduceOptions& options) {
  constexpr const char* kName = "all_reduce of a sparse tensor";
  const WithoutPython without;
  TORCH_CHECK_VALUE(tensors.size() == 1, kName, ": one tensor is expected, not ", tensors.size());
  const at::Tensor& tensor = tensors[0];
  TORCH_CHECK_VALUE(tensor.is_sparse() && tensor.device().is_cpu(), kName,
                    ": a sparse tensor in COO layout on the CPU is expected");
  TORCH_CHECK_VALUE(options.reduceOp.op_ == ReduceOp::SUM, kName, ": only sums are defined");
  const at::Tensor own = tensor.coalesce();
  const int64_t dimensions = own.sparse_dim();
  const std::vector<SparseForm> forms = agree_on_form(comm(), getSize(), own, kName);
  const int64_t all =
      std::accumulate(forms.begin(), forms.end(), int64_t{0},
                      [](int64_t sum, const SparseForm& form) { return sum + form.entries; });

  // One column per entry, so that entries of one rank follow each other.
  const at::Tensor own_indices = own.indices().t().contiguous();
  const at::Tensor own_values = own.values().contiguous();
  at::Tensor indices = at::empty({all, dimensions}, at::kLong);
  auto shape = own_values.sizes().vec();
  shape[0] = all;
  at::Tensor values = at::empty(shape, own_values.options());
  const auto gather = [&](const at::Tensor& from, at::Tensor& to) {
    const Elements elements = elements_to_move(from.scalar_type());
    size_t per_entry = elements.per_element;
    for (int64_t d = 1; d < to.dim(); ++d) per_entry *= static_cast<size_t>(to.size(d));
    std::vector<size_t> counts;
    for (const SparseForm& form : forms) {
      counts.push_back(static_cast<size_t>(form.entries) * per_entry);
    }
    check(weir_all_gather_v(comm(), from.const_data_ptr(), to.data_ptr(), counts.data(), nullptr,
                            elements.type, nullptr),
          comm(), kName);
  };
  gather(own_indices, indices);
  gather(own_values, values);
  const at::Tensor sum =
      at::sparse_coo_tensor(indices.t(), values, tensor.sizes(), own.options()).coalesce();
  {
    const at::NoGradGuard no_grad;
    tensors[0].copy_(sum);
  }
  Launch launch(*this, OpType::_ALLREDUCE_SPARSE, "sparse_all_reduce", options.timeout,
                options.asyncOp);
  return launch.finish(tensors, tensors, own_values.nbytes());
}

}  // namespace weir::pytorch
