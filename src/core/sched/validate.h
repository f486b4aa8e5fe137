// SPDX-License-Identifier: Apache-2.0
// Checks a program without running it: every lane, peer, signal, operand and chunk is in range,
// local where it must be, and mapped where it is not. verify() begins with these checks; for
// programs from outside (a file, a solver) the errors name the field. Pure functions; thread-safe.
#pragma once

#include <span>

#include "core/base/status.h"
#include "core/sched/layout.h"
#include "core/sched/program.h"

namespace weir::sched {

inline constexpr uint32_t kLaneCountMax = 16;
inline constexpr uint32_t kSignalCountMax = 256;
// Limits of validate() and verify(), which hold tables of rank_count^2 entries.
inline constexpr Rank kVerifiedRankCountMax = 4096;
inline constexpr uint32_t kVerifiedThreadCountMax = 16384;  // rank_count * lane_count
// Places (chunks and slots of all ranks) that validate() and verify() accept.
inline constexpr uint64_t kVerifiedPlaceCountMax = 1u << 28;

// A flaw and where it is.
struct Flaw {
  enum class Kind : uint8_t { kNone, kBounds, kDeadlock, kRace, kValue, kOrder };
  static constexpr uint32_t kNoOp = 0xffffffffu;

  Kind kind = Kind::kNone;
  Rank rank = 0;
  uint32_t op_index = kNoOp;  // in Program::ops of `rank`, or kNoOp
  std::string text;           // which rank, what, and, where it helps, the remedy

  bool found() const { return kind != Kind::kNone; }
};

const char* name_of(Flaw::Kind kind);  // "bounds", "deadlock", …

// Checks the head of one program: rank counts, root, shape. Errors name the field.
Flaw validate_head(const Program& program);

// Checks all programs of a collective together: programs[r] is that of rank r and all heads agree;
// then every operation of every rank. `layout` is made from any head after validate_heads has
// passed.
Flaw validate_heads(std::span<const Program> programs);
Flaw validate_ops(const Program& program, const Layout& layout, const Access& access);

}  // namespace weir::sched
