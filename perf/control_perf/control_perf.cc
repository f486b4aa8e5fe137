// SPDX-License-Identifier: Apache-2.0
// The control network with many ranks on one machine: control_perf [PROCESSES [RANKS...]]
//
// The ranks are threads of the processes. For each number of ranks it prints how long they take to
// join, how many descriptors and links a rank holds before the first notice, how many messages a
// rank sends until all have seen a notice of rank 0 and how long that takes, how long it takes
// until all have seen the death of a rank in the middle, and how much memory a rank uses.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/control/socket_network.h"
#include "output/run_tool.h"
#include "perf/harness/argument.h"

namespace {

using weir::perf::number_argument;

using namespace weir;
using control::Life;
using control::SocketNetwork;

constexpr Rank kRanksMax = 4096;
constexpr uint64_t kPatienceNs = 120'000'000'000;

// Shared by all processes of a run.
struct Run {
  Rank rank_count;
  std::atomic<Rank> opened;
  std::atomic<Rank> joined;
  std::atomic<Rank> saw_notice;
  std::atomic<Rank> saw_death;
  std::atomic<Rank> done;
  std::atomic<uint64_t> opened_ns, joined_ns, shown_ns, seen_ns, died_ns, death_seen_ns;
  std::atomic<uint64_t> descriptors_max, links_max, frames_max;
  std::atomic<uint64_t> memory_bytes;  // of all processes
  std::atomic<bool> failed;
  size_t address_bytes[kRanksMax];
  char addresses[kRanksMax][control::kAddressBytesMax];
};

void raise_to(std::atomic<uint64_t>* maximum, uint64_t value) {
  uint64_t before = maximum->load();
  while (before < value && !maximum->compare_exchange_weak(before, value)) {
  }
}

// The last one to arrive records the time.
void arrive(std::atomic<Rank>* count, Rank all, std::atomic<uint64_t>* time_ns) {
  if (count->fetch_add(1) + 1 == all) time_ns->store(now_ns());
}

template <typename Condition>
bool wait_for(const Run& run, const Condition& condition) {
  const uint64_t until_ns = now_ns() + kPatienceNs;
  while (!condition()) {
    if (run.failed || now_ns() > until_ns) return false;
    usleep(2000 * std::max(Rank{1}, run.rank_count / 64));  // a waiting rank must not delay others
  }
  return true;
}

uint64_t resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  unsigned long total = 0;
  unsigned long resident = 0;
  if (file == nullptr || std::fscanf(file, "%lu %lu", &total, &resident) != 2) resident = 0;
  if (file != nullptr) std::fclose(file);
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

void play(Run* run, Rank rank) {
  const Rank count = run->rank_count;
  const Rank victim = count / 2;
  control::NetworkConfig config;
  config.comm_id = 1;
  config.rank = rank;
  config.rank_count = count;
  config.secret = secret_from_text("control_perf");
  auto made = SocketNetwork::make(config);
  const auto fail = [run, rank](const std::string& text) {
    if (!run->failed.exchange(true)) std::fprintf(stderr, "rank %u: %s\n", rank, text.c_str());
  };
  if (!made.ok()) return fail(made.status().text());
  std::unique_ptr<SocketNetwork> network = made.take();
  const std::string own = network->address();
  std::memcpy(run->addresses[rank], own.data(), own.size());
  run->address_bytes[rank] = own.size();
  arrive(&run->opened, count, &run->opened_ns);
  if (!wait_for(*run, [&] { return run->opened_ns != 0; })) return fail("not all ranks came");
  std::vector<std::string> addresses(count);
  for (Rank p = 0; p < count; ++p) addresses[p].assign(run->addresses[p], run->address_bytes[p]);
  const Status joined = network->join(addresses, now_ns() + kPatienceNs, {});
  if (!joined.ok()) return fail(joined.text());
  addresses.clear();
  addresses.shrink_to_fit();
  arrive(&run->joined, count, &run->joined_ns);
  raise_to(&run->descriptors_max, network->descriptor_count());
  raise_to(&run->links_max, network->link_count());
  if (!wait_for(*run, [&] { return run->joined_ns != 0; })) return fail("not all ranks joined");
  if (rank == 0) {
    run->shown_ns = now_ns();
    network->show("a notice of rank 0, of about as many bytes as ranks show while they wait");
  }
  std::string notice;
  uint32_t version = 0;
  if (!wait_for(*run, [&] { return network->read(0, &version, &notice); }))
    return fail("no notice");
  arrive(&run->saw_notice, count, &run->seen_ns);
  if (!wait_for(*run, [&] { return run->seen_ns != 0; })) return fail("a notice was lost");
  raise_to(&run->frames_max, network->frame_count());
  if (rank == victim) {
    run->died_ns = now_ns();
    network.reset();
  } else {
    if (!wait_for(*run, [&] { return network->life(victim) == Life::kLost; })) {
      return fail("a death was not seen");
    }
    arrive(&run->saw_death, count - 1, &run->death_seen_ns);
  }
  if (!wait_for(*run, [&] { return run->death_seen_ns != 0; })) return fail("a death was lost");
  if (network != nullptr) network->leave();
}

int run_process(Run* run, Rank first, Rank end) {
  const uint64_t before = resident_bytes();
  std::vector<std::thread> threads;
  for (Rank rank = first; rank < end; ++rank) threads.emplace_back(play, run, rank);
  (void)wait_for(*run, [&] { return run->seen_ns != 0; });
  run->memory_bytes += resident_bytes() - before;
  for (std::thread& thread : threads) thread.join();
  return run->failed ? 1 : 0;
}

double ms(uint64_t from_ns, uint64_t to_ns) { return static_cast<double>(to_ns - from_ns) * 1e-6; }

bool measure(Rank processes, Rank ranks) {
  void* const memory =
      mmap(nullptr, sizeof(Run), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  Run* const run = new (memory) Run;
  run->rank_count = ranks;
  std::vector<pid_t> children;
  for (Rank i = 0; i < processes; ++i) {
    const Rank first = ranks * i / processes;
    const Rank end = ranks * (i + 1) / processes;
    const pid_t child = fork();
    if (child == 0) _exit(run_process(run, first, end));
    children.push_back(child);
  }
  bool good = true;
  for (const pid_t child : children) {
    int status = 0;
    good = waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0 &&
           good;
  }
  if (good) {
    std::printf("%6u %9u %9.0f %12lu %6lu %9lu %10.1f %9.1f %10.0f\n", ranks, processes,
                ms(run->opened_ns, run->joined_ns),
                static_cast<unsigned long>(run->descriptors_max.load()),
                static_cast<unsigned long>(run->links_max.load()),
                static_cast<unsigned long>(run->frames_max.load()), ms(run->shown_ns, run->seen_ns),
                ms(run->died_ns, run->death_seen_ns),
                static_cast<double>(run->memory_bytes) / ranks / 1024);
    std::fflush(stdout);
  }
  munmap(memory, sizeof(Run));
  return good;
}

int run_arguments(int argc, char** argv) {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
  const auto processes =
      static_cast<Rank>(argc > 1 ? number_argument(argv[1], "processes", 1, kRanksMax) : 4);
  std::vector<Rank> counts;
  for (int i = 2; i < argc; ++i) {
    counts.push_back(static_cast<Rank>(number_argument(argv[i], "ranks", 4, kRanksMax)));
  }
  if (counts.empty()) counts = {16, 64, 256, 1024};
  for (const Rank count : counts) {
    if (processes < 1 || count < processes || count < 4 || count > kRanksMax) {
      std::fprintf(stderr, "usage: control_perf [PROCESSES [RANKS...]]: 4 to %u ranks\n",
                   kRanksMax);
      return 2;
    }
  }
  std::printf(
      "#ranks processes   join,ms  descriptors  links  messages  notice,ms  death,ms  "
      "KiB/rank\n");
  for (const Rank count : counts) {
    if (!measure(processes, count)) return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return weir::output::run_tool("control_perf", run_arguments, argc, argv);
}
