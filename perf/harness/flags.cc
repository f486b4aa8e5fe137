// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/flags.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>

namespace weir::perf {
namespace {

using Text = std::string;

// A whole number from min to max; decimal, or hexadecimal after 0x, as in nccl-tests.
template <class T>
Text read_number(const Text& text, int64_t min, int64_t max, T* number) {
  errno = 0;
  char* end = nullptr;
  const long long value = std::strtoll(text.c_str(), &end, 0);
  if (text.empty() || *end != '\0' || errno != 0 || value < min || value > max) {
    return fmt::format("{} is not a number from {} to {}", text, min, max);
  }
  *number = static_cast<T>(value);
  return {};
}

Text read_bytes(const Text& text, size_t* bytes) {
  if (parse_bytes(text, bytes)) return {};
  return fmt::format("{} is not a size; give a number with an optional K, M or G", text);
}

Text read_switch(const Text& text, bool* on) { return read_number(text, 0, 1, on); }

Text read_file(const Text& text, Text* file) {
  *file = text;
  return text.empty() ? "give the name of a file" : "";
}

// A flag of nccl-tests that changes nothing here.
Text ignore(const Text& text, const char* without_effect, const char* note, Options& o) {
  int64_t value = 0;
  if (Text wrong = read_number(text, INT32_MIN, INT32_MAX, &value); !wrong.empty()) return wrong;
  if (text != without_effect) o.notes.emplace_back(note);
  return {};
}

Text read_ranks(const Text& text, int* count, Options& o) {
  o.ranks_given = true;
  return read_number(text, 1, kRanksPerProcessMax, count);
}

Text read_factor(const Text& text, Options& o) {
  char* end = nullptr;
  o.step_factor = std::strtod(text.c_str(), &end);
  if (!text.empty() && *end == '\0' && o.step_factor >= 0 && o.step_factor <= 1024) return {};
  return fmt::format("{} is not a factor between sizes; give a number above 1, up to 1024", text);
}

Text read_type(const Text& text, Options& o) {
  o.types.clear();
  if (text == "all") {
    for (const ElementType& type : element_types()) o.types.push_back(&type);
  } else if (const ElementType* type = find_element_type(text)) {
    o.types.push_back(type);
  } else {
    return fmt::format("{} is not an element type; one of {}, all", text, element_type_names());
  }
  return {};
}

Text read_op(const Text& text, Options& o) {
  Reduction reduction = Reduction::kSum;
  if (text == "all") {
    o.ops.assign(reductions().begin(), reductions().end());
  } else if (find_reduction(text, &reduction)) {
    o.ops.assign(1, reduction);
  } else {
    return fmt::format("{} is not a reduction; one of sum, prod, max, min, avg, mulsum, all", text);
  }
  return {};
}

Text read_root(const Text& text, Options& o) {
  if (text == "all") {
    o.root = -1;
    return {};
  }
  if (read_number(text, 0, INT32_MAX, &o.root).empty()) return {};
  return fmt::format("{} is not a root; give a rank, or all", text);
}

Text read_iterations(const Text& text, Options& o) {
  o.iterations = 0;
  if (text == "auto" || read_number(text, 1, INT32_MAX, &o.iterations).empty()) return {};
  return fmt::format("{} is not a number of iterations; give one from 1 up, or auto", text);
}

Text read_pin(const Text& text, Options& o) {
  if (text == "auto") {
    o.pin = Pin::kAuto;
  } else if (text == "on" || text == "1") {
    o.pin = Pin::kOn;
  } else if (text == "off" || text == "0") {
    o.pin = Pin::kOff;
  } else {
    return fmt::format("{} is not one of auto, on, off", text);
  }
  return {};
}

constexpr int kCountMax = 1 << 30;

constexpr Flag kFlags[] = {
    {"--ranks", "<processes>", Heading::kRanks,
     "Start this many local rank processes without a launcher",
     [](const Text& t, Options& o) { return read_number(t, 1, 4096, &o.process_count); }},
    {"-t,--nthreads", "<threads>", Heading::kRanks, "Threads per process [1]",
     [](const Text& t, Options& o) { return read_ranks(t, &o.thread_count, o); }},
    {"-g,--ngpus", "<ranks>", Heading::kRanks,
     "Ranks per thread of -t; each is a thread of its own here [1]",
     [](const Text& t, Options& o) { return read_ranks(t, &o.ranks_per_thread, o); }},
    {"--pin", "<auto/on/off>", Heading::kRanks,
     "Pin local rank i to core i: auto (if there are cores enough), on, off [auto]", read_pin},

    {"-b,--minbytes", "<bytes>", Heading::kSizes, "Smallest size [32M]",
     [](const Text& t, Options& o) { return read_bytes(t, &o.bytes_min); }},
    {"-e,--maxbytes", "<bytes>", Heading::kSizes, "Largest size [32M, or -b if larger]",
     [](const Text& t, Options& o) { return read_bytes(t, &o.bytes_max); }},
    {"-i,--stepbytes", "<bytes>", Heading::kSizes, "Step between sizes, without a factor [1M]",
     [](const Text& t, Options& o) { return read_bytes(t, &o.step_bytes); }},
    {"-f,--stepfactor", "<factor>", Heading::kSizes,
     "Factor between sizes; above 1 it counts and -i does not [off]", read_factor},

    {"-d,--datatype", "<type/all>", Heading::kOperation,
     "Element type, or all [float]: int8, uint8, int32, uint32, int64, uint64, half, float, "
     "double, bfloat16, f8e4m3, f8e5m2",
     read_type},
    {"-o,--op", "<op/all>", Heading::kOperation,
     "Reduction: sum, prod, max, min, avg, mulsum or all [sum]", read_op, nullptr,
     &Operation::reduces},
    {"-r,--root", "<rank/all>", Heading::kOperation, "Root rank, or all [0]", read_root, nullptr,
     &Operation::has_root},

    {"-n,--iters", "<count>", Heading::kMeasurement,
     "Timed iterations; auto: at least 20 and at least 20 ms [auto]", read_iterations},
    {"-w,--warmup_iters", "<count>", Heading::kMeasurement, "Warm-up iterations, not timed [1]",
     [](const Text& t, Options& o) { return read_number(t, 0, kCountMax, &o.warmup); }},
    {"-m,--agg_iters", "<count>", Heading::kMeasurement,
     "Operations put into one group per iteration [1]",
     [](const Text& t, Options& o) { return read_number(t, 1, 1 << 20, &o.aggregate); }},
    {"-N,--run_cycles", "<count>", Heading::kMeasurement, "Repeat the whole table; 0: for ever [1]",
     [](const Text& t, Options& o) { return read_number(t, 0, kCountMax, &o.cycles); }},
    {"-z,--blocking", "<0/1/2/3>", Heading::kMeasurement,
     "0: requests, up to 8 in flight; 1: calls, and a barrier after each; 2: calls; 3: calls, and "
     "a barrier after each iteration that is not timed [2]",
     [](const Text& t, Options& o) { return read_number(t, 0, 3, &o.blocking); }},
    {"-a,--average", "<0/1/2/3>", Heading::kMeasurement,
     "Time over ranks: 0 rank 0, 1 average, 2 minimum, 3 maximum [1]",
     [](const Text& t, Options& o) { return read_number(t, 0, 3, &o.average); }},
    {"-C,--report_cputime", "<0/1>", Heading::kMeasurement,
     "1: show the processor time of the calling thread, not the elapsed time [0]",
     [](const Text& t, Options& o) { return read_switch(t, &o.report_cpu_time); }},
    {"-I,--per_iter_timing", "<0/1>", Heading::kMeasurement,
     "1: time each iteration; adds i_min, i_max, i_p99 and i_cv% [0]",
     [](const Text& t, Options& o) { return read_switch(t, &o.per_iteration); }},
    {"-K,--per_iter_skip", "<count>", Heading::kMeasurement,
     "Iterations that the columns of -I leave out at the beginning [0]",
     [](const Text& t, Options& o) { return read_number(t, 0, kCountMax, &o.per_iteration_skip); }},
    {"-T,--timeout", "<seconds>", Heading::kMeasurement,
     "Deadline of each operation; 0: the library's own [0]",
     [](const Text& t, Options& o) { return read_number(t, 0, 1 << 20, &o.timeout_s); }},
    {"-c,--check", "<count>", Heading::kMeasurement,
     "Checked iterations per size, all elements; 0: no check [1]",
     [](const Text& t, Options& o) { return read_number(t, 0, 1 << 20, &o.checks); }},

    {"--fixed-buffers", nullptr, Heading::kBuffers,
     "Use the same buffers in each iteration, so that they may stay in a cache; by default they "
     "rotate over more memory than the last-level cache holds",
     nullptr, &Options::fixed_buffers},
    {"--cache-bytes", "<bytes>", Heading::kBuffers,
     "Last-level cache to exceed [as the machine says]",
     [](const Text& t, Options& o) { return read_bytes(t, &o.cache_bytes); }},
    {"-R,--local_register", "<0..4>", Heading::kBuffers,
     "1: weir_register the buffers; 2: weir_mem_alloc, or 3: weir_arena_alloc them (zero copy); "
     "4: ordinary memory beside an arena [0]",
     [](const Text& t, Options& o) { return read_number(t, 0, 4, &o.registration); }},
    {"-u,--unalign", "<elements>", Heading::kBuffers,
     "Buffers start this many elements past alignment [0]",
     [](const Text& t, Options& o) { return read_number(t, 0, 1 << 20, &o.unaligned_elements); }},

    {"-J,--output_file", "<file>", Heading::kOutput, "Write results as JSON to this file",
     [](const Text& t, Options& o) { return read_file(t, &o.json_file); }},
    {"--csv", "<file>", Heading::kOutput, "Write the table as CSV to this file",
     [](const Text& t, Options& o) { return read_file(t, &o.csv_file); }},
    {"--plot", "<file>", Heading::kOutput, "Draw bus bandwidth over size as SVG into this file",
     [](const Text& t, Options& o) { return read_file(t, &o.plot_file); }},
    {"-S,--report_timestamps", "<0/1>", Heading::kOutput, "1: a timestamp on each line [0]",
     [](const Text& t, Options& o) { return read_switch(t, &o.timestamps); }},
    {"-M,--memory", "<0/1>", Heading::kOutput, "1: a line on the memory that was used [0]",
     [](const Text& t, Options& o) { return read_switch(t, &o.report_memory); }},

    {"-p,--parallel_init", "<0/1>", Heading::kNoEffect,
     "Thread ranks always make their communicator in parallel",
     [](const Text& t, Options& o) {
       o.parallel_init = t != "0";
       return ignore(t, "0", "-p: thread ranks always make their communicator in parallel", o);
     }},
    {"-y,--stream_null", "<0/1>", Heading::kNoEffect, "There is no stream on a CPU",
     [](const Text& t, Options& o) {
       return ignore(t, "0", "-y: ignored, there is no stream on a CPU", o);
     }},
    {"-G,--cudagraph", "<launches>", Heading::kNoEffect, "There is no graph on a CPU",
     [](const Text& t, Options& o) {
       return ignore(t, "0", "-G: ignored, there is no graph on a CPU; the iterations are calls",
                     o);
     }},
    {"-x,--cta_policy", "<0/1/2>", Heading::kNoEffect, "There are no thread blocks on a CPU",
     [](const Text& t, Options& o) {
       return ignore(t, "", "-x: ignored, there are no thread blocks on a CPU", o);
     }},
    {"-D,--device_implementation", "<number>", Heading::kNoEffect,
     "There is no device API on a CPU: the library's functions are measured",
     [](const Text& t, Options& o) {
       return ignore(t, "0",
                     "-D: ignored, there is no device API on a CPU; the library's functions are "
                     "measured",
                     o);
     }},
    {"-V,--device_cta_count", "<count>", Heading::kNoEffect, "There are no thread blocks on a CPU",
     [](const Text& t, Options& o) {
       return ignore(t, "", "-V: ignored, there are no thread blocks on a CPU", o);
     }},

    {"--test-corrupt", "<rank>", Heading::kHidden, "A rank that damages an element, for tests",
     [](const Text& t, Options& o) { return read_number(t, 0, 1 << 20, &o.corrupt_rank); }},
};

}  // namespace

const char* heading_text(Heading heading) {
  switch (heading) {
    case Heading::kRanks:
      return "Ranks: processes x -t x -g";
    case Heading::kSizes:
      return "Sizes (bytes of the whole operation; K, M and G are powers of 1024)";
    case Heading::kOperation:
      return "Operation";
    case Heading::kMeasurement:
      return "Measurement";
    case Heading::kBuffers:
      return "Buffers";
    case Heading::kOutput:
      return "Output";
    case Heading::kNoEffect:
      return "Accepted for scripts made for nccl-tests, without effect";
    case Heading::kHidden:
      return "";
  }
  return "";
}

std::span<const Flag> flags() { return kFlags; }

}  // namespace weir::perf
