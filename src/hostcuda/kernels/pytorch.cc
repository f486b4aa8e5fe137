// SPDX-License-Identifier: Apache-2.0
// PyTorch's kernels that fill and copy tensors, contiguous or not, with and without a change of
// type. What they compute for an element is in the name of the kernel: FillFunctor<T>, or a lambda
// with the type that is copied. Their arguments are as in PyTorch's public headers
// (ATen/native/cuda/CUDALoops.cuh, MemoryAccess.cuh; ATen/cuda/detail/OffsetCalculator.cuh).
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "hostcuda/kernels/elements.h"
#include "hostcuda/kernels/find.h"
#include "hostcuda/kernels/pytorch_offsets.h"

namespace weir::hostcuda::kernels {

namespace {

// What the lambdas of strided kernels capture.
struct StridedFill {
  Offsets<1> offsets;
  char* to;
  char value[16];
};
static_assert(offsetof(StridedFill, to) == 408);
struct StridedCopy {
  Offsets<2> offsets;
  char* to;
  const char* from;
  char function;   // an empty class
  int8_t to_type;  // these two only where the types differ
  int8_t from_type;
};
static_assert(offsetof(StridedCopy, to) == 504 && offsetof(StridedCopy, to_type) == 521);

// LoadWithCast<1>, StoreWithCast<1>
struct Cast {
  int8_t type;
  uint32_t bytes;
};

struct Pair {
  char* to;
  const char* from;
};

// Types of a copy whose name has them; `context` is one of these.
struct CopyTypes {
  const Element* from;
  const Element* to;

  bool operator==(const CopyTypes&) const = default;
};

// False, with a line on stderr, for a type that this library lacks: nothing is copied then.
bool types_of(int from, int to, CopyTypes* types) {
  *types = {element_of_torch(from), element_of_torch(to)};
  if (types->from != nullptr && types->to != nullptr) return true;
  std::fprintf(stderr,
               "hostcuda: PyTorch copies from type %d to type %d (c10::ScalarType), one of which "
               "libweir_hostcuda_kernels.so does not have; the copy is left out\n",
               from, to);
  return false;
}

const Element& type_of(const void* context) { return *static_cast<const Element*>(context); }

// (int count, FillFunctor<T>, std::array<char*, 1>)
void fill(const weir_hostcuda_launch* launch, void* context) {
  const size_t bytes = type_of(context).bytes;
  auto* to = argument<char*>(launch, 2);
  const int count = argument<int>(launch, 0);
  for (int i = 0; i < count; ++i, to += bytes) std::memcpy(to, launch->arguments[1], bytes);
}

// (int count, lambda)
void fill_strided(const weir_hostcuda_launch* launch, void* context) {
  const size_t bytes = type_of(context).bytes;
  const auto& captured = *static_cast<const StridedFill*>(launch->arguments[1]);
  const auto count = argument<uint32_t>(launch, 0);
  for (uint32_t i = 0; i < count; ++i) {
    std::memcpy(captured.to + captured.offsets.of(i)[0], captured.value, bytes);
  }
}

// (int count, lambda, std::array<char*, 2>)
void copy(const weir_hostcuda_launch* launch, void* context) {
  const auto& types = *static_cast<const CopyTypes*>(context);
  auto [to, from] = argument<Pair>(launch, 2);
  const int count = argument<int>(launch, 0);
  for (int i = 0; i < count; ++i, to += types.to->bytes, from += types.from->bytes) {
    convert(*types.from, from, *types.to, to);
  }
}

// (int count, lambda, std::array<char*, 2>, offsets, offsets, LoadWithCast<1>, StoreWithCast<1>)
void copy_with_cast(const weir_hostcuda_launch* launch, void*) {
  CopyTypes types{};
  if (!types_of(argument<Cast>(launch, 5).type, argument<Cast>(launch, 6).type, &types)) return;
  copy(launch, &types);
}

// (int count, lambda)
void copy_strided(const weir_hostcuda_launch* launch, void* context) {
  const auto& types = *static_cast<const CopyTypes*>(context);
  const auto& captured = *static_cast<const StridedCopy*>(launch->arguments[1]);
  const auto count = argument<uint32_t>(launch, 0);
  for (uint32_t i = 0; i < count; ++i) {
    const auto [to, from] = captured.offsets.of(i);
    convert(*types.from, captured.from + from, *types.to, captured.to + to);
  }
}

void copy_strided_with_cast(const weir_hostcuda_launch* launch, void*) {
  const auto& captured = *static_cast<const StridedCopy*>(launch->arguments[1]);
  CopyTypes types{};
  if (!types_of(captured.from_type, captured.to_type, &types)) return;
  copy_strided(launch, &types);
}

// ---- Names --------------------------------------------------------------------------------------

// What is computed for one element.
struct Function {
  const Element* from = nullptr;  // nullptr: the result is a constant
  const Element* to = nullptr;    // nullptr: it is a function that this library lacks
};

// "…::{lambda(float)#1}" -> "float"
std::string_view lambda_parameter(std::string_view name) {
  constexpr std::string_view kStart = "{lambda(";
  const size_t at = name.rfind(kStart);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = name.substr(at + kStart.size());
  const size_t end = rest.rfind(")#");
  return end == std::string_view::npos ? std::string_view() : rest.substr(0, end);
}

Function function_named(std::string_view name) {
  const auto filled = template_arguments(name, "at::native::FillFunctor");
  if (filled.size() == 1) return {nullptr, element_named(filled[0])};
  const Element* const type = element_named(lambda_parameter(name));
  if (name.starts_with("at::native::direct_copy_kernel_cuda(")) return {type, type};
  if (name.starts_with("at::native::float16_copy_kernel_cuda(")) {
    return {type, element_named("c10::Half")};
  }
  if (name.starts_with("at::native::bfloat16_copy_kernel_cuda(")) {
    return {type, element_named("c10::BFloat16")};
  }
  return {};
}

// Sizes of arguments that depend on the type, one set for each size of an element.
template <size_t kBytes>
constexpr size_t kFillBytes[] = {sizeof(int), kBytes, sizeof(char*)};
template <size_t kBytes>
constexpr size_t kStridedFillBytes[] = {sizeof(int), offsetof(StridedFill, value) + kBytes};
constexpr size_t kCopyBytes[] = {sizeof(int), 1, sizeof(Pair)};
constexpr size_t kCastBytes[] = {sizeof(int), 1, sizeof(Pair), 1, 1, sizeof(Cast), sizeof(Cast)};
constexpr size_t kStridedCopyBytes[] = {sizeof(int), offsetof(StridedCopy, from_type) + 1};

template <size_t kBytes>
void give_fill(bool strided, weir_hostcuda_host_kernel* found) {
  found->kernel = strided ? fill_strided : fill;
  found->argument_bytes = strided ? kStridedFillBytes<kBytes> : kFillBytes<kBytes>;
  found->argument_count = strided ? 2 : 3;
}

bool find_fill(const Element& type, bool strided, weir_hostcuda_host_kernel* found) {
  found->context = const_cast<Element*>(&type);
  switch (type.bytes) {
    case 1:
      give_fill<1>(strided, found);
      return true;
    case 2:
      give_fill<2>(strided, found);
      return true;
    case 4:
      give_fill<4>(strided, found);
      return true;
    case 8:
      give_fill<8>(strided, found);
      return true;
    case 16:
      give_fill<16>(strided, found);
      return true;
  }
  return false;
}

bool find_contiguous(std::string_view function_name, bool with_cast,
                     weir_hostcuda_host_kernel* found) {
  const Function function = function_named(function_name);
  if (function.to == nullptr) return false;
  if (function.from == nullptr) return !with_cast && find_fill(*function.to, false, found);
  if (with_cast) {
    *found = {copy_with_cast, nullptr, kCastBytes, std::size(kCastBytes)};
  } else {
    *found = {copy, kept(CopyTypes{function.from, function.to}), kCopyBytes, std::size(kCopyBytes)};
  }
  return true;
}

// `lambda`: "at::native::gpu_kernel_impl<F>(at::TensorIteratorBase&, F const&)::{lambda(int)#1}"
bool find_strided(std::string_view lambda, weir_hostcuda_host_kernel* found) {
  const size_t end = lambda.find(">(at::TensorIteratorBase&, ");
  if (end == std::string_view::npos || !lambda.ends_with("::{lambda(int)#1}")) return false;
  const std::string_view maker = lambda.substr(0, end + 1);
  const auto plain = template_arguments(maker, "at::native::gpu_kernel_impl_nocast");
  const auto casting = template_arguments(maker, "at::native::gpu_kernel_impl");
  if (plain.size() + casting.size() != 1) return false;
  const Function function = function_named(plain.empty() ? casting[0] : plain[0]);
  if (function.to == nullptr) return false;
  if (function.from == nullptr) return !plain.empty() && find_fill(*function.to, true, found);
  *found = {plain.empty() ? copy_strided_with_cast : copy_strided,
            kept(CopyTypes{function.from, function.to}), kStridedCopyBytes,
            std::size(kStridedCopyBytes)};
  return true;
}

}  // namespace

bool find_pytorch(std::string_view name, weir_hostcuda_host_kernel* found) {
  const auto vectorized = template_arguments(name, "at::native::vectorized_elementwise_kernel");
  if (vectorized.size() >= 3) return find_contiguous(vectorized[1], false, found);
  const auto unrolled = template_arguments(name, "at::native::unrolled_elementwise_kernel");
  if (unrolled.size() == 7) {
    const bool with_cast = unrolled[5] == "at::native::memory::LoadWithCast<1>" &&
                           unrolled[6] == "at::native::memory::StoreWithCast<1>";
    const bool without = unrolled[5] == "at::native::memory::LoadWithoutCast" &&
                         unrolled[6] == "at::native::memory::StoreWithoutCast";
    return (with_cast || without) && find_contiguous(unrolled[0], with_cast, found);
  }
  const auto strided = template_arguments(name, "at::native::elementwise_kernel");
  return strided.size() == 3 && find_strided(strided[2], found);
}

}  // namespace weir::hostcuda::kernels
