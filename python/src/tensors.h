// SPDX-License-Identifier: Apache-2.0
// What PyTorch's tensors, types and reductions are for weir.h.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "weir/weir.h"

namespace weir::pytorch {

// Elements as weir.h counts them.
struct Elements {
  weir_datatype_t type = WEIR_UINT8;
  size_t per_element = 1;  // of them per element of the tensor
};

// For moving data: every type, those that weir.h lacks as integers or bytes.
Elements elements_to_move(at::ScalarType type);

inline size_t count_of(const at::Tensor& tensor, const Elements& elements) {
  return static_cast<size_t>(tensor.numel()) * elements.per_element;
}

// How a reduction of a type is done.
struct Reduction {
  enum class Way {
    kDirect,   // by weir.h, on the tensor's own bytes
    kComplex,  // likewise, on real and imaginary parts
    kInt32,    // by weir.h, on a copy as int32: the type is shorter and weir.h lacks it
    kBitwise   // weir.h has no such operation: gathered, then folded here
  };
  Way way = Way::kDirect;
  weir_datatype_t type = WEIR_FLOAT32;
  weir_redop_t op = WEIR_SUM;  // of kDirect, kComplex and kInt32; not of a sum with a factor
};

// ValueError or NotImplementedError, which name `what`, where PyTorch has no meaning for it or Weir
// cannot do it.
Reduction reduction_of(const c10d::ReduceOp& op, at::ScalarType type, const char* what);

// The factor of PREMUL_SUM as one element of `type`, in `bytes`.
void factor_of(const c10d::ReduceOp& op, at::ScalarType type, unsigned char bytes[8]);

// ---- Checks of what the program passes; ValueError names `what` ----

void check_cpu(const at::Tensor& tensor, const char* what);
const at::Tensor& only_one(const std::vector<at::Tensor>& tensors, const char* what);
void check_same_type(const at::Tensor& tensor, const at::Tensor& like, const char* what);

// ---- Memory ----

// Its elements follow each other in memory in the order of its indices.
inline bool is_flat(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// The tensor, or a copy that is flat.
at::Tensor flat_input(const at::Tensor& tensor);

// A flat tensor of the same shape and type, not initialized.
at::Tensor flat_like(const at::Tensor& tensor);

// Copies `source`, flat and of as many elements, to `destination`, unless it is the same tensor.
// Elements that share memory (of an expanded tensor; PyTorch passes zero tensors so) need equal
// values: else ValueError.
void copy_back(const at::Tensor& destination, const at::Tensor& source);

// Whether the tensors follow each other in memory without a gap, in order; then they are one array
// that begins at the first.
bool follow_each_other(const std::vector<at::Tensor>& tensors);

// That array, valid as long as `tensors`. It is to be read only.
at::Tensor as_one(const std::vector<at::Tensor>& tensors);

}  // namespace weir::pytorch
