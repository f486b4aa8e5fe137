// SPDX-License-Identifier: Apache-2.0
#include "tensors.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <optional>

namespace weir::pytorch {

namespace {

using c10d::ReduceOp;

std::optional<weir_datatype_t> own_type(at::ScalarType type) {
  switch (type) {
    case at::kChar:
      return WEIR_INT8;
    case at::kByte:
    case at::kBool:
      return WEIR_UINT8;
    case at::kInt:
      return WEIR_INT32;
    case at::kUInt32:
      return WEIR_UINT32;
    case at::kLong:
      return WEIR_INT64;
    case at::kUInt64:
      return WEIR_UINT64;
    case at::kHalf:
      return WEIR_FLOAT16;
    case at::kBFloat16:
      return WEIR_BFLOAT16;
    case at::kFloat:
      return WEIR_FLOAT32;
    case at::kDouble:
      return WEIR_FLOAT64;
    case at::kFloat8_e4m3fn:
      return WEIR_FLOAT8_E4M3;
    case at::kFloat8_e5m2:
      return WEIR_FLOAT8_E5M2;
    default:
      return std::nullopt;
  }
}

const char* name_of(ReduceOp::RedOpType op) {
  switch (op) {
    case ReduceOp::SUM:
      return "SUM";
    case ReduceOp::AVG:
      return "AVG";
    case ReduceOp::PRODUCT:
      return "PRODUCT";
    case ReduceOp::MIN:
      return "MIN";
    case ReduceOp::MAX:
      return "MAX";
    case ReduceOp::BAND:
      return "BAND";
    case ReduceOp::BOR:
      return "BOR";
    case ReduceOp::BXOR:
      return "BXOR";
    case ReduceOp::PREMUL_SUM:
      return "PREMUL_SUM";
    default:
      return "UNUSED";
  }
}

std::optional<weir_redop_t> own_op(ReduceOp::RedOpType op) {
  switch (op) {
    case ReduceOp::SUM:
    case ReduceOp::PREMUL_SUM:
      return WEIR_SUM;
    case ReduceOp::AVG:
      return WEIR_AVG;
    case ReduceOp::PRODUCT:
      return WEIR_PROD;
    case ReduceOp::MIN:
      return WEIR_MIN;
    case ReduceOp::MAX:
      return WEIR_MAX;
    default:
      return std::nullopt;
  }
}

// A bool is a byte that is 0 or 1: a sum is true where any is, a product where all are.
std::optional<weir_redop_t> op_of_bool(ReduceOp::RedOpType op) {
  switch (op) {
    case ReduceOp::SUM:
    case ReduceOp::MAX:
    case ReduceOp::BOR:
      return WEIR_MAX;
    case ReduceOp::PRODUCT:
    case ReduceOp::MIN:
    case ReduceOp::BAND:
      return WEIR_MIN;
    default:
      return std::nullopt;
  }
}

}  // namespace

Elements elements_to_move(at::ScalarType type) {
  if (const auto own = own_type(type)) return {*own, 1};
  const size_t bytes = c10::elementSize(type);
  if (type == at::kComplexFloat) return {WEIR_FLOAT32, 2};
  if (type == at::kComplexDouble) return {WEIR_FLOAT64, 2};
  return {WEIR_UINT8, bytes};
}

Reduction reduction_of(const ReduceOp& reduce_op, at::ScalarType type, const char* what) {
  const ReduceOp::RedOpType op = reduce_op.op_;
  const auto refused = [&](const char* reason) {
    return c10::str(what, ": ReduceOp.", name_of(op), " of ", type, ": ", reason);
  };
  const bool is_bitwise = op == ReduceOp::BAND || op == ReduceOp::BOR || op == ReduceOp::BXOR;
  if (type == at::kBool) {
    if (op == ReduceOp::BXOR) return {Reduction::Way::kBitwise, WEIR_UINT8, WEIR_SUM};
    const auto own = op_of_bool(op);
    TORCH_CHECK_VALUE(own.has_value(), refused("has no meaning for truth values"));
    return {Reduction::Way::kDirect, WEIR_UINT8, *own};
  }
  if (is_bitwise) {
    TORCH_CHECK_VALUE(c10::isIntegralType(type, false), refused("needs integers"));
    return {Reduction::Way::kBitwise, WEIR_UINT8, WEIR_SUM};
  }
  const auto own = own_op(op);
  TORCH_CHECK_VALUE(own.has_value(), refused("no such reduction"));
  if (c10::isComplexType(type)) {
    TORCH_CHECK_VALUE(op == ReduceOp::SUM || op == ReduceOp::AVG || op == ReduceOp::PREMUL_SUM,
                      refused("only sums and averages of complex numbers are defined"));
    TORCH_CHECK_NOT_IMPLEMENTED(type != at::kComplexHalf, refused("use complex64"));
    return {Reduction::Way::kComplex, type == at::kComplexFloat ? WEIR_FLOAT32 : WEIR_FLOAT64,
            *own};
  }
  if (const auto number = own_type(type)) return {Reduction::Way::kDirect, *number, *own};
  TORCH_CHECK_NOT_IMPLEMENTED(type == at::kShort || type == at::kUInt16,
                              refused("this type can be moved, but not reduced"));
  TORCH_CHECK_NOT_IMPLEMENTED(op != ReduceOp::PREMUL_SUM, refused("use int32"));
  return {Reduction::Way::kInt32, WEIR_INT32, *own};
}

void factor_of(const ReduceOp& op, at::ScalarType type, unsigned char bytes[8]) {
  // Its name in PyTorch 2.11 and 2.12, and another one for it since.
  using Supplement = c10d::NCCLPreMulSumSupplement;
  const auto* supplement = dynamic_cast<const Supplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(supplement != nullptr, "ReduceOp.PREMUL_SUM without its factor");
  const at::ScalarType real = c10::toRealValueType(type);
  const at::Tensor factor = supplement->tensor_factor.defined()
                                ? supplement->tensor_factor.cpu().to(real).contiguous()
                                : at::scalar_tensor(supplement->double_factor, real);
  std::memcpy(bytes, factor.const_data_ptr(), factor.nbytes());
}

void check_cpu(const at::Tensor& tensor, const char* what) {
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), what,
                    ": Weir's backend takes CPU tensors, and this one is on ", tensor.device(),
                    ". Tensors of CUDA devices go through PyTorch's own backend on Weir's "
                    "libnccl.so.2: init_process_group(\"cpu:weir,cuda:nccl\")");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, what, ": the tensor is ", tensor.layout(),
                    "; only dense ones are taken");
}

const at::Tensor& only_one(const std::vector<at::Tensor>& tensors, const char* what) {
  TORCH_CHECK_VALUE(tensors.size() == 1, what, ": one tensor is expected, not ", tensors.size());
  check_cpu(tensors[0], what);
  return tensors[0];
}

void check_same_type(const at::Tensor& tensor, const at::Tensor& like, const char* what) {
  check_cpu(tensor, what);
  TORCH_CHECK_VALUE(tensor.scalar_type() == like.scalar_type(), what, ": tensors of ",
                    tensor.scalar_type(), " and ", like.scalar_type(), " in one call");
}

at::Tensor flat_input(const at::Tensor& tensor) {
  if (is_flat(tensor)) return tensor;
  return tensor.resolve_conj().resolve_neg().contiguous();
}

at::Tensor flat_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().memory_format(c10::MemoryFormat::Contiguous));
}

void copy_back(const at::Tensor& destination, const at::Tensor& source) {
  if (destination.is_same(source)) return;
  const at::NoGradGuard no_grad;
  const at::Tensor values = source.view_as(destination);
  at::Tensor to = destination;
  at::Tensor from = values;
  for (int64_t dim = 0; dim < destination.dim(); ++dim) {
    if (destination.stride(dim) != 0 || destination.size(dim) < 2) continue;
    to = to.narrow(dim, 0, 1);
    from = from.narrow(dim, 0, 1);
  }
  if (to.numel() != destination.numel()) {
    const at::Tensor kept = from.expand_as(values).contiguous();
    TORCH_CHECK_VALUE(
        std::memcmp(kept.const_data_ptr(), values.const_data_ptr(), values.nbytes()) == 0,
        "elements of an expanded tensor share memory, and the result has different values for "
        "them: clone() it first");
  }
  to.copy_(from);
}

bool follow_each_other(const std::vector<at::Tensor>& tensors) {
  const char* next = nullptr;
  for (const at::Tensor& tensor : tensors) {
    if (!is_flat(tensor)) return false;
    if (tensor.numel() == 0) continue;  // it has no address
    const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
    if (next != nullptr && begin != next) return false;
    next = begin + tensor.nbytes();
  }
  return true;
}

at::Tensor as_one(const std::vector<at::Tensor>& tensors) {
  int64_t count = 0;
  void* data = nullptr;
  for (const at::Tensor& tensor : tensors) {
    if (count == 0 && tensor.numel() != 0) data = const_cast<void*>(tensor.const_data_ptr());
    count += tensor.numel();
  }
  // They may have a storage each, so that none of them has a view of all.
  return at::from_blob(data, {count}, tensors.front().options());
}

}  // namespace weir::pytorch
