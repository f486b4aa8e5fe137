// SPDX-License-Identifier: Apache-2.0
// The C API of arenas. See weir.h.
#include <fmt/format.h>

#include "api/checks.h"
#include "api/errors.h"
#include "api/handles.h"

namespace {

using weir::Code;
using weir::Status;
using weir::api::guarded;
using weir::api::invalid;
using weir::api::report;

weir_result_t no_arena(weir_arena_t arena, const char* function) {
  if (arena == nullptr) return invalid(fmt::format("{}: the arena is NULL", function));
  if (arena->is_of_parent()) {
    return report(Status(Code::kInvalidUsage,
                         fmt::format("{}: {}", function, arena->arena->maker().refusal("arena"))));
  }
  return report(Status(Code::kInvalidUsage,
                       fmt::format("{}: the handle is no arena, or was destroyed", function)));
}

// Leaves everything but the mapping: another thread of the parent may have held the locks.
weir_result_t destroy_in_child(weir_arena_t handle) {
  weir::comm::Arena::leave_to_parent(std::move(handle->arena));
  handle->mark = 0;
  delete handle;
  return WEIR_OK;
}

}  // namespace

#define WEIR_CHECK_ARENA(arena, function)                          \
  do {                                                             \
    if ((arena) == nullptr || !(arena)->is_alive()) [[unlikely]] { \
      return no_arena(arena, function);                            \
    }                                                              \
  } while (false)

weir_result_t weir_arena_create(weir_comm_t comm, size_t bytes, weir_arena_t* arena) {
  return guarded([&] {
    WEIR_CHECK_COMM(comm, "arena_create");
    WEIR_REFUSE_IN_CALLBACK("arena_create", comm);
    if (arena == nullptr) return invalid("arena_create: arena is NULL", comm);
    *arena = nullptr;
    if (bytes < weir::comm::RangeAllocator::kAlignmentBytes) {
      return invalid(fmt::format("arena_create of {} bytes: the least are 64", bytes), comm);
    }
    auto handle = std::make_unique<weir_arena>();
    auto made = comm->comm->create_arena(bytes);
    if (!made.ok()) return report(made.status(), comm);
    handle->arena = made.take();
    *arena = handle.release();
    return WEIR_OK;
  });
}

weir_result_t weir_arena_alloc(weir_arena_t arena, size_t bytes, void** memory) {
  return guarded([&] {
    if (memory != nullptr) *memory = nullptr;
    WEIR_CHECK_ARENA(arena, "arena_alloc");
    if (memory == nullptr) return invalid("arena_alloc: memory is NULL");
    auto taken = arena->arena->allocate(bytes);
    if (!taken.ok()) return report(taken.status());
    *memory = taken.value();
    return WEIR_OK;
  });
}

weir_result_t weir_arena_free(weir_arena_t arena, void* memory) {
  return guarded([&] {
    WEIR_CHECK_ARENA(arena, "arena_free");
    if (memory == nullptr) return WEIR_OK;
    const Status status = arena->arena->free(memory);
    return status.ok() ? WEIR_OK : report(status);
  });
}

weir_result_t weir_arena_info(weir_arena_t arena, weir_arena_usage_t* info) {
  return guarded([&] {
    WEIR_CHECK_ARENA(arena, "arena_info");
    if (info == nullptr) return invalid("arena_info: info is NULL");
    if (info->struct_bytes < sizeof(weir_arena_usage_t)) {
      return invalid(fmt::format("arena_info: struct_bytes is {}, begin with WEIR_ARENA_USAGE_INIT",
                                 info->struct_bytes));
    }
    const weir::comm::Arena& own = *arena->arena;
    const weir::comm::Arena::Usage usage = own.usage();
    info->bytes = usage.bytes;
    info->used_bytes = usage.used_bytes;
    info->largest_free_bytes = usage.largest_free_bytes;
    info->buffer_count = usage.buffer_count;
    info->is_shared = own.is_shared() ? 1 : 0;
    info->touched_bytes = own.touched_bytes.load(std::memory_order_relaxed);
    return WEIR_OK;
  });
}

weir_result_t weir_arena_destroy(weir_arena_t arena) {
  return guarded([&] {
    if (arena == nullptr) return WEIR_OK;
    if (arena->is_of_parent()) return destroy_in_child(arena);
    WEIR_CHECK_ARENA(arena, "arena_destroy");
    WEIR_REFUSE_IN_CALLBACK("arena_destroy", nullptr);
    const weir::comm::Arena::Usage usage = arena->arena->usage();
    if (usage.buffer_count > 0) {
      return report(
          Status(Code::kInvalidUsage,
                 fmt::format("arena_destroy: {} buffers with {} bytes are in use; free them first",
                             usage.buffer_count, usage.used_bytes)));
    }
    if (weir::comm::Communicator* comm = arena->arena->communicator(); comm != nullptr) {
      if (const Status status = comm->destroy_arena(*arena->arena); !status.ok()) {
        return report(status);
      }
    }
    arena->mark = 0;
    delete arena;
    return WEIR_OK;
  });
}
