// SPDX-License-Identifier: Apache-2.0
// What WEIR_LEARN=1 has kept in a cache directory, as values and as the text of
// `weir-info --decisions`: decisions, their candidates, predicted and measured times, and regret.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/cost/learned_file.h"

namespace weir::info {

// How many times as long the choice takes as the best candidate.
struct Regret {
  std::optional<double> predicted;  // no value: nothing was predicted
  // By medians of candidates that were measured often enough; no value: less than two were.
  std::optional<double> measured;
};
Regret regret_of(const cost::LearnedCall& call);

// Over calls.
struct RegretSummary {
  size_t call_count = 0;  // that have a measured regret
  double mean = 1;        // geometric
  double worst = 1;
  std::string worst_call;
};
RegretSummary summary_of(const cost::Learned& learned);

struct DecisionFile {
  std::string name;
  std::string error;     // why it cannot be read; "": it can
  std::string not_used;  // why communicators ignore it; "": they do not
  cost::Learned learned;
};

struct Decisions {
  std::string directory;  // "" where there is none
  std::string error;      // why there is none
  std::vector<DecisionFile> files;
};

// `directory`: empty: the user's cache directory, as WEIR_CACHE_DIR or the environment says.
Decisions read_decisions(const std::string& directory);

std::string text_of(const Decisions& decisions);
std::string json_of(const Decisions& decisions);

}  // namespace weir::info
