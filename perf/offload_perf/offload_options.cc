// SPDX-License-Identifier: Apache-2.0
#include "perf/offload_perf/offload_options.h"

#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <optional>

#include "command_line/command_line.h"

namespace weir::perf {
namespace {

const std::map<std::string, weir_method_t> kMethods = {{"adamw", WEIR_ADAMW},
                                                       {"adam", WEIR_ADAM},
                                                       {"sgd", WEIR_SGD_MOMENTUM},
                                                       {"adagrad", WEIR_ADAGRAD},
                                                       {"lion", WEIR_LION}};
const std::map<std::string, weir_state_format_t> kFormats = {{"f32", WEIR_STATE_FLOAT32},
                                                             {"half", WEIR_STATE_HALF_MASTER},
                                                             {"half8", WEIR_STATE_HALF_MASTER8}};
const std::map<std::string, weir_sweep_order_t> kOrders = {{"first", WEIR_SWEEP_FIRST_FIRST},
                                                           {"last", WEIR_SWEEP_LAST_FIRST}};
const std::map<std::string, NormWay> kNorms = {
    {"here", NormWay::kHere}, {"given", NormWay::kGiven}, {"hold", NormWay::kHold}};

template <class Value>
const char* key_of(const std::map<std::string, Value>& names, Value value) {
  for (const auto& [name, each] : names) {
    if (each == value) return name.c_str();
  }
  return "unknown";
}

template <class Value>
cli::Option add_choice(cli::Command& app, const char* flag, Value* value,
                       const std::map<std::string, Value>& names, const std::string& help) {
  std::string all;
  for (const auto& [name, each] : names) all += (all.empty() ? "" : ", ") + name;
  return app.add_option(
      flag,
      [=, &names](const std::string& text) {
        const auto found = names.find(text);
        if (found == names.end()) return fmt::format("'{}' is none of {}", text, all);
        *value = found->second;
        return std::string();
      },
      help + ": " + all + fmt::format(" [{}]", key_of(names, *value)));
}

cli::Option add_size(cli::Command& app, const char* flag, uint64_t* value,
                     const std::string& help) {
  return app.add_option(
      flag,
      [=](const std::string& text) {
        size_t parsed = 0;
        if (!parse_bytes(text, &parsed))
          return fmt::format("'{}' is not a number, optionally followed by K, M or G", text);
        *value = parsed;
        return std::string();
      },
      help + fmt::format(" [{}]", format_bytes(*value)));
}

cli::Option add_type(cli::Command& app, const char* flag, const ElementType** type,
                     bool may_be_none, const std::string& help) {
  return app.add_option(
      flag,
      [=](const std::string& text) {
        if (may_be_none && text == "none") {
          *type = nullptr;
          return std::string();
        }
        const ElementType* found = find_element_type(text);
        if (found == nullptr || (found->type != WEIR_FLOAT32 && found->type != WEIR_BFLOAT16 &&
                                 found->type != WEIR_FLOAT16))
          return fmt::format("'{}' is none of float, bfloat16, half{}", text,
                             may_be_none ? ", none" : "");
        *type = found;
        return std::string();
      },
      help);
}

}  // namespace

const char* name_of(weir_method_t method) { return key_of(kMethods, method); }
const char* name_of(weir_state_format_t format) { return key_of(kFormats, format); }
const char* name_of(NormWay norm) { return key_of(kNorms, norm); }

ParseResult parse_offload_options(int argc, char** argv, OffloadOptions* options) {
  OffloadOptions& o = *options;
  o.gradient_type = find_element_type("bfloat16");
  o.output_type = find_element_type("bfloat16");
  for (int i = 0; i < argc; ++i) o.command_line += (i > 0 ? " " : "") + std::string(argv[i]);

  cli::CommandLine app("Steps of an optimizer whose state lies on drives or in memory.",
                       "offload_perf");
  app.take_last();
  add_size(app, "-n,--parameters", &o.parameter_count, "parameters; K, M, G are powers of 1024");
  add_choice(app, "--method", &o.method, kMethods, "optimizer");
  add_choice(app, "--format", &o.format, kFormats, "state format");
  add_type(app, "--gradient", &o.gradient_type, false,
           "type of gradients: float, bfloat16, half [bfloat16]");
  add_type(app, "--output", &o.output_type, true,
           "type of updated parameters: float, bfloat16, half, none [bfloat16]");
  app.add_flag("--stochastic", o.stochastic, "round 16-bit outputs stochastically");
  add_choice(app, "--norm", &o.norm, kNorms,
             "the norm of the gradients: found before the step, given by the caller, or the step "
             "is held until it is known");
  app.add_option("-d,--directories", o.directories,
                 "where the state lies, one directory a drive; none: in memory. They must exist; a "
                 "directory is made in each and removed at the end, however that comes")
      .delimiter(',')
      .take_all();
  add_size(app, "-m,--memory", &o.memory_bytes,
           "memory budget in bytes; 0: as little as the stream needs");
  add_size(app, "--chunk", &o.chunk_bytes, "bytes of a chunk; 0: the library's choice");
  app.add_option("-t,--threads", o.thread_count, "compute threads; 0: the cores there are [0]")
      .range(0, 1024);
  app.add_option("--cores", o.cores, "cores that threads run on, one each; none: on any")
      .delimiter(',')
      .take_all();
  add_choice(app, "--order", &o.order, kOrders, "which parameters a step takes first");
  app.add_flag("--sqpoll", o.sqpoll, "a kernel thread submits transfers");
  app.add_flag("--iopoll", o.iopoll, "completions are polled");
  app.add_option("--durable-every", o.durable_every, "commit every so many steps [1]")
      .range(1, 1000000);
  app.add_option("-s,--steps", o.step_count,
                 "steps of a round [the least multiple of --durable-every that is 3 or more]")
      .range(1, 1000000);
  app.add_option("-r,--rounds", o.round_count, "rounds; the disks are probed around each [3]")
      .range(1, 100000);
  app.add_option("-w,--warmup", o.warmup_round_count,
                 "rounds before them that do not count [1]: the first writes of a file are slower")
      .range(0, 1000);
  app.add_option("--probe-ms", o.probe_ms, "time of one probe; 0: none [4000]").range(0, 600000);
  app.add_flag("--check", o.check,
               "take the same steps in memory afterwards and compare the parameters, bit for bit");
  app.add_option("-J,--json", o.json_file, "also write the results to this file");
  app.add_option("--plot", o.plot_file, "and a picture of them, SVG");
  app.add_option("--trace", o.trace_file, "and a Chrome trace of the last step");
  app.footer(
      "Exit status: 0 right, 1 wrong parameters, 2 wrong usage, 3 an error of the library or "
      "the system.");
  std::optional<int> status = app.parse(argc, argv);
  if (!status && o.parameter_count == 0)
    status = app.wrong("--parameters", "0 parameters: give at least 1");
  if (!status && o.directories.empty() && !o.trace_file.empty())
    status = app.wrong("--trace", "a step in memory has none: give --directories");
  if (status) return *status == 0 ? ParseResult::kExitOk : ParseResult::kExitUsage;
  if (o.step_count == 0) o.step_count = (2 + o.durable_every) / o.durable_every * o.durable_every;
  return ParseResult::kRun;
}

}  // namespace weir::perf
