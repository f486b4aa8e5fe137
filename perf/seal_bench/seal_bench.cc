// SPDX-License-Identifier: Apache-2.0
// What sealed messages cost in time of the processor: the cipher alone, and messages over a transport between two
// ranks of one thread, plain and sealed, over ucx (transport 0) and ofi (1).
#include <benchmark/benchmark.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "core/plugin/registry.h"
#include "plugins/hook_seal/cipher.h"

namespace {

using namespace weir::plugins::hook_seal;

void cipher(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  TrafficSecret secret;
  secret.fill(7);
  Cipher seals(&secret, Cipher::Use::kSeals);
  secret.fill(7);
  Cipher opens(&secret, Cipher::Use::kOpens);
  std::vector<unsigned char> data(bytes, 7), piece(bytes + kTagBytes);
  for (auto _ : state) {
    if (!seals.seal_body(data.data(), bytes, piece.data()) ||
        !opens.open_body(piece.data(), bytes, data.data())) {
      std::abort();
    }
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * static_cast<int64_t>(bytes));
}
BENCHMARK(cipher)->ArgName("bytes")->Arg(496)->Arg(8192)->Arg(kBodyBytesMax);

[[noreturn]] void give_up(const std::string& text) {
  std::fprintf(stderr, "seal_bench: %s\n", text.c_str());
  std::exit(1);
}

class Ranks {
 public:
  explicit Ranks(const weir_transport_functions_t& functions) : f(functions) {
    const weir_host_t host = {sizeof host, nullptr,
                              [](void*, const char* text) { std::fprintf(stderr, "%s\n", text); },
                              [](void*, int, const char*) {},
                              [](void*, const char* name) -> const char* { return getenv(name); }};
    static weir_host_t kept;
    kept = host;
    static constexpr unsigned char kSecret[32] = {1, 2, 3};
    unsigned char addresses[2][WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
    size_t bytes[2] = {};
    for (uint32_t i = 0; i < 2; ++i) {
      const weir_transport_config_t config = {sizeof config,  i,        2, 77, kSecret,
                                              sizeof kSecret, 1u << 20, 1};
      if (f.open(&kept, &config, &rank[i]) != WEIR_OK ||
          f.address(rank[i], addresses[i], &bytes[i]) != WEIR_OK) {
        give_up("a rank cannot be opened");
      }
    }
    const unsigned char* const all[] = {addresses[0], addresses[1]};
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const uint64_t deadline_ns = (static_cast<uint64_t>(now.tv_sec) + 60) * 1'000'000'000;
    weir_result_t other = WEIR_OK;
    std::thread helper([&] { other = f.connect(rank[1], all, bytes, deadline_ns); });
    const weir_result_t own = f.connect(rank[0], all, bytes, deadline_ns);
    helper.join();
    if (own != WEIR_OK || other != WEIR_OK) give_up("the ranks cannot be joined");
  }
  ~Ranks() {
    for (weir_transport_t* one : rank) f.close(one);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  const weir_transport_functions_t& f;
  weir_transport_t* rank[2] = {};
};

void messages(benchmark::State& state) {
  const auto found = weir::plugin::find_transport(state.range(0) == 0 ? "ucx" : "ofi");
  if (!found.ok()) {
    state.SkipWithError(found.status().text().c_str());
    return;
  }
  const auto made = weir::plugin::sealed_for(state.range(1) != 0 ? "all" : "off", found.value());
  if (!made.ok()) give_up(made.status().text());
  const auto bytes = static_cast<size_t>(state.range(2));
  Ranks ranks(*made.value());
  std::vector<unsigned char> out(bytes, 7), in(bytes);
  for (auto _ : state) {
    weir_transport_op_t send_op{}, recv_op{};
    weir_result_t received = ranks.f.recv(ranks.rank[1], 0, 0, in.data(), bytes, &recv_op);
    weir_result_t sent = ranks.f.send(ranks.rank[0], 1, 0, out.data(), bytes, &send_op);
    while (sent == WEIR_IN_PROGRESS || received == WEIR_IN_PROGRESS) {
      if (sent == WEIR_IN_PROGRESS) sent = ranks.f.test(ranks.rank[0], &send_op);
      if (received == WEIR_IN_PROGRESS) received = ranks.f.test(ranks.rank[1], &recv_op);
    }
    if (sent != WEIR_OK || received != WEIR_OK) give_up("a message failed");
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * static_cast<int64_t>(bytes));
}
BENCHMARK(messages)
    ->ArgNames({"transport", "sealed", "bytes"})
    ->ArgsProduct({{0, 1}, {0, 1}, {64, 4096, 65536, 1 << 22}})
    ->MeasureProcessCPUTime();

}  // namespace

BENCHMARK_MAIN();
