// SPDX-License-Identifier: Apache-2.0
#include "arena.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace weir::pytorch {

namespace {

// A piece of the arena, which lives as long as it.
struct Piece {
  std::shared_ptr<Arena> arena;
  weir_arena_t handle;
  void* memory;
};

void free_piece(void* context) {
  const std::unique_ptr<Piece> piece(static_cast<Piece*>(context));
  const weir_result_t result = weir_arena_free(piece->handle, piece->memory);
  // Refused in a child of the process that made the arena, where the copy ends with the child.
  static_cast<void>(result);
}

class ArenaAllocator final : public c10::Allocator {
 public:
  explicit ArenaAllocator(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(c10::DeviceType::CPU)};
    c10::DataPtr data = arena_->allocate(bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, data.get() != nullptr, weir_last_error(nullptr));
    return data;
  }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }

 private:
  const std::shared_ptr<Arena> arena_;
};

}  // namespace

std::shared_ptr<Arena> Arena::create(weir_comm_t comm, size_t bytes) {
  weir_arena_t handle = nullptr;
  const weir_result_t result = weir_arena_create(comm, bytes, &handle);
  if (result == WEIR_ERROR_NO_MEMORY) {
    TORCH_WARN("allocate_tensor: ", weir_last_error(comm), "; tensors of this group are ordinary ",
               "memory. Give weir.Options a smaller arena_bytes, or the process more address ",
               "space (ulimit -v)");
  } else {
    check(result, comm, "allocate_tensor");
  }
  return std::shared_ptr<Arena>(new Arena(handle));
}

Arena::Arena(weir_arena_t handle) : handle_(handle) { is_shared_ = usage().is_shared != 0; }

Arena::~Arena() {
  if (handle_ == nullptr) return;
  // Refused where a window lies in it, or buffers are in use: then the memory stays.
  const weir_result_t result = weir_arena_destroy(handle_);
  static_cast<void>(result);
}

c10::DataPtr Arena::allocate(size_t bytes) {
  if (handle_ == nullptr) return c10::GetCPUAllocator()->allocate(bytes);
  const c10::Device cpu(c10::DeviceType::CPU);
  void* memory = nullptr;
  const weir_result_t result = weir_arena_alloc(handle_, bytes, &memory);
  if (result == WEIR_ERROR_NO_MEMORY) return {nullptr, cpu};
  check(result, nullptr, "allocate_tensor");
  auto* piece = new Piece{shared_from_this(), handle_, memory};
  return {memory, piece, &free_piece, cpu};
}

std::optional<at::Tensor> Arena::tensor(int64_t count, const at::TensorOptions& options) {
  const size_t bytes = static_cast<size_t>(count) * options.dtype().itemsize();
  if (bytes == 0) return at::empty({count}, options);
  auto data = std::make_shared<c10::DataPtr>(allocate(bytes));
  if (data->get() == nullptr) return std::nullopt;
  void* memory = data->get();
  return at::from_blob(
      memory, {count}, [data](void*) mutable { data.reset(); }, options);
}

weir_arena_usage_t Arena::usage() const {
  weir_arena_usage_t usage = WEIR_ARENA_USAGE_INIT;
  if (handle_ == nullptr) return usage;
  check(weir_arena_info(handle_, &usage), nullptr, "arena_usage");
  return usage;
}

size_t default_arena_bytes() {
  const auto pages = static_cast<size_t>(std::max(sysconf(_SC_PHYS_PAGES), 1L));
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

std::shared_ptr<c10::Allocator> allocator_of(std::shared_ptr<Arena> arena) {
  return std::make_shared<ArenaAllocator>(std::move(arena));
}

}  // namespace weir::pytorch
