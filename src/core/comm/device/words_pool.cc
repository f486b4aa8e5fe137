// SPDX-License-Identifier: Apache-2.0
#include "core/comm/device/words_pool.h"

#include <utility>

namespace weir::comm {

// So that they may be used again; not where a stream may still write to them.
WordsPool::~WordsPool() {
  for (const std::shared_ptr<Staging>& piece : pieces_) {
    for (size_t i = 0; i < kWordsPerPiece; ++i) {
      Mailbox& it = piece->mailboxes[i * kMailboxes];
      if (it.rung() == load_word(it.done)) it = {};
    }
  }
}

Status WordsPool::take(const cuda::Driver& driver, const char* function, StreamWords* words) {
  if (free_.empty()) {
    std::shared_ptr<Staging> piece;
    WEIR_RETURN_IF_ERROR(get_staging(driver, function, kWordsPerPiece * kMailboxes, 0, &piece));
    pieces_.push_back(piece);
    for (size_t i = kWordsPerPiece; i-- > 0;) free_.push_back({piece, i * kMailboxes});
  }
  *words = std::move(free_.back());
  free_.pop_back();
  return Status();
}

void WordsPool::give_back(const StreamWords& words) {
  words.calls() = {};
  free_.push_back(words);
}

}  // namespace weir::comm
