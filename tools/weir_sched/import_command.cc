// SPDX-License-Identifier: Apache-2.0
// weir-sched import: reads programs from elsewhere, proves them as a communicator would, and writes
// them as JSON.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "command_line/command_line.h"
#include "core/algo/imported.h"
#include "output/output_file.h"
#include "weir_sched/commands.h"
#include "weir_sched/program_file.h"

namespace weir::sched_tool {
namespace {

struct ImportCommand {
  std::string file;
  std::string output;
};

Status write(const std::string& text, const std::string& path) {
  if (path.empty()) {
    fmt::print("{}", text);
    return {};
  }
  const std::string wrong = output::write_file(path, text);
  return wrong.empty() ? Status() : Status(Code::kSystem, wrong);
}

int import(const ImportCommand& options) {
  const auto fail = [](const Status& status, int exit_code) {
    fmt::print(stderr, "weir-sched import: {}\n", status.text());
    return exit_code;
  };
  const Result<algo::ProgramText> read = read_program_file(options.file);
  if (!read.ok()) return fail(read.status(), kExitInput);
  const sched::ProgramSet& set = read.value().set;
  const std::string name = std::filesystem::path(options.file).stem().string();
  const auto imported = algo::Imported::make(set, name);
  if (!imported.ok()) {
    const std::string text = algo::with_origins(imported.status().text(), read.value());
    return fail(invalid_argument(options.file + ": " + text), kExitFlaw);
  }
  std::string text = sched::to_json(set);
  if (text.size() > algo::kProgramTextBytesMax) {
    text = sched::to_json(set, sched::JsonForm::kOneLine);
  }
  if (text.size() > algo::kProgramTextBytesMax) {
    fmt::print(stderr, "{}: as JSON the programs take {} bytes, and a communicator reads {}\n",
               options.file, text.size(), algo::kProgramTextBytesMax);
  }
  const Status written = write(text, options.output);
  if (!written.ok()) return fail(written, kExitFlaw);
  const algo::Algorithm& algorithm = imported.value()->algorithm();
  const sched::Shape& shape = set.programs[0].shape;
  size_t op_count = 0;
  for (const sched::Program& program : set.programs) op_count += program.ops.size();
  fmt::print(stderr,
             "{}: right: {} on {} ranks, {} chunks, {} operations, {} lane{}, {} scratch slot{}{}{}"
             "{}\n",
             options.file, name_of(algorithm.collective), set.programs.size(), shape.chunk_count,
             op_count, shape.lane_count, shape.lane_count == 1 ? "" : "s", shape.scratch_slots,
             shape.scratch_slots == 1 ? "" : "s",
             algo::uses_messages(algorithm) ? "" : ", in memory of peers",
             algorithm.rank_order ? ", one fold in rank order" : "",
             imported.value()->copies_input() ? "; in place, Input is copied first" : "");
  return kExitOk;
}

}  // namespace

void add_import_command(cli::Command& app, int* exit_code) {
  cli::Command command =
      app.add_subcommand("import", "Programs from elsewhere, verified and written as JSON");
  const auto options = std::make_shared<ImportCommand>();
  command.add_option("FILE", options->file, "MSCCL's XML, or our JSON").required();
  command.add_option("-o,--output", options->output, "file to write (default: standard output)");
  command.on_parsed([options, exit_code] { *exit_code = import(*options); });
}

}  // namespace weir::sched_tool
