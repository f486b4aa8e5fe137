// SPDX-License-Identifier: Apache-2.0
#include "core/engine/tree.h"

#include <cstring>
#include <limits>

#include "core/base/check.h"
#include "core/base/leaves.h"
#include "core/engine/tree_kernels.h"

namespace weir {

TreeKernels tree_kernels(DataType type, Fold fold) {
  TreeKernels kernels = float_tree_kernels(type, fold);
  if (kernels.partial == nullptr) kernels = integer_tree_kernels(type, fold);
  WEIR_CHECK(kernels.partial != nullptr && kernels.result != nullptr,
             "every data type and fold has kernels");
  return kernels;
}

namespace {

template <typename T>
T absent_value(Fold fold) {
  using Limits = std::numeric_limits<T>;
  switch (fold) {
    case Fold::kSum:
      return Limits::is_integer ? T{0} : static_cast<T>(-0.0);
    case Fold::kProd:
      return T{1};
    case Fold::kMax:
      return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    case Fold::kMin:
      return Limits::has_infinity ? Limits::infinity() : Limits::max();
  }
  return T{};
}

template <typename T>
void fill(Fold fold, void* dst, size_t count) {
  const T value = absent_value<T>(fold);
  auto* to = static_cast<unsigned char*>(dst);
  for (size_t i = 0; i < count; ++i) std::memcpy(to + i * sizeof(T), &value, sizeof(T));
}

}  // namespace

void fill_absent(DataType type, Fold fold, void* dst, size_t element_count) {
  switch (partial_type(type)) {
    case DataType::kInt8:
      return fill<int8_t>(fold, dst, element_count);
    case DataType::kUint8:
      return fill<uint8_t>(fold, dst, element_count);
    case DataType::kInt32:
      return fill<int32_t>(fold, dst, element_count);
    case DataType::kUint32:
      return fill<uint32_t>(fold, dst, element_count);
    case DataType::kInt64:
      return fill<int64_t>(fold, dst, element_count);
    case DataType::kUint64:
      return fill<uint64_t>(fold, dst, element_count);
    case DataType::kFloat32:
      return fill<float>(fold, dst, element_count);
    case DataType::kFloat64:
      return fill<double>(fold, dst, element_count);
    default:
      break;
  }
}

}  // namespace weir
