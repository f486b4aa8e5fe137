// SPDX-License-Identifier: Apache-2.0
// weir-fsck: verifies and describes a store of optimizer state, or a checkpoint of one.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "command_line/command_line.h"
#include "offload/io/open_disk.h"
#include "offload/store/inspect.h"
#include "offload/store/store_files.h"
#include "output/run_tool.h"
#include "progress.h"
#include "report.h"

namespace weir::tools {
namespace {

constexpr int kExitUnknown = 3;  // wrong arguments, or the store could not be examined

constexpr const char* kDescription =
    "Reads a store of optimizer state, or a checkpoint of one, verifies every chunk of both slots "
    "and every copy of its metadata, and says what it holds. Changes nothing, but for --discard.";

constexpr const char* kExamples = R"(
Examples:
  weir-fsck /nvme/state                     one drive
  weir-fsck /nvme0/state /nvme1/state       a store over two drives, in their order
  weir-fsck --json /nvme/state > fsck.json  for programs
  weir-fsck --discard /nvme/state           removes the files of a store that is not needed

Exit status:
  0  good: the committed epoch is whole, or nothing was committed yet, and nothing is damaged; with
     --discard: removed
  1  recoverable: something is damaged, and the committed epoch or the one before is whole, or
     nothing was committed yet; also one copy of the metadata that is damaged, missing, or of
     another store beside good ones
  2  lost: no epoch is whole, or no metadata can be read though files of it are there
  3  not examined: wrong arguments, no store there, a directory missing or in another place,
     directories of different stores, in use, no permission, another format version; with --discard:
     not removed, or not all of it: the text says what)";

struct Arguments {
  std::vector<std::string> directories;
  bool json = false;
  bool quiet = false;
  bool every_group = false;
  bool discard = false;
  bool discard_committed = false;
  uint64_t timeout_ms = 60'000;
};

int fail(const Arguments& arguments, const Status& status, bool lost) {
  if (arguments.json) fmt::print("{}", error_json(status, arguments.directories, lost));
  fmt::print(stderr, "weir-fsck: {}{}\n", lost ? "lost: " : "", status.text());
  return lost ? static_cast<int>(offload::Verdict::kLost) : kExitUnknown;
}

int check(const Arguments& arguments) {
  Result<std::unique_ptr<offload::Disk>> disk = offload::open_disk({});
  if (!disk.ok()) return fail(arguments, disk.status(), false);
  // Only the header gives the chunk size; inspect reads it again.
  const Result<offload::Metadata> metadata =
      offload::read_metadata(*disk.value(), arguments.directories, arguments.timeout_ms);
  Progress progress(!arguments.quiet,
                    metadata.ok() ? metadata.value().header.description.chunk_bytes : 0);
  bool lost = false;
  const Result<offload::InspectReport> report = offload::inspect(
      *disk.value(), arguments.directories, arguments.timeout_ms,
      [&](uint64_t done, uint64_t total) { progress.at(done, total); }, &lost,
      offload::kLockWaitMs);
  progress.end();
  if (!report.ok()) return fail(arguments, report.status(), lost);
  fmt::print("{}", arguments.json
                       ? to_json(report.value(), arguments.directories)
                       : to_text(report.value(), arguments.directories, arguments.every_group));
  return static_cast<int>(report.value().verdict());
}

// Removes the store's own files and nothing else, after naming them.
int discard(const Arguments& arguments) {
  Result<std::unique_ptr<offload::Disk>> disk = offload::open_disk({});
  if (!disk.ok()) return fail(arguments, disk.status(), false);
  Result<offload::Discard> prepared = offload::Discard::prepare(
      *disk.value(), arguments.directories, arguments.timeout_ms, offload::kLockWaitMs);
  if (!prepared.ok()) return fail(arguments, prepared.status(), false);
  offload::Discard& found = prepared.value();
  for (const std::string& file : found.files()) fmt::print("{}\n", file);
  if (found.commit().has_value()) {
    const offload::SlotState& state = found.commit()->slots[found.commit()->current];
    fmt::print("a commit can be read: epoch {} (step {})\n", state.epoch, state.step);
    if (!arguments.discard_committed) {
      return fail(arguments,
                  Status(Code::kRefused,
                         "nothing was removed: the store has a commit; --discard-committed removes "
                         "it all the same"),
                  false);
    }
  }
  std::fflush(stdout);
  if (Status status = found.remove(); !status.ok()) return fail(arguments, status, false);
  fmt::print("removed {} files\n", found.files().size());
  return 0;
}

int run(int argc, char** argv) {
  cli::CommandLine app(kDescription, "weir-fsck");
  Arguments arguments;
  app.footer(kExamples);
  app.add_option("DIR", arguments.directories, "The directories of the store, in their order")
      .required();
  app.add_flag("-j,--json", arguments.json, "The report as JSON");
  app.add_flag("-q,--quiet", arguments.quiet, "No progress on standard error");
  app.add_flag("-g,--groups", arguments.every_group, "In the text: every group");
  app.add_flag(
      "--discard", arguments.discard,
      "Remove the files of the store in the directories, with its lock held, instead of examining "
      "it: of one whose metadata was lost, or that was never committed");
  app.add_flag("--discard-committed", arguments.discard_committed,
               "With --discard: also of one that has a commit that can be read")
      .needs("--discard");
  app.add_option("--timeout-ms", arguments.timeout_ms, "How long the drive may be silent")
      .show_default()
      .range(1u, 86'400'000u);
  if (const auto status = app.parse(argc, argv, kExitUnknown)) return *status;
  if (arguments.discard && arguments.json) {
    fmt::print(stderr, "weir-fsck: --discard has no JSON report\n");
    return kExitUnknown;
  }
  return arguments.discard ? discard(arguments) : check(arguments);
}

}  // namespace
}  // namespace weir::tools

int main(int argc, char** argv) {
  using weir::tools::kExitUnknown;
  return weir::output::run_tool("weir-fsck", weir::tools::run, argc, argv, kExitUnknown);
}
