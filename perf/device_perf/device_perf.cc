// SPDX-License-Identifier: Apache-2.0
// device_perf: collectives of libnccl.so.2 on device memory, compared with the device's own copies.
//
//   device_perf [-c collective] [-n ranks] [--host-ranks ranks] [--threads] [--windows] [-b bytes]
//               [-e bytes] [-f factor] [-i calls] [-r rounds] [--json FILE]
//   device_perf --device [-e bytes]
//
// A process or a thread for each rank; devices are assigned to ranks in turn, so that several may
// share one. The last ranks may do without: their data lie in memory of the host, and they make no
// use of CUDA. With --windows the buffers come from ncclMemAlloc and are registered as symmetric
// windows. For each size, rounds of `calls` collectives on a stream alternate with rounds of as
// many copies of the same bytes within the device; above 64 MiB there are fewer calls. It prints
// the medians of microseconds per call, of algorithm and bus bandwidth as nccl-tests define them,
// of the copy's bandwidth (bytes read, not read and written), and the time that memory traffic
// allows: what the ranks of a device must read and write, at the rate at which one rank alone
// copies. The last call of a size is checked. WEIR_BACKEND chooses Weir or the real NCCL. The exit
// status is not 0 when a value was wrong or something failed.
//
// --device prints what the device itself does: copies, Weir's kernel, and pinned memory.
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command_line/command_line.h"
#include "fmt/format.h"
#include "output/output_file.h"
#include "output/run_tool.h"
#include "perf/device_perf/device_figures.h"
#include "perf/device_perf/place.h"
#include "perf/harness/launch.h"
#include "weir/nccl.h"

namespace weir::perf {
namespace {

struct Options {
  std::string collective = "all_reduce";
  int ranks = 2;
  int host_ranks = 0;
  bool threads = false;
  bool windows = false;
  bool device = false;
  uint64_t bytes_min = 1 << 10;
  uint64_t bytes_max = 64 << 20;
  uint64_t factor = 4;
  int calls = 20;
  int rounds = 7;
  std::string json;
};

constexpr uint64_t kLargeBytes = 64 << 20;
constexpr int kLargeCalls = 3;
constexpr int kLargeRounds = 3;
// Of larger results the first so many elements are checked, and every kStride-th of the others.
constexpr size_t kCheckedElements = size_t{1} << 22;
constexpr size_t kStride = 127;

// What `here` of n ranks, those of one device, must read and write of its memory, where each of
// their largest buffers has so many bytes.
double touched_bytes(const std::string& collective, int n, int here, double bytes) {
  if (collective == "broadcast") return bytes * (1 + here);
  if (collective == "all_gather" || collective == "reduce_scatter") {
    return bytes * here * (1 + 1.0 / n);
  }
  return bytes * here * 2;
}

// The factor of bus bandwidth over algorithm bandwidth, where the size is that of a rank's largest
// buffer: nccl-tests' doc/PERFORMANCE.md.
double bus_factor(const std::string& collective, int n) {
  const double others = n > 1 ? static_cast<double>(n - 1) / n : 1;
  if (collective == "all_reduce") return n > 1 ? 2 * others : 1;
  return collective == "broadcast" || collective == "sendrecv" ? 1 : others;
}

struct Shared {
  std::atomic<int> id_is_there{0};
  std::atomic<int> gave_up{0};
  std::atomic<int> met{0};
  ncclUniqueId id;
};

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

void require(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  fail(fmt::format("{}: {}: {}", what, ncclGetErrorString(result), ncclGetLastError(nullptr)));
}

double now_us() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 1e6 * static_cast<double>(t.tv_sec) + 1e-3 * static_cast<double>(t.tv_nsec);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

class Rank {
 public:
  Rank(const Options& options, int rank, Shared* shared)
      : options_(options),
        rank_(rank),
        shared_(shared),
        place_(rank, rank >= options.ranks - options.host_ranks) {
    if (rank == 0) {
      require(ncclGetUniqueId(&shared->id), "ncclGetUniqueId");
      shared->id_is_there = 1;
    }
    while (shared->id_is_there == 0) {
      if (shared->gave_up != 0) fail("rank 0 has given up");
      usleep(1000);
    }
    require(ncclCommInitRank(&comm_, options.ranks, shared->id, rank), "ncclCommInitRank");
    // A whole element for each rank, whatever the size.
    const uint64_t bytes =
        std::max(options.bytes_max, sizeof(float) * static_cast<uint64_t>(options.ranks));
    send_ = buffer(bytes, &windows_[0]);
    recv_ = buffer(bytes, &windows_[1]);
    copy_ = place_.allocate(bytes);
    meet();
    if (rank == 0) memory_rate_ = copied_alone(std::min(options.bytes_max, uint64_t{256} << 20));
    meet();
  }

  void run() {
    if (rank_ == 0) {
      const bool mixed = options_.host_ranks > 0 && options_.host_ranks < options_.ranks;
      fmt::print(
          "{} of {} ranks on {}{}, float32, {}, {}, {} calls a round, medians of {} rounds; "
          "one rank alone copies {:.1f} GB/s, read and written\n\n",
          options_.collective, options_.ranks, place_.name(),
          mixed ? fmt::format(" and {} on the host", options_.host_ranks) : "",
          options_.threads ? "threads" : "processes",
          options_.windows ? "windows" : "plain buffers", options_.calls, options_.rounds,
          memory_rate_);
      fmt::print(
          "| bytes | time us | algbw GB/s | busbw GB/s | copy GB/s | busbw / copy | "
          "memory us | time / memory |\n");
      fmt::print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
    }
    uint64_t bytes = options_.bytes_min;
    for (; bytes < options_.bytes_max; bytes *= options_.factor) measure(bytes);
    measure(options_.bytes_max);
    for (ncclWindow_t window : windows_) {
      if (window != nullptr) require(ncclCommWindowDeregister(comm_, window), "WindowDeregister");
    }
    require(ncclCommDestroy(comm_), "ncclCommDestroy");
    if (rank_ == 0 && !options_.json.empty()) {
      const std::string wrong = output::write_file(options_.json, rows_.dump(1) + "\n");
      if (!wrong.empty()) fail(wrong);
    }
  }

 private:
  // Of all ranks. Throws std::runtime_error where one has given up.
  void meet() {
    meetings_ += options_.ranks;
    ++shared_->met;
    while (shared_->met < meetings_) {
      if (shared_->gave_up != 0) fail("another rank has given up");
      usleep(100);
    }
  }

  void* buffer(uint64_t bytes, ncclWindow_t* window) {
    if (!options_.windows) return place_.allocate(bytes);
    void* memory = nullptr;
    require(ncclMemAlloc(&memory, bytes), "ncclMemAlloc");
    require(ncclCommWindowRegister(comm_, memory, bytes, window, NCCL_WIN_COLL_SYMMETRIC),
            "ncclCommWindowRegister");
    return memory;
  }

  // GB/s, read and written.
  double copied_alone(uint64_t bytes) {
    std::vector<double> times_us;
    for (int round = -1; round < kLargeRounds; ++round) {
      const double time_us = round_us(kLargeCalls, [&] { place_.copy(copy_, send_, bytes); });
      if (round >= 0) times_us.push_back(time_us);
    }
    return 2e-3 * static_cast<double>(bytes) / median(times_us);
  }

  // A whole number of floats for each rank, at least one.
  uint64_t count_of(uint64_t bytes) const {
    return std::max<uint64_t>(bytes / sizeof(float) / static_cast<uint64_t>(options_.ranks), 1);
  }

  void collective(uint64_t bytes) {
    const size_t part = count_of(bytes);
    const size_t whole = part * static_cast<size_t>(options_.ranks);
    const auto stream = static_cast<cudaStream_t>(place_.stream());
    const std::string& name = options_.collective;
    if (name == "all_reduce") {
      require(ncclAllReduce(send_, recv_, whole, ncclFloat, ncclSum, comm_, stream), "AllReduce");
    } else if (name == "all_gather") {
      require(ncclAllGather(send_, recv_, part, ncclFloat, comm_, stream), "AllGather");
    } else if (name == "reduce_scatter") {
      require(ncclReduceScatter(send_, recv_, part, ncclFloat, ncclSum, comm_, stream),
              "ReduceScatter");
    } else if (name == "broadcast") {
      require(ncclBroadcast(send_, recv_, whole, ncclFloat, 0, comm_, stream), "Broadcast");
    } else if (name == "sendrecv") {
      require(ncclGroupStart(), "GroupStart");
      require(ncclSend(send_, whole, ncclFloat, (rank_ + 1) % options_.ranks, comm_, stream),
              "Send");
      require(ncclRecv(recv_, whole, ncclFloat, before(), comm_, stream), "Recv");
      require(ncclGroupEnd(), "GroupEnd");
    } else {
      require(ncclAlltoAll(send_, recv_, part, ncclFloat, comm_, stream), "AlltoAll");
    }
  }

  int before() const { return (rank_ + options_.ranks - 1) % options_.ranks; }

  // Whole numbers, so that sums are exact in any order.
  static float given(int rank, size_t i) { return static_cast<float>(rank + 1 + i % 7); }

  float wanted(size_t i, size_t part) const {
    const std::string& name = options_.collective;
    const auto me = static_cast<size_t>(rank_);
    if (name == "broadcast") return given(0, i);
    if (name == "sendrecv") return given(before(), i);
    if (name == "all_gather") return given(static_cast<int>(i / part), i % part);
    if (name == "alltoall") return given(static_cast<int>(i / part), me * part + i % part);
    float sum = 0;
    for (int rank = 0; rank < options_.ranks; ++rank) {
      sum += given(rank, name == "reduce_scatter" ? me * part + i : i);
    }
    return sum;
  }

  void check(uint64_t bytes) {
    const size_t part = count_of(bytes);
    const size_t size =
        options_.collective == "reduce_scatter" ? part : part * static_cast<size_t>(options_.ranks);
    std::vector<float> got(size);
    place_.copy(got.data(), recv_, size * sizeof(float));
    place_.synchronize();
    for (size_t i = 0; i < size; i += i < kCheckedElements ? 1 : kStride) {
      if (got[i] == wanted(i, part)) continue;
      fail(fmt::format("{} bytes: element {} is {} and should be {}", bytes, i, got[i],
                       wanted(i, part)));
    }
  }

  template <typename Call>
  double round_us(int calls, const Call& one) {
    const double begin_us = now_us();
    for (int i = 0; i < calls; ++i) one();
    place_.synchronize();
    return (now_us() - begin_us) / calls;
  }

  void measure(uint64_t asked) {
    const uint64_t bytes = count_of(asked) * sizeof(float) * static_cast<uint64_t>(options_.ranks);
    const bool large = bytes > kLargeBytes;
    const int calls = large ? std::min(options_.calls, kLargeCalls) : options_.calls;
    const int rounds = large ? std::min(options_.rounds, kLargeRounds) : options_.rounds;
    std::vector<float> input(bytes / sizeof(float));
    for (size_t i = 0; i < input.size(); ++i) input[i] = given(rank_, i);
    place_.copy(send_, input.data(), bytes);
    place_.synchronize();
    std::vector<double> times_us;
    std::vector<double> copies_us;
    for (int round = -1; round < rounds; ++round) {  // the first one warms up
      const double time_us = round_us(calls, [&] { collective(bytes); });
      const double copy_us = round_us(calls, [&] { place_.copy(copy_, send_, bytes); });
      if (round < 0) continue;
      times_us.push_back(time_us);
      copies_us.push_back(copy_us);
    }
    check(bytes);
    if (rank_ != 0) return;
    const double time_us = median(times_us);
    const double algorithm = 1e-3 * static_cast<double>(bytes) / time_us;
    const double bus = algorithm * bus_factor(options_.collective, options_.ranks);
    const double copy = 1e-3 * static_cast<double>(bytes) / median(copies_us);
    // Ranks on the host have no such memory.
    const int devices = options_.host_ranks > 0 ? 0 : place_.device_count();
    const int here = devices > 0 ? (options_.ranks + devices - 1) / devices : 0;
    const double memory_us =
        touched_bytes(options_.collective, options_.ranks, here, static_cast<double>(bytes)) /
        memory_rate_ * 1e-3;
    fmt::print("| {} | {:.2f} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.2f} | {} |\n", bytes,
               time_us, algorithm, bus, copy, bus / copy, memory_us,
               here > 0 ? fmt::format("{:.2f}", time_us / memory_us) : "-");
    std::fflush(stdout);
    rows_.push_back({{"collective", options_.collective},
                     {"ranks", options_.ranks},
                     {"host_ranks", options_.host_ranks},
                     {"device", place_.name()},
                     {"bytes", bytes},
                     {"time_us", time_us},
                     {"algbw_gb_s", algorithm},
                     {"busbw_gb_s", bus},
                     {"copy_gb_s", copy},
                     {"threads", options_.threads},
                     {"windows", options_.windows},
                     {"memory_us", memory_us}});
  }

  const Options& options_;
  const int rank_;
  Shared* const shared_;
  Place place_;
  int meetings_ = 0;
  double memory_rate_ = 0;
  ncclWindow_t windows_[2] = {};
  ncclComm_t comm_ = nullptr;
  void* send_ = nullptr;
  void* recv_ = nullptr;
  void* copy_ = nullptr;
  nlohmann::json rows_ = nlohmann::json::array();
};

int run(const Options& options) {
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  auto* shared = new (memory) Shared;
  const auto body = [&](int rank) {
    try {
      Rank(options, rank, shared).run();
      return 0;
    } catch (const std::exception& error) {
      shared->gave_up = 1;
      fmt::print(stderr, "device_perf: rank {}: {}\n", rank, error.what());
      return 1;
    }
  };
  return options.threads ? run_threads(options.ranks, body)
                         : run_processes(options.ranks, "device_perf", body);
}

}  // namespace
}  // namespace weir::perf

namespace {

int run_arguments(int argc, char** argv) {
  weir::perf::Options options;
  weir::cli::CommandLine app(
      "Collectives of libnccl.so.2 on device memory, beside the device's own copies");
  app.add_option("-c,--collective", options.collective)
      .one_of({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall", "sendrecv"})
      .show_default();
  app.add_option("-n,--ranks", options.ranks, "processes or threads").range(1, 64).show_default();
  app.add_option("--host-ranks", options.host_ranks, "the last so many have no device")
      .range(0, 64)
      .show_default();
  app.add_flag("--threads", options.threads, "ranks are threads of one process");
  app.add_flag("--windows", options.windows, "buffers are symmetric windows");
  app.add_flag("--device", options.device, "what the device itself does, without collectives");
  app.add_option("-b,--bytes-min", options.bytes_min, "of the largest buffer of a rank; also 64KB")
      .size()
      .show_default();
  app.add_option("-e,--bytes-max", options.bytes_max, "the last size").size().show_default();
  app.add_option("-f,--factor", options.factor, "from size to size").range(2, 1024).show_default();
  app.add_option("-i,--calls", options.calls, "calls of a round").range(1, 100'000).show_default();
  app.add_option("-r,--rounds", options.rounds).range(1, 1000).show_default();
  app.add_option("--json", options.json, "also writes the rows there");
  if (const auto status = app.parse(argc, argv)) return *status;
  if (options.bytes_min == 0 || options.bytes_min > options.bytes_max) {
    fmt::print(stderr, "device_perf: sizes from {} to {} bytes are none\n", options.bytes_min,
               options.bytes_max);
    return 2;
  }
  if (options.host_ranks > options.ranks) {
    fmt::print(stderr, "device_perf: {} of {} ranks cannot be on the host\n", options.host_ranks,
               options.ranks);
    return 2;
  }
  if (options.host_ranks > 0 && (options.windows || options.threads)) {
    fmt::print(stderr, "device_perf: ranks on the host are processes and have no windows\n");
    return 2;
  }
  if (options.device) return weir::perf::device_figures(options.bytes_max);
  return weir::perf::run(options);
}

}  // namespace

int main(int argc, char** argv) {
  return weir::output::run_tool("device_perf", run_arguments, argc, argv);
}
