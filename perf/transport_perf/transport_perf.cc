// SPDX-License-Identifier: Apache-2.0
// transport_perf: ping-pong of two processes over one transport, through the table of functions that
// the core calls (plugin.h) and nothing above it. So a transport can be compared with the tool of the
// stack that it stands on.
//
//   transport_perf <transport> <bytes>[,<bytes>…] <round trips>
// WEIR_TLS holds as it does in the core: with `all` messages are sealed where the transport does not encrypt them.
//
// Prints one line for each size: bytes, microseconds of one way, megabytes (10^6) per second.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "core/plugin/registry.h"
#include "weir/plugin.h"

namespace weir::perf {
namespace {

uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

std::string last_error;

[[noreturn]] void give_up(const std::string& what) {
  fprintf(stderr, "transport_perf: %s%s%s\n", what.c_str(), last_error.empty() ? "" : ": ",
          last_error.c_str());
  exit(1);
}

class Side {
 public:
  Side(const weir_transport_functions_t& f, uint32_t rank, int socket) : f_(f), peer_(1 - rank) {
    host_ = {sizeof host_, nullptr, [](void*, const char* text) { last_error = text; },
             [](void*, int, const char*) {},
             [](void*, const char* name) -> const char* { return getenv(name); }};
    weir_transport_config_t config = {sizeof config, rank,           2,        77,
                                      kSecret,       sizeof kSecret, 1u << 20, 1};
    require(f.open(&host_, &config, &instance_), "open");
    struct Address {
      size_t bytes;
      unsigned char data[WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
    } addresses[2] = {};
    require(f.address(instance_, addresses[rank].data, &addresses[rank].bytes), "address");
    if (write(socket, &addresses[rank], sizeof(Address)) != sizeof(Address) ||
        read(socket, &addresses[peer_], sizeof(Address)) != sizeof(Address)) {
      give_up("the other process has ended");
    }
    const unsigned char* data[] = {addresses[0].data, addresses[1].data};
    const size_t bytes[] = {addresses[0].bytes, addresses[1].bytes};
    require(f.connect(instance_, data, bytes, now_ns() + 20'000'000'000), "connect");
  }
  ~Side() { f_.close(instance_); }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  // Nanoseconds of `count` round trips.
  uint64_t bounce(bool begins, unsigned char* out, unsigned char* in, uint64_t bytes, int count) {
    const uint64_t start = now_ns();
    for (int i = 0; i < count; ++i) {
      weir_transport_op_t recv_op{}, send_op{};
      const weir_result_t received = f_.recv(instance_, peer_, 0, in, bytes, &recv_op);
      if (begins) finish(f_.send(instance_, peer_, 0, out, bytes, &send_op), &send_op);
      finish(received, &recv_op);
      if (!begins) finish(f_.send(instance_, peer_, 0, out, bytes, &send_op), &send_op);
    }
    return now_ns() - start;
  }

 private:
  static constexpr unsigned char kSecret[32] = {1, 2, 3};

  void require(weir_result_t result, const char* what) {
    if (result != WEIR_OK) give_up(what);
  }
  void finish(weir_result_t result, weir_transport_op_t* op) {
    while (result == WEIR_IN_PROGRESS) result = f_.test(instance_, op);
    require(result, "a message");
  }

  const weir_transport_functions_t& f_;
  uint32_t peer_;
  weir_host_t host_{};
  weir_transport_t* instance_ = nullptr;
};

int play(const weir_transport_functions_t& f, uint32_t rank, int socket,
         const std::vector<uint64_t>& sizes, int count) {
  Side side(f, rank, socket);
  for (const uint64_t bytes : sizes) {
    std::vector<unsigned char> out(bytes + 1, 1), in(bytes + 1);
    side.bounce(rank == 0, out.data(), in.data(), bytes, count / 10 + 10);
    const uint64_t elapsed_ns = side.bounce(rank == 0, out.data(), in.data(), bytes, count);
    if (rank != 0) continue;
    const double one_way_us = static_cast<double>(elapsed_ns) / 2e3 / count;
    printf("%llu %.3f %.1f\n", static_cast<unsigned long long>(bytes), one_way_us,
           static_cast<double>(bytes) / one_way_us);
    fflush(stdout);
  }
  return 0;
}

int run(int argc, char** argv) {
  if (argc != 4) give_up("usage: transport_perf <transport> <bytes>[,<bytes>...] <round trips>");
  std::vector<uint64_t> sizes;
  for (const char* at = argv[2]; *at != 0;) {
    char* end = nullptr;
    sizes.push_back(strtoull(at, &end, 10));
    if (end == at || (*end != 0 && *end != ',')) give_up("the sizes do not parse");
    at = *end == ',' ? end + 1 : end;
  }
  const int count = atoi(argv[3]);
  if (count < 1) give_up("at least one round trip is needed");
  const auto found = plugin::find_transport(argv[1]);
  if (!found.ok()) give_up(found.status().text());
  const auto sealed = plugin::sealed_for(getenv("WEIR_TLS"), found.value());
  if (!sealed.ok()) give_up(sealed.status().text());
  const weir_transport_functions_t& functions = *sealed.value();
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) give_up("socketpair");
  fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) give_up("fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(play(functions, 1, sockets[1], sizes, count));
  }
  close(sockets[1]);
  const int result = play(functions, 0, sockets[0], sizes, count);
  int status = 0;
  waitpid(child, &status, 0);
  return result != 0 || status != 0 ? 1 : 0;
}

}  // namespace
}  // namespace weir::perf

int main(int argc, char** argv) { return weir::perf::run(argc, argv); }
