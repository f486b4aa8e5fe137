// SPDX-License-Identifier: Apache-2.0
// An arena of a group (weir_arena_create) as tensors and as one of PyTorch's allocators: their
// memory is read by the other ranks of the host where it lies. Thread-safe.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "communicator.h"

namespace weir::pytorch {

// Ends with the last of its tensors, which may outlive the group.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  // Collective over the group, with the same `bytes` on all its ranks: address space of each. Where
  // a rank has no such address space, it warns and makes one without memory of its own, which is
  // not shared; so do the other ranks of its host.
  static std::shared_ptr<Arena> create(weir_comm_t comm, size_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Of one dimension, not initialized. std::nullopt: no free piece of the arena is that long.
  std::optional<at::Tensor> tensor(int64_t count, const at::TensorOptions& options);
  // Owns the memory; an empty one where no piece is that long.
  c10::DataPtr allocate(size_t bytes);
  weir_arena_usage_t usage() const;
  // Whether other ranks reach the memory.
  bool is_shared() const { return is_shared_; }

 private:
  explicit Arena(weir_arena_t handle);

  const weir_arena_t handle_;  // nullptr: it has no memory of its own
  bool is_shared_ = false;
};

// What a rank of a group takes by default: as much as the host's memory, since only pages that are
// touched take any.
size_t default_arena_bytes();

// An allocator of storages over `arena`; runs out with OutOfMemoryError.
std::shared_ptr<c10::Allocator> allocator_of(std::shared_ptr<Arena> arena);

}  // namespace weir::pytorch
