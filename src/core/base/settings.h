// SPDX-License-Identifier: Apache-2.0
// The WEIR_* environment: one table of variables (name, kind, default, meaning) that drives
// parsing, validation, weir-info and docs/environment.md. A value that does not parse is an error
// that names variable, value and what is allowed; an unknown WEIR_* name is reported with the
// nearest known one. Settings are read once per process and then immutable: thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace weir {

enum class SettingKind : uint8_t { kBool, kInteger, kBytes, kMilliseconds, kChoice, kText, kPath };

struct SettingInfo {
  const char* name;  // "WEIR_TIMEOUT_MS"
  SettingKind kind;
  const char* default_text;  // as written in the environment; "" = unset
  const char* choices;       // kChoice: "a|b|c"; kInteger, kBytes, kMilliseconds: "min..max"; or ""
  const char* help;          // one sentence, for the docs and weir-info
};

// Every variable that Weir reads, in the order of the documentation.
std::span<const SettingInfo> setting_table();

struct Settings {
  int64_t timeout_ms;          // WEIR_TIMEOUT_MS: deadline of an operation
  std::string transport;       // WEIR_TRANSPORT: comma list of transports allowed; "" = all viable
  std::string tls;             // WEIR_TLS: off, control or all; for network transports
  std::string failover;        // WEIR_FAILOVER: comma list; each takes over from the one before it
  std::string fabric;          // WEIR_FABRIC: auto or 0; use of cards that is not named
  std::string cards;           // WEIR_CARDS: auto or 0; use of the nearest cards
  std::string hooks;           // WEIR_HOOKS: comma list of trace, check, fault; outermost first
  std::string fault;           // WEIR_FAULT: what hook_fault does, e.g. "delay_us=100,seed=7"
  std::string algorithm;       // WEIR_ALGORITHM: "all_reduce=ring,broadcast=binomial"; "" = routed
  std::string tuning_file;     // WEIR_TUNING_FILE: rules that override the route
  std::string programs;        // WEIR_PROGRAMS: folder of programs that may be chosen
  std::string topology_file;   // WEIR_TOPOLOGY_FILE: hwloc or NCCL XML of this machine
  std::string topology_merge;  // WEIR_TOPOLOGY_MERGE: auto, 0 or 1
  std::string cache_dir;       // WEIR_CACHE_DIR: where probe results are kept; "" = XDG cache
  std::string costs_file;      // WEIR_COSTS_FILE: rank 0 writes the task times it uses here
  bool probe;                  // WEIR_PROBE: measure tasks at start-up (else built-in figures)
  bool explain;                // WEIR_EXPLAIN
  bool learn;                  // WEIR_LEARN: some calls run and measure other algorithms
  bool deterministic;          // WEIR_DETERMINISTIC: WEIR_COMM_DETERMINISTIC for all
  bool huge_pages;             // WEIR_HUGE_PAGES
  int64_t staging_bytes;       // WEIR_STAGING_BYTES: staging memory per rank and communicator
  int64_t nccl_chunk_bytes;    // WEIR_NCCL_CHUNK_BYTES: piece of device memory between copies
  int64_t scratch_bytes;       // WEIR_SCRATCH_BYTES: on a device, for each communicator
  std::string direct;          // WEIR_DIRECT: auto, 0 or 1; from device to device in libnccl.so.2
  int64_t slice_bytes;         // WEIR_SLICE_BYTES: 0 = chosen by size
  int64_t spin_us;             // WEIR_SPIN_US: spin before sleeping; -1 = by cores and ranks
  bool progress_thread;        // WEIR_PROGRESS_THREAD: it advances nonblocking operations
  bool recorder;               // WEIR_RECORDER: a rank's latest actions are kept for weir-trace
  std::string recorder_dir;    // WEIR_RECORDER_DIR; "" = a private folder in memory
  std::string plugin_path;     // WEIR_PLUGIN_PATH: directory of external transports
  std::string log_level;       // WEIR_LOG
  std::string log_file;        // WEIR_LOG_FILE
  std::vector<std::string> set_names;  // variables that the environment set, in the table's order
  std::vector<std::string> warnings;   // one sentence per WEIR_* name that Weir does not know
};

// Parses the process environment. The text of an error lists every bad variable, not only the
// first.
Result<Settings> parse_settings(char** environment);

// The process's settings; the first call parses, and logs the warnings. An error is returned to
// every caller.
const Result<Settings>& process_settings();

// Parses again, after the library itself has changed the environment. What has been made keeps the
// settings with which it was made.
void read_settings_again();

// Text for weir-info: each variable with its value and whether it is set or default.
std::string describe_settings(const Settings& settings);

// docs/environment.md, from the table.
std::string settings_markdown();

}  // namespace weir
