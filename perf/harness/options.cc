// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <exception>

#include "command_line/command_line.h"

namespace weir::perf {
namespace {

constexpr size_t kSweepSizesMax = 100000;

// The texts, not yet parsed, of options that are more than a number.
struct RawOptions {
  std::string bytes_min = "32M";
  std::string bytes_max;
  std::string step_bytes = "1M";
  std::string cache_bytes;
  std::string op = "sum";
  std::string type = "float";
  std::string root = "0";
  std::string iterations = "auto";
  std::string pin = "auto";
  int gpus = 1;
  int parallel_init = 0;
  int stream_null = 0;
  int cuda_graph = 0;
  int blocking = 1;
  int average = 1;
  int registration = 0;
  int unaligned = 0;
  int cpu_time = 0;
  int timestamps = 0;
  int per_iteration = 0;
};

void declare(cli::CommandLine& app, RawOptions& raw, Options& options, const Operation& operation) {
  const std::string ranks = "Ranks";
  app.add_option("--ranks", options.process_count,
                 "Start this many local rank processes without a launcher")
      .range(1, 4096)
      .group(ranks);
  app.add_option("-t,--nthreads", options.thread_count, "Thread ranks per process [1]")
      .range(1, 1024)
      .group(ranks);
  app.add_option("-g,--ngpus", raw.gpus, "Ranks per thread: 1, more threads are asked for with -t")
      .group(ranks);
  app.add_option("--pin", raw.pin,
                 "Pin local rank i to core i: auto (if there are cores enough), on, off [auto]")
      .value_count(1)
      .group(ranks);

  const std::string sizes = "Sizes (bytes of the whole operation; K, M and G are powers of 1024)";
  app.add_option("-b,--minbytes", raw.bytes_min, "Smallest size [32M]").group(sizes);
  app.add_option("-e,--maxbytes", raw.bytes_max, "Largest size [32M, or -b if larger]")
      .group(sizes);
  app.add_option("-i,--stepbytes", raw.step_bytes, "Step between sizes [1M]").group(sizes);
  app.add_option("-f,--stepfactor", options.step_factor, "Factor between sizes, > 1 [off]")
      .excludes("-i")
      .group(sizes);

  const std::string what = "Operation";
  app.add_option("-d,--datatype", raw.type, "Element type, or all [float]: " + element_type_names())
      .group(what);
  app.add_option("-o,--op", raw.op, "Reduction: sum, prod, max, min, avg, mulsum or all [sum]")
      .group(operation.reduces ? what : "");
  app.add_option("-r,--root", raw.root, "Root rank, or all [0]")
      .group(operation.has_root ? what : "");

  const std::string how = "Measurement";
  app.add_option("-n,--iters", raw.iterations,
                 "Timed iterations; auto: at least 20 and at least 20 ms [auto]")
      .group(how);
  app.add_option("-w,--warmup_iters", options.warmup, "Warm-up iterations, not timed [1]")
      .range(0, 1 << 30)
      .group(how);
  app.add_option("-m,--agg_iters", options.aggregate,
                 "Operations put into one group per iteration [1]")
      .range(1, 1 << 20)
      .group(how);
  app.add_option("-N,--run_cycles", options.cycles, "Repeat the whole table; 0: for ever [1]")
      .range(0, 1 << 30)
      .group(how);
  app.add_option("-z,--blocking", raw.blocking,
                 "1: blocking calls; 0: requests, up to 8 in flight [1]")
      .range(0, 1)
      .group(how);
  app.add_option("-a,--average", raw.average,
                 "Time over ranks: 0 rank 0, 1 average, 2 minimum, 3 maximum [1]")
      .range(0, 3)
      .group(how);
  app.add_option("-C,--report_cputime", raw.cpu_time,
                 "1: processor time of the calling thread instead of elapsed time [0]")
      .range(0, 1)
      .group(how);
  app.add_option("-I,--per_iter", raw.per_iteration,
                 "1: time each iteration; adds min, max, p99 and variation [0]")
      .range(0, 1)
      .group(how);
  app.add_option("-T,--timeout", options.timeout_s, "Deadline of each operation, seconds")
      .range(1, 1 << 20)
      .group(how);
  app.add_option("-c,--check", options.checks,
                 "Checked iterations per size, all elements; 0: no check [1]")
      .range(0, 1 << 20)
      .group(how);

  const std::string buffers = "Buffers";
  app.add_flag(
         "--fixed-buffers", options.fixed_buffers,
         "Use the same buffers in each iteration, so that they may stay in a cache; by default "
         "they rotate over more memory than the last-level cache holds")
      .group(buffers);
  app.add_option("--cache-bytes", raw.cache_bytes,
                 "Last-level cache to exceed [as the machine says]")
      .group(buffers);
  app.add_option("-R,--local_register", raw.registration,
                 "1: weir_register the buffers; 2: weir_mem_alloc them (zero copy) [0]")
      .range(0, 2)
      .group(buffers);
  app.add_option("-u,--unalign", raw.unaligned, "1: buffers start one element past alignment [0]")
      .range(0, 1)
      .group(buffers);

  const std::string output = "Output";
  app.add_option("-J,--output_file", options.json_file, "Write results as JSON to this file")
      .group(output);
  app.add_option("--csv", options.csv_file, "Write the table as CSV to this file").group(output);
  app.add_option("--plot", options.plot_file, "Draw bus bandwidth over size as SVG into this file")
      .group(output);
  app.add_option("-S,--report_timestamps", raw.timestamps, "1: a timestamp on each line [0]")
      .range(0, 1)
      .group(output);

  const std::string ignored = "Accepted for compatibility, without effect";
  app.add_option("-p,--parallel_init", raw.parallel_init,
                 "Thread ranks always make their communicator in parallel")
      .group(ignored);
  app.add_option("-y,--stream_null", raw.stream_null, "There is no stream on a CPU").group(ignored);
  app.add_option("-G,--cudagraph", raw.cuda_graph, "There is no graph on a CPU").group(ignored);

  app.add_option("--test-corrupt", options.corrupt_rank).group("");
}

// Empty when all is well, otherwise an error text.
std::string understand(const RawOptions& raw, const cli::CommandLine& app,
                       const Operation& operation, Options& options) {
  const auto bytes = [](const char* flag, const std::string& text, size_t* value) {
    if (parse_bytes(text, value)) return std::string();
    return fmt::format("{} {}: not a size; give a number with an optional K, M or G", flag, text);
  };
  if (std::string e = bytes("-b", raw.bytes_min, &options.bytes_min); !e.empty()) return e;
  if (raw.bytes_max.empty()) {
    options.bytes_max = std::max(options.bytes_max, options.bytes_min);
  } else if (std::string e = bytes("-e", raw.bytes_max, &options.bytes_max); !e.empty()) {
    return e;
  }
  if (std::string e = bytes("-i", raw.step_bytes, &options.step_bytes); !e.empty()) return e;
  if (!raw.cache_bytes.empty()) {
    if (std::string e = bytes("--cache-bytes", raw.cache_bytes, &options.cache_bytes); !e.empty()) {
      return e;
    }
  }
  if (options.bytes_max < options.bytes_min) {
    return fmt::format("-e {} is smaller than -b {}", raw.bytes_max, raw.bytes_min);
  }
  if (app.was_given("-f") && !(options.step_factor > 1 && options.step_factor <= 1024)) {
    return fmt::format("-f {}: the factor between sizes must be above 1, up to 1024",
                       options.step_factor);
  }
  if (options.step_factor == 0) {
    if (options.step_bytes == 0 && options.bytes_max > options.bytes_min) {
      return "-i 0 never gets from -b to -e; give a step, or a factor with -f";
    }
    const size_t step_count =
        options.step_bytes == 0 ? 0 : (options.bytes_max - options.bytes_min) / options.step_bytes;
    if (step_count > kSweepSizesMax) {
      return fmt::format(
          "-b {} -e {} -i {} makes {} sizes; give a larger step, or a factor with -f",
          raw.bytes_min, raw.bytes_max, raw.step_bytes, step_count);
    }
  }

  if (raw.iterations != "auto") {
    size_t used = 0;
    try {
      options.iterations = std::stoll(raw.iterations, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    if (used != raw.iterations.size() || options.iterations < 1) {
      return fmt::format("-n {}: give a number of iterations from 1 up, or auto", raw.iterations);
    }
  }

  if (raw.type == "all") {
    for (const ElementType& type : element_types()) options.types.push_back(&type);
  } else if (const ElementType* type = find_element_type(raw.type)) {
    options.types.push_back(type);
  } else {
    return fmt::format("-d {}: not an element type; one of {}, all", raw.type,
                       element_type_names());
  }

  Reduction reduction = Reduction::kSum;
  if (raw.op == "all") {
    options.ops.assign(reductions().begin(), reductions().end());
  } else if (find_reduction(raw.op, &reduction)) {
    options.ops.push_back(reduction);
  } else {
    return fmt::format("-o {}: not a reduction; one of sum, prod, max, min, avg, mulsum, all",
                       raw.op);
  }
  if (!operation.reduces) options.ops.assign(1, Reduction::kNone);

  if (raw.root == "all") {
    options.root = -1;
  } else {
    size_t used = 0;
    try {
      options.root = std::stoi(raw.root, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    if (used != raw.root.size() || options.root < 0) {
      return fmt::format("-r {}: give a rank, or all", raw.root);
    }
  }

  if (raw.pin == "auto") {
    options.pin = Pin::kAuto;
  } else if (raw.pin == "on" || raw.pin == "1") {
    options.pin = Pin::kOn;
  } else if (raw.pin == "off" || raw.pin == "0") {
    options.pin = Pin::kOff;
  } else {
    return fmt::format("--pin {}: one of auto, on, off", raw.pin);
  }
  if (raw.gpus != 1) {
    return fmt::format(
        "-g {}: a rank on a CPU is a thread or a process, so there is one per thread; use -t {} "
        "for "
        "thread ranks or --ranks {} for processes",
        raw.gpus, raw.gpus, raw.gpus);
  }
  if (raw.parallel_init != 0) {
    options.notes.emplace_back("-p: thread ranks always make their communicator in parallel");
  }
  if (raw.stream_null != 0) options.notes.emplace_back("-y: ignored, there is no stream on a CPU");
  if (raw.cuda_graph != 0) options.notes.emplace_back("-G: ignored, there is no graph on a CPU");

  options.thread_count_given = app.was_given("-t");
  options.blocking = raw.blocking != 0;
  options.average = static_cast<Average>(raw.average);
  options.registration = static_cast<Registration>(raw.registration);
  options.unaligned = raw.unaligned != 0;
  options.report_cpu_time = raw.cpu_time != 0;
  options.timestamps = raw.timestamps != 0;
  options.per_iteration = raw.per_iteration != 0;
  if (options.per_iteration && !options.blocking) {
    return "-I 1 times each iteration, and -z 0 lets several overlap; choose one of the two";
  }
  if (options.aggregate > 1 && !options.blocking) {
    return "-m puts operations into a group and -z 0 makes requests of them; choose one of the two";
  }
  return {};
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
  RawOptions raw;
  declare(app, raw, *options, operation);
  for (int i = 0; i < argc; ++i) {
    if (i > 0) options->command_line += ' ';
    options->command_line += argv[i];
  }
  std::string complaint;
  if (const auto status = app.parse(argc, argv, &complaint)) {
    if (*status == 0) return ParseResult::kExitOk;
    fmt::print(stderr, "{}: {}\nTry {} --help\n", operation.program, complaint, operation.program);
    return ParseResult::kExitUsage;
  }
  complaint = understand(raw, app, operation, *options);
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
