// SPDX-License-Identifier: Apache-2.0
// weir-trace: after a hang or a crash, reads the files of the ranks' recorders and names the rank
// that diverged first.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "command_line/command_line.h"
#include "core/base/settings.h"
#include "core/comm/record/record_folder.h"
#include "output/output_file.h"
#include "output/run_tool.h"
#include "weir_trace/report.h"

namespace weir::trace {
namespace {

enum Exit : int { kNothingWrong = 0, kDiverged = 1, kUndecided = 2, kUnknown = 3 };

constexpr const char* kDescription =
    "Reads what the ranks of a job did last, from the files that Weir's recorder keeps, and says "
    "which rank diverged first and in which operation. The job may still hang, or be dead.";

constexpr const char* kExamples = R"(
Examples:
  weir-trace                          the latest job of this user on this machine
  weir-trace collected/               files of several hosts, copied into one folder
  weir-trace --chrome trace.json      also a trace for chrome://tracing or ui.perfetto.dev

Exit status: 0 nothing wrong, 1 a rank diverged (the verdict names it), 2 something is wrong and no
rank stands out, 3 when there was nothing to read (wrong arguments, no records, no permission).)";

struct Arguments {
  std::vector<std::string> paths;
  bool json = false;
  bool all = false;
  std::string chrome;
  uint64_t stuck_after_ms = 1000;
};

bool write_file(const std::string& path, const std::string& text) {
  const std::string wrong = output::write_file(path, text);
  if (!wrong.empty()) fmt::print(stderr, "weir-trace: {}\n", wrong);
  return wrong.empty();
}

int examine(Arguments arguments) {
  bool all = arguments.all || !arguments.paths.empty();
  if (arguments.paths.empty()) {
    const char* set = std::getenv("WEIR_RECORDER_DIR");
    std::string path;
    const Result<int> folder =
        comm::open_any_record_folder(set != nullptr ? set : "", false, &path);
    if (!folder.ok()) {
      fmt::print(stderr, "weir-trace: no records: {}\n", folder.status().text());
      return kUnknown;
    }
    close(folder.value());
    arguments.paths.push_back(path);
    all = arguments.all;
  }
  JudgeOptions options;
  options.now_ns = wall_clock_ns();
  options.stuck_after_ns = arguments.stuck_after_ms * 1'000'000u;
  const Report report = make_report(arguments.paths, options, all);
  for (const std::string& problem : report.problems) {
    fmt::print(stderr, "weir-trace: {}\n", problem);
  }
  if (report.groups.empty()) {
    fmt::print(stderr, "weir-trace: no records in {}\n", fmt::join(arguments.paths, ", "));
    return kUnknown;
  }
  if (!arguments.chrome.empty() && !write_file(arguments.chrome, chrome_of(report))) {
    return kUnknown;
  }
  fmt::print("{}", arguments.json ? json_of(report) : text_of(report));
  const int cause = first_cause(report.groups, report.verdicts);
  if (cause < 0) return kNothingWrong;
  return report.verdicts[static_cast<size_t>(cause)].ranks.empty() ? kUndecided : kDiverged;
}

int run(int argc, char** argv) {
  cli::CommandLine app(kDescription, "weir-trace");
  Arguments arguments;
  app.footer(kExamples);
  app.add_option("PATH", arguments.paths,
                 "Files or folders of records; default: WEIR_RECORDER_DIR, or this user's folder");
  app.add_flag("-j,--json", arguments.json, "The report as JSON");
  app.add_flag("-a,--all", arguments.all, "Every communicator in the folder, not the latest job");
  app.add_option("--chrome", arguments.chrome, "Write a Chrome trace into this file");
  app.add_option("--stuck-after-ms", arguments.stuck_after_ms,
                 "A rank that waits for less is not suspected of anything")
      .show_default()
      .range(1u, 86'400'000u);
  if (const auto wrong = app.parse(argc, argv, kUnknown)) return *wrong;
  return examine(std::move(arguments));
}

}  // namespace
}  // namespace weir::trace

int main(int argc, char** argv) {
  using weir::trace::kUnknown;
  return weir::output::run_tool("weir-trace", weir::trace::run, argc, argv, kUnknown);
}
