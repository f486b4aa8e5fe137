// SPDX-License-Identifier: Apache-2.0
// WordsPool: the words that streams write for calls which may run beside each other (StreamWords):
// each call has its own, and its number is 1. One thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/comm/stream/staging.h"
#include "cuda/driver.h"

namespace weir::comm {

class WordsPool {
 public:
  static constexpr uint32_t kNumber = 1;

  WordsPool() = default;
  ~WordsPool();
  WordsPool(const WordsPool&) = delete;
  WordsPool& operator=(const WordsPool&) = delete;

  // A context must be current. Allowed while a stream of this thread is captured.
  Status take(const cuda::Driver& driver, const char* function, StreamWords* words);
  // Of a call to whose words no stream will write.
  void give_back(const StreamWords& words);

 private:
  static constexpr size_t kWordsPerPiece = 32;
  static constexpr size_t kMailboxes = 2;  // of a call

  std::vector<std::shared_ptr<Staging>> pieces_;
  std::vector<StreamWords> free_;
};

}  // namespace weir::comm
