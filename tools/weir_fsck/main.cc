// SPDX-License-Identifier: Apache-2.0
// weir-fsck: verifies and describes a store of optimizer state, or a checkpoint of one.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "offload/io/open_disk.h"
#include "offload/store/inspect.h"
#include "progress.h"
#include "report.h"

namespace weir::tools {
namespace {

constexpr int kExitUnknown = 3;  // wrong arguments, or the store could not be looked at

constexpr const char* kDescription =
    "Reads a store of optimizer state, or a checkpoint of one, verifies every chunk of both slots "
    "and "
    "every copy of its metadata, and says what it holds. Changes nothing.";

constexpr const char* kExamples = R"(
Examples:
  weir-fsck /nvme/state                     one drive
  weir-fsck /nvme0/state /nvme1/state       a store over two drives, in their order
  weir-fsck --json /nvme/state > fsck.json  for programs

Exit status: 0 good, 1 damaged but recoverable, 2 lost, 3 when it could not be examined (wrong
arguments, no store there, a directory missing, in use, no permission, another format version).)";

struct Arguments {
  std::vector<std::string> directories;
  bool json = false;
  bool quiet = false;
  bool every_group = false;
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
  // The size of chunks is known to the header only; it is read again by inspect.
  const Result<offload::Metadata> metadata =
      offload::read_metadata(*disk.value(), arguments.directories, arguments.timeout_ms);
  Progress progress(!arguments.quiet,
                    metadata.ok() ? metadata.value().header.description.chunk_bytes : 0);
  bool lost = false;
  const Result<offload::InspectReport> report = offload::inspect(
      *disk.value(), arguments.directories, arguments.timeout_ms,
      [&](uint64_t done, uint64_t total) { progress.at(done, total); }, &lost);
  progress.end();
  if (!report.ok()) return fail(arguments, report.status(), lost);
  fmt::print("{}", arguments.json
                       ? to_json(report.value(), arguments.directories)
                       : to_text(report.value(), arguments.directories, arguments.every_group));
  return static_cast<int>(report.value().verdict());
}

int run(int argc, char** argv) {
  CLI::App app(kDescription, "weir-fsck");
  Arguments arguments;
  app.footer(kExamples);
  app.add_option("DIR", arguments.directories, "The directories of the store, in their order")
      ->required();
  app.add_flag("-j,--json", arguments.json, "The report as JSON");
  app.add_flag("-q,--quiet", arguments.quiet, "No progress on standard error");
  app.add_flag("-g,--groups", arguments.every_group, "In the text: every group");
  app.add_option("--timeout-ms", arguments.timeout_ms, "How long the drive may be silent")
      ->capture_default_str()
      ->check(CLI::Range(1u, 86'400'000u));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUnknown;
  }
  const int status = check(arguments);
  return std::fflush(stdout) == 0 ? status : kExitUnknown;
}

}  // namespace
}  // namespace weir::tools

int main(int argc, char** argv) { return weir::tools::run(argc, argv); }
