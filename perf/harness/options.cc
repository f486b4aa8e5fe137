// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "command_line/command_line.h"
#include "perf/harness/flags.h"

namespace weir::perf {
namespace {

constexpr size_t kSweepSizesMax = 100000;
constexpr int64_t kIterationsEachMax = 1 << 20;  // -I

void declare(cli::CommandLine& app, const Operation& operation, Options& options) {
  app.take_last();  // scripts add to what another script already passes
  for (const Flag& flag : flags()) {
    const bool shown = flag.only_if == nullptr || operation.*flag.only_if;
    const char* heading = shown ? heading_text(flag.heading) : "";
    if (flag.value == nullptr) {
      app.add_flag(flag.names, options.*flag.on, flag.help).group(heading);
      continue;
    }
    const cli::Reader read = [&flag, &options](const std::string& value) {
      return flag.read(value, options);
    };
    app.add_option(flag.names, read, flag.help).value_name(flag.value).group(heading);
  }
}

// What one flag alone does not decide. Empty when all is well, otherwise an error text.
std::string complete(const cli::CommandLine& app, const Operation& operation, Options& options) {
  if (!app.was_given("-e")) options.bytes_max = std::max(options.bytes_max, options.bytes_min);
  if (options.bytes_max < options.bytes_min) {
    return fmt::format("-e {} is smaller than -b {}", format_bytes(options.bytes_max),
                       format_bytes(options.bytes_min));
  }
  if (options.step_factor <= 1) {
    if (options.step_bytes == 0 && options.bytes_max > options.bytes_min) {
      return "-i 0 never gets from -b to -e; give a step, or a factor with -f";
    }
    const size_t step_count =
        options.step_bytes == 0 ? 0 : (options.bytes_max - options.bytes_min) / options.step_bytes;
    if (step_count > kSweepSizesMax) {
      return fmt::format(
          "-b {} -e {} -i {} makes {} sizes; give a larger step, or a factor with -f",
          format_bytes(options.bytes_min), format_bytes(options.bytes_max),
          format_bytes(options.step_bytes), step_count);
    }
  }
  if (options.ranks_per_process() > kRanksPerProcessMax) {
    return fmt::format("-t {} -g {}: a process has at most {} ranks; start more with --ranks",
                       options.thread_count, options.ranks_per_thread, kRanksPerProcessMax);
  }
  if (!operation.reduces) options.ops.assign(1, Reduction::kNone);

  const int64_t iterations_min = options.iterations > 0 ? options.iterations : kAutoIterationsMin;
  if (options.per_iteration_skip > 0 && !options.per_iteration) {
    options.notes.emplace_back("-K: ignored without -I 1");
    options.per_iteration_skip = 0;
  } else if (options.per_iteration_skip >= iterations_min) {
    options.notes.push_back(fmt::format("-K {}: ignored, it must be below the iterations, {}",
                                        options.per_iteration_skip, iterations_min));
    options.per_iteration_skip = 0;
  }
  if (options.per_iteration && options.iterations > kIterationsEachMax) {
    return fmt::format("-I 1 -n {}: the time of each iteration is kept; give at most -n {}",
                       options.iterations, kIterationsEachMax);
  }
  if (const char* wanted = std::getenv("NCCL_TESTS_MIN_BW")) {
    options.bus_gbs_wanted = std::max(0.0, std::atof(wanted));
  }
  return read_split(std::getenv("NCCL_TESTS_SPLIT_MASK"), std::getenv("NCCL_TESTS_SPLIT"),
                    &options.split);
}

}  // namespace

bool parse_bytes(const std::string& text, size_t* bytes) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0])) == 0) return false;
  size_t used = 0;
  double value = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    return false;
  }
  double unit = 1;
  if (used < text.size()) {
    switch (std::toupper(static_cast<unsigned char>(text[used]))) {
      case 'K':
        unit = 1024;
        break;
      case 'M':
        unit = 1024.0 * 1024;
        break;
      case 'G':
        unit = 1024.0 * 1024 * 1024;
        break;
      case 'B':
        break;
      default:
        return false;
    }
    ++used;
    if (used < text.size() && unit > 1 && (text[used] == 'B' || text[used] == 'b')) ++used;
    if (used != text.size()) return false;
  }
  const double product = value * unit;
  if (!(product >= 0) || product > 1e15) return false;
  *bytes = static_cast<size_t>(product);
  return true;
}

std::string format_bytes(size_t bytes) {
  const char* units[] = {"", "K", "M", "G"};
  size_t unit = 0;
  while (unit < 3 && bytes >= 1024 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{}{}", bytes, units[unit]);
}

ParseResult parse_options(int argc, char** argv, const Operation& operation, Options* options) {
  cli::CommandLine app(
      fmt::format("{}: time, bandwidth and correctness of {} over ranks on this machine or "
                  "under mpirun, srun or torchrun.",
                  operation.program, operation.c_name),
      operation.program);
  declare(app, operation, *options);
  options->arguments.assign(argv, argv + argc);
  std::string complaint;
  if (const auto status = app.parse(argc, argv, &complaint)) {
    if (*status == 0) return ParseResult::kExitOk;
    fmt::print(stderr, "{}: {}\nTry {} --help\n", operation.program, complaint, operation.program);
    return ParseResult::kExitUsage;
  }
  complaint = complete(app, operation, *options);
  if (!complaint.empty()) {
    fmt::print(stderr, "{}: {}\n", operation.program, complaint);
    return ParseResult::kExitUsage;
  }
  return ParseResult::kRun;
}

std::vector<size_t> sweep_sizes(const Options& options) {
  std::vector<size_t> sizes;
  size_t size = options.bytes_min;
  while (size <= options.bytes_max && sizes.size() <= kSweepSizesMax) {
    sizes.push_back(size);
    size_t next = size + options.step_bytes;
    if (options.step_factor > 1) {
      next = static_cast<size_t>(static_cast<double>(size) * options.step_factor);
      if (next <= size) next = size + 1;
    }
    if (next <= size) break;
    size = next;
  }
  return sizes;
}

}  // namespace weir::perf
