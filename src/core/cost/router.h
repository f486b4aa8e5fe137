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
#include "core/cost/learned.h"
#include "core/cost/predict.h"
#include "core/cost/rules.h"
#include "core/cost/table.h"

namespace weir::cost {

struct Request {
  Workload work;
  DataType type = DataType::kFloat32;  // for the record
  uint64_t call_key = 0;               // the same; all ranks have the same for the same calls
  // Only algorithms whose bits do not depend on the algorithm: those with rank_order, for
  // collectives that reduce.
  bool deterministic = false;
  // WEIR_ALGORITHM for this collective; empty: none.
  std::string_view forced;
  // Whether the ranks agree on windows before the call, where all buffers lie in some; else each
  // tells its own in the call.
  bool agreed = true;
  // Of the candidates: used before rules and predictions wherever it can be. nullptr: none.
  const algo::Algorithm* preferred = nullptr;
  // The lengths of slices among which each program over messages has the one of the least time.
  // Empty: those of `work`.
  std::span<const uint64_t> slices = {};
  // The number of lanes for programs of messages.
  uint32_t lane_count_max = ~uint32_t{0};
  // What earlier runs measured of such calls; nullptr: nothing. Outlives the call of `choose`.
  const std::vector<AlgorithmTime>* learned = nullptr;
  // Whether worth_exploring() is to be asked: then those are predicted to their end, too, that may
  // take up to kExploredFactorMax times as long as the best.
  bool explores = false;
};

CallShape shape_of(const Request& request);

// How a program over messages is cut, of Request::slices; 0: as the work says.
struct Cut {
  uint64_t slice_bytes = 0;
  uint32_t tree_lanes = 0;
  bool operator==(const Cut&) const = default;
};
// Those that are worth a prediction: with each length of slices that makes a difference, and where
// the program goes along trees, with as many lanes as tree_lanes() says and with one.
std::vector<Cut> cuts_of(const algo::Algorithm& algorithm, const Request& request);

struct Candidate {
  const algo::Algorithm* algorithm = nullptr;
  double predicted_ns = 0;
  const char* excluded = nullptr;  // why it cannot be used, a static text; nullptr: it can
  // `predicted_ns` is a lower bound, above what is chosen by prediction or hardly below it.
  bool at_least = false;
  Cut cut = {};
  // In earlier runs: how many calls of a rank were measured, and their median, averaged over ranks.
  uint64_t learned_count = 0;
  double learned_ns = 0;
};

struct Decision {
  enum class By : uint8_t { kForced, kPreferred, kRule, kMeasured, kPrediction };

  const algo::Algorithm* algorithm = nullptr;
  By by = By::kPrediction;
  uint64_t slice_bytes = 0;  // a rule's, or of Request::slices; 0: not given
  uint32_t tree_lanes = 0;   // likewise
  double predicted_ns = 0;
  uint64_t operations = 0;            // that were followed or looked at for the predictions
  std::string reason;                 // one sentence
  std::vector<Candidate> candidates;  // as given; predicted unless excluded
  // Run in turn by some of the calls (worth_exploring); empty: nothing is explored.
  std::vector<const algo::Algorithm*> explored;
};

// The work of a program of the algorithm: each slice in flight takes lanes of its own
// (engine::LanePlan), of which the request has only so many.
Workload work_of(const algo::Algorithm& algorithm, const Request& request, const Cut& cut = {});

// The lanes of a program along the trees of the problem, of its lanes_max, for slices of so many
// bytes (0: chunks are not cut); 0: it has no trees. Over one lane as many slices are in flight as
// there are lanes, and the links of a rank work on several of them; but a slice more in flight is a
// slice more to wait for at the beginning and at the end. So: as few lanes as leave four rounds or
// more of slices.
uint32_t tree_lanes(const algo::Problem& problem, uint64_t bytes, uint64_t slice_bytes);

// The algorithms that can run, without those that are another one with more copies where each host
// has one rank.
std::vector<const algo::Algorithm*> candidates_for(
    std::span<const algo::Algorithm* const> algorithms, const algo::Problem& problem);

// `candidates`: algorithms that the caller could run, of the request's collective; empty: all that
// are registered for it. `rules` may be nullptr. Precedence: forced, preferred, rule, measured in
// earlier runs (if the predicted choice was measured, too, and is slower by more than
// kLearnedGainMin), prediction (the first of the candidates with the least time; where memory is
// mapped, the one with the fewest signals of those over it that take at most 10 % longer).
// A preferred algorithm and one that a rule names are ignored where they cannot be used, and the
// reason says so.
// kInvalidArgument: `forced` is unknown. kUnsupported: the forced algorithm cannot be used, or none
// can.
Result<Decision> choose(const Request& request, std::span<const algo::Algorithm* const> candidates,
                        const Table& table, const Rules* rules);

// Why an algorithm that reads or writes buffers of other ranks cannot be used. The sizes are those
// of engine/slicing.h.
inline constexpr const char* kNeedsUserWindows =
    "needs user windows, which calls of 16 KiB or more use, with a root of 256 KiB or more";

// nullptr when the algorithm can be used, else why not, a static text.
const char* why_excluded(const algo::Algorithm& algorithm, const Request& request);

// The algorithms that exploration runs in turn, the best first: the choice, and those that are
// expected to take at most kExploredFactorMax times as long, by what both took in earlier runs if
// that is known of both, else as predicted. Empty where there is no other one, and where a user or
// a rule has decided.
inline constexpr double kExploredFactorMax = 2;
inline constexpr size_t kExploredMax = 4;
std::vector<const algo::Algorithm*> worth_exploring(const Decision& decision);

}  // namespace weir::cost
