// SPDX-License-Identifier: Apache-2.0
// KeptTable: the table of task times that rank 0 of a new communicator finds, or keeps after it has
// been measured: in this process, so that its communicators choose alike, and in the user's cache.
// One thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "core/cost/decision_log.h"
#include "core/cost/plausible.h"
#include "core/cost/table.h"

namespace weir::comm {

class KeptTable {
 public:
  // `directory`: empty where nothing is cached, as with `hash` 0. `hash`: of the machine's topology
  // and the way in which links are measured.
  KeptTable(std::string directory, uint64_t hash, const cost::Circumstances& circumstances)
      : directory_(std::move(directory)), hash_(hash), circumstances_(circumstances) {}

  // What this process has found or kept before, else the cached table, if it can be that of an idle
  // machine.
  std::optional<cost::Table> find() const;
  // Of a table that was measured in full. One that cannot be that of an idle machine is kept in
  // this process only. Failures are info lines.
  void keep(const cost::Table& table) const;

 private:
  bool keeps() const { return !directory_.empty() && hash_ != 0; }
  std::string key() const;

  const std::string directory_;
  const uint64_t hash_;
  const cost::Circumstances circumstances_;
};

// At the end of a communicator that used `table`: if the measured times disagree with the predicted
// ones for long, notes in the cache that the table is doubtful, for processes that start later.
// `directory`: empty: nothing is done. Failures are info lines.
void doubt_if_times_disagree(const std::string& directory, const cost::Table& table,
                             const cost::DecisionLog& decisions);

}  // namespace weir::comm
