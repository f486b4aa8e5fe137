// SPDX-License-Identifier: Apache-2.0
// start_perf: many ranks of one machine create a communicator, and one of them dies.
//
//   start_perf [-p processes] [--rounds N] [--flood] [--each] ranks...
//
// The ranks are threads of the processes (with --each every rank is a process), but for the rank in
// the middle, which has a process of its own: it is killed when all have done an all_reduce. The
// variables of the environment choose the transport. For each number of ranks it prints, as medians
// over the rounds:
//   create       from the first call of weir_comm_create until it has returned on every rank
//   descriptors  open ones for each rank before the first data, of all processes
//   KiB          resident memory for each rank, of all processes
//   first        the first all_reduce of 8 bytes, until it has returned on every rank
//   death        from the kill until weir_all_reduce has failed on every survivor
//   told         survivors that name the dead rank then
// With --flood another process connects to every port of this machine at which a process listens,
// 5000 times a second, and sends nothing, until the communicator is there.
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "command_line/command_line.h"
#include "fmt/format.h"
#include "output/run_tool.h"
#include "weir/weir.h"

namespace weir::perf {
namespace {

constexpr int kTimeoutMs = 120'000;

struct Options {
  int processes = 4;
  int rounds = 3;
  bool flood = false;
  bool each = false;
  std::vector<int> ranks = {16, 64, 128};
};

// Shared by all processes of a round.
struct Round {
  std::atomic<int> ready;
  std::atomic<int> created;
  std::atomic<int> measured;  // processes
  std::atomic<int> reduced;
  std::atomic<int> ended;
  std::atomic<int> told;
  std::atomic<int> failed;
  std::atomic<uint64_t> began_ns, created_ns, reduce_ns, reduced_ns, killed_ns, told_ns;
  std::atomic<uint64_t> descriptors;  // of all processes
  std::atomic<uint64_t> bytes;
  char text[512];  // of the first failure
};

struct Row {
  double create_s, descriptors, kib, first_s, death_s;
  int told;
};

uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

void raise_to(std::atomic<uint64_t>* maximum, uint64_t value) {
  uint64_t before = maximum->load();
  while (before < value && !maximum->compare_exchange_weak(before, value)) {
  }
}

void lower_to(std::atomic<uint64_t>* minimum, uint64_t value) {
  uint64_t before = minimum->load();
  while ((before == 0 || before > value) && !minimum->compare_exchange_weak(before, value)) {
  }
}

// False: a rank has failed, or it takes too long.
bool wait_until(Round* round, const std::atomic<int>& count, int all) {
  const uint64_t until_ns = now_ns() + uint64_t{kTimeoutMs} * 1'000'000;
  while (count < all) {
    if (round->failed != 0 || now_ns() > until_ns) return false;
    usleep(all > 256 ? 20'000 : 2'000);
  }
  return true;
}

void fail(Round* round, int rank, const char* what, weir_comm_t comm) {
  if (round->failed.fetch_add(1) != 0) return;
  (void)snprintf(round->text, sizeof round->text, "rank %d: %s: %s", rank, what,
                 weir_last_error(comm));
}

uint64_t descriptor_count() {
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  uint64_t count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count - 3;  // without ".", ".." and the folder's own
}

uint64_t resident_bytes() {
  FILE* const file = fopen("/proc/self/statm", "re");
  unsigned long total = 0;
  unsigned long resident = 0;
  if (file == nullptr || fscanf(file, "%lu %lu", &total, &resident) != 2) resident = 0;
  if (file != nullptr) fclose(file);
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

struct Cast {
  int rank_count;
  int victim;
  int process_count;
};

void live(Round* round, const Cast& cast, const weir_unique_id_t& id, int rank) {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = kTimeoutMs;
  round->ready.fetch_add(1);
  if (!wait_until(round, round->ready, cast.rank_count)) return;
  lower_to(&round->began_ns, now_ns());
  weir_comm_t comm = nullptr;
  if (weir_comm_create(&comm, cast.rank_count, &id, rank, &config) != WEIR_OK) {
    return fail(round, rank, "weir_comm_create", nullptr);
  }
  raise_to(&round->created_ns, now_ns());
  round->created.fetch_add(1);
  if (!wait_until(round, round->measured, cast.process_count)) return;
  lower_to(&round->reduce_ns, now_ns());
  int64_t value = 1;
  if (weir_all_reduce(comm, &value, &value, 1, WEIR_INT64, WEIR_SUM, nullptr) != WEIR_OK ||
      value != cast.rank_count) {
    return fail(round, rank, "weir_all_reduce", comm);
  }
  raise_to(&round->reduced_ns, now_ns());
  round->reduced.fetch_add(1);
  if (rank == cast.victim) {
    for (;;) pause();
  }
  if (weir_all_reduce(comm, &value, &value, 1, WEIR_INT64, WEIR_SUM, nullptr) !=
      WEIR_ERROR_PEER_LOST) {
    return fail(round, rank, "weir_all_reduce without the rank that was killed", comm);
  }
  raise_to(&round->told_ns, now_ns());
  int lost = -1;
  int lost_count = 0;
  if (weir_comm_lost_ranks(comm, &lost, 1, &lost_count) == WEIR_OK && lost_count == 1 &&
      lost == cast.victim) {
    round->told.fetch_add(1);
  }
  round->ended.fetch_add(1);
  (void)wait_until(round, round->ended, cast.rank_count - 1);
  if (weir_comm_destroy(comm) != WEIR_OK) fail(round, rank, "weir_comm_destroy", nullptr);
}

[[noreturn]] void run_process(Round* round, const Cast& cast, const weir_unique_id_t& id,
                              const std::vector<int>& ranks) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const uint64_t descriptors_before = descriptor_count();
  const uint64_t bytes_before = resident_bytes();
  std::vector<std::thread> threads;
  threads.reserve(ranks.size());
  for (const int rank : ranks) {
    threads.emplace_back([=, &cast, &id] { live(round, cast, id, rank); });
  }
  if (wait_until(round, round->created, cast.rank_count)) {
    round->descriptors.fetch_add(descriptor_count() - descriptors_before);
    round->bytes.fetch_add(resident_bytes() - bytes_before);
    round->measured.fetch_add(1);
  }
  for (std::thread& thread : threads) thread.join();
  _exit(0);
}

std::vector<uint16_t> listening_ports() {
  std::vector<uint16_t> ports;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    FILE* const file = fopen(path, "re");
    if (file == nullptr) continue;
    char line[512];
    while (fgets(line, sizeof line, file) != nullptr) {
      unsigned port = 0;
      unsigned state = 0;
      constexpr unsigned kListen = 10;
      if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x", &port, &state) == 2 &&
          state == kListen) {
        ports.push_back(static_cast<uint16_t>(port));
      }
    }
    fclose(file);
  }
  std::sort(ports.begin(), ports.end());
  ports.erase(std::unique(ports.begin(), ports.end()), ports.end());
  return ports;
}

[[noreturn]] void flood(const std::vector<uint16_t>& others) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  constexpr size_t kOpenMax = 4000;
  constexpr int kEachMs = 5;
  std::deque<int> open;
  for (;;) {
    int count = 0;
    for (const uint16_t port : listening_ports()) {
      if (std::find(others.begin(), others.end(), port) != others.end()) continue;
      for (int i = 0; i < kEachMs; ++i, ++count) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0) break;
        sockaddr_in to{};
        to.sin_family = AF_INET;
        to.sin_port = htons(port);
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        (void)connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to);
        open.push_back(fd);
      }
    }
    while (open.size() > kOpenMax) {
      close(open.front());
      open.pop_front();
    }
    usleep(static_cast<useconds_t>(std::max(count, kEachMs) * 200));
  }
}

std::vector<std::vector<int>> deal(const Options& options, int rank_count, int victim) {
  std::vector<std::vector<int>> processes(
      options.each ? static_cast<size_t>(rank_count - 1)
                   : static_cast<size_t>(std::min(options.processes, rank_count - 1)));
  size_t dealt = 0;
  for (int rank = 0; rank < rank_count; ++rank) {
    if (rank == victim) continue;
    processes[dealt++ * processes.size() / static_cast<size_t>(rank_count - 1)].push_back(rank);
  }
  processes.push_back({victim});
  return processes;
}

bool run_round(const Options& options, int rank_count, Row* row) {
  auto* const round = static_cast<Round*>(
      mmap(nullptr, sizeof(Round), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (round == MAP_FAILED) return false;
  weir_unique_id_t id;
  const std::vector<uint16_t> others = listening_ports();
  const pid_t flooder = options.flood ? fork() : -1;
  if (flooder == 0) flood(others);
  Cast cast{rank_count, rank_count / 2, 0};
  const auto processes = deal(options, rank_count, cast.victim);
  cast.process_count = static_cast<int>(processes.size());
  // Its listener lives in this process, which is no rank.
  if (weir_get_unique_id(&id) != WEIR_OK) return false;
  std::vector<pid_t> children;
  fflush(nullptr);
  for (const std::vector<int>& ranks : processes) {
    const pid_t child = fork();
    if (child == 0) run_process(round, cast, id, ranks);
    children.push_back(child);
  }
  if (wait_until(round, round->created, rank_count) && flooder > 0) kill(flooder, SIGKILL);
  if (wait_until(round, round->reduced, rank_count)) {
    usleep(500'000);  // all of them wait in the next call
    round->killed_ns = now_ns();
    kill(children.back(), SIGKILL);
  }
  (void)wait_until(round, round->ended, rank_count - 1);
  if (round->failed != 0) kill(children.back(), SIGKILL);
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  if (flooder > 0) {
    kill(flooder, SIGKILL);
    waitpid(flooder, nullptr, 0);
  }
  const auto seconds = [](uint64_t from, uint64_t to) {
    return static_cast<double>(to - from) * 1e-9;
  };
  *row = {seconds(round->began_ns, round->created_ns),
          static_cast<double>(round->descriptors) / rank_count,
          static_cast<double>(round->bytes) / 1024 / rank_count,
          seconds(round->reduce_ns, round->reduced_ns),
          seconds(round->killed_ns, round->told_ns),
          round->told};
  const bool good = round->failed == 0 && round->ended == rank_count - 1;
  if (!good) {
    fmt::print(stderr, "start_perf: {} ranks: {} failed, {} created, {} ended; the first: {}\n",
               rank_count, round->failed.load(), round->created.load(), round->ended.load(),
               round->text);
  }
  munmap(round, sizeof *round);
  return good;
}

double median(std::vector<Row> rows, double Row::*member) {
  const auto middle = rows.begin() + static_cast<std::ptrdiff_t>(rows.size() / 2);
  std::nth_element(rows.begin(), middle, rows.end(),
                   [member](const Row& a, const Row& b) { return a.*member < b.*member; });
  return (*middle).*member;
}

int run(const Options& options) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
  }
  fmt::print("{:>6} {:>9} {:>9} {:>12} {:>7} {:>9} {:>9} {:>6}\n", "ranks", "processes", "create s",
             "descriptors", "KiB", "first s", "death s", "told");
  for (const int rank_count : options.ranks) {
    std::vector<Row> rows;
    for (int i = 0; i < options.rounds; ++i) {
      Row row{};
      if (!run_round(options, rank_count, &row)) return 1;
      rows.push_back(row);
    }
    const int told = std::min_element(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
                       return a.told < b.told;
                     })->told;
    fmt::print("{:>6} {:>9} {:>9.2f} {:>12.1f} {:>7.0f} {:>9.3f} {:>9.3f} {:>6}\n", rank_count,
               options.each ? rank_count : std::min(options.processes, rank_count - 1) + 1,
               median(rows, &Row::create_s), median(rows, &Row::descriptors),
               median(rows, &Row::kib), median(rows, &Row::first_s), median(rows, &Row::death_s),
               told);
    fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace weir::perf

namespace {

int run_arguments(int argc, char** argv) {
  weir::perf::Options options;
  weir::cli::CommandLine app("How many ranks of one machine start, and hear of a death");
  app.add_option("-p,--processes", options.processes, "that the ranks are threads of")
      .range(1, 4096)
      .show_default();
  app.add_option("--rounds", options.rounds).range(1, 1000).show_default();
  app.add_flag("--flood", options.flood,
               "another process connects to every port and sends nothing");
  app.add_flag("--each", options.each, "every rank is a process");
  app.add_option("ranks", options.ranks, "numbers of ranks").range(3, 4096);
  if (const auto status = app.parse(argc, argv)) return *status;
  return weir::perf::run(options);
}

}  // namespace

int main(int argc, char** argv) {
  return weir::output::run_tool("start_perf", run_arguments, argc, argv);
}
