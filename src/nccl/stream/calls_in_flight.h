// SPDX-License-Identifier: Apache-2.0
// CallsInFlight: how many calls to CUDA a communicator's staged operations have on their streams. A
// thread that is to make one too many waits here until the streams have gone on. In CUDA, where the
// launch queue would be full, it would wait with the context's lock, which a thread that brings the
// work of another rank may need.
//
// The streams write marks, numbers of calls, into a word of pinned memory; the proxy is not needed.
// Not thread-safe: used by the thread that enqueues.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "core/comm/stream/staging.h"
#include "cuda/driver.h"
#include "nccl/base/outcome.h"
#include "nccl/comm/comm.h"

namespace weir::nccl {

class CallsInFlight {
 public:
  // A context is current. An object that is not used any more is kept for later ones, and its
  // count goes on: the host never writes to the word, which may be gone when the process ends.
  static Outcome make(const cuda::Driver& driver, const char* function,
                      std::shared_ptr<CallsInFlight>* made);
  CallsInFlight(const CallsInFlight&) = delete;
  CallsInFlight& operator=(const CallsInFlight&) = delete;

  void limit_to(size_t calls) { limit_ = calls; }
  // Before so many calls: waits until at most the limit of them are in flight, about. Not for ever
  // if the communicator has failed.
  void enter(size_t calls, const Comm& comm);

  // Whether the stream should tell how far it has come.
  bool wants_mark() const { return made_ - marked_ >= kMarkEvery; }
  // What it then writes to the word.
  uint32_t mark();
  uint32_t* word() const { return &words_->mailboxes[0].ready; }

 private:
  static constexpr uint32_t kMarkEvery = 32;

  CallsInFlight() = default;
  static void give_back(CallsInFlight* it) noexcept;
  bool has_passed(uint32_t mark) const;

  std::shared_ptr<comm::Staging> words_;
  size_t limit_ = 0;
  uint32_t made_ = 0;
  uint32_t marked_ = 0;
  std::deque<uint32_t> marks_;  // that the streams have not passed, as far as is known
};

}  // namespace weir::nccl
