// SPDX-License-Identifier: Apache-2.0
// PyTorch's copies of lists of tensors, with which FSDP2 packs and unpacks what it gathers and
// scatters. Their arguments are as in PyTorch's public sources for CUDA 13 (ATen/native/cuda:
// MultiTensorApply.cuh, TensorShape.cu).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>

#include "hostcuda/kernels/elements.h"
#include "hostcuda/kernels/find.h"

namespace weir::hostcuda::kernels {

namespace {

// TensorListMetadata<2>
struct Lists {
  static constexpr size_t kTensorsMax = 448;
  static constexpr size_t kBlocksMax = 2240;
  char* addresses[2][kTensorsMax];  // from, to
  int64_t count[kTensorsMax];
  uint16_t tensor_of_block[kBlocksMax];
  int32_t chunk_of_block[kBlocksMax];
};

// (TensorListMetadata<2>, UnaryOpFunctor<T, 2, 1, 1>, Copy<T, T>)
void copy_list(const weir_hostcuda_launch* launch, void* context) {
  constexpr int64_t kChunk = 65536;
  const size_t bytes = static_cast<const Element*>(context)->bytes;
  const auto& lists = *static_cast<const Lists*>(launch->arguments[0]);
  for (size_t i = 0; i < launch->grid[0] && i < Lists::kBlocksMax; ++i) {
    const size_t tensor = lists.tensor_of_block[i];
    if (tensor >= Lists::kTensorsMax) continue;
    const int64_t first = lists.chunk_of_block[i] * kChunk;
    const int64_t count = std::min(lists.count[tensor] - first, kChunk);
    if (count <= 0) continue;
    const size_t offset = static_cast<size_t>(first) * bytes;
    std::memcpy(lists.addresses[1][tensor] + offset, lists.addresses[0][tensor] + offset,
                static_cast<size_t>(count) * bytes);
  }
}

// (char** to, char** from, int64_t* part_bytes, int64_t* part_of_block, int64_t* first_block,
// int64_t row_bytes, int64_t rows): each part gets its piece of every row.
void split_rows(const weir_hostcuda_launch* launch, void*) {
  auto* const to = argument<char**>(launch, 0);
  auto* const from = argument<char**>(launch, 1);
  const auto* const part_bytes = argument<const int64_t*>(launch, 2);
  const auto* const part_of_block = argument<const int64_t*>(launch, 3);
  const auto* const first_block = argument<const int64_t*>(launch, 4);
  const auto row_bytes = argument<int64_t>(launch, 5);
  const auto rows = argument<int64_t>(launch, 6);
  for (int64_t block = 0; block < static_cast<int64_t>(launch->grid[0]); ++block) {
    const int64_t part = part_of_block[block];
    if (first_block[part] != block) continue;  // its first block has done it all
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(to[part] + row * part_bytes[part], from[part] + row * row_bytes,
                  static_cast<size_t>(part_bytes[part]));
    }
  }
}

// (char** from, char* to, int64_t* tensor_of_block, int64_t* start_bytes, int64_t* first_block,
// int64_t* tensor_bytes, int64_t* padded_bytes, int64_t* block_count, int64_t slice_bytes,
// int64_t chunk_bytes, int64_t ratio): chunk c of the result has, of each tensor, its c-th piece
// with zeros up to the padded size.
void concatenate_chunks(const weir_hostcuda_launch* launch, void*) {
  auto* const from = argument<char**>(launch, 0);
  auto* const to = argument<char*>(launch, 1);
  const auto* const tensor_of_block = argument<const int64_t*>(launch, 2);
  const auto* const start_bytes = argument<const int64_t*>(launch, 3);
  const auto* const first_block = argument<const int64_t*>(launch, 4);
  const auto* const tensor_bytes = argument<const int64_t*>(launch, 5);
  const auto* const padded_bytes = argument<const int64_t*>(launch, 6);
  const auto slice_bytes = argument<int64_t>(launch, 8);
  const auto chunk_bytes = argument<int64_t>(launch, 9);
  for (int64_t block = 0; block < static_cast<int64_t>(launch->grid[0]); ++block) {
    const int64_t tensor = tensor_of_block[block];
    if (first_block[tensor] != block) continue;
    const int64_t padded = padded_bytes[tensor];
    for (int64_t slice = 0; slice < static_cast<int64_t>(launch->grid[2]); ++slice) {
      for (int64_t chunk = 0; chunk < static_cast<int64_t>(launch->grid[1]); ++chunk) {
        const int64_t begin = chunk * padded;
        const int64_t left = tensor_bytes[tensor] - begin;
        const auto count = static_cast<size_t>(std::clamp<int64_t>(left, 0, padded));
        char* const at = to + slice * slice_bytes + chunk * chunk_bytes + start_bytes[tensor];
        if (count > 0) {
          std::memcpy(at, from[tensor] + slice * tensor_bytes[tensor] + begin, count);
        }
        std::memset(at + count, 0, static_cast<size_t>(padded) - count);
      }
    }
  }
}

constexpr size_t kListBytes[] = {sizeof(Lists)};
constexpr size_t kSplitBytes[] = {8, 8, 8, 8, 8, 8, 8};
constexpr size_t kChunkBytes[] = {8, 8, 8, 8, 8, 8, 8, 8, 8, 8};

bool find_list_copy(std::string_view name, weir_hostcuda_host_kernel* found) {
  const std::string scope = "at::native::(anonymous namespace)::";
  const auto arguments = template_arguments(name, scope + "multi_tensor_apply_kernel");
  if (arguments.size() != 3 || arguments[0] != scope + "TensorListMetadata<2>") return false;
  const auto functor = template_arguments(arguments[1], scope + "UnaryOpFunctor");
  const auto types = template_arguments(arguments[2], "at::native::Copy");
  if (functor.size() != 4 || types.size() != 2) return false;
  const Element* const type = element_named(functor[0]);
  const bool fits = functor[1] == "2" && functor[2] == "1" && functor[3] == "1" &&
                    types[0] == functor[0] && types[1] == functor[0];
  if (!fits || type == nullptr) return false;
  *found = {copy_list, const_cast<Element*>(type), kListBytes, std::size(kListBytes)};
  return true;
}

}  // namespace

bool find_pytorch_lists(std::string_view name, weir_hostcuda_host_kernel* found) {
  if (name == "at::native::detail::split_with_sizes_copy_out_contiguous_no_cast_kernel") {
    *found = {split_rows, nullptr, kSplitBytes, std::size(kSplitBytes)};
    return true;
  }
  if (name == "at::native::detail::chunk_cat_cuda_kernel<char, char>") {
    *found = {concatenate_chunks, nullptr, kChunkBytes, std::size(kChunkBytes)};
    return true;
  }
  return find_list_copy(name, found);
}

}  // namespace weir::hostcuda::kernels
