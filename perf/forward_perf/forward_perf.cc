// SPDX-License-Identifier: Apache-2.0
// The time that Weir's libnccl.so.2 adds to an all-reduce that goes to the real library: the same
// call into a real library that does nothing, directly and through Weir's, in turns of 2000 calls,
// so that other load of the machine affects both alike. It prints medians over the turns.
//
//   forward_perf [RUNS [TURNS]]
//
// Each way is measured in a separate process: forwarded (WEIR_BACKEND=nccl), the same with a
// nonblocking communicator, which keeps Weir's handle, passed through (WEIR_DISABLE=1), and
// forwarded with counters (WEIR_METRICS) or recorded (WEIR_RECORDER_NCCL; a communicator of two
// ranks in one process).
#include <dlfcn.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "output/run_tool.h"
#include "perf/harness/argument.h"
#include "weir/nccl.h"

namespace {

using weir::perf::number_argument;

constexpr int kTurnCalls = 2000;

double now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// Nanoseconds per call.
double turn(decltype(&ncclAllReduce) all_reduce, ncclComm_t comm) {
  float value = 0;
  const double begin = now_ns();
  for (int i = 0; i < kTurnCalls; ++i) {
    if (all_reduce(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr) != ncclSuccess) _exit(1);
  }
  return (now_ns() - begin) / kTurnCalls;
}

enum class Maker { kRank, kNonblocking, kTwoRanks };

ncclResult_t make(Maker maker, ncclComm_t* comm) {
  if (maker == Maker::kTwoRanks) {
    ncclComm_t comms[2] = {};
    const ncclResult_t result = ncclCommInitAll(comms, 2, nullptr);
    *comm = comms[0];
    return result;
  }
  ncclUniqueId id;
  ncclResult_t result = ncclGetUniqueId(&id);
  if (result != ncclSuccess) return result;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = maker == Maker::kNonblocking ? 0 : 1;
  result = ncclCommInitRankConfig(comm, 1, id, 0, &config);
  while (result == ncclInProgress) {
    usleep(1000);
    if (ncclCommGetAsyncError(*comm, &result) != ncclSuccess) return ncclInternalError;
  }
  return result;
}

void measure(const char* title, Maker maker, int turns) {
  ncclComm_t comm = nullptr;
  if (make(maker, &comm) != ncclSuccess) {
    fmt::print(stderr, "forward_perf: {}\n", ncclGetLastError(nullptr));
    _exit(1);
  }
  void* real = dlopen(WEIR_NOTHING_NCCL, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  void* straight = real != nullptr ? dlsym(real, "ncclAllReduce") : nullptr;
  void* self = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
  void* through = self != nullptr ? dlsym(self, "ncclAllReduce") : nullptr;
  if (straight == nullptr || through == nullptr || straight == through) {
    fmt::print(stderr, "forward_perf: the two libraries cannot be told apart\n");
    _exit(1);
  }
  const auto direct = reinterpret_cast<decltype(&ncclAllReduce)>(straight);
  const auto forwarded = reinterpret_cast<decltype(&ncclAllReduce)>(through);
  std::vector<double> direct_ns, forwarded_ns, added_ns;
  for (int i = 0; i < turns; ++i) {
    const bool first = i % 2 == 0;
    double a = first ? turn(direct, comm) : 0;
    const double b = turn(forwarded, comm);
    if (!first) a = turn(direct, comm);
    direct_ns.push_back(a);
    forwarded_ns.push_back(b);
    added_ns.push_back(b - a);
  }
  fmt::print("{:24} straight {:6.2f} ns   through Weir's {:6.2f} ns   added {:6.2f} ns\n", title,
             median(direct_ns), median(forwarded_ns), median(added_ns));
  std::fflush(stdout);
}

int run(const char* title, Maker maker, const char* variable, const std::string& value, int turns) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("WEIR_NCCL_LIBRARY", WEIR_NOTHING_NCCL, 1);
    setenv("WEIR_BACKEND", "nccl", 1);
    if (variable != nullptr) setenv(variable, value.c_str(), 1);
    measure(title, maker, turns);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int run_arguments(int argc, char** argv) {
  const int runs = argc > 1 ? static_cast<int>(number_argument(argv[1], "runs", 1, 1000)) : 5;
  const int turns =
      argc > 2 ? static_cast<int>(number_argument(argv[2], "turns", 1, 1'000'000)) : 500;
  std::string folder = (std::filesystem::temp_directory_path() / "forward_perf.XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return 1;
  const std::string metrics = folder + "/metrics.prom";
  setenv("WEIR_RECORDER_DIR", folder.c_str(), 1);
  int failed = 0;
  for (int i = 0; i < runs && failed == 0; ++i) {
    failed |= run("forwarded", Maker::kRank, nullptr, "", turns);
    failed |= run("forwarded, nonblocking", Maker::kNonblocking, nullptr, "", turns);
    failed |= run("passed through", Maker::kRank, "WEIR_DISABLE", "1", turns);
    failed |= run("forwarded, counted", Maker::kRank, "WEIR_METRICS", metrics, turns);
    failed |= run("forwarded, recorded", Maker::kTwoRanks, "WEIR_RECORDER_NCCL", "1", turns);
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  return weir::output::run_tool("forward_perf", run_arguments, argc, argv);
}
