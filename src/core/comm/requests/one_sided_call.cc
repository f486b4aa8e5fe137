// SPDX-License-Identifier: Apache-2.0
#include "core/comm/requests/one_sided_call.h"

#include <fmt/format.h>

#include <atomic>

namespace weir::comm {

namespace {

std::atomic_ref<uint64_t> word_at(unsigned char* address) {
  static_assert(std::atomic_ref<uint64_t>::is_always_lock_free, "other processes do the same");
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(address));
}

}  // namespace

Status refused_by(const OneSidedCall& call, Rank target) {
  if (call.kind == OneSidedKind::kWaitSignal || call.kind == OneSidedKind::kRetire) return Status();
  for (const OneSidedWindow* window : {call.window, call.signal_window}) {
    if (window == nullptr || !window->parts[target].is_retired.load(std::memory_order_acquire)) {
      continue;
    }
    return Status(
        Code::kInvalidUsage,
        fmt::format(
            "rank {} has retired its part of window {}: no rank may read or write it any more",
            target, window->number));
  }
  return Status();
}

RecordKind record_kind(const OneSidedCall& call) {
  switch (call.kind) {
    case OneSidedKind::kPut:
      return RecordKind::kPut;
    case OneSidedKind::kGet:
      return RecordKind::kGet;
    case OneSidedKind::kPutSignal:
      return RecordKind::kPutSignal;
    case OneSidedKind::kSignal:
      return RecordKind::kSignal;
    case OneSidedKind::kWaitSignal:
      return RecordKind::kWaitWord;
    case OneSidedKind::kFetchAdd:
      return RecordKind::kFetchAdd;
    case OneSidedKind::kCompareSwap:
      return RecordKind::kCompareSwap;
    case OneSidedKind::kFlush:
      return RecordKind::kFlush;
    case OneSidedKind::kRetire:
      return RecordKind::kRetire;
  }
  return RecordKind::kNothing;
}

uint64_t record_units(const OneSidedCall& call) {
  return call.kind == OneSidedKind::kWaitSignal ? call.value : call.bytes;
}

uint64_t load_word(const unsigned char* address) {
  return word_at(const_cast<unsigned char*>(address)).load(std::memory_order_acquire);
}

uint64_t add_to_word(unsigned char* address, uint64_t value) {
  return word_at(address).fetch_add(value, std::memory_order_acq_rel);
}

uint64_t swap_word(unsigned char* address, uint64_t expected, uint64_t desired) {
  word_at(address).compare_exchange_strong(expected, desired, std::memory_order_acq_rel);
  return expected;
}

}  // namespace weir::comm
