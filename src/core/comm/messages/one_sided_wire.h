// SPDX-License-Identifier: Apache-2.0
// Cell: the message by which one-sided operations over messages are done. Every cell has the same
// length, since both ends of a message name its length; bytes that do not fit follow as a message
// of their own. Pure; thread-safe.
//
//   offset  bytes  field (integers in the byte order of the machine)
//        0      4  "WONE"
//        4      2  CellKind
//        6      2  1: done after all that the sender has sent before
//        8      4  number of the window
//       12      4  ticket: by which the sender knows the reply
//       16      8  offset of the bytes or of the word in the window
//       24      8  bytes: of a put, get or reply; above kInlineBytes they follow by themselves
//       32      4  window of the signal
//       36      4  zero
//       40      8  offset of the signal's word
//       48      8  value: of the signal, to add, or to set; of a reply: what the word was
//       56      8  expected, of a compare and swap
//       64    192  the bytes, where they fit
#pragma once

#include <cstdint>
#include <string>

namespace weir::comm {

enum class CellKind : uint16_t {
  kPut = 1,
  kPutSignal = 2,
  kSignal = 3,
  kGet = 4,
  kFetchAdd = 5,
  kCompareSwap = 6,
  kFlush = 7,
  kReply = 8,
  kRetire = 9,  // the sender ends its part of the window and its use of it
  kWake = 10    // the sender has operations by the network under way: the receiver should poll
};

inline constexpr uint64_t kInlineBytes = 192;

struct Cell {
  char magic[4];
  CellKind kind;
  uint16_t fenced;
  uint32_t window;
  uint32_t ticket;
  uint64_t offset;
  uint64_t bytes;
  uint32_t signal_window;
  uint32_t zero;
  uint64_t signal_offset;
  uint64_t value;
  uint64_t expected;
  unsigned char data[kInlineBytes];
};
static_assert(sizeof(Cell) == 256);

// All but the kind is zero.
Cell make_cell(CellKind kind);
// "" or what is wrong with it, whichever rank sent it. The receiver looks up windows and tickets.
std::string wrong_with(const Cell& cell);

// The bytes of the cell that follow as a message of their own.
constexpr bool has_payload(const Cell& cell) {
  const bool carries = cell.kind == CellKind::kPut || cell.kind == CellKind::kPutSignal ||
                       cell.kind == CellKind::kReply;
  return carries && cell.bytes > kInlineBytes;
}

}  // namespace weir::comm
