// SPDX-License-Identifier: Apache-2.0
// choose(): selects the algorithm for a call and says why. Called when a plan is bound, not on a
// warm path. Every rank must call it with the same arguments; it is a pure function and gives the
// same answer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/algo/algorithm.h"
#include "core/base/status.h"
#include "core/cost/predict.h"
#include "core/cost/rules.h"
#include "core/cost/table.h"

namespace weir::cost {

struct Request {
  Workload work;
  DataType type = DataType::kFloat32;  // for the record
  // Only algorithms whose bits do not depend on the algorithm: those with rank_order, for
  // collectives that reduce.
  bool deterministic = false;
  // WEIR_ALGORITHM for this collective; empty: none.
  std::string_view forced;
  // Of the candidates: used before rules and predictions wherever it can be. nullptr: none.
  const algo::Algorithm* preferred = nullptr;
  // The number of lanes for programs of messages.
  uint32_t lane_count_max = ~uint32_t{0};
};

struct Candidate {
  const algo::Algorithm* algorithm = nullptr;
  double predicted_ns = 0;
  const char* excluded = nullptr;  // why it cannot be used, a static text; nullptr: it can
};

struct Decision {
  enum class By : uint8_t { kForced, kPreferred, kRule, kPrediction };

  const algo::Algorithm* algorithm = nullptr;
  By by = By::kPrediction;
  uint64_t slice_bytes = 0;  // a rule's; 0: not given
  double predicted_ns = 0;
  std::string reason;                 // one sentence
  std::vector<Candidate> candidates;  // as given; predicted unless excluded
};

// The algorithms that can run: where memory is mapped, messages over the same memory would only
// copy once more, so that algorithms of messages are left out unless there are no others.
std::vector<const algo::Algorithm*> candidates_for(
    std::span<const algo::Algorithm* const> algorithms, const algo::Problem& problem);

// `candidates`: algorithms that the caller could run, of the request's collective; empty: all that
// are registered for it. `rules` may be nullptr. Precedence: forced, preferred, rule, prediction
// (the first of the candidates with the least time). A preferred algorithm and one that a rule
// names are ignored where they cannot be used, and the reason says so. kInvalidArgument: `forced`
// is unknown. kUnsupported: the forced algorithm cannot be used, or none can.
Result<Decision> choose(const Request& request, std::span<const algo::Algorithm* const> candidates,
                        const Table& table, const Rules* rules);

}  // namespace weir::cost
