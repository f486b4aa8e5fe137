// SPDX-License-Identifier: Apache-2.0
// The kernels of PyTorch that its object collectives and DistributedDataParallel compute with:
// comparison and addition of contiguous tensors, products with a number, sums, and concatenation in
// one dimension. Their arguments are as in PyTorch's public sources (ATen/native/cuda:
// CUDALoops.cuh, CompareKernels.cu, UfuncCUDA_add.cu, Reduce.cuh, Shape.cu).
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>

#include "hostcuda/kernels/elements.h"
#include "hostcuda/kernels/find.h"
#include "hostcuda/kernels/pytorch_offsets.h"

namespace weir::hostcuda::kernels {

namespace {

// ---- Comparison ---------------------------------------------------------------------------------

enum class Order : int { kGreaterOrEqual, kGreater, kLessOrEqual, kLess };

struct Triple {
  bool* to;
  const char* left;
  const char* right;
};

template <class Value>
bool holds(Order order, Value left, Value right) {
  switch (order) {
    case Order::kGreaterOrEqual:
      return left >= right;
    case Order::kGreater:
      return left > right;
    case Order::kLessOrEqual:
      return left <= right;
    case Order::kLess:
      return left < right;
  }
  return false;
}

// (int count, CompareFunctor<T>, std::array<char*, 3>)
template <class Value>
void compare(const weir_hostcuda_launch* launch, void*) {
  const auto order = argument<Order>(launch, 1);
  const auto [to, left, right] = argument<Triple>(launch, 2);
  const int count = argument<int>(launch, 0);
  for (int i = 0; i < count; ++i) {
    Value values[2];
    std::memcpy(&values[0], left + static_cast<size_t>(i) * sizeof(Value), sizeof(Value));
    std::memcpy(&values[1], right + static_cast<size_t>(i) * sizeof(Value), sizeof(Value));
    to[i] = holds(order, values[0], values[1]);
  }
}

constexpr size_t kCompareBytes[] = {sizeof(int), sizeof(Order), sizeof(Triple)};

bool find_comparison(std::string_view function, weir_hostcuda_host_kernel* found) {
  const auto types =
      template_arguments(function, "at::native::(anonymous namespace)::CompareFunctor");
  if (types.size() != 1) return false;
  *found = {nullptr, nullptr, kCompareBytes, std::size(kCompareBytes)};
  if (types[0] == "int") found->kernel = compare<int32_t>;
  if (types[0] == "long") found->kernel = compare<int64_t>;
  if (types[0] == "float") found->kernel = compare<float>;
  if (types[0] == "double") found->kernel = compare<double>;
  return found->kernel != nullptr;
}

// ---- Addition -----------------------------------------------------------------------------------

// (int count, CUDAFunctorOnSelf_add<T>{other, alpha}, std::array<char*, 2>)
template <class Value>
void add_number(const weir_hostcuda_launch* launch, void*) {
  struct Pair {
    Value* to;
    const Value* left;
  };
  struct Numbers {
    Value other, alpha;
  };
  const auto [other, alpha] = argument<Numbers>(launch, 1);
  const auto [to, left] = argument<Pair>(launch, 2);
  const int count = argument<int>(launch, 0);
  for (int i = 0; i < count; ++i) to[i] = left[i] + alpha * other;
}

// (int count, CUDAFunctor_add<T>{alpha}, std::array<char*, 3>)
template <class Value>
void add(const weir_hostcuda_launch* launch, void*) {
  struct Arrays {
    Value* to;
    const Value* left;
    const Value* right;
  };
  const auto alpha = argument<Value>(launch, 1);
  const auto [to, left, right] = argument<Arrays>(launch, 2);
  const int count = argument<int>(launch, 0);
  for (int i = 0; i < count; ++i) to[i] = left[i] + alpha * right[i];
}

template <class Value>
void give_addition(bool of_number, weir_hostcuda_host_kernel* found) {
  static constexpr size_t kNumber[] = {sizeof(int), 2 * sizeof(Value), 2 * sizeof(char*)};
  static constexpr size_t kArrays[] = {sizeof(int), sizeof(Value), 3 * sizeof(char*)};
  *found = of_number
               ? weir_hostcuda_host_kernel{add_number<Value>, nullptr, kNumber, std::size(kNumber)}
               : weir_hostcuda_host_kernel{add<Value>, nullptr, kArrays, std::size(kArrays)};
}

bool find_addition(std::string_view function, weir_hostcuda_host_kernel* found) {
  const auto number = template_arguments(function, "at::native::CUDAFunctorOnSelf_add");
  const auto arrays = template_arguments(function, "at::native::CUDAFunctor_add");
  if (number.size() + arrays.size() != 1) return false;
  const std::string_view type = number.empty() ? arrays[0] : number[0];
  found->kernel = nullptr;
  if (type == "int") give_addition<int32_t>(!number.empty(), found);
  if (type == "long") give_addition<int64_t>(!number.empty(), found);
  if (type == "float") give_addition<float>(!number.empty(), found);
  if (type == "double") give_addition<double>(!number.empty(), found);
  return found->kernel != nullptr;
}

// ---- Multiplication -----------------------------------------------------------------------------

// (int count, AUnaryFunctor or BUnaryFunctor{MulFunctor, number}, std::array<char*, 2>)
template <class Value>
void multiply_by_number(const weir_hostcuda_launch* launch, void*) {
  struct Pair {
    Value* to;
    const Value* left;
  };
  struct Factor {
    char operation;  // an empty class
    Value number;
  };
  const Value factor = argument<Factor>(launch, 1).number;
  const auto [to, left] = argument<Pair>(launch, 2);
  const int count = argument<int>(launch, 0);
  for (int i = 0; i < count; ++i) to[i] = left[i] * factor;
}

template <class Value>
void give_multiplication(weir_hostcuda_host_kernel* found) {
  struct Factor {
    char operation;
    Value number;
  };
  static constexpr size_t kBytes[] = {sizeof(int), sizeof(Factor), 2 * sizeof(char*)};
  *found = {multiply_by_number<Value>, nullptr, kBytes, std::size(kBytes)};
}

bool find_multiplication(std::string_view function, weir_hostcuda_host_kernel* found) {
  for (const char* one : {"at::native::AUnaryFunctor", "at::native::BUnaryFunctor"}) {
    const auto arguments = template_arguments(function, one);
    if (arguments.size() != 4 || arguments[0] != arguments[1] || arguments[0] != arguments[2]) {
      continue;
    }
    const auto type = template_arguments(arguments[3], "at::native::binary_internal::MulFunctor");
    if (type.size() != 1 || type[0] != arguments[0]) return false;
    found->kernel = nullptr;
    if (type[0] == "float") give_multiplication<float>(found);
    if (type[0] == "double") give_multiplication<double>(found);
    return found->kernel != nullptr;
  }
  return false;
}

bool find_contiguous(std::string_view function, weir_hostcuda_host_kernel* found) {
  return find_comparison(function, found) || find_addition(function, found) ||
         find_multiplication(function, found);
}

// ---- Sum, largest ------------------------------------------------------------------------------

// ReduceOp<T, func_wrapper_t<…>, unsigned int, T, …>
template <class Value>
struct Reduction {
  char operation;  // an empty class
  Value identity;
  struct {
    int element_bytes, input_count, output_count, other[11];
    bool vectorized;
    int output_vector;
  } shape;
  Offsets<1> inputs;
  Offsets<2> outputs;  // of a result, and of the first input to it
  const char* from;
  char* to[2];
  void* buffers[2];
  int* semaphores;
  int64_t first;
  bool accumulate;
  bool final_output;
};
static_assert(sizeof(Reduction<int64_t>::shape) == 64);
static_assert(offsetof(Reduction<int64_t>, from) == 992);

struct Sum {
  template <class Value>
  static Value of(Value a, Value b) {
    return a + b;
  }
};

struct Largest {
  template <class Value>
  static Value of(Value a, Value b) {
    return a >= b || std::isnan(a) ? a : b;  // a NaN wins
  }
};

template <class Value, class Fold>
void reduce(const weir_hostcuda_launch* launch, void*) {
  const auto& all = *static_cast<const Reduction<Value>*>(launch->arguments[0]);
  for (int i = 0; i < all.shape.output_count; ++i) {
    const auto [to, from] = all.outputs.of(static_cast<uint32_t>(i));
    Value total = all.identity;
    if (all.accumulate) std::memcpy(&total, all.to[0] + to, sizeof total);
    for (int k = 0; k < all.shape.input_count; ++k) {
      Value next;
      const char* const at = all.from + from + all.inputs.of(static_cast<uint32_t>(k))[0];
      std::memcpy(&next, at, sizeof next);
      total = Fold::of(total, next);
    }
    std::memcpy(all.to[0] + to, &total, sizeof total);
  }
}

template <class Value>
bool give_reduction(std::string_view wrapper, std::string_view type,
                    weir_hostcuda_host_kernel* found) {
  static constexpr size_t kBytes[] = {offsetof(Reduction<Value>, final_output) + 1};
  const std::string name(type);
  const std::string start = "at::native::func_wrapper_t<" + name + ", at::native::";
  const std::string sum = start + "sum_functor<" + name + ", " + name + ", " + name +
                          ">::operator()(at::TensorIterator&)::{lambda(" + name + ", " + name +
                          ")#1}>";
  if (wrapper == sum) {
    *found = {reduce<Value, Sum>, nullptr, kBytes, 1};
  } else if (wrapper == start + "MaxNanFunctor<" + name + "> >" ||
             wrapper == start + "MaxNanFunctor<" + name + ">>") {
    *found = {reduce<Value, Largest>, nullptr, kBytes, 1};
  }
  return found->kernel != nullptr;
}

bool find_reduction(std::string_view operation, weir_hostcuda_host_kernel* found) {
  const auto arguments = template_arguments(operation, "at::native::ReduceOp");
  if (arguments.size() < 4 || arguments[2] != "unsigned int" || arguments[0] != arguments[3]) {
    return false;
  }
  const std::string_view type = arguments[0];
  return (type == "long" && give_reduction<int64_t>(arguments[1], type, found)) ||
         (type == "float" && give_reduction<float>(arguments[1], type, found)) ||
         (type == "double" && give_reduction<double>(arguments[1], type, found));
}

// ---- Concatenation ------------------------------------------------------------------------------

constexpr size_t kBatch = 128;
// CatArrInputTensorMetadata<T, unsigned int, 128, 1>; what follows is for further dimensions.
struct Parts {
  const char* from[kBatch];
  uint32_t first[kBatch];  // the number of its first element in the result
  uint32_t size[kBatch];
  uint32_t count[kBatch];
};

// (T* to, metadata, TensorSizeStride, int dimension, unsigned stride); each part has a row of
// blocks.
void concatenate(const weir_hostcuda_launch* launch, void* context) {
  const size_t bytes = static_cast<const Element*>(context)->bytes;
  auto* const to = argument<char*>(launch, 0);
  const auto& parts = *static_cast<const Parts*>(launch->arguments[1]);
  for (size_t i = 0; i < launch->grid[1] && i < kBatch; ++i) {
    if (parts.count[i] == 0) continue;
    std::memcpy(to + parts.first[i] * bytes, parts.from[i], parts.count[i] * bytes);
  }
}

// "4u": any type with four bytes.
const Element* opaque_element(std::string_view bytes) {
  if (bytes == "1u") return element_named("unsigned char");
  if (bytes == "2u") return element_named("unsigned short");
  if (bytes == "4u") return element_named("unsigned int");
  if (bytes == "8u") return element_named("unsigned long");
  if (bytes == "16u") return element_named("c10::complex<double>");
  return nullptr;
}

bool find_concatenation(std::string_view name, weir_hostcuda_host_kernel* found) {
  static constexpr size_t kBytes[] = {sizeof(char*), sizeof(Parts)};
  constexpr std::string_view kScope = "at::native::(anonymous namespace)::";
  for (const char* one : {"CatArrayBatchedCopy_contig", "CatArrayBatchedCopy_alignedK_contig",
                          "CatArrayBatchedCopy_vectorized"}) {
    const auto arguments = template_arguments(name, std::string(kScope) + one);
    if (arguments.size() < 5) continue;
    const bool fits = arguments[1] == "unsigned int" && arguments[2] == "1" &&
                      arguments[3] == "128" && arguments[4] == "1";
    const auto opaque = template_arguments(arguments[0], std::string(kScope) + "OpaqueType");
    const Element* const type = opaque.size() == 1 ? opaque_element(opaque[0]) : nullptr;
    if (!fits || type == nullptr) return false;
    *found = {concatenate, const_cast<Element*>(type), kBytes, std::size(kBytes)};
    return true;
  }
  return false;
}

}  // namespace

bool find_pytorch_compute(std::string_view name, weir_hostcuda_host_kernel* found) {
  const auto vectorized = template_arguments(name, "at::native::vectorized_elementwise_kernel");
  if (vectorized.size() >= 3) return find_contiguous(vectorized[1], found);
  const auto unrolled = template_arguments(name, "at::native::unrolled_elementwise_kernel");
  if (unrolled.size() == 7) {
    return unrolled[5] == "at::native::memory::LoadWithoutCast" &&
           unrolled[6] == "at::native::memory::StoreWithoutCast" &&
           find_contiguous(unrolled[0], found);
  }
  const auto reduced = template_arguments(name, "at::native::reduce_kernel");
  if (reduced.size() == 3) return find_reduction(reduced[2], found);
  return find_concatenation(name, found);
}

}  // namespace weir::hostcuda::kernels
