// SPDX-License-Identifier: Apache-2.0
// The processor time of sealed messages: the cipher alone, and messages over a transport between
// two ranks of one thread, plain and sealed, over ucx (transport 0) and ofi (1).
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/control/host_control.h"
#include "core/control/network.h"
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
    static constexpr unsigned char kSecret[32] = {1, 2, 3};
    unsigned char addresses[2][WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
    size_t bytes[2] = {};
    std::vector<std::string> networks;
    for (uint32_t i = 0; i < 2; ++i) {
      open_network(i);
      networks.push_back(network[i]->address());
      host[i] = {sizeof host[i],
                 nullptr,
                 [](void*, const char* text) { std::fprintf(stderr, "%s\n", text); },
                 [](void*, int, const char*) {},
                 [](void*, const char* name) -> const char* { return getenv(name); },
                 nullptr,
                 control[i]->functions()};
      const weir_transport_config_t config = {sizeof config,  i,        2, 77, kSecret,
                                              sizeof kSecret, 1u << 20, 1};
      if (f.open(f.context, &host[i], &config, &rank[i]) != WEIR_OK ||
          f.address(rank[i], addresses[i], &bytes[i]) != WEIR_OK) {
        give_up("a rank cannot be opened");
      }
    }
    const unsigned char* const all[] = {addresses[0], addresses[1]};
    const uint64_t deadline_ns = weir::now_ns() + 60'000'000'000;
    weir_result_t results[2] = {};
    const auto join = [&](uint32_t i) {
      const weir::Status joined = network[i]->join(networks, deadline_ns);
      if (!joined.ok()) give_up(joined.text());
      results[i] = f.connect(rank[i], all, bytes, deadline_ns);
    };
    std::thread helper(join, 1);
    join(0);
    helper.join();
    if (results[0] != WEIR_OK || results[1] != WEIR_OK) give_up("the ranks cannot be joined");
  }
  ~Ranks() {
    for (weir_transport_t* one : rank) f.close(one);
    for (const auto& one : network) one->leave();
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  const weir_transport_functions_t& f;
  weir_transport_t* rank[2] = {};

 private:
  void open_network(uint32_t i) {
    weir::control::NetworkConfig config;
    config.comm_id = 77;
    config.rank = i;
    config.rank_count = 2;
    config.secret.bytes.fill(1);
    config.leaves_host = true;  // ofi opens its endpoint at the address that leads to the peer
    auto opened = weir::control::Network::open(config);
    if (!opened.ok()) give_up(opened.status().text());
    network[i] = opened.take();
    control[i] = std::make_unique<weir::control::HostControl>(
        network[i].get(), uint8_t{0},
        [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); });
  }

  std::unique_ptr<weir::control::Network> network[2];
  std::unique_ptr<weir::control::HostControl> control[2];
  weir_host_t host[2] = {};
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
