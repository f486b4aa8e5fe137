// SPDX-License-Identifier: Apache-2.0
// Pieces: a pool of memory for sealed pieces in flight, by size. It grows when it is empty, so that
// no lane ever waits for the pieces of another, and never shrinks: its size is the most that was
// ever in flight. One thread at a time per object.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "weir/plugin.h"

namespace weir::plugins::hook_seal {

struct Piece {
  weir_transport_op_t op{};  // of the transport beneath
  Piece* next = nullptr;
  std::unique_ptr<unsigned char[]> bytes;
  size_t size_class = 0;
  // Of its current use.
  weir_result_t result = WEIR_IN_PROGRESS;
  uint32_t data_bytes = 0;  // of the message that it carries, if it is no head
  bool is_head = false;
};

class Pieces {
 public:
  Pieces() = default;
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;

  // Room for `bytes` bytes, at most that of the largest body and its tag, and a zeroed operation.
  // Null: no memory.
  Piece* take(size_t bytes);
  void give_back(Piece* piece);

 private:
  static constexpr size_t kClassCount = 3;

  std::array<Piece*, kClassCount> free_{};
  std::vector<std::unique_ptr<Piece>> all_;
};

}  // namespace weir::plugins::hook_seal
