// SPDX-License-Identifier: Apache-2.0
// weir-sched verify: runs the verifier over algorithms, or over programs in a file.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "command_line/command_line.h"
#include "core/algo/check.h"
#include "core/algo/imported.h"
#include "weir_sched/commands.h"
#include "weir_sched/problem_options.h"
#include "weir_sched/program_file.h"

namespace weir::sched_tool {
namespace {

struct VerifyCommand {
  ProblemOptions problem;
  std::string rank_counts = "1..16";
  std::string file;
  bool all = false;
  bool all_roots = false;
  uint32_t credit = 1;
};

void print_flaw(const std::string& what, const sched::Flaw& flaw) {
  fmt::print("{}: WRONG ({}): {}\n", what, sched::name_of(flaw.kind), flaw.text);
}

int verify_file(const VerifyCommand& options) {
  const Result<algo::ProgramText> read = read_program_file(options.file);
  if (!read.ok()) {
    fmt::print(stderr, "weir-sched verify: {}\n", read.status().text());
    return kExitInput;
  }
  const sched::ProgramSet& set = read.value().set;
  sched::Verdict verdict =
      sched::verify(set.programs, {.access = set.access, .credit = options.credit});
  if (!verdict.ok()) {
    verdict.flaw.text = algo::with_origins(verdict.flaw.text, read.value());
    print_flaw(options.file, verdict.flaw);
    return kExitFlaw;
  }
  // What every rank checks that reads such programs: Input and Output apart, and in place.
  const auto imported = algo::Imported::make(set, "checked", algo::ImportFor::kCheckOnly);
  if (!imported.ok()) {
    fmt::print("{}: right for the access that it names, but no communicator takes it: {}\n",
               options.file, algo::with_origins(imported.status().text(), read.value()));
    return kExitFlaw;
  }
  fmt::print("{}: right ({} on {} ranks, {} operations, {} messages{}{})\n", options.file,
             name_of(set.programs[0].collective), set.programs.size(), verdict.op_count,
             verdict.message_count, verdict.rank_order ? ", one fold in rank order" : "",
             imported.value()->copies_input() ? "; in place, Input is copied first" : "");
  return kExitOk;
}

struct Sums {
  uint64_t problem_count = 0;
  uint64_t op_count = 0;
  std::string left_out;  // why a problem was not verified
};

// Verifies one problem; false (and a line with the flaw) when its programs are wrong.
bool verify_one(const algo::Algorithm& algorithm, const OwnedProblem& owned, uint32_t credit,
                Sums* sums) {
  const algo::Problem problem = owned.get();
  const sched::Verdict verdict = algo::verify(algorithm, problem, credit);
  ++sums->problem_count;
  sums->op_count += verdict.op_count;
  const std::string what = fmt::format(
      "{}/{} on {} ranks{}{}{}", algo::name_of(algorithm.collective, problem.lengths),
      algorithm.name, problem.rank_count,
      is_rooted(algorithm.collective) ? fmt::format(", root {}", problem.root) : "",
      problem.in_place ? ", in place" : "",
      problem.node_of_rank.empty() ? ""
                                   : fmt::format(", {} nodes", problem.node_of_rank.back() + 1));
  if (!verdict.ok()) {
    print_flaw(what, verdict.flaw);
    return false;
  }
  if (algorithm.rank_order && !verdict.rank_order) {
    fmt::print("{}: WRONG (order): claims to fold in rank order, and does not\n", what);
    return false;
  }
  return true;
}

// All requested roots, in place and not; hierarchies also with 4 and 8 ranks per node, unless the
// command line says how many.
bool verify_algorithm(const algo::Algorithm& algorithm, const std::vector<Rank>& rank_counts,
                      const VerifyCommand& options, Sums* sums) {
  for (const Rank n : rank_counts) {
    const Rank last_root = options.all_roots && is_rooted(algorithm.collective) ? n - 1 : 0;
    for (Rank root = 0; root <= last_root; ++root) {
      for (const bool in_place : {false, true}) {
        if (in_place && algorithm.collective == Collective::kBarrier) continue;
        for (const uint32_t per_node : {options.problem.per_node, 4u, 8u}) {
          ProblemOptions one = options.problem;
          one.root = !is_rooted(algorithm.collective) ? 0
                     : options.all_roots              ? root
                                                      : options.problem.root;
          one.in_place = in_place;
          one.per_node = per_node;
          const Result<OwnedProblem> owned = make_problem(algorithm, n, one);
          if (!owned.ok()) sums->left_out = owned.status().text();
          if (owned.ok() && !verify_one(algorithm, owned.value(), options.credit, sums)) {
            return false;
          }
          if (!algorithm.uses_nodes || options.problem.per_node > 0 ||
              !options.problem.nodes.empty())
            break;
        }
      }
    }
  }
  return true;
}

Status verify_algorithms(const VerifyCommand& options, int* exit_code) {
  const bool has_filter = !options.problem.collective.empty() || !options.problem.algorithm.empty();
  if (!options.all && !has_filter) {
    return invalid_argument("say what to verify: --all, --collective, --algorithm or --file");
  }
  std::optional<algo::NamedCollective> named;
  if (!options.problem.collective.empty()) {
    const Result<algo::NamedCollective> parsed = parse_collective(options.problem.collective);
    if (!parsed.ok()) return parsed.status();
    named = parsed.value();
    if (!options.problem.algorithm.empty()) {
      const auto algorithm = find_algorithm(options.problem);
      if (!algorithm.ok()) return algorithm.status();
    }
  }
  const auto counts = parse_rank_counts(options.rank_counts, sched::kVerifiedRankCountMax);
  if (!counts.ok()) return counts.status();
  const Rank largest = *std::max_element(counts.value().begin(), counts.value().end());
  if (options.problem.root >= largest) {
    return invalid_argument(fmt::format("--root {} is out of range: --ranks goes to {} ranks",
                                        options.problem.root, largest));
  }
  if (!options.problem.nodes.empty()) {
    for (const Rank n : counts.value()) {
      if (n != options.problem.nodes.size()) {
        return invalid_argument(fmt::format("--nodes has {} entries: --ranks must be that number",
                                            options.problem.nodes.size()));
      }
    }
  }
  uint32_t algorithm_count = 0;
  uint32_t tried_count = 0;
  std::string last_left_out;
  for (const algo::Algorithm* algorithm : algo::all_algorithms()) {
    const ProblemOptions& wanted = options.problem;
    if (named &&
        (named->collective != algorithm->collective || named->lengths > algorithm->lengths)) {
      continue;
    }
    if (!wanted.algorithm.empty() && wanted.algorithm != algorithm->name) continue;
    ++algorithm_count;
    Sums sums;
    if (!verify_algorithm(*algorithm, counts.value(), options, &sums)) {
      *exit_code = kExitFlaw;
      ++tried_count;
      continue;
    }
    if (sums.problem_count == 0) {
      last_left_out = sums.left_out;
      if (!wanted.algorithm.empty()) continue;
      fmt::print("{:<15} {:<27} left out: {}\n",
                 algo::name_of(algorithm->collective, algo::BlockLengths::kEqual), algorithm->name,
                 sums.left_out);
      continue;
    }
    ++tried_count;
    const algo::BlockLengths lengths = named ? named->lengths : algo::BlockLengths::kEqual;
    fmt::print("{:<15} {:<27} right: {} problems, {} operations\n",
               algo::name_of(algorithm->collective, lengths), algorithm->name, sums.problem_count,
               sums.op_count);
    std::fflush(stdout);
  }
  if (algorithm_count == 0) {
    return invalid_argument(fmt::format("no algorithm is called \"{}\"; see weir-sched list",
                                        options.problem.algorithm));
  }
  if (tried_count == 0) return invalid_argument(last_left_out);
  return {};
}

}  // namespace

void add_verify_command(cli::Command& app, int* exit_code) {
  cli::Command command = app.add_subcommand("verify", "Whether schedules are right");
  const auto options = std::make_shared<VerifyCommand>();
  add_algorithm_options(command, &options->problem);
  command.add_flag("--all", options->all, "every algorithm");
  command.add_option("-n,--ranks", options->rank_counts,
                     "rank counts: 8, 1..64 or 2,4,8..16 (default 1..16)");
  command.add_option("--root", options->problem.root, "of rooted collectives (default 0)");
  command.add_flag("--all-roots", options->all_roots, "every root").excludes("--root");
  command.add_option("--per-node", options->problem.per_node,
                     "ranks per node for hierarchical algorithms (default: one node, 4, and 8)");
  command.add_option("--nodes", options->problem.nodes, "node of each rank, such as 0,0,1,1")
      .delimiter(',');
  command
      .add_option("--credit", options->credit,
                  "messages that a sender may be ahead (always checked at 1 too)")
      .range(1u, 1u << 20);
  command
      .add_option("--file", options->file,
                  "programs as JSON, as weir-sched print --json writes them, or MSCCL's XML")
      .excludes("--all")
      .excludes("--collective")
      .excludes("--algorithm")
      .excludes("--ranks")
      .excludes("--root")
      .excludes("--all-roots")
      .excludes("--per-node")
      .excludes("--nodes");
  command.on_parsed([options, exit_code] {
    if (!options->file.empty()) {
      *exit_code = verify_file(*options);
      return;
    }
    const Status status = verify_algorithms(*options, exit_code);
    if (status.ok()) return;
    fmt::print(stderr, "weir-sched verify: {}\n", status.text());
    *exit_code = kExitInput;
  });
}

}  // namespace weir::sched_tool
