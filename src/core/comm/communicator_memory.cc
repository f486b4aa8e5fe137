// SPDX-License-Identifier: Apache-2.0
// Communicator's part of memory that all ranks map: weir_mem_alloc, arenas, and memory of the
// caller's own on devices.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/comm/communicator.h"
#include "core/comm/one_sided.h"
#include "core/comm/stream/window_setup.h"

namespace weir::comm {

Status Communicator::free_memory(void* memory) {
  const uint32_t number =
      one_sided_ == nullptr ? 0 : one_sided_->window_in(memory, windows_.bytes_of(memory));
  if (number == 0) return windows_.free(memory);
  return Status(Code::kInvalidUsage,
                fmt::format("mem_free: window {} of '{}', in the order of creation, lies in this "
                            "memory; destroy or retire it first",
                            number, name()));
}

// Before memory that all ranks map is made, during which a rank does nothing else: all have come
// for it, so that none waits for one that waits for this rank's part of another operation.
Status Communicator::meet_for_memory(engine::Purpose purpose, const char* function,
                                     uint64_t bytes) {
  if (rank_count() == 1) return {};
  std::vector<uint64_t> all(rank_count());
  engine::Call call;
  call.purpose = purpose;
  call.collective = Collective::kAllGather;
  call.type = DataType::kUint8;
  call.count = sizeof bytes;
  call.input = &bytes;
  call.output = all.data();
  WEIR_RETURN_IF_ERROR(run(call));
  for (Rank p = 1; p < rank_count(); ++p) {
    if (all[p] == all[0]) continue;
    return Status(Code::kMismatch,
                  fmt::format("{} of {} bytes on rank 0 of '{}' and of {} bytes on rank {}; all "
                              "ranks must ask for as much",
                              function, all[0], name(), all[p], p));
  }
  return {};
}

// Memory is made on all ranks, or the communicator has failed.
void Communicator::fail_without_memory(const Status& status) {
  if (status.code() != Code::kTimeout && status.code() != Code::kPeerLost &&
      status.code() != Code::kMismatch && status.code() != Code::kRefused) {
    return;
  }
  const std::lock_guard lock(state_.lock);
  health_.fail(status);
}

Result<void*> Communicator::allocate_memory(uint64_t bytes) {
  WEIR_RETURN_IF_ERROR(meet_for_memory(engine::Purpose::kMemoryAllocate, "mem_alloc", bytes));
  auto made = windows_.allocate(bytes);
  if (!made.ok()) fail_without_memory(made.status());
  return made;
}

Result<std::shared_ptr<Arena>> Communicator::create_arena(uint64_t bytes) {
  WEIR_RETURN_IF_ERROR(meet_for_memory(engine::Purpose::kArenaCreate, "arena_create", bytes));
  auto made = windows_.create_arena(bytes);
  if (!made.ok()) {
    fail_without_memory(made.status());
    return made;
  }
  made.value()->set_communicator(this);
  return made;
}

Status Communicator::destroy_arena(const Arena& arena) {
  const uint32_t number =
      one_sided_ == nullptr ? 0 : one_sided_->window_in(arena.own(), arena.bytes());
  if (number != 0) {
    return Status(Code::kInvalidUsage,
                  fmt::format("arena_destroy: window {} of '{}', in the order of creation, lies in "
                              "this arena; destroy or retire it first",
                              number, name()));
  }
  windows_.destroy_arena(arena);
  return {};
}

Status Communicator::gather_to_register(const void* mine, void* all, size_t bytes) {
  engine::Call call;
  call.purpose = engine::Purpose::kMemoryRegister;
  call.collective = Collective::kAllGather;
  call.type = DataType::kUint8;
  call.count = bytes;
  call.input = mine;
  call.output = all;
  return run(call);
}

void Communicator::tell_why_not(const std::string& reason) {
  const std::string line =
      fmt::format("memory that is registered on '{}' is copied: {}", name(), reason);
  log_info(line);
  if (operations_.queue().planner()->explains()) std::fprintf(stderr, "%s\n", line.c_str());
}

Result<const DeviceWindow*> Communicator::register_symmetric(void* memory, uint64_t bytes) {
  const void* const buffers[] = {bytes > 0 ? memory : nullptr};
  const Result<int> device = devices_.device_of(buffers);
  if (!device.ok()) return device.status();
  if (rank_count() == 1) return nullptr;
  const int64_t mine = device.value();
  std::vector<int64_t> all(rank_count());
  WEIR_RETURN_IF_ERROR(gather_to_register(&mine, all.data(), sizeof mine));
  for (Rank p = 0; p < rank_count(); ++p) {
    if (all[p] >= 0) continue;
    if (mine >= 0 || p == rank()) {
      tell_why_not(fmt::format("that of rank {} is none, or of the host", p));
    }
    return nullptr;
  }
  // Whatever collectives came before have decided by now, as on all ranks.
  DeviceSide& side = operations_.device_side();
  bool is_undecided = false;
  {
    const std::lock_guard lock(state_.lock);
    is_undecided = side.is_undecided();
  }
  if (is_undecided) WEIR_RETURN_IF_ERROR(prepare_device(device.value()));
  StreamMemory* streams = nullptr;
  std::string reason;
  {
    const std::lock_guard lock(state_.lock);
    streams = side.stream_memory(&reason);
  }
  if (streams == nullptr) {
    tell_why_not(reason);
    return nullptr;
  }
  std::shared_ptr<const DeviceWindow> made;
  const auto gather = [this](const void* entry, void* entries, size_t entry_bytes) {
    return gather_to_register(entry, entries, entry_bytes);
  };
  WEIR_RETURN_IF_ERROR(
      make_window(*streams, network(), memory, bytes, true, gather, &made, &reason));
  if (!reason.empty()) tell_why_not(fmt::format("rank {}: {}", rank(), reason));
  return made.get();
}

void Communicator::deregister_symmetric(const DeviceWindow* window) {
  StreamMemory* streams = nullptr;
  std::string reason;
  {
    const std::lock_guard lock(state_.lock);
    streams = operations_.device_side().stream_memory(&reason);
  }
  if (streams != nullptr) end_window(*streams, window);
}

}  // namespace weir::comm
