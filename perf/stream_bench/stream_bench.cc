// SPDX-License-Identifier: Apache-2.0
// The cost of TLS on a connection: a handshake, and bytes through a socket pair with and without
// it, both ends in one thread.
#include <benchmark/benchmark.h>
#include <sys/socket.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "net/stream.h"

namespace {

using weir::net::Stream;
using weir::net::TlsContext;

const TlsContext* context() {
  static const std::unique_ptr<const TlsContext> made = [] {
    std::string reason;
    auto one = TlsContext::make("a secret of the job", 19, "bench", &reason);
    if (one == nullptr) std::abort();
    return one;
  }();
  return made.get();
}

struct Pair {
  Stream client, server;
  explicit Pair(bool tls) {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) std::abort();
    client = Stream(fds[0]);
    server = Stream(fds[1]);
    if (!tls) return;
    if (!client.secure(*context(), Stream::Role::kClient) ||
        !server.secure(*context(), Stream::Role::kServer)) {
      std::abort();
    }
    unsigned char none[1];
    while (!client.is_ready() || !server.is_ready()) {
      (void)client.recv(none, 1);
      (void)server.recv(none, 1);
      if (client.failure() != Stream::Failure::kNone) std::abort();
    }
  }
};

void handshake(benchmark::State& state) {
  (void)context();
  for (auto _ : state) benchmark::DoNotOptimize(Pair(true).client.is_ready());
}
BENCHMARK(handshake)->Unit(benchmark::kMicrosecond);

void transfer(benchmark::State& state) {
  const bool tls = state.range(0) != 0;
  const auto bytes = static_cast<size_t>(state.range(1));
  Pair pair(tls);
  std::vector<unsigned char> out(bytes, 7), in(bytes);
  for (auto _ : state) {
    for (size_t sent = 0, got = 0; got < bytes;) {
      if (sent < bytes) {
        const ssize_t count = pair.client.send(out.data() + sent, bytes - sent);
        if (count > 0) sent += static_cast<size_t>(count);
      }
      const ssize_t count = pair.server.recv(in.data() + got, bytes - got);
      if (count > 0) got += static_cast<size_t>(count);
    }
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * static_cast<int64_t>(bytes));
}
BENCHMARK(transfer)->ArgNames({"tls", "bytes"})->ArgsProduct({{0, 1}, {64, 4096, 65536, 1 << 20}});

}  // namespace

BENCHMARK_MAIN();
