// SPDX-License-Identifier: Apache-2.0
// message_perf: messages of two processes over one transport, directly through the table of
// functions that the core calls (plugin.h), as the tools of UCX and libfabric measure theirs.
//
//   message_perf <transport>[,<transport that takes over>]
//                latency|bandwidth|put_latency|put_bandwidth|get_bandwidth
//                <bytes> <count> [<core>,<core>]
//
// WEIR_TLS applies as in the core: with `all`, messages are sealed where the transport does not
// encrypt them.
//
// latency: `count` round trips; prints microseconds of one way: the median over groups of ten, and
// the mean. bandwidth: `count` messages in one direction, up to 32 under way; prints MiB per
// second. put_latency: as latency, each way one put_signal that the other waits for. put_bandwidth:
// as bandwidth, each message a put, until the last is in the other's memory. get_bandwidth: each
// message a get by rank 0.
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
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "core/control/host_control.h"
#include "core/control/network.h"
#include "core/plugin/registry.h"
#include "output/run_tool.h"
#include "perf/harness/argument.h"
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
  bool put;
  bool get;
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
    open_network(rank);
    require(f_.open(f_.context, &host_, &config, &instance_), "open");
    struct Address {
      size_t bytes;
      size_t network_bytes;
      unsigned char data[WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
      char network[control::kAddressBytesMax];
    } addresses[2] = {};
    const std::string network = network_->address();
    addresses[rank].network_bytes = network.size();
    memcpy(addresses[rank].network, network.data(), network.size());
    require(f_.address(instance_, addresses[rank].data, &addresses[rank].bytes), "address");
    if (write(socket, &addresses[rank], sizeof(Address)) != sizeof(Address) ||
        read(socket, &addresses[peer_], sizeof(Address)) != sizeof(Address)) {
      give_up("the other process has ended");
    }
    const unsigned char* data[] = {addresses[0].data, addresses[1].data};
    const size_t bytes[] = {addresses[0].bytes, addresses[1].bytes};
    const uint64_t deadline_ns = now_ns() + 20'000'000'000;
    std::vector<std::string> networks;
    for (const Address& one : addresses) networks.emplace_back(one.network, one.network_bytes);
    if (const Status joined = network_->join(networks, deadline_ns); !joined.ok()) {
      give_up(joined.text());
    }
    require(f_.connect(instance_, data, bytes, deadline_ns), "connect");
    for (unsigned char** buffer : {&out_, &in_}) {
      *buffer =
          static_cast<unsigned char*>(std::aligned_alloc(4096, (job.bytes + 4096) / 4096 * 4096));
      if (*buffer == nullptr) give_up("no memory");
      memset(*buffer, 1, job.bytes);
    }
    if (job.put || job.get) open_memory();
  }
  ~Rank() {
    f_.close(instance_);
    network_->leave();
    free(out_);
    free(in_);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // Nanoseconds of each group of ten round trips, so that reading the clock costs nothing.
  std::vector<uint64_t> bounce(uint64_t count) {
    std::vector<uint64_t> trips((count + kTrips - 1) / kTrips);
    uint64_t before = now_ns();
    for (uint64_t i = 0; i < trips.size() * kTrips; ++i) {
      if (job_.put) {
        if (peer_ == 1) put_signal();
        await_signal();
        if (peer_ == 0) put_signal();
      } else {
        bounce_once();
      }
      if ((i + 1) % kTrips != 0) continue;
      const uint64_t now = now_ns();
      trips[i / kTrips] = now - before;
      before = now;
    }
    return trips;
  }

  void bounce_once() {
    weir_transport_op_t recv_op{}, send_op{};
    const weir_result_t received = f_.recv(instance_, peer_, 0, in_, job_.bytes, &recv_op);
    if (peer_ == 1) send(&send_op);
    finish(received, &recv_op);
    if (peer_ == 0) send(&send_op);
  }

  // Rank 0 sends; the time ends when rank 1 has acknowledged the last message.
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
      if (job_.get) {
        posted[slot] =
            peer_ == 1 ? f_.get(instance_, theirs_, 0, in_, job_.bytes, &ops[slot]) : WEIR_OK;
        continue;
      }
      if (job_.put) {
        posted[slot] =
            peer_ == 1 ? f_.put(instance_, theirs_, 0, out_, job_.bytes, &ops[slot]) : WEIR_OK;
        continue;
      }
      posted[slot] = peer_ == 1 ? f_.send(instance_, 1, 0, out_, job_.bytes, &ops[slot])
                                : f_.recv(instance_, 0, 0, in_, job_.bytes, &ops[slot]);
    }
    uint64_t ack = 1;
    weir_transport_op_t op{};
    if (job_.put || job_.get) {  // all data is in its target's memory
      finish(peer_ == 1 ? f_.send(instance_, 1, 1, &ack, sizeof ack, &op)
                        : f_.recv(instance_, 0, 1, &ack, sizeof ack, &op),
             &op);
      return now_ns() - start;
    }
    finish(peer_ == 1 ? f_.recv(instance_, 1, 1, &ack, sizeof ack, &op)
                      : f_.send(instance_, 0, 1, &ack, sizeof ack, &op),
           &op);
    return now_ns() - start;
  }

 private:
  void open_network(uint32_t rank) {
    control::NetworkConfig config;
    config.comm_id = 78;
    config.rank = rank;
    config.rank_count = 2;
    memcpy(config.secret.bytes.data(), kSecret, sizeof kSecret);
    auto opened = control::Network::open(config);
    if (!opened.ok()) give_up(opened.status().text());
    network_ = opened.take();
    control_ = std::make_unique<control::HostControl>(
        network_.get(), uint8_t{0}, [](const std::string& text) { last_error = text; });
    host_.control = control_->functions();
  }
  // Memory that the peer may write to: the bytes of a message, then the signal.
  void open_memory() {
    const uint64_t needed = job_.get ? WEIR_CAP_GET : WEIR_CAP_PUT | WEIR_CAP_SIGNAL;
    if ((f_.caps.bits & needed) != needed) give_up("the transport has no put, get or signal");
    window_.resize((job_.bytes + 7) / 8 + 1);
    signal_offset_ = (window_.size() - 1) * 8;
    require(f_.memory_register(instance_, window_.data(), window_.size() * 8, &mine_),
            "memory_register");
    struct Key {
      size_t bytes;
      unsigned char data[WEIR_TRANSPORT_KEY_BYTES_MAX];
    } own{}, other{};
    require(f_.memory_key(instance_, mine_, own.data, &own.bytes), "memory_key");
    weir_transport_op_t send_op{}, recv_op{};
    const weir_result_t came = f_.recv(instance_, peer_, 0, &other, sizeof other, &recv_op);
    const weir_result_t sent = f_.send(instance_, peer_, 0, &own, sizeof own, &send_op);
    finish(came, &recv_op);
    finish(sent, &send_op);
    require(f_.remote_open(instance_, peer_, other.data, other.bytes, &theirs_), "remote_open");
  }
  void put_signal() {
    weir_transport_op_t op{};
    finish(f_.put_signal(instance_, theirs_, 0, out_, job_.bytes, theirs_, signal_offset_, 1, &op),
           &op);
  }
  void await_signal() {
    ++signal_count_;
    for (uint64_t value = 0; value < signal_count_;) {
      require(f_.signal_read(instance_, mine_, signal_offset_, &value), "signal_read");
    }
  }
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
  std::unique_ptr<control::Network> network_;
  std::unique_ptr<control::HostControl> control_;
  weir_host_t host_{};
  weir_transport_t* instance_ = nullptr;
  unsigned char* out_ = nullptr;
  unsigned char* in_ = nullptr;
  std::vector<uint64_t> window_;
  uint64_t signal_offset_ = 0;
  uint64_t signal_count_ = 0;
  weir_transport_memory_t* mine_ = nullptr;
  weir_transport_remote_t* theirs_ = nullptr;
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

// "ucx", or "ucx,tcp" for failover from the first to the second.
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

constexpr uint64_t kBytesMax = uint64_t{1} << 32;
constexpr uint64_t kCountMax = 1'000'000'000;
constexpr const char* kUsage =
    "usage: message_perf <transport>[,<transport>] "
    "latency|bandwidth|put_latency|put_bandwidth|get_bandwidth <bytes> <count> "
    "[<core>,<core>]";

int run(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--help") {
    std::puts(kUsage);
    return 0;
  }
  if (argc < 5 || argc > 6) give_up(kUsage);
  const auto found = find_transports(argv[1]);
  if (!found.ok()) give_up(found.status().text());
  const auto sealed = plugin::sealed_for(getenv("WEIR_TLS"), found.value());
  if (!sealed.ok()) give_up(sealed.status().text());
  const bool put = strncmp(argv[2], "put_", 4) == 0;
  const bool get = strncmp(argv[2], "get_", 4) == 0;
  const char* const mode = argv[2] + (put || get ? 4 : 0);
  Job job = {sealed.value(),
             strcmp(mode, "latency") == 0,
             put,
             get,
             number_argument(argv[3], "bytes", 0, kBytesMax),
             number_argument(argv[4], "count", 1, kCountMax)};
  if ((!job.latency || get) && strcmp(mode, "bandwidth") != 0) {
    give_up("neither latency nor bandwidth");
  }
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

int main(int argc, char** argv) {
  return weir::output::run_tool("message_perf", weir::perf::run, argc, argv);
}
