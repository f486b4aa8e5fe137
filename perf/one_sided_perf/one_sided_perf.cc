// SPDX-License-Identifier: Apache-2.0
// one_sided_perf: one-sided operations of weir.h between two processes. Rank 0 accesses the memory
// of rank 1, which sleeps outside of Weir unless the pattern says otherwise. WEIR_TRANSPORT chooses
// the transport.
//
//   one_sided_perf <pattern> <bytes> <count> [ordinary|symmetric [<core>,<core>]]
//
//   put_latency     put and flush, one after the other; microseconds, median and mean of tens
//   get_latency     get, one after the other
//   add_latency     fetch_add of a word
//   signal_latency  put_signal each way, which the other waits for; microseconds of one way
//   put_bandwidth   puts, up to 32 under way, and a flush at the end; MiB per second
//   get_bandwidth   gets, up to 32 under way
//   memcpy          copies within rank 0, to compare mapped memory with; microseconds and MiB per
//                   second
//
// To compare with UCX: ucx_perftest -t ucp_put_bw, -t ucp_get, -t ucp_fadd, where a put's time must
// include its flush. To compare with ofi's messages: message_perf ofi latency|bandwidth.
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "output/run_tool.h"
#include "perf/harness/argument.h"
#include "weir/weir.h"

namespace weir::perf {
namespace {

constexpr uint64_t kUnderWay = 32;
constexpr uint64_t kBatch = 10;  // operations between two readings of the clock

uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

void check(weir_result_t result) {
  if (result == WEIR_OK) return;
  fprintf(stderr, "one_sided_perf: %s: %s\n", weir_result_string(result), weir_last_error(nullptr));
  exit(1);
}

struct Job {
  std::string pattern;
  uint64_t bytes = 0;
  uint64_t count = 0;
  bool symmetric = false;
  int cores[2] = {-1, -1};
};

class Rank {
 public:
  Rank(const Job& job, const weir_unique_id_t& id, int rank) : job_(job), rank_(rank) {
    if (job.cores[rank] >= 0) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(static_cast<size_t>(job.cores[rank]), &set);
      if (sched_setaffinity(0, sizeof set, &set) != 0) exit(1);
    }
    check(weir_comm_create(&comm_, 2, &id, rank, nullptr));
    window_bytes_ = (job.bytes + 63) / 64 * 64 + 64;
    if (job.symmetric) {
      check(weir_mem_alloc(comm_, window_bytes_, &memory_));
    } else {
      own_.resize(window_bytes_ / 8);
      memory_ = own_.data();
    }
    memset(memory_, 0, window_bytes_);
    check(weir_window_create(comm_, memory_, window_bytes_, &window_));
    buffer_.resize(window_bytes_, 1);
  }
  ~Rank() {
    check(weir_window_destroy(window_));
    if (job_.symmetric) check(weir_mem_free(comm_, memory_));
    check(weir_comm_destroy(comm_));
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void run() {
    const bool both = job_.pattern == "signal_latency";
    if (rank_ == 0 || both) measure();
    // Rank 1 makes no calls of Weir meanwhile.
    for (unsigned char done = 0; rank_ == 1 && !both; usleep(1000)) {
      check(weir_get(window_, 1, window_bytes_ - 8, &done, 1, nullptr));
      if (done != 0) break;
    }
    const unsigned char done = 1;
    if (rank_ == 0 && !both) check(weir_put(window_, 1, window_bytes_ - 8, &done, 1, nullptr));
  }

 private:
  size_t signal_offset() const { return window_bytes_ - 16; }

  void measure() {
    const std::string& pattern = job_.pattern;
    if (pattern == "put_latency") {
      latency([this] {
        check(weir_put(window_, 1, 0, buffer_.data(), job_.bytes, nullptr));
        check(weir_flush(comm_, 1, nullptr));
      });
    } else if (pattern == "get_latency") {
      latency([this] { check(weir_get(window_, 1, 0, buffer_.data(), job_.bytes, nullptr)); });
    } else if (pattern == "add_latency") {
      latency([this] {
        uint64_t old = 0;
        check(weir_fetch_add(window_, 1, signal_offset(), 1, &old, nullptr));
      });
    } else if (pattern == "signal_latency") {
      signal_latency();
    } else if (pattern == "put_bandwidth") {
      bandwidth([this](weir_request_t* request) {
        check(weir_put(window_, 1, 0, buffer_.data(), job_.bytes, request));
      });
    } else if (pattern == "get_bandwidth") {
      bandwidth([this](weir_request_t* request) {
        check(weir_get(window_, 1, 0, buffer_.data(), job_.bytes, request));
      });
    } else if (pattern == "memcpy") {
      latency([this] {
        memcpy(memory_, buffer_.data(), job_.bytes);
        asm volatile("" ::: "memory");
      });
    } else {
      fprintf(stderr, "one_sided_perf: there is no pattern '%s'\n", pattern.c_str());
      exit(1);
    }
  }

  void latency(const std::function<void()>& once, double share = 1) {
    for (uint64_t i = 0; i < job_.count / 10 + 1; ++i) once();
    std::vector<uint64_t> times;
    uint64_t before = now_ns();
    for (uint64_t i = 0; i < job_.count; i += kBatch) {
      for (uint64_t k = 0; k < kBatch; ++k) once();
      const uint64_t now = now_ns();
      times.push_back(now - before);
      before = now;
    }
    if (rank_ != 0) return;
    const auto sum = std::accumulate(times.begin(), times.end(), uint64_t{0});
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                     times.end());
    const double unit = 1000.0 * kBatch / share;
    const double mean_us = static_cast<double>(sum) / static_cast<double>(times.size()) / unit;
    printf("%s %llu bytes: median %.3f us, mean %.3f us, %.1f MiB/s\n", job_.pattern.c_str(),
           static_cast<unsigned long long>(job_.bytes),
           static_cast<double>(times[times.size() / 2]) / unit, mean_us,
           static_cast<double>(job_.bytes) / mean_us * 1e6 / (1 << 20));
  }

  void signal_latency() {
    uint64_t turn = 0;
    latency(
        [this, &turn] {
          ++turn;
          if (rank_ == 1) check(weir_wait_signal(window_, signal_offset(), turn, nullptr));
          check(weir_put_signal(window_, 1 - rank_, 0, buffer_.data(), job_.bytes, window_,
                                signal_offset(), 1, nullptr));
          if (rank_ == 0) check(weir_wait_signal(window_, signal_offset(), turn, nullptr));
        },
        0.5);
  }

  void bandwidth(const std::function<void(weir_request_t*)>& start) {
    weir_request_t requests[kUnderWay] = {};
    for (int round = 0; round < 2; ++round) {  // the first to warm up
      const uint64_t begin = now_ns();
      const uint64_t count = round == 0 ? job_.count / 10 + 1 : job_.count;
      for (uint64_t i = 0; i < count; ++i) {
        weir_request_t& slot = requests[i % kUnderWay];
        if (slot != nullptr) check(weir_wait(&slot));
        start(&slot);
      }
      check(weir_wait_all(requests, kUnderWay));
      check(weir_flush(comm_, 1, nullptr));
      const double seconds = static_cast<double>(now_ns() - begin) / 1e9;
      if (round == 0) continue;
      printf("%s %llu bytes: %.1f MiB/s, %.0f operations/s\n", job_.pattern.c_str(),
             static_cast<unsigned long long>(job_.bytes),
             static_cast<double>(job_.bytes * count) / seconds / (1 << 20),
             static_cast<double>(count) / seconds);
    }
  }

  const Job& job_;
  const int rank_;
  weir_comm_t comm_ = nullptr;
  weir_window_t window_ = nullptr;
  void* memory_ = nullptr;
  size_t window_bytes_ = 0;
  std::vector<uint64_t> own_;
  std::vector<unsigned char> buffer_;
};

int run(int count, char** arguments) {
  Job job;
  if (count < 4 || count > 6 ||
      (count == 6 && sscanf(arguments[5], "%d,%d", &job.cores[0], &job.cores[1]) != 2)) {
    const bool asked = count == 2 && std::string(arguments[1]) == "--help";
    fprintf(asked ? stdout : stderr,
            "usage: one_sided_perf <pattern> <bytes> <count> [ordinary|symmetric "
            "[<core>,<core>]]\n");
    return asked ? 0 : 2;
  }
  job.pattern = arguments[1];
  job.bytes = number_argument(arguments[2], "bytes", 0, uint64_t{1} << 32);
  job.count = number_argument(arguments[3], "count", 1, 1'000'000'000);
  job.symmetric = count > 4 && std::string(arguments[4]) == "symmetric";
  weir_unique_id_t id;
  check(weir_get_unique_id(&id));
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Rank(job, id, 1).run();
    return 0;
  }
  Rank(job, id, 0).run();
  int status = 1;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace weir::perf

int main(int argc, char** argv) {
  return weir::output::run_tool("one_sided_perf", weir::perf::run, argc, argv);
}
