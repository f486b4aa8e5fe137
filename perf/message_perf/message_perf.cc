// SPDX-License-Identifier: Apache-2.0
// message_perf: messages of two processes over one transport, through the table of functions that the
// core calls (plugin.h) and nothing above it, as the tools of UCX and libfabric measure theirs.
//
//   message_perf <transport>[,<transport that takes over>] latency|bandwidth <bytes> <count> [<core>,<core>]
//
// latency: `count` round trips; prints microseconds of one way: the median of tens of them, and the mean.
// bandwidth: `count` messages in one direction, up to 32 under way; prints MiB per second.
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "core/plugin/registry.h"
#include "weir/plugin.h"

namespace weir::perf {
namespace {

constexpr uint32_t kWindow = 32;
constexpr uint64_t kTrips = 10;
constexpr unsigned char kSecret[32] = {1, 2, 3};
std::string last_error;

uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

[[noreturn]] void give_up(const std::string& what) {
  fprintf(stderr, "message_perf: %s%s%s\n", what.c_str(), last_error.empty() ? "" : ": ",
          last_error.c_str());
  exit(1);
}

struct Job {
  const weir_transport_functions_t* functions;
  bool latency;
  uint64_t bytes;
  uint64_t count;
  int cores[2] = {-1, -1};
};

class Rank {
 public:
  Rank(const Job& job, uint32_t rank, int socket) : job_(job), f_(*job.functions), peer_(1 - rank) {
    if (job.cores[rank] >= 0) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(static_cast<size_t>(job.cores[rank]), &set);
      if (sched_setaffinity(0, sizeof set, &set) != 0) give_up("cannot run on that core");
    }
    host_ = {sizeof host_, nullptr, [](void*, const char* text) { last_error = text; },
             [](void*, int, const char*) {},
             [](void*, const char* name) -> const char* { return getenv(name); }};
    const weir_transport_config_t config = {sizeof config,     rank, 2, 78, kSecret, sizeof kSecret,
                                            uint64_t{1} << 20, 1};
    require(f_.open(&host_, &config, &instance_), "open");
    struct Address {
      size_t bytes;
      unsigned char data[WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
    } addresses[2] = {};
    require(f_.address(instance_, addresses[rank].data, &addresses[rank].bytes), "address");
    if (write(socket, &addresses[rank], sizeof(Address)) != sizeof(Address) ||
        read(socket, &addresses[peer_], sizeof(Address)) != sizeof(Address)) {
      give_up("the other process has ended");
    }
    const unsigned char* data[] = {addresses[0].data, addresses[1].data};
    const size_t bytes[] = {addresses[0].bytes, addresses[1].bytes};
    require(f_.connect(instance_, data, bytes, now_ns() + 20'000'000'000), "connect");
    for (unsigned char** buffer : {&out_, &in_}) {
      *buffer =
          static_cast<unsigned char*>(std::aligned_alloc(4096, (job.bytes + 4096) / 4096 * 4096));
      if (*buffer == nullptr) give_up("no memory");
      memset(*buffer, 1, job.bytes);
    }
  }
  ~Rank() {
    f_.close(instance_);
    free(out_);
    free(in_);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // Nanoseconds of each ten round trips, so that the clock costs nothing.
  std::vector<uint64_t> bounce(uint64_t count) {
    std::vector<uint64_t> trips((count + kTrips - 1) / kTrips);
    uint64_t before = now_ns();
    for (uint64_t i = 0; i < trips.size() * kTrips; ++i) {
      weir_transport_op_t recv_op{}, send_op{};
      const weir_result_t received = f_.recv(instance_, peer_, 0, in_, job_.bytes, &recv_op);
      if (peer_ == 1) send(&send_op);
      finish(received, &recv_op);
      if (peer_ == 0) send(&send_op);
      if ((i + 1) % kTrips != 0) continue;
      const uint64_t now = now_ns();
      trips[i / kTrips] = now - before;
      before = now;
    }
    return trips;
  }

  // Rank 0 sends; the time ends when rank 1 has said that it has the last one.
  uint64_t stream(uint64_t count) {
    weir_transport_op_t ops[kWindow] = {};
    weir_result_t posted[kWindow] = {};
    const uint64_t start = now_ns();
    for (uint64_t i = 0; i < count + kWindow; ++i) {
      const uint64_t slot = i % kWindow;
      if (i >= kWindow) finish(posted[slot], &ops[slot]);
      if (i >= count) {
        posted[slot] = WEIR_OK;
        continue;
      }
      ops[slot] = {};
      posted[slot] = peer_ == 1 ? f_.send(instance_, 1, 0, out_, job_.bytes, &ops[slot])
                                : f_.recv(instance_, 0, 0, in_, job_.bytes, &ops[slot]);
    }
    uint64_t ack = 1;
    weir_transport_op_t op{};
    finish(peer_ == 1 ? f_.recv(instance_, 1, 1, &ack, sizeof ack, &op)
                      : f_.send(instance_, 0, 1, &ack, sizeof ack, &op),
           &op);
    return now_ns() - start;
  }

 private:
  void require(weir_result_t result, const char* what) {
    if (result != WEIR_OK) give_up(what);
  }
  void finish(weir_result_t result, weir_transport_op_t* op) {
    while (result == WEIR_IN_PROGRESS) result = f_.test(instance_, op);
    require(result, "a message");
  }
  void send(weir_transport_op_t* op) {
    finish(f_.send(instance_, peer_, 0, out_, job_.bytes, op), op);
  }

  const Job& job_;
  const weir_transport_functions_t& f_;
  uint32_t peer_;
  weir_host_t host_{};
  weir_transport_t* instance_ = nullptr;
  unsigned char* out_ = nullptr;
  unsigned char* in_ = nullptr;
};

void play(const Job& job, uint32_t rank, int socket) {
  Rank self(job, rank, socket);
  if (job.latency) {
    self.bounce(job.count / 10 + 10);
    std::vector<uint64_t> trips = self.bounce(job.count);
    std::sort(trips.begin(), trips.end());
    const auto total =
        static_cast<double>(std::accumulate(trips.begin(), trips.end(), uint64_t{0}));
    if (rank == 0) {
      const auto trip_count = static_cast<double>(trips.size() * kTrips);
      printf("%.3f %.3f\n", static_cast<double>(trips[trips.size() / 2]) / 2e3 / kTrips,
             total / 2e3 / trip_count);
    }
    return;
  }
  self.stream(job.count / 10 + 10);
  const double seconds = static_cast<double>(self.stream(job.count)) / 1e9;
  if (rank == 0) printf("%.3f\n", static_cast<double>(job.bytes * job.count) / 1048576 / seconds);
}

// "ucx", or "ucx,tcp" for the one with the other behind it.
Result<const weir_transport_functions_t*> find_transports(std::string names) {
  std::vector<const weir_transport_functions_t*> chain;
  for (char* name = strtok(names.data(), ","); name != nullptr; name = strtok(nullptr, ",")) {
    auto found = plugin::find_transport(name);
    if (!found.ok()) return found;
    chain.push_back(found.value());
  }
  if (chain.size() == 1) return chain[0];
  return plugin::make_failover(chain);
}

int run(int argc, char** argv) {
  if (argc < 5 || argc > 6) {
    give_up(
        "usage: message_perf <transport>[,<transport>] latency|bandwidth <bytes> <count> "
        "[<core>,<core>]");
  }
  const auto found = find_transports(argv[1]);
  if (!found.ok()) give_up(found.status().text());
  Job job = {found.value(), strcmp(argv[2], "latency") == 0, strtoull(argv[3], nullptr, 10),
             strtoull(argv[4], nullptr, 10)};
  if (!job.latency && strcmp(argv[2], "bandwidth") != 0) give_up("neither latency nor bandwidth");
  if (job.count < 1) give_up("at least one message is needed");
  if (argc == 6 && sscanf(argv[5], "%d,%d", &job.cores[0], &job.cores[1]) != 2) {
    give_up("the cores do not parse");
  }
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) give_up("socketpair");
  const pid_t child = fork();
  if (child < 0) give_up("fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    play(job, 1, sockets[1]);
    _exit(0);
  }
  close(sockets[1]);
  play(job, 0, sockets[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return status != 0 ? 1 : 0;
}

}  // namespace
}  // namespace weir::perf

int main(int argc, char** argv) { return weir::perf::run(argc, argv); }
