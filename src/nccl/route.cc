// SPDX-License-Identifier: Apache-2.0
#include "nccl/route.h"

#include <fcntl.h>
#include <unistd.h>

#include "nccl/backend.h"
#include "nccl/comm.h"

namespace weir::nccl {

using namespace route_state;

namespace {

// The first field of NCCL's communicators, which is overwritten when they are destroyed.
constexpr uint64_t kMarkOfNccl = 0x0280028002800280ull;

// The kernel reads for us, since the address may be anything.
bool read_word(const void* address, uint64_t* word) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  const bool ok = write(ends[1], address, sizeof *word) == static_cast<ssize_t>(sizeof *word) &&
                  read(ends[0], word, sizeof *word) == static_cast<ssize_t>(sizeof *word);
  close(ends[0]);
  close(ends[1]);
  return ok;
}

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

void forget(ncclComm_t comm) {
  for (uintptr_t way = 0; way < kWayCount; ++way) {
    uintptr_t here = tagged(comm);
    known[slot_of(comm) ^ way].compare_exchange_strong(here, 0);
  }
}

}  // namespace

void publish_real_table(const Table* real) { real_table = real; }

bool has_mark_of_nccl(ncclComm_t comm) {
  uint64_t word = 0;
  return comm != nullptr && reinterpret_cast<uintptr_t>(comm) % alignof(uint64_t) == 0 &&
         read_word(comm, &word) && word == kMarkOfNccl;
}

Route route_unknown(ncclComm_t comm) {
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
    return real != nullptr ? Route{it.real, real} : Route{it.own, comm};
  }
  if (!has_mark_of_nccl(comm)) return {it.own, comm};  // which says that there is no such handle
  remember(comm);
  return {it.real, comm};
}

Route leave_route(ncclComm_t comm) {
  const Route way = route(comm);
  if (way.table != backend().real) return way;
  forget(way.comm);
  if (way.comm != comm) {
    if (const auto own = close_handle(comm); own != nullptr) own->release_real();
  }
  return way;
}

}  // namespace weir::nccl
