// SPDX-License-Identifier: Apache-2.0
// weir-info: the version of Weir, what it finds on this machine and what it would use. Send its
// output along with a question. Exit status 1 when a WEIR_* variable does not parse, or when the
// doctor finds a fault.
#include <cstdio>
#include <string>

#include "command_line/command_line.h"
#include "core/base/settings.h"
#include "output/run_tool.h"
#include "weir_info/decisions.h"
#include "weir_info/doctor.h"
#include "weir_info/live.h"
#include "weir_info/report.h"

namespace {

int run_arguments(int argc, char** argv) {
  weir::cli::CommandLine app(
      "Versions, transports, limits of this machine, and WEIR_* variables in force.");
  bool json = false;
  bool markdown = false;
  app.add_flag("--json", json, "Print the report as JSON");
  app.add_flag("--markdown", markdown, "Print docs/environment.md: every WEIR_* variable")
      .excludes("--json");
  bool live = false;
  app.add_flag("--live", live,
               "Print the communicators that run on this machine as this user, and which rank "
               "waits for which");
  bool decisions = false;
  std::string decisions_directory;
  app.add_flag("--decisions", decisions,
               "Print the decisions that WEIR_LEARN=1 has kept, with candidates, predicted and "
               "measured times, and regret");
  app.add_option("DIR", decisions_directory,
                 "Where they are kept; unset: the cache directory (WEIR_CACHE_DIR)")
      .needs("--decisions");
  weir::cli::Command doctor =
      app.add_subcommand("doctor",
                         "Check this installation: which libnccl.so.2 a program loads "
                         "and why, versions, missing symbols, "
                         "transports, limits, hidden topology, each with its remedy");
  std::string program;
  doctor.add_option("program", program, "A program, by path or name: yours, or python3");
  doctor.add_flag("--json", json, "Print the checks as JSON");
  if (const auto status = app.parse(argc, argv)) return *status;

  if (doctor.parsed()) {
    const auto sections = weir::info::examine(program);
    std::fputs((json ? json_of(sections) : text_of(sections)).c_str(), stdout);
    return any_bad(sections) ? 1 : 0;
  }

  if (markdown) {
    std::fputs(weir::settings_markdown().c_str(), stdout);
    return 0;
  }
  if (live) {
    std::fputs(weir::info::live_report(json).c_str(), stdout);
    return 0;
  }
  if (decisions) {
    const weir::info::Decisions kept = weir::info::read_decisions(decisions_directory);
    std::fputs((json ? json_of(kept) : text_of(kept)).c_str(), stdout);
    return kept.directory.empty() ? 1 : 0;
  }
  const weir::info::Report report = weir::info::make_report();
  const std::string text = json ? json_of(report) : text_of(report);
  std::fputs(text.c_str(), stdout);
  return report.settings_error.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return weir::output::run_tool("weir-info", run_arguments, argc, argv);
}
