// SPDX-License-Identifier: Apache-2.0
#include "core/comm/messages/one_sided_wire.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstring>

namespace weir::comm {

namespace {
constexpr char kMagic[4] = {'W', 'O', 'N', 'E'};
}

Cell make_cell(CellKind kind) {
  Cell cell;
  std::memset(&cell, 0, sizeof cell);
  std::memcpy(cell.magic, kMagic, sizeof kMagic);
  cell.kind = kind;
  return cell;
}

std::string wrong_with(const Cell& cell) {
  if (std::memcmp(cell.magic, kMagic, sizeof kMagic) != 0) return "it does not begin with WONE";
  const auto kind = static_cast<uint16_t>(cell.kind);
  if (kind < static_cast<uint16_t>(CellKind::kPut) ||
      kind > static_cast<uint16_t>(CellKind::kWake)) {
    return fmt::format("its kind is {}", kind);
  }
  if (cell.fenced > 1 || cell.zero != 0) return "one of its flags is neither 0 nor 1";
  if (cell.bytes > PTRDIFF_MAX || cell.offset > PTRDIFF_MAX || cell.signal_offset > PTRDIFF_MAX) {
    return "its length or an offset exceeds the address space";
  }
  return "";
}

}  // namespace weir::comm
