// SPDX-License-Identifier: Apache-2.0
#include "nccl/real/counters.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/log.h"
#include "core/base/per_process.h"
#include "output/output_file.h"

namespace weir::nccl {

namespace {

// Limit of the communicators with rows of their own; later ones share the number kOthers.
constexpr size_t kCommunicatorsMax = 1024;
constexpr int kNoCommunicator = 0;
constexpr int kOthers = -1;
constexpr std::chrono::seconds kInterval{1};

struct Row {
  uint64_t calls = 0;
  uint64_t errors = 0;
  uint64_t bytes = 0;
  uint64_t nanoseconds = 0;
};

struct Known {
  int number = kNoCommunicator;
  bool named = false;
};

struct Identity {
  int number;
  int rank;
  int rank_count;
};

struct Counters {
  std::mutex lock;
  bool writes = false;  // a thread writes the file
  bool changed = false;
  bool warned = false;
  int next_number = 1;
  std::unordered_map<ncclComm_t, Known> known;
  std::vector<Identity> identities;
  std::map<std::tuple<FunctionIndex, int, bool>, Row> rows;

  std::mutex file_lock;  // held while the file is written
};

// Threads may count while the process ends. A forked child has none of its parent's threads, and
// calls of its own.
Counters& counters() {
  static constinit PerProcess<Counters> it;
  return it.get();
}

// The value of WEIR_METRICS; set before anything is counted.
const std::string* path_pattern = nullptr;

std::string place_of(std::string pattern) {
  const auto replace = [&](std::string_view mark, const std::string& value) {
    for (size_t at = 0; (at = pattern.find(mark, at)) != std::string::npos; at += value.size()) {
      pattern.replace(at, mark.size(), value);
    }
  };
  char host[256] = {};
  if (gethostname(host, sizeof host - 1) != 0) std::strcpy(host, "unknown");
  replace("%p", std::to_string(getpid()));
  replace("%h", host);
  return pattern;
}

std::string number_text(int number) {
  return number == kOthers ? "other" : number == kNoCommunicator ? "" : std::to_string(number);
}

void add_family(const Counters& it, const char* name, const char* help, double (*value)(const Row&),
                std::string* text) {
  fmt::format_to(std::back_inserter(*text), "# HELP {} {}\n# TYPE {} counter\n", name, help, name);
  for (const auto& [key, row] : it.rows) {
    const auto& [function, number, real] = key;
    fmt::format_to(std::back_inserter(*text),
                   "{}{{function=\"{}\",communicator=\"{}\",backend=\"{}\"}} {}\n", name,
                   info_of(function).name, number_text(number), real ? "nccl" : "weir", value(row));
  }
}

std::string text_of(const Counters& it) {
  std::string text;
  add_family(
      it, "weir_nccl_calls_total", "Calls of a function.",
      [](const Row& row) { return static_cast<double>(row.calls); }, &text);
  add_family(
      it, "weir_nccl_errors_total", "Calls that returned an error.",
      [](const Row& row) { return static_cast<double>(row.errors); }, &text);
  add_family(
      it, "weir_nccl_bytes_total", "Count times the size of an element, added up.",
      [](const Row& row) { return static_cast<double>(row.bytes); }, &text);
  add_family(
      it, "weir_nccl_seconds_total", "Time that the host spent in the calls.",
      [](const Row& row) { return static_cast<double>(row.nanoseconds) * 1e-9; }, &text);
  text +=
      "# HELP weir_nccl_communicator_info Rank and size of a communicator.\n"
      "# TYPE weir_nccl_communicator_info gauge\n";
  for (const Identity& identity : it.identities) {
    fmt::format_to(
        std::back_inserter(text),
        "weir_nccl_communicator_info{{communicator=\"{}\",rank=\"{}\",ranks=\"{}\"}} 1\n",
        number_text(identity.number), identity.rank, identity.rank_count);
  }
  return text;
}

void write_now() {
  Counters& it = counters();
  std::lock_guard file(it.file_lock);
  std::string text;
  std::string path;
  {
    std::lock_guard lock(it.lock);
    if (!it.changed) return;
    it.changed = false;
    text = text_of(it);
    path = place_of(*path_pattern);
  }
  const std::string wrong = output::write_file(path, text, {.mode = 0644, .sync = false});
  if (wrong.empty()) return;
  std::lock_guard lock(it.lock);
  if (std::exchange(it.warned, true)) return;
  log_warn("WEIR_METRICS: " + wrong);
}

void write_safely() noexcept {
  try {
    write_now();
  } catch (...) {
    // There is no memory now; the next attempt may succeed.
  }
}

void write_again_and_again() {
  for (;;) {
    std::this_thread::sleep_for(kInterval);
    write_safely();
  }
}

// Under the lock. The thread ends with the process and must not receive signals of the program.
void start_writing(Counters& it) {
  if (it.writes) return;
  it.writes = true;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread(write_again_and_again).detach();
  } catch (...) {
    // Without a thread the file is written at the end only.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Under the lock.
Known& known(Counters& it, ncclComm_t comm) {
  const auto [found, is_new] = it.known.try_emplace(comm);
  if (is_new) {
    const bool own_rows = static_cast<size_t>(it.next_number) <= kCommunicatorsMax;
    found->second.number = own_rows ? it.next_number++ : kOthers;
    found->second.named = !own_rows;
  }
  return found->second;
}

}  // namespace

void start_counting(std::string path) {
  path_pattern = new std::string(std::move(path));
  std::atexit(write_safely);
}

bool count_call(const Call& call) {
  try {
    Counters& it = counters();
    std::lock_guard lock(it.lock);
    Known none{kNoCommunicator, true};
    Known& comm = call.comm != nullptr ? known(it, call.comm) : none;
    Row& row = it.rows[{call.function, comm.number, call.real}];
    row.calls += 1;
    row.errors += call.failed ? 1 : 0;
    row.bytes += call.bytes;
    row.nanoseconds += call.nanoseconds;
    it.changed = true;
    start_writing(it);
    return !comm.named;
  } catch (...) {
    return false;  // without memory a call is not counted
  }
}

void name_communicator(ncclComm_t comm, int rank, int rank_count) {
  try {
    Counters& it = counters();
    std::lock_guard lock(it.lock);
    Known& entry = known(it, comm);
    if (std::exchange(entry.named, true)) return;
    it.identities.push_back({entry.number, rank, rank_count});
  } catch (...) {
    // Without memory it stays unnamed.
  }
}

void end_communicator(ncclComm_t comm) {
  Counters& it = counters();
  std::lock_guard lock(it.lock);
  it.known.erase(comm);
}

}  // namespace weir::nccl
