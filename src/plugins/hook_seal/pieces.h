// SPDX-License-Identifier: Apache-2.0
// Pieces: the memory of sealed pieces under way, by size, taken and given back. It grows when there is none to
// take, so that no lane ever waits for another one's, and never shrinks: what grows it is the most that was ever
// under way. One thread at a time per object.
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
  // Of the one that it is now.
  weir_result_t result = WEIR_IN_PROGRESS;
  uint32_t data_bytes = 0;  // of the message that it carries, if it is no head
  bool is_head = false;
};

class Pieces {
 public:
  Pieces() = default;
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;

  // Room for `bytes` bytes, at most that of the largest body and its tag, and a zeroed operation. Null: no memory.
  Piece* take(size_t bytes);
  void give_back(Piece* piece);

 private:
  static constexpr size_t kClassCount = 3;

  std::array<Piece*, kClassCount> free_{};
  std::vector<std::unique_ptr<Piece>> all_;
};

}  // namespace weir::plugins::hook_seal
