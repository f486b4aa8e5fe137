// SPDX-License-Identifier: Apache-2.0
// What a communicator takes from earlier runs and leaves to later ones (WEIR_LEARN): at the start
// rank 0 reads the measured times of calls from the user's cache and tells them to all ranks; at
// the end it adds what was measured. One thread at a time.
#pragma once

#include <optional>
#include <string>

#include "core/base/settings.h"
#include "core/cost/decision_log.h"
#include "core/cost/learned_file.h"

namespace weir::comm {

// Where rank 0 keeps them.
struct LearnedPlace {
  std::string directory;
  cost::LearnedFor of;
};

// The cache directory where there is something to read, or to be kept with WEIR_LEARN=1; empty:
// there is neither. With WEIR_PROBE=0 nothing is read that was measured.
std::string learned_directory(const Settings& settings);

// What rank 0 tells. The same for all communicators of this process and place, so that choices do
// not change within a run.
cost::LearnedTimes learned_times(const LearnedPlace& place);

// At the end of a communicator that learned: adds what the ranks measured to the file. Failures are
// info lines. `all`: of TimesOfRanks.
void keep_learned(const LearnedPlace& place, const cost::DecisionLog& decisions,
                  const cost::TimesByKey& all);

// The text of what rank 0 tells first, with the times behind it, and back.
std::string append_learned(std::string told, const std::string& learned);
// False: there are none behind it.
bool split_learned(std::string* told, std::string* learned);

}  // namespace weir::comm
