// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace weir::perf {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kLineBytes = 64;
constexpr size_t kSlotCountMax = size_t{1} << 20;

size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

size_t stride_of(size_t bytes, size_t unaligned_bytes) {
  const size_t needed = bytes + unaligned_bytes + kGuardBytes;
  return round_up(needed, bytes >= kPageBytes ? kPageBytes : kLineBytes);
}

uint8_t* allocate_pages(size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, kPageBytes, round_up(bytes, kPageBytes)) != 0) return nullptr;
  std::memset(memory, kPoisonByte, bytes);
  return static_cast<uint8_t*>(memory);
}

}  // namespace

SlotPlan plan_slots(size_t send_bytes, size_t recv_bytes, const SlotLimits& limits) {
  SlotPlan plan;
  plan.send_stride = stride_of(send_bytes, limits.unaligned_bytes);
  plan.recv_stride = stride_of(recv_bytes, limits.unaligned_bytes);
  if (!limits.fixed) {
    const size_t round_bytes =
        (plan.send_stride + plan.recv_stride) * static_cast<size_t>(limits.local_rank_count);
    plan.slot_count = std::clamp((2 * limits.cache_bytes + round_bytes - 1) / round_bytes,
                                 size_t{1}, kSlotCountMax);
  }
  plan.slot_count = std::max(plan.slot_count, static_cast<size_t>(limits.slot_count_min));
  return plan;
}

Buffers::~Buffers() {
  // Symmetric memory, arenas and windows still belong to the communicator if release() was not
  // called.
  if (registration_ != Registration::kSymmetric && registration_ != Registration::kArena) {
    std::free(send_);
    std::free(recv_);
  }
}

std::string Buffers::allocate(weir_comm_t comm, size_t send_bytes, size_t recv_bytes,
                              Registration registration) {
  comm_ = comm;
  registration_ = registration;
  if (registration == Registration::kSymmetric) {
    void* memory = nullptr;
    weir_result_t result = weir_mem_alloc(comm, send_bytes, &memory);
    if (result != WEIR_OK) return error_text("weir_mem_alloc", result, comm);
    send_ = static_cast<uint8_t*>(memory);
    result = weir_mem_alloc(comm, recv_bytes, &memory);
    if (result != WEIR_OK) return error_text("weir_mem_alloc", result, comm);
    recv_ = static_cast<uint8_t*>(memory);
    std::memset(send_, kPoisonByte, send_bytes);
    std::memset(recv_, kPoisonByte, recv_bytes);
    return {};
  }
  if (registration == Registration::kArena) return allocate_in_arena(send_bytes, recv_bytes);
  if (registration == Registration::kBesideArena) {
    const weir_result_t result = weir_arena_create(comm, kPageBytes, &arena_);
    if (result != WEIR_OK) return error_text("weir_arena_create", result, comm);
  }
  send_ = allocate_pages(send_bytes);
  recv_ = allocate_pages(recv_bytes);
  if (send_ == nullptr || recv_ == nullptr) {
    return fmt::format("no memory for buffers of {} and {}; lower -e, or use --fixed-buffers",
                       format_bytes(send_bytes), format_bytes(recv_bytes));
  }
  if (registration == Registration::kRegister) {
    weir_result_t result = weir_register(comm, send_, send_bytes, &send_window_);
    if (result != WEIR_OK) return error_text("weir_register", result, comm);
    result = weir_register(comm, recv_, recv_bytes, &recv_window_);
    if (result != WEIR_OK) return error_text("weir_register", result, comm);
  }
  return {};
}

std::string Buffers::allocate_in_arena(size_t send_bytes, size_t recv_bytes) {
  int rank = 0;
  weir_result_t result = weir_comm_rank(comm_, &rank);
  if (result != WEIR_OK) return error_text("weir_comm_rank", result, comm_);
  const size_t pad_bytes = static_cast<size_t>(rank + 1) * kPageBytes;
  int rank_count = 0;
  result = weir_comm_size(comm_, &rank_count);
  if (result != WEIR_OK) return error_text("weir_comm_size", result, comm_);
  result = weir_arena_create(comm_,
                             round_up(send_bytes, kLineBytes) + round_up(recv_bytes, kLineBytes) +
                                 static_cast<size_t>(rank_count) * kPageBytes,
                             &arena_);
  if (result != WEIR_OK) return error_text("weir_arena_create", result, comm_);
  void* memory[3] = {};
  const size_t bytes[3] = {pad_bytes, send_bytes, recv_bytes};
  for (int i = 0; i < 3; ++i) {
    result = weir_arena_alloc(arena_, bytes[i], &memory[i]);
    if (result != WEIR_OK) return error_text("weir_arena_alloc", result, nullptr);
  }
  pad_ = memory[0];
  send_ = static_cast<uint8_t*>(memory[1]);
  recv_ = static_cast<uint8_t*>(memory[2]);
  std::memset(send_, kPoisonByte, send_bytes);
  std::memset(recv_, kPoisonByte, recv_bytes);
  return {};
}

std::string Buffers::release_arena() {
  for (void* memory : {static_cast<void*>(send_), static_cast<void*>(recv_), pad_}) {
    if (registration_ != Registration::kArena) break;
    const weir_result_t result = weir_arena_free(arena_, memory);
    if (result != WEIR_OK) return error_text("weir_arena_free", result, nullptr);
  }
  if (registration_ == Registration::kArena) send_ = recv_ = nullptr;
  const weir_result_t result = weir_arena_destroy(arena_);
  return result == WEIR_OK ? std::string() : error_text("weir_arena_destroy", result, nullptr);
}

std::string Buffers::release() {
  weir_result_t result = WEIR_OK;
  switch (registration_) {
    case Registration::kNone:
      break;
    case Registration::kRegister:
      result = weir_deregister(comm_, send_window_);
      if (result != WEIR_OK) return error_text("weir_deregister", result, comm_);
      result = weir_deregister(comm_, recv_window_);
      if (result != WEIR_OK) return error_text("weir_deregister", result, comm_);
      break;
    case Registration::kSymmetric:
      result = weir_mem_free(comm_, send_);
      if (result != WEIR_OK) return error_text("weir_mem_free", result, comm_);
      result = weir_mem_free(comm_, recv_);
      if (result != WEIR_OK) return error_text("weir_mem_free", result, comm_);
      send_ = nullptr;
      recv_ = nullptr;
      break;
    case Registration::kArena:
    case Registration::kBesideArena:
      return release_arena();
  }
  return {};
}

std::string error_text(const char* call, weir_result_t result, weir_comm_t comm) {
  const char* text = weir_last_error(comm);
  return fmt::format("{}: {}{}{}", call, weir_result_string(result), text[0] != '\0' ? ": " : "",
                     text);
}

}  // namespace weir::perf
