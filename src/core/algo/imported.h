// SPDX-License-Identifier: Apache-2.0
// Imported: a set of programs from elsewhere (a file, a solver, a user) as an algorithm, for the
// collective, the number of ranks and the root that it was made for. It is proved before it exists,
// so whatever chooses, predicts, runs or simulates algorithms may trust it like one of Weir's own.
// Immutable once made; any thread may read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/algo/algorithm.h"
#include "core/base/status.h"
#include "core/sched/json.h"

namespace weir::algo {

// Limits of a set that is to run; sched/validate.h has those of one that is only to be verified.
inline constexpr Rank kImportedRankCountMax = 1024;
inline constexpr uint32_t kImportedThreadCountMax = 4096;       // ranks * lanes
inline constexpr uint64_t kImportedCounterCountMax = 1u << 24;  // ranks^2 * lanes or signals
inline constexpr uint64_t kImportedOpCountMax = 1u << 20;       // of all ranks
inline constexpr uint64_t kImportedPlaceCountMax = 1u << 22;    // chunks and slots of all ranks
inline constexpr uint32_t kImportedScratchSlotCountMax = 4096;  // a slot is as long as a chunk
inline constexpr uint32_t kImportedStagingSlotCountMax = 512;
inline constexpr size_t kImportedNameBytesMax = 64;

// Whether the limits above hold for a set.
enum class ImportFor : uint8_t { kRunning, kCheckOnly };

class Imported {
 public:
  // `name`: of the algorithm; letters, digits, '_', '-' and '.', and no other algorithm's of this
  // collective. Every rank's memory is checked both ways, Input and Output apart and in place. A
  // set of messages that is right only when they are apart, and does not say that it is right in
  // place, first copies Input aside. The error (kInvalidArgument) names the operation that is
  // wrong.
  static Result<std::shared_ptr<const Imported>> make(sched::ProgramSet set, std::string name,
                                                      ImportFor use = ImportFor::kRunning);

  Imported(const Imported&) = delete;
  Imported& operator=(const Imported&) = delete;

  const Algorithm& algorithm() const { return algorithm_; }
  // As it runs: with what `make` has added.
  const sched::Program& program(Rank rank) const { return set_.programs[rank]; }
  const std::vector<sched::Program>& programs() const { return set_.programs; }
  bool copies_input() const { return copies_input_; }

 private:
  Imported(sched::ProgramSet set, std::string name);
  Status prove();

  static bool supports(const Imported& self, const Problem& problem);
  static sched::Shape shape(const Imported& self, const Problem& problem);
  static uint32_t step_count(const Imported& self, const Problem& problem, Rank rank);
  static void step(const Imported& self, const Problem& problem, Rank rank, uint32_t step,
                   sched::Builder& builder);

  std::string name_;
  sched::ProgramSet set_;
  bool copies_input_ = false;
  Algorithm algorithm_;
};

}  // namespace weir::algo
