// SPDX-License-Identifier: Apache-2.0
#include "plugins/hook_seal/pieces.h"

#include <new>

#include "plugins/hook_seal/cipher.h"

namespace weir::plugins::hook_seal {
namespace {

constexpr size_t kSizes[] = {kHeadBytes, 8192, kBodyBytesMax + kTagBytes};

}  // namespace

Piece* Pieces::take(size_t bytes) {
  size_t size_class = 0;
  while (size_class + 1 < kClassCount && kSizes[size_class] < bytes) ++size_class;
  if (kSizes[size_class] < bytes) return nullptr;
  Piece* piece = free_[size_class];
  if (piece == nullptr) {
    try {
      auto made = std::make_unique<Piece>();
      made->bytes.reset(new unsigned char[kSizes[size_class]]);
      made->size_class = size_class;
      piece = made.get();
      all_.push_back(std::move(made));
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  } else {
    free_[size_class] = piece->next;
  }
  piece->op = {};
  piece->next = nullptr;
  piece->result = WEIR_IN_PROGRESS;
  piece->data_bytes = 0;
  piece->is_head = false;
  return piece;
}

void Pieces::give_back(Piece* piece) {
  piece->next = free_[piece->size_class];
  free_[piece->size_class] = piece;
}

}  // namespace weir::plugins::hook_seal
