// SPDX-License-Identifier: Apache-2.0
#include "core/base/settings.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <charconv>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "core/base/log.h"
#include "core/base/per_process.h"
#include "core/base/printable.h"

namespace weir {
namespace {

using Kind = SettingKind;

constexpr SettingInfo kTable[] = {
    {"WEIR_LOG", Kind::kChoice, "warn", "error|warn|info|debug|trace",
     "Log lines up to this level are written."},
    {"WEIR_LOG_FILE", Kind::kPath, "", "",
     "The log goes to the end of this file instead of standard error; %p stands for the process "
     "number, %h for the host name. Missing folders are made."},
    {"WEIR_TIMEOUT_MS", Kind::kMilliseconds, "300000", "1..86400000",
     "Deadline of each operation of a communicator that was not given its own."},
    {"WEIR_TRANSPORT", Kind::kText, "", "",
     "Comma-separated list of the transports that may be used; unset: every viable one."},
    {"WEIR_FAILOVER", Kind::kText, "", "",
     "Comma-separated list of transports that take over, one after the other, when the one before "
     "fails between two ranks, such as tcp; unset: none does."},
    {"WEIR_FABRIC", Kind::kChoice, "auto", "auto|0",
     "Between hosts, ranks that all see InfiniBand, RoCE or EFA use ucx or ofi, and tcp takes over "
     "from it, where neither WEIR_TRANSPORT nor WEIR_FAILOVER is set; 0 on any rank: they do "
     "not."},
    {"WEIR_CARDS", Kind::kChoice, "auto", "auto|0",
     "Each rank uses the network cards and prefers the interfaces that are nearest to it, and "
     "ranks of a host share them out; 0: as UCX, libfabric and the order of interfaces have it."},
    {"WEIR_FAILOVER_MS", Kind::kMilliseconds, "2000", "100..600000",
     "A transport that has stood still for so long, while the peer answers over the next one, has "
     "failed."},
    {"WEIR_IFNAME", Kind::kText, "", "",
     "Network interfaces that may be used, in the syntax of NCCL_SOCKET_IFNAME (which holds where "
     "this one is unset): eth,ib for prefixes, =eth0 for a name, ^docker to exclude; unset: all "
     "that are up, loopback only among ranks of one host."},
    {"WEIR_HOST_ID", Kind::kText, "", "",
     "Ranks with the same text count as being on one host and share memory, ranks with another one "
     "do not, and WEIR_TRANSPORT=shm alone is refused (NCCL_HOSTID holds where this one is unset); "
     "unset: by kernel and network namespace."},
    {"WEIR_TLS", Kind::kChoice, "off", "off|control|all",
     "TLS 1.3 between hosts around the bootstrap and the network transports' control connections, "
     "or around messages, too, which Weir seals by itself where a transport cannot (see trust.md); "
     "the same on all ranks."},
    {"WEIR_TCP_CONNECTIONS", Kind::kInteger, "1", "1..8",
     "Connections of the transport tcp for each pair of interfaces; from two on, or where several "
     "interfaces reach a peer, messages are spread over all of them."},
    {"WEIR_TCP_SHARES", Kind::kText, "", "",
     "Parts of each message of more than 8 KiB over several rails of the transport tcp, the "
     "fastest rail first, such as 2:1; unset: by how fast each is measured to be."},
    {"WEIR_TCP_LAZY", Kind::kChoice, "auto", "auto|0|1",
     "The transport tcp connects two ranks at the first operation between them, and else at the "
     "start: where there are more than eight ranks, never, or always. Two ranks that disagree "
     "connect at the start."},
    {"WEIR_TCP_ZEROCOPY", Kind::kChoice, "auto", "auto|on|off",
     "The transport tcp sends large messages from the caller's memory itself: where that is "
     "measured to cost less, always, or never. Never inside TLS."},
    {"WEIR_TCP_IO", Kind::kChoice, "auto", "auto|io_uring|poll",
     "How the transport tcp asks its connections: by io_uring, many in one system call, or each by "
     "itself."},
    {"WEIR_OFI_PROVIDER", Kind::kText, "", "",
     "Comma-separated list of the libfabric providers that the transport ofi may use, the best "
     "first, such as tcp;ofi_rxm,shm; unset: chosen by capability."},
    {"WEIR_OFI_REGISTER", Kind::kChoice, "", "0|1",
     "The transport ofi registers memory though the provider does not ask for it, to try that "
     "way."},
    {"WEIR_NCCL_NET_TRANSPORT", Kind::kText, "tcp", "",
     "Transport that libnccl-net-weir.so gives to NCCL: tcp, ucx or ofi."},
    {"WEIR_NCCL_NET_PLUGIN", Kind::kText, "", "",
     "NCCL network plugin that the transport ncclnet loads: a path, or NAME for "
     "libnccl-net-NAME.so."},
    {"WEIR_NCCL_LIBRARY", Kind::kPath, "", "",
     "The real libnccl.so.2 behind Weir's; unset: searched for next to the framework, on "
     "LD_LIBRARY_PATH, in the CUDA toolkit and by the loader."},
    {"WEIR_BACKEND", Kind::kChoice, "auto", "auto|weir|nccl",
     "Whose communicators NCCL programs get: NCCL's where every rank has a GPU and they start, "
     "else Weir's; or only the one or the other."},
    {"WEIR_DISABLE", Kind::kBool, "0", "",
     "Weir's libnccl.so.2 passes every call to the real one and does nothing itself."},
    {"WEIR_METRICS", Kind::kPath, "", "",
     "NCCL calls are counted and timed, by function and communicator, in this file in Prometheus' "
     "text format; %p stands for the process number, %h for the host name."},
    {"WEIR_PLUGIN_PATH", Kind::kPath, "", "",
     "Directory from which further transports are loaded."},
    {"WEIR_HOOKS", Kind::kText, "", "",
     "Comma-separated list of hooks around every transport, outermost first: trace, check, fault, "
     "sum, seal."},
    {"WEIR_FAULT", Kind::kText, "", "", "What the fault hook does, such as delay_us=100,seed=7."},
    {"WEIR_TRACE_FILE", Kind::kPath, "", "",
     "Where the trace hook writes its Chrome trace; %r stands for the rank."},
    {"WEIR_HOSTCUDA_DEVICES", Kind::kInteger, "1", "0..64",
     "Number of devices that Weir's CUDA on host memory shows to a program."},
    {"WEIR_HOSTCUDA_MEMORY", Kind::kBytes, "16GiB", "1MiB..4096GiB",
     "Memory of each of these devices; it is taken from the machine as it is written to."},
    {"WEIR_ALGORITHM", Kind::kText, "", "",
     "Forces algorithms, such as all_reduce=ring,broadcast=binomial; unset: chosen by cost."},
    {"WEIR_TUNING_FILE", Kind::kPath, "", "",
     "File of rules that override the choice of algorithms."},
    {"WEIR_PROGRAMS", Kind::kPath, "", "",
     "Folder of programs (*.json, *.xml) that may be chosen like Weir's own algorithms, after they "
     "have been verified; read once per process, and the same on all ranks."},
    {"WEIR_TOPOLOGY_FILE", Kind::kPath, "", "",
     "hwloc XML or NCCL topology XML that describes this machine, instead of what is found or "
     "merged with it (WEIR_TOPOLOGY_MERGE)."},
    {"WEIR_TOPOLOGY_MERGE", Kind::kChoice, "auto", "auto|0|1",
     "What the machine has and WEIR_TOPOLOGY_FILE lacks is added: where the file is NCCL's and of "
     "this machine, never, or always (a file with which that is impossible is ignored, with a "
     "warning)."},
    {"WEIR_CACHE_DIR", Kind::kPath, "", "",
     "Where measured costs and searched trees are kept; unset: weir in the user's cache "
     "directory."},
    {"WEIR_COSTS_FILE", Kind::kPath, "", "",
     "Rank 0 of each new communicator writes the costs that its ranks agreed on to this file, for "
     "weir-sched sim --costs."},
    {"WEIR_PROBE", Kind::kBool, "1", "",
     "Costs are measured at start-up when none are cached; 0: built-in figures."},
    {"WEIR_EXPLAIN", Kind::kBool, "0", "",
     "Each first-time choice of an algorithm is printed with candidates, predicted time and "
     "reason."},
    {"WEIR_LEARN", Kind::kBool, "0", "",
     "About one call in eight runs and measures an algorithm in turn that may be faster than the "
     "chosen one; what is measured is kept and used from the next start on. The same on all "
     "ranks; never in deterministic communicators."},
    {"WEIR_DETERMINISTIC", Kind::kBool, "0", "",
     "Every communicator is deterministic: results do not depend on algorithm, chunk size or "
     "transport."},
    {"WEIR_HUGE_PAGES", Kind::kBool, "1", "", "Shared memory asks for huge pages."},
    {"WEIR_STAGING_BYTES", Kind::kBytes, "2MiB", "64KiB..1GiB",
     "Staging memory of each rank for each communicator."},
    {"WEIR_NCCL_CHUNK_BYTES", Kind::kBytes, "1MiB", "4KiB..1GiB",
     "Operations of libnccl.so.2 on device memory move in pieces of so many bytes, which are "
     "copied "
     "while others are on the way; the ranks agree on the least."},
    {"WEIR_SCRATCH_BYTES", Kind::kBytes, "12MiB", "64KiB..1GiB",
     "Scratch on the device of each rank of a communicator whose operations go from device to "
     "device: so many bytes for collectives, and at most as many for messages; the ranks agree on "
     "the least."},
    {"WEIR_DIRECT", Kind::kChoice, "auto", "auto|0|1",
     "Operations between devices of one machine go directly between them, and not through host "
     "memory (libnccl.so.2) or NCCL (weir.h): unless ranks share a process and a device (with a "
     "real driver, see nccl_streams.md); none; or all; every rank must allow it."},
    {"WEIR_SLICE_BYTES", Kind::kBytes, "0", "0..1GiB",
     "Bytes of a pipeline step; 0: chosen by the size of the operation."},
    {"WEIR_SPIN_US", Kind::kInteger, "-1", "-1..1000000",
     "Microseconds of spinning before a waiting rank sleeps, at most: it spins no more where "
     "another "
     "thread wants the core; -1: chosen by cores and ranks."},
    {"WEIR_PROGRESS_THREAD", Kind::kBool, "0", "",
     "A thread of each process moves nonblocking operations while no thread tests or waits for "
     "them."},
    {"WEIR_RECORDER", Kind::kBool, "1", "",
     "What each rank did last is kept in a small file per communicator, for weir-trace."},
    {"WEIR_RECORDER_DIR", Kind::kPath, "", "",
     "Folder of these files; unset: a private one in XDG_RUNTIME_DIR, /dev/shm or /tmp."},
    {"WEIR_RECORDER_NCCL", Kind::kBool, "0", "",
     "The recorder also keeps the calls of communicators that go to the real NCCL."},
    {"WEIR_IN_PLACE_OF", Kind::kChoice, "", "gloo",
     "The Python package weir is PyTorch's backend gloo; python -m weir.run sets it "
     "(pytorch.md)."},
    {"WEIR_IN_PLACE_REPORT", Kind::kBool, "0", "",
     "At its end each process in which the Python package took Gloo's place prints what Weir "
     "served."},
    {"WEIR_RANK", Kind::kInteger, "", "0..65535",
     "Rank of this process, where no launcher says it; goes with WEIR_SIZE."},
    {"WEIR_SIZE", Kind::kInteger, "", "1..65536",
     "Number of ranks, where no launcher says it; goes with WEIR_RANK."},
    {"WEIR_LOCAL_RANK", Kind::kInteger, "", "0..65535",
     "Rank of this process among those of its machine; goes with WEIR_LOCAL_SIZE."},
    {"WEIR_LOCAL_SIZE", Kind::kInteger, "", "1..65536", "Number of ranks on this machine."},
    {"WEIR_ID", Kind::kText, "", "",
     "Any text that is the same for all ranks of a job and different for other jobs."},
    {"WEIR_RENDEZVOUS", Kind::kText, "", "",
     "How the ranks of a launched job find each other: local, master (MASTER_ADDR and "
     "MASTER_PORT), "
     "pmix or file:PATH on a shared file system; unset: the first that works for the job."},
    {"WEIR_SECRET_FD", Kind::kText, "", "",
     "Number of an open descriptor from which the job's secret is read; then it is closed."},
    {"WEIR_SECRET_FILE", Kind::kPath, "", "",
     "File of mode 0600 that holds the job's secret, which ranks on several machines need."},
    {"WEIR_SECRET", Kind::kText, "", "",
     "The job's secret itself, where nothing better can be had; unset as soon as it was read."},
};

// std::monostate: validated here, read where a process learns its rank.
using Field =
    std::variant<std::monostate, bool Settings::*, int64_t Settings::*, std::string Settings::*>;

struct Binding {
  std::string_view name;
  Field field;
};

const Binding kBindings[] = {
    {"WEIR_LOG", &Settings::log_level},
    {"WEIR_LOG_FILE", &Settings::log_file},
    {"WEIR_TIMEOUT_MS", &Settings::timeout_ms},
    {"WEIR_TRANSPORT", &Settings::transport},
    {"WEIR_TLS", &Settings::tls},
    {"WEIR_FAILOVER", &Settings::failover},
    {"WEIR_FABRIC", &Settings::fabric},
    {"WEIR_CARDS", &Settings::cards},
    {"WEIR_PLUGIN_PATH", &Settings::plugin_path},
    {"WEIR_HOOKS", &Settings::hooks},
    {"WEIR_FAULT", &Settings::fault},
    {"WEIR_ALGORITHM", &Settings::algorithm},
    {"WEIR_TUNING_FILE", &Settings::tuning_file},
    {"WEIR_PROGRAMS", &Settings::programs},
    {"WEIR_TOPOLOGY_FILE", &Settings::topology_file},
    {"WEIR_TOPOLOGY_MERGE", &Settings::topology_merge},
    {"WEIR_CACHE_DIR", &Settings::cache_dir},
    {"WEIR_COSTS_FILE", &Settings::costs_file},
    {"WEIR_PROBE", &Settings::probe},
    {"WEIR_EXPLAIN", &Settings::explain},
    {"WEIR_LEARN", &Settings::learn},
    {"WEIR_DETERMINISTIC", &Settings::deterministic},
    {"WEIR_HUGE_PAGES", &Settings::huge_pages},
    {"WEIR_STAGING_BYTES", &Settings::staging_bytes},
    {"WEIR_NCCL_CHUNK_BYTES", &Settings::nccl_chunk_bytes},
    {"WEIR_SCRATCH_BYTES", &Settings::scratch_bytes},
    {"WEIR_DIRECT", &Settings::direct},
    {"WEIR_SLICE_BYTES", &Settings::slice_bytes},
    {"WEIR_SPIN_US", &Settings::spin_us},
    {"WEIR_PROGRESS_THREAD", &Settings::progress_thread},
    {"WEIR_RECORDER", &Settings::recorder},
    {"WEIR_RECORDER_DIR", &Settings::recorder_dir},
};

Field field_of(std::string_view name) {
  for (const Binding& binding : kBindings) {
    if (binding.name == name) return binding.field;
  }
  return std::monostate();
}

bool is_number(Kind kind) {
  return kind == Kind::kInteger || kind == Kind::kBytes || kind == Kind::kMilliseconds;
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

std::optional<bool> parse_bool(std::string_view text) {
  const std::string lower = lower_case(text);
  if (lower == "1" || lower == "true" || lower == "on") return true;
  if (lower == "0" || lower == "false" || lower == "off") return false;
  return std::nullopt;
}

// A whole number; of bytes, with an optional suffix.
std::optional<int64_t> parse_number(Kind kind, std::string_view text) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc()) return std::nullopt;
  if (rest == end) return number;
  if (kind != Kind::kBytes) return std::nullopt;
  const std::string suffix = lower_case(std::string_view(rest, static_cast<size_t>(end - rest)));
  int shift = -1;
  if (suffix == "b") shift = 0;
  if (suffix == "k" || suffix == "kib") shift = 10;
  if (suffix == "m" || suffix == "mib") shift = 20;
  if (suffix == "g" || suffix == "gib") shift = 30;
  if (shift < 0 || number < 0 || number > (std::numeric_limits<int64_t>::max() >> shift)) {
    return std::nullopt;
  }
  return number << shift;
}

// The two ends of "min..max".
std::pair<int64_t, int64_t> range_of(const SettingInfo& info) {
  const std::string_view choices = info.choices;
  const size_t dots = choices.find("..");
  WEIR_CHECK(dots != std::string_view::npos, "a number in the table of settings has a range");
  const std::optional<int64_t> low = parse_number(info.kind, choices.substr(0, dots));
  const std::optional<int64_t> high = parse_number(info.kind, choices.substr(dots + 2));
  WEIR_CHECK(low && high, "the range of a setting parses");
  return {*low, *high};
}

bool is_choice(std::string_view choices, std::string_view value) {
  while (true) {
    const size_t bar = choices.find('|');
    if (choices.substr(0, bar) == value) return true;
    if (bar == std::string_view::npos) return false;
    choices.remove_prefix(bar + 1);
  }
}

std::string allowed_values(const SettingInfo& info) {
  switch (info.kind) {
    case Kind::kBool:
      return "one of 1, true, on, 0, false, off";
    case Kind::kInteger:
      return fmt::format("a whole number in {}", info.choices);
    case Kind::kBytes:
      return fmt::format(
          "a number of bytes in {}, with K, M or G (or KiB, MiB, GiB) for 1024, "
          "1024^2, 1024^3",
          info.choices);
    case Kind::kMilliseconds:
      return fmt::format("a whole number of milliseconds in {}", info.choices);
    case Kind::kChoice:
      return fmt::format("one of {}", info.choices);
    case Kind::kText:
      return "text";
    case Kind::kPath:
      return "a path";
  }
  return "";
}

// Writes the value into `settings`; false when it is not allowed.
bool assign(Settings* settings, const SettingInfo& info, std::string_view text) {
  const Field field = field_of(info.name);
  if (info.kind == Kind::kBool) {
    const std::optional<bool> value = parse_bool(text);
    if (!value) return false;
    if (const auto* member = std::get_if<bool Settings::*>(&field)) settings->** member = *value;
    return true;
  }
  if (is_number(info.kind)) {
    const std::optional<int64_t> value = parse_number(info.kind, text);
    const auto [low, high] = range_of(info);
    if (!value || *value < low || *value > high) return false;
    if (const auto* member = std::get_if<int64_t Settings::*>(&field)) settings->** member = *value;
    return true;
  }
  if (info.kind == Kind::kChoice && !is_choice(info.choices, text)) return false;
  if (const auto* member = std::get_if<std::string Settings::*>(&field)) {
    (settings->**member).assign(text);
  }
  return true;
}

// Levenshtein, one row at a time.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

std::string unknown_name_warning(std::string_view name) {
  const char* nearest = kTable[0].name;
  size_t nearest_distance = std::numeric_limits<size_t>::max();
  for (const SettingInfo& info : kTable) {
    const size_t distance = edit_distance(name, info.name);
    if (distance < nearest_distance) {
      nearest_distance = distance;
      nearest = info.name;
    }
  }
  return fmt::format("{} is set, but Weir has no such variable; the nearest is {}", printable(name),
                     nearest);
}

// The value of `name` in the environment; the first of several, as with getenv.
std::optional<std::string_view> find_value(char** environment, std::string_view name) {
  for (char** entry = environment; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (text.size() > name.size() && text.starts_with(name) && text[name.size()] == '=') {
      return text.substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

std::vector<std::string> unknown_names(char** environment) {
  std::vector<std::string> warnings;
  for (char** entry = environment; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    // WEIR_TEST_* belongs to the tests, which print and read it themselves.
    if (!name.starts_with("WEIR_") || name.starts_with("WEIR_TEST_")) continue;
    const bool known = std::any_of(std::begin(kTable), std::end(kTable),
                                   [&](const SettingInfo& info) { return name == info.name; });
    if (!known) warnings.push_back(unknown_name_warning(name));
  }
  return warnings;
}

// The value as it would be written in the environment.
std::string value_text(const Settings& settings, const SettingInfo& info) {
  const Field field = field_of(info.name);
  if (const auto* flag = std::get_if<bool Settings::*>(&field)) {
    return settings.**flag ? "1" : "0";
  }
  if (const auto* number = std::get_if<int64_t Settings::*>(&field)) {
    const int64_t value = settings.**number;
    if (info.kind == Kind::kBytes && value != 0) {
      constexpr std::pair<int, const char*> kUnits[] = {{30, "GiB"}, {20, "MiB"}, {10, "KiB"}};
      for (const auto& [shift, unit] : kUnits) {
        if (value % (int64_t{1} << shift) == 0) return fmt::format("{}{}", value >> shift, unit);
      }
    }
    return fmt::format("{}", value);
  }
  if (const auto* text = std::get_if<std::string Settings::*>(&field)) return settings.**text;
  return "";
}

}  // namespace

std::span<const SettingInfo> setting_table() { return kTable; }

Result<Settings> parse_settings(char** environment) {
  Settings settings{};
  std::string errors;
  for (const SettingInfo& info : kTable) {
    // An empty variable counts as unset: scripts unset variables this way.
    const std::string_view given = find_value(environment, info.name).value_or("");
    if (*info.default_text != '\0') {
      WEIR_CHECK(assign(&settings, info, info.default_text), "the default of a setting parses");
    }
    if (given.empty()) continue;
    settings.set_names.emplace_back(info.name);
    if (assign(&settings, info, given)) continue;
    if (!errors.empty()) errors += "; ";
    errors +=
        fmt::format("{}=\"{}\" must be {}", info.name, printable(given), allowed_values(info));
  }
  if (!errors.empty()) return invalid_argument("environment: " + errors);
  settings.warnings = unknown_names(environment);
  return settings;
}

namespace {

struct Parsed {
  Result<Settings> settings = parse_settings(environ);
  std::atomic<bool> warned{false};
};
// A forked child parses again: its environment may have changed.
constinit PerProcess<Parsed> parsed;

}  // namespace

void read_settings_again() { parsed.renew(); }

const Result<Settings>& process_settings() {
  Parsed& mine = parsed.get();
  if (!mine.warned.load(std::memory_order_relaxed) && !mine.warned.exchange(true)) {
    // Logging reads the settings too; they are set by now.
    if (mine.settings.ok()) {
      for (const std::string& warning : mine.settings.value().warnings) log_warn(warning);
    }
  }
  return mine.settings;
}

std::string describe_settings(const Settings& settings) {
  std::string text;
  for (const SettingInfo& info : kTable) {
    const bool set = std::find(settings.set_names.begin(), settings.set_names.end(), info.name) !=
                     settings.set_names.end();
    std::string value = printable(value_text(settings, info));
    if (value.empty()) {
      const bool read_elsewhere = std::holds_alternative<std::monostate>(field_of(info.name));
      if (!set) value = info.default_text;
      if (value.empty()) value = read_elsewhere && set ? "(read where it is used)" : "(none)";
    }
    text += fmt::format("  {:<23} {:<27} {}\n", info.name, value, set ? "set" : "default");
  }
  for (const std::string& warning : settings.warnings) text += fmt::format("  ! {}\n", warning);
  return text;
}

std::string settings_markdown() {
  std::string text =
      "# Environment variables\n\n"
      "Read once per process, when Weir is first used. A value that does not parse makes the "
      "first\n"
      "call fail with an error that names the variable, the value and what is allowed. An empty\n"
      "variable counts as unset. A `WEIR_*` name that is not in this table is reported in the "
      "log.\n"
      "This page is generated from `src/core/base/settings.cc`.\n\n"
      "| variable | default | values | meaning |\n"
      "| --- | --- | --- | --- |\n";
  for (const SettingInfo& info : kTable) {
    const std::string default_text =
        *info.default_text != '\0' ? fmt::format("`{}`", info.default_text) : "unset";
    std::string values = allowed_values(info);
    for (size_t at = 0; (at = values.find('|', at)) != std::string::npos; at += 2) {
      values.insert(at, 1, '\\');
    }
    text += fmt::format("| `{}` | {} | {} | {} |\n", info.name, default_text, values, info.help);
  }
  return text;
}

}  // namespace weir
