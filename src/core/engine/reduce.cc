// SPDX-License-Identifier: Apache-2.0
#include "core/engine/reduce.h"

#include "core/base/check.h"
#include "core/engine/reduce_kernels.h"

namespace weir {

ReduceKernel reduce_kernel(DataType type, Fold fold, Arithmetic arithmetic) {
  ReduceKernel kernel = nullptr;
  switch (type) {
    case DataType::kFloat32:
    case DataType::kFloat64:
      kernel = float_kernel(type, fold, arithmetic);
      break;
    case DataType::kFloat16:
    case DataType::kBfloat16:
      kernel = half_kernel(type, fold, arithmetic);
      break;
    case DataType::kFloat8E4M3:
    case DataType::kFloat8E5M2:
      kernel = float8_kernel(type, fold, arithmetic);
      break;
    case DataType::kInt8:
    case DataType::kUint8:
      kernel = byte_kernel(type, fold);
      break;
    case DataType::kInt32:
    case DataType::kUint32:
    case DataType::kInt64:
    case DataType::kUint64:
      kernel = integer_kernel(type, fold);
      break;
  }
  WEIR_CHECK(kernel != nullptr, "every data type and fold has a kernel");
  return kernel;
}

}  // namespace weir
