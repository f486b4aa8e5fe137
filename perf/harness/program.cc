// SPDX-License-Identifier: Apache-2.0
// run_program: options, ranks, communicator, run.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "perf/harness/buffers.h"
#include "perf/harness/launch.h"
#include "perf/harness/machine.h"
#include "perf/harness/operation.h"
#include "perf/harness/options.h"
#include "perf/harness/run.h"

namespace weir::perf {
namespace {

constexpr int kDefaultRankCount = 2;

// State that the ranks of one process share.
struct ProcessJob {
  const Options* options = nullptr;
  const Operation* operation = nullptr;
  weir_unique_id_t id{};
  int process = 0;
  int process_count = 1;
  int local_process = 0;  // index and number on this machine
  int local_process_count = 1;
  bool pins_by_default = true;
  size_t resident_bytes = 0;
  const char* launch = "";
  Machine machine;
};

int fail(const Operation& operation, int rank, const std::string& text) {
  fmt::print(stderr, "{}: rank {}: {}\n", operation.program, rank, text);
  return kExitError;
}

// The cpu to which local rank `index` is bound; -1: none.
int cpu_for(const ProcessJob& job, int index) {
  const std::vector<int>& cpus = job.machine.cpus;
  const int local_count = job.local_process_count * job.options->ranks_per_process();
  const bool enough = local_count <= static_cast<int>(cpus.size());
  if (job.options->pin == Pin::kOff) return -1;
  if (job.options->pin == Pin::kAuto && !(enough && job.pins_by_default)) return -1;
  return cpus[static_cast<size_t>(index) % cpus.size()];
}

RankJob rank_job(const ProcessJob& job, int thread) {
  RankJob rank;
  rank.options = job.options;
  rank.operation = job.operation;
  const int per_process = job.options->ranks_per_process();
  rank.rank = job.process * per_process + thread;
  rank.rank_count = job.process_count * per_process;
  rank.process = job.process;
  rank.process_count = job.process_count;
  rank.local_rank = job.local_process * per_process + thread;
  rank.local_rank_count = job.local_process_count * per_process;
  rank.resident_bytes = job.resident_bytes;
  rank.launch = job.launch;
  rank.machine = job.machine;
  const int cpu = cpu_for(job, rank.local_rank);
  if (cpu >= 0 && pin_this_thread(cpu)) rank.pinned_cpu = cpu;
  return rank;
}

int run_and_destroy(RankJob& rank) {
  const int status = run_rank(rank);
  if (status == kExitError) weir_comm_abort(rank.comm);
  const weir_result_t result = weir_comm_destroy(rank.comm);
  if (result != WEIR_OK && status == kExitOk) {
    return fail(*rank.operation, rank.rank, error_text("weir_comm_destroy", result, nullptr));
  }
  return status;
}

int run_process(const ProcessJob& job) {
  return run_threads(job.options->ranks_per_process(), [&job](int thread) {
    RankJob rank = rank_job(job, thread);
    const weir_result_t result =
        weir_comm_create(&rank.comm, rank.rank_count, &job.id, rank.rank, nullptr);
    if (result != WEIR_OK) {
      return fail(*job.operation, rank.rank, error_text("weir_comm_create", result, nullptr));
    }
    return run_and_destroy(rank);
  });
}

// The number of processes on this one's host, and its index among them.
bool find_neighbours(weir_comm_t comm, ProcessJob* job) {
  char mine[128] = {};
  std::snprintf(mine, sizeof(mine), "%s", job->machine.host.c_str());
  std::vector<char> all(sizeof(mine) * static_cast<size_t>(job->process_count));
  if (weir_all_gather(comm, mine, all.data(), sizeof(mine), WEIR_UINT8, nullptr) != WEIR_OK) {
    return false;
  }
  job->local_process = 0;
  job->local_process_count = 0;
  for (int i = 0; i < job->process_count; ++i) {
    if (std::memcmp(mine, &all[sizeof(mine) * static_cast<size_t>(i)], sizeof(mine)) != 0) continue;
    if (i < job->process) ++job->local_process;
    ++job->local_process_count;
  }
  return true;
}

int run_launched(ProcessJob job) {
  const Operation& operation = *job.operation;
  weir_comm_t world = nullptr;
  weir_result_t result = weir_comm_create_from_env(&world, nullptr);
  if (result != WEIR_OK) {
    fmt::print(stderr, "{}: {}\n", operation.program,
               error_text("weir_comm_create_from_env", result, nullptr));
    return kExitError;
  }
  // The launcher binds its processes as the user asked; this program does not change that.
  job.pins_by_default = false;
  if (weir_comm_rank(world, &job.process) != WEIR_OK ||
      weir_comm_size(world, &job.process_count) != WEIR_OK || !find_neighbours(world, &job)) {
    return fail(operation, job.process, error_text("setting up", WEIR_ERROR_INTERNAL, world));
  }
  if (job.options->ranks_per_process() == 1) {
    RankJob rank = rank_job(job, 0);
    rank.comm = world;
    return run_and_destroy(rank);
  }
  if (job.process == 0) result = weir_get_unique_id(&job.id);
  if (result == WEIR_OK) {
    result = weir_broadcast(world, &job.id, &job.id, sizeof(job.id), WEIR_UINT8, 0, nullptr);
  }
  if (result != WEIR_OK)
    return fail(operation, job.process, error_text("unique id", result, world));
  const int status = run_process(job);
  weir_comm_destroy(world);
  return status;
}

}  // namespace

int run_program(int argc, char** argv, const Operation& operation) {
  Options options;
  switch (parse_options(argc, argv, operation, &options)) {
    case ParseResult::kRun:
      break;
    case ParseResult::kExitOk:
      return kExitOk;
    case ParseResult::kExitUsage:
      return kExitUsage;
  }
  ProcessJob job;
  job.options = &options;
  job.operation = &operation;
  job.machine = describe_machine();
  job.resident_bytes = resident_bytes();

  const char* launcher = launcher_in_environment();
  if (options.process_count == 0 && launcher != nullptr) {
    job.launch = launcher;
    return run_launched(std::move(job));
  }
  if (options.process_count == 0 && !options.ranks_given) {
    options.process_count = kDefaultRankCount;
    options.notes.push_back(
        fmt::format("neither a launcher nor --ranks, -t or -g: --ranks {}", kDefaultRankCount));
  }
  if (options.process_count == 0) options.process_count = 1;
  const int rank_count = options.process_count * options.ranks_per_process();
  if (operation.has_root && options.root >= rank_count) {
    fmt::print(stderr, "{}: -r {}: the ranks are 0 to {}\n", operation.program, options.root,
               rank_count - 1);
    return kExitUsage;
  }

  job.process_count = job.local_process_count = options.process_count;
  job.launch = options.process_count > 1 ? "--ranks" : "threads";
  const weir_result_t result = weir_get_unique_id(&job.id);
  if (result != WEIR_OK) {
    fmt::print(stderr, "{}: {}\n", operation.program,
               error_text("weir_get_unique_id", result, nullptr));
    return kExitError;
  }
  if (options.process_count == 1) return run_process(job);
  return run_processes(options.process_count, operation.program, [&job](int process) {
    ProcessJob mine = job;
    mine.process = mine.local_process = process;
    return run_process(mine);
  });
}

}  // namespace weir::perf
