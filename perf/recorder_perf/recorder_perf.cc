// SPDX-License-Identifier: Apache-2.0
// The time that the recorder adds to an 8-byte all-reduce of two processes. Both have two
// communicators, one that records and one that does not, and alternate between them every 500
// operations, so that other load of the machine affects both alike. The one that is made first
// changes from run to run.
//
//   recorder_perf [RUNS [BLOCKS]]
#include <fmt/format.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "output/run_tool.h"
#include "perf/harness/argument.h"
#include "weir/weir.h"

namespace {

using weir::perf::number_argument;

constexpr int kWarmOperations = 50;
constexpr int kTimedOperations = 500;

double now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

double quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
}

void require(weir_result_t result, const char* what) {
  if (result == WEIR_OK) return;
  fmt::print(stderr, "recorder_perf: {}: {}\n", what, weir_last_error(nullptr));
  _exit(1);
}

void run(weir_comm_t comm, int count) {
  const float input[2] = {1, 2};
  float output[2];
  for (int i = 0; i < count; ++i) {
    require(weir_all_reduce(comm, input, output, 2, WEIR_FLOAT32, WEIR_SUM, nullptr), "all_reduce");
  }
}

struct Result {
  double ratio = 0;  // median over the blocks
  double on_ns = 0, off_ns = 0;
};

// Runs one rank. The recorder refuses a folder that others may write: so the communicator that is
// made while `folder` is open to all does not record.
Result measure(int rank, const weir_unique_id_t* ids, const std::string& folder, bool on_first,
               int block_count) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(rank, &cpus);
  (void)sched_setaffinity(0, sizeof cpus, &cpus);
  weir_comm_t comms[2] = {};
  require(weir_comm_create(&comms[0], 2, &ids[0], rank, nullptr), "comm_create");
  require(weir_barrier(comms[0], nullptr), "barrier");
  if (rank == 0 && chmod(folder.c_str(), on_first ? 0777 : 0700) != 0) _exit(1);
  require(weir_barrier(comms[0], nullptr), "barrier");
  require(weir_comm_create(&comms[1], 2, &ids[1], rank, nullptr), "comm_create");
  const weir_comm_t on = comms[on_first ? 0 : 1];
  const weir_comm_t off = comms[on_first ? 1 : 0];
  run(on, 3000);
  run(off, 3000);
  std::vector<double> ratios;
  std::vector<double> on_ns;
  std::vector<double> off_ns;
  for (int block = 0; block < block_count; ++block) {
    double ns[2] = {};
    for (int half = 0; half < 2; ++half) {
      const int records = (half + block) % 2;
      const weir_comm_t comm = records != 0 ? on : off;
      run(comm, kWarmOperations);
      const double begin = now_ns();
      run(comm, kTimedOperations);
      ns[records] = (now_ns() - begin) / kTimedOperations;
    }
    ratios.push_back(ns[1] / ns[0]);
    on_ns.push_back(ns[1]);
    off_ns.push_back(ns[0]);
  }
  for (const weir_comm_t comm : comms) require(weir_comm_destroy(comm), "comm_destroy");
  return {quantile(ratios, 0.5), quantile(on_ns, 0.1), quantile(off_ns, 0.1)};
}

int run_arguments(int argc, char** argv) {
  const int run_count = argc > 1 ? static_cast<int>(number_argument(argv[1], "runs", 1, 1000)) : 10;
  const int block_count =
      argc > 2 ? static_cast<int>(number_argument(argv[2], "blocks", 1, 1'000'000)) : 2000;
  if (run_count < 1 || block_count < 1 || argc > 3) {
    fmt::print(stderr, "usage: recorder_perf [RUNS [BLOCKS]]\n");
    return 2;
  }
  std::string folder = "/dev/shm/recorder_perf-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    fmt::print(stderr, "recorder_perf: {} cannot be made\n", folder);
    return 1;
  }
  setenv("WEIR_RECORDER_DIR", folder.c_str(), 1);
  setenv("WEIR_RECORDER", "1", 1);
  setenv("WEIR_SPIN_US", "100000",
         0);  // sharing the core costs less than sleeping
  std::vector<double> ratios;
  bool good = true;
  for (int number = 0; number < run_count && good; ++number) {
    const bool on_first = number % 2 == 0;
    if (chmod(folder.c_str(), on_first ? 0700 : 0777) != 0) break;
    weir_unique_id_t ids[2];
    for (weir_unique_id_t& id : ids) require(weir_get_unique_id(&id), "get_unique_id");
    std::fflush(nullptr);
    pid_t ranks[2];
    int results[2];
    if (pipe(results) != 0) return 1;
    for (int rank = 0; rank < 2; ++rank) {
      ranks[rank] = fork();
      if (ranks[rank] != 0) continue;
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const Result result = measure(rank, ids, folder, on_first, block_count);
      const bool told = rank != 0 || write(results[1], &result, sizeof result) == sizeof result;
      _exit(told ? 0 : 1);
    }
    for (const pid_t rank : ranks) {
      int status = 1;
      good = waitpid(rank, &status, 0) == rank && status == 0 && good;
    }
    Result result;
    good = good && read(results[0], &result, sizeof result) == sizeof result;
    close(results[0]);
    close(results[1]);
    if (!good) break;
    ratios.push_back(result.ratio);
    fmt::print("with {:.1f} ns, without {:.1f} ns (fastest tenth), ratio {:.4f} (median)\n",
               result.on_ns, result.off_ns, result.ratio);
  }
  if (good) {
    fmt::print("recorder: {:+.2f} % (median of {} runs)\n", (quantile(ratios, 0.5) - 1) * 100,
               ratios.size());
  }
  rmdir(folder.c_str());
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return weir::output::run_tool("recorder_perf", run_arguments, argc, argv);
}
