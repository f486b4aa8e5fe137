// SPDX-License-Identifier: Apache-2.0
// The state of an event that processes share: how many records it has had, and which of them a
// stream has reached. It is a page of an unnamed file, which another process opens through /proc,
// as it does memory (ipc.cc). Thread-safe.
#pragma once

#include <cstdint>
#include <memory>

#include "hostcuda/core/error.h"
#include "hostcuda/core/memory.h"
#include "hostcuda/core/stream.h"

namespace weir::hostcuda {

class SharedMark {
 public:
  // kOutOfMemory without a page.
  static Error create(std::shared_ptr<SharedMark>* mark);
  // kInvalidValue for a handle that is none; kInvalidContext, as for memory, in the process that
  // made it; kMapFailed if it cannot be opened.
  static Error open(const IpcHandle& handle, std::shared_ptr<SharedMark>* mark);
  ~SharedMark();
  SharedMark(const SharedMark&) = delete;
  SharedMark& operator=(const SharedMark&) = delete;

  // kInvalidValue for one that another process made.
  Error give(IpcHandle* handle) const;

  // The number of a new record, from 1, and that a stream has reached it. A record that is reached
  // covers those before it.
  uint64_t begin();
  void finish(uint64_t number);
  // The number of the latest record; 0: none.
  uint64_t latest() const;
  bool done(uint64_t number) const;
  // Until it is done, `cancel` (if any) is set, or the process of the latest record has ended.
  void wait(uint64_t number, const Cancel* cancel) const;

 private:
  struct Page;
  SharedMark(Page* page, int descriptor) : page_(page), descriptor_(descriptor) {}

  Page* const page_;
  const int descriptor_;  // -1 where it was opened
};

}  // namespace weir::hostcuda
