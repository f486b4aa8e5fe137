// SPDX-License-Identifier: Apache-2.0
// Staging: pinned host memory through which a stream and the proxy hand work to each other. It
// holds mailboxes, each of two flags, and bytes for data that lie on a device.
//
//   stream: [copy in]  ready = n                   wait until done = 1  [copy out]  done = 0
//   proxy:                       ready = 0, works, done = 1
//
// The values are constants and each flag is cleared by the side that waited for it, so that a graph
// can repeat the sequence any number of times. Once all flags are 0, neither stream nor proxy uses
// it.
//
// Staging is reused by any communicator and is never given back to CUDA: cuMemFreeHost waits for
// the device, which may be waiting for this thread. Thread-safe, except for the bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/base/status.h"
#include "cuda/driver.h"

namespace weir::comm {

// A word of the host that a stream, or a kernel, writes.
inline uint32_t load_word(const uint32_t& word) {
  return std::atomic_ref(const_cast<uint32_t&>(word)).load(std::memory_order_acquire);
}

struct Mailbox {
  alignas(64) uint32_t ready;
  alignas(64) uint32_t done;

  uint32_t rung() const { return load_word(ready); }
  void take() { std::atomic_ref(ready).store(0, std::memory_order_relaxed); }
  void answer() { std::atomic_ref(done).store(1, std::memory_order_release); }
  bool quiet() const { return rung() == 0 && load_word(done) == 0; }
};

struct Staging {
  Mailbox* mailboxes = nullptr;
  size_t mailbox_count = 0;
  char* bytes = nullptr;
  size_t byte_count = 0;

  bool holds(size_t mailboxes_needed, size_t bytes_needed) const {
    return mailboxes_needed <= mailbox_count && bytes_needed <= byte_count;
  }
  bool quiet() const;
};

// The mailboxes of calls of one kind that are work of streams alone, which come to one after the
// other. A stream writes the number of a call when it comes to it (`ready`), and when it has passed
// it (`done`).
struct StreamWords {
  std::shared_ptr<Staging> staging;
  size_t first = 0;

  Mailbox& calls() const { return staging->mailboxes[first]; }
  // Its `done`: the call may run.
  Mailbox& gate() const { return staging->mailboxes[first + 1]; }
};

// Staging with at least so many mailboxes and bytes, all flags 0. A context must be current.
// Allowed while a stream of this thread is captured.
Status get_staging(const cuda::Driver& driver, const char* function, size_t mailboxes, size_t bytes,
                   std::shared_ptr<Staging>* out);

}  // namespace weir::comm
