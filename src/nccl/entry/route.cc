// SPDX-License-Identifier: Apache-2.0
#include "nccl/entry/route.h"

#include <mutex>

#include "core/base/per_process.h"
#include "nccl/base/read_word.h"
#include "nccl/comm/comm.h"
#include "nccl/entry/entry.h"
#include "nccl/real/backend.h"

namespace weir::nccl {

using namespace route_state;

namespace {

// The first field of NCCL's communicators, which is overwritten when they are destroyed.
constexpr uint64_t kMarkOfNccl = 0x0280028002800280ull;

bool is_known(ncclComm_t comm) {
  for (uintptr_t way = 0; way < kWayCount; ++way) {
    if (known[slot_of(comm) ^ way].load(std::memory_order_acquire) == tagged(comm)) return true;
  }
  return false;
}

void remember(ncclComm_t comm) {
  for (uintptr_t way = 0; way < kWayCount; ++way) {
    uintptr_t free = 0;
    if (known[slot_of(comm) ^ way].compare_exchange_strong(free, tagged(comm))) return;
  }
  known[slot_of(comm)].store(tagged(comm), std::memory_order_release);
}

// Handles of Weir's that stand for one of the real library's, also recognized by one comparison.
struct Alias {
  std::atomic<uintptr_t> handle{0};  // tagged; 0 while it is written
  std::atomic<ncclComm_t> real{nullptr};
};
Alias aliases[kSlotCount];
constinit PerProcess<std::mutex> alias_lock;  // held while writing

ncclComm_t real_of_alias(ncclComm_t comm) {
  const Alias& alias = aliases[slot_of(comm)];
  if (alias.handle.load(std::memory_order_acquire) != tagged(comm)) return nullptr;
  ncclComm_t real = alias.real.load(std::memory_order_acquire);
  // The entry may have been replaced between the two loads.
  return alias.handle.load(std::memory_order_relaxed) == tagged(comm) ? real : nullptr;
}

void remember_alias(ncclComm_t comm, ncclComm_t real) {
  Alias& alias = aliases[slot_of(comm)];
  std::lock_guard lock(alias_lock.get());
  alias.handle.store(0, std::memory_order_release);
  alias.real.store(real, std::memory_order_release);
  alias.handle.store(tagged(comm), std::memory_order_release);
}

void forget_alias(ncclComm_t comm) {
  Alias& alias = aliases[slot_of(comm)];
  std::lock_guard lock(alias_lock.get());
  uintptr_t here = tagged(comm);
  alias.handle.compare_exchange_strong(here, 0);
}

void forget(ncclComm_t comm) {
  for (uintptr_t way = 0; way < kWayCount; ++way) {
    uintptr_t here = tagged(comm);
    known[slot_of(comm) ^ way].compare_exchange_strong(here, 0);
  }
}

}  // namespace

bool has_mark_of_nccl(ncclComm_t comm) {
  uint64_t word = 0;
  return comm != nullptr && reinterpret_cast<uintptr_t>(comm) % alignof(uint64_t) == 0 &&
         read_word(comm, &word) && word == kMarkOfNccl;
}

Route route_unknown(ncclComm_t comm) {
  if (ncclComm_t real = real_of_alias(comm); real != nullptr) return {real_table, real};
  const Backend& it = backend();
  if (it.real == nullptr) return {it.own, comm};
  if (it.disabled) {
    if (comm != nullptr) remember(comm);
    return {it.real, comm};
  }
  if (comm == nullptr) return {it.own, comm};
  if (is_known(comm)) return {it.real, comm};
  if (const auto own = find(comm); own != nullptr) {
    ncclComm_t real = own->real();
    if (real == nullptr) return {it.own, comm};
    remember_alias(comm, real);
    return {it.real, real};
  }
  if (!has_mark_of_nccl(comm)) return {it.own, comm};  // which reports an unknown handle
  remember(comm);
  return {it.real, comm};
}

Route leave_route(ncclComm_t comm) {
  const Route way = route(comm);
  if (way.table != backend().real) return way;
  forget(way.comm);
  forget_forwarded(way.comm);
  if (way.comm != comm) {
    forget_alias(comm);
    if (const auto own = close_handle(comm); own != nullptr) own->release_real();
  }
  return way;
}

Route maker_route(ncclComm_t comm, FunctionIndex function, const void* return_address) {
  const Route way = route(comm);
  const Backend& it = backend();
  const bool is_real = it.real != nullptr && way.table == it.real;
  if (!is_real || passes_by(it, return_address) || !it.library->has(function)) return way;
  const Parent parent = find_parent(comm);
  return parent.comm != nullptr && parent.comm->forwarded() ? Route{it.own, comm} : way;
}

void stop_making_from(ncclComm_t comm) {
  const Parent parent = find_parent(comm);
  if (parent.comm != nullptr && parent.real != nullptr) parent.comm->abort();
}

bool is_in_background(ncclComm_t comm) {
  const auto own = find(comm);
  return own != nullptr && own->in_background();
}

}  // namespace weir::nccl
