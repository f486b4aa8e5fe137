// SPDX-License-Identifier: Apache-2.0
// Algorithm: a pure generator of operations, (problem, rank, step) -> operations. It works for any
// number of ranks, and generates one step of one rank without the others, so that 10,000 ranks are
// simulated without holding 10,000 programs. A set of programs from elsewhere (imported.h) is one,
// too, for the number of ranks that it was made for. Functions only, no state: thread-safe.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "core/algo/formula.h"
#include "core/base/types.h"
#include "core/graph/forest.h"
#include "core/graph/rings.h"
#include "core/sched/program.h"

namespace weir::algo {

// How much the blocks of a collective's grid may differ in length, and who knows the lengths.
enum class BlockLengths : uint8_t {
  kEqual,       // all blocks are equally long
  kKnownToAll,  // every rank knows every length: reduce_scatter_v, all_gather_v
  // A rank knows the lengths of the blocks that it sends and receives and, where memory is mapped,
  // the length of the longest block: all_to_all_v.
  kKnownToEnds,
};

// By which renaming of ranks a rank's program becomes that of another one, up to the chunks that it
// names. For hierarchical algorithms, if every node has the same number p of neighbouring ranks and
// the renaming maps nodes to nodes.
enum class Symmetry : uint8_t {
  kNone,
  kShift,  // r -> (r + d) mod n, any d (a multiple of p)
  kXor,    // r -> r xor d, where n is a power of two
};

class Nodes;
class TreeLinks;

// The collective to perform, and what may be assumed about it.
struct Problem {
  Collective collective = Collective::kAllReduce;
  Rank rank_count = 1;
  Rank root = 0;  // broadcast, reduce, gather, scatter

  // The Staging space of every rank can be read and written by every rank.
  bool mapped = false;
  // Input (Output) of every rank can be read (written) by every rank: user windows.
  bool inputs_mapped = false;
  bool outputs_mapped = false;
  // Whether they are mapped may differ between ranks, and each rank tells it with its first signal:
  // the program has conditions and stand-ins (sched/op.h). With mapped, inputs_mapped and
  // outputs_mapped. Algorithms that use no windows do not look here.
  bool told = false;

  // Topology view for hierarchical algorithms: the host (or NUMA node) of each rank, numbered from
  // 0 in order of first appearance. Empty: all ranks on one. It need be neither even nor
  // contiguous.
  std::span<const uint32_t> node_of_rank;
  // The same as Nodes (nodes.h), for many steps of many ranks; nullptr: made for each step.
  const Nodes* nodes = nullptr;

  // Ranks of one host that share a last-level cache, or a NUMA node, numbered like nodes. Empty:
  // all share one, or it is not known.
  std::span<const uint32_t> cache_of_rank;
  std::span<const uint32_t> numa_of_rank;

  // Trees that were found for the machine: of all ranks, or of the root for collectives that have
  // one. nullptr: none. Without flaws (graph::flaw_of).
  const graph::Forest* forest = nullptr;
  // The same by rank (tree_links.h), over as many lanes as `forest` uses, for many steps of many
  // ranks; nullptr: made for each step.
  const TreeLinks* tree_links = nullptr;
  // Rings that were found for the machine. nullptr: none, or none better than the order of ranks.
  // Without flaws.
  const graph::Rings* rings = nullptr;
  // The lanes that a program may use, where more of them help.
  uint32_t lanes_max = 4;
  // Of them, those that programs along `forest` use; 0: all.
  uint32_t tree_lanes_max = 0;

  // Input and Output share memory in the way that weir.h allows for the collective. Every algorithm
  // is correct both ways; one that needs other operations for it, or does not support it, looks
  // here.
  bool in_place = false;

  BlockLengths lengths = BlockLengths::kEqual;

  // The number of leaves of a fold over leaves (sched/op.h); 0: each rank contributes once.
  uint32_t leaf_count = 0;
};

class Imported;

// A function of an algorithm. That of programs from elsewhere is also given the programs.
template <typename Result, typename... Arguments>
class Function {
 public:
  using Plain = Result (*)(Arguments...);
  using OfImported = Result (*)(const Imported&, Arguments...);

  // Written as the function's name alone in the tables of algorithms.
  template <std::convertible_to<Plain> Callable>
  // NOLINTNEXTLINE(google-explicit-constructor)
  constexpr Function(Callable plain) : plain_(plain) {}
  constexpr Function(OfImported function, const Imported& imported)
      : of_imported_(function), imported_(&imported) {}

  Result operator()(Arguments... arguments) const {
    return imported_ == nullptr ? plain_(arguments...) : of_imported_(*imported_, arguments...);
  }

 private:
  Plain plain_ = nullptr;
  OfImported of_imported_ = nullptr;
  const Imported* imported_ = nullptr;
};

struct Algorithm {
  const char* name;     // "ring", "recursive_doubling", …
  const char* summary;  // one line: idea and source (paper)
  Collective collective;
  bool needs_mapped;        // uses Staging at peers
  bool needs_user_windows;  // uses Input or Output at peers
  // Every output element is one fold over all ranks in rank order, made by a single reduce: the
  // only form whose bits do not depend on the algorithm. Tests compare this with the verifier's
  // result.
  bool rank_order;
  // The least uniform lengths for which every program of the algorithm is right. With kKnownToAll
  // both ends of every message can tell from the program which chunks it holds
  // (sched/moved_chunks.h). With kKnownToEnds every operation moves blocks that this rank sends or
  // receives; and where blocks are messages, each is one message of lane 0, from Input to Output,
  // so that a rank may choose a different such algorithm than its peers, which know different
  // lengths.
  BlockLengths lengths = BlockLengths::kEqual;
  bool uses_nodes = false;  // looks at Problem::node_of_rank
  // With uses_nodes: the algorithm of which this one is the same with more copies where each node
  // has one rank.
  const Algorithm* of_single_ranks = nullptr;
  bool uses_forest = false;  // needs Problem::forest
  bool uses_rings = false;   // needs Problem::rings
  // Needs Problem::cache_of_rank or numa_of_rank: which of them.
  std::span<const uint32_t> Problem::*groups = nullptr;
  Symmetry symmetry = Symmetry::kNone;

  // Whether `problem` can be solved at all (rank counts, mapping, hierarchy).
  Function<bool, const Problem&> supports;
  // The same on all ranks.
  Function<sched::Shape, const Problem&> shape;
  // Number of steps of `rank`; the operations of step s follow those of step s - 1 in each lane.
  Function<uint32_t, const Problem&, Rank> step_count;
  // Emits the operations of one step (the third argument) of one rank.
  Function<void, const Problem&, Rank, uint32_t, sched::Builder&> step;

  Formula formula = {};
  const Imported* imported = nullptr;  // set for programs from elsewhere
};

// The signal of Weir's programs over user windows that says "you may use my buffers". Where ranks
// agree on windows before an operation, all have said so then.
inline constexpr uint8_t kWindowsEntered = 0;

// The lanes over which the trees of `forest` go (forest.cc). With Problem::forest.
uint32_t forest_lane_count(const Problem& problem);

inline bool uses_messages(const Algorithm& algorithm) {
  return !algorithm.needs_mapped && !algorithm.needs_user_windows;
}

// "all_gather_v" where the lengths differ, otherwise "all_gather"; the other collectives have one
// name.
const char* name_of(Collective collective, BlockLengths lengths);
// How the lengths of the blocks of the collective's v-variant are known; kEqual: it has none.
BlockLengths lengths_of_variant(Collective collective);

struct NamedCollective {
  Collective collective;
  BlockLengths lengths;
};
// The inverse of name_of.
std::optional<NamedCollective> collective_named(std::string_view name);

// Every algorithm, listed by hand in registry.cc, but for those of folds over leaves.
std::span<const Algorithm* const> all_algorithms();
// Those of folds over leaves (leaves.cc): their programs fold every element as the tree over all
// leaves. They support problems with a leaf_count, and the others those without.
std::span<const Algorithm* const> leaf_algorithms();
// Finds an algorithm by collective and name, among all of them or among those given; nullptr when
// there is none.
const Algorithm* find_algorithm(Collective collective, std::string_view name);
const Algorithm* find_algorithm(Collective collective, std::string_view name,
                                std::span<const Algorithm* const> among);

// All steps of one rank.
sched::Program compile(const Algorithm& algorithm, const Problem& problem, Rank rank);

}  // namespace weir::algo
