// SPDX-License-Identifier: Apache-2.0
// The transport as a whole, two ranks in one thread's hands: providers by name, deaths told apart
// from goodbyes, memory registration, and what loading libfabric does to the process.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstring>
#include <vector>

#include "core/plugin/registry.h"
#include "unit/plugin/pair.h"

namespace weir::plugins {
namespace {

class Ofi : public testing::Test {
 protected:
  void SetUp() override {
    auto found = plugin::find_transport("ofi");
    ASSERT_TRUE(found.ok()) << found.status().text();
    functions_ = found.value();
    const std::string reason = why_not(nullptr);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  // Why the transport cannot work with this provider (null: any); "" when it can.
  std::string why_not(const char* provider) {
    char reason[512] = "";
    weir_host_t host = {sizeof host, const_cast<char*>(provider), [](void*, const char*) {},
                        [](void*, int, const char*) {},
                        [](void* context, const char* name) -> const char* {
                          return strcmp(name, "WEIR_OFI_PROVIDER") == 0
                                     ? static_cast<const char*>(context)
                                     : nullptr;
                        }};
    return functions_->viable(functions_->context, &host, reason, sizeof reason) == WEIR_OK
               ? ""
               : reason;
  }
  // A message of `bytes` from rank 0 to rank 1.
  static void exchange(Pair* pair, size_t bytes) {
    std::vector<unsigned char> out(bytes), in(bytes);
    for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(i * 7 + bytes);
    weir_transport_op_t send_op{}, recv_op{};
    const weir_result_t received = pair->recv(1, in.data(), bytes, &recv_op);
    const weir_result_t sent = pair->send(0, out.data(), bytes, &send_op);
    ASSERT_EQ(pair->wait(1, &recv_op, received), WEIR_OK) << pair->end[1].error;
    ASSERT_EQ(pair->wait(0, &send_op, sent), WEIR_OK) << pair->end[0].error;
    ASSERT_EQ(in, out);
  }
  const weir_transport_functions_t* functions_ = nullptr;
};

TEST_F(Ofi, EveryProviderThatIsAskedForByNameCarriesMessages) {
  for (const char* provider : {"tcp;ofi_rxm", "shm", "sockets", "udp;ofi_rxd"}) {
    SCOPED_TRACE(provider);
    const std::string reason = why_not(provider);
    if (!reason.empty()) {
      printf("skipped: %s\n", reason.c_str());
      continue;
    }
    Pair pair(functions_);
    for (Pair::End& end : pair.end) end.settings["WEIR_OFI_PROVIDER"] = provider;
    pair.join();
    if (HasFatalFailure()) return;
    EXPECT_NE(pair.end[0].warning.find(provider), std::string::npos) << pair.end[0].warning;
    for (const size_t bytes : {0, 1, 8, 1024, 4096, 4097, 20'000, 300'000}) exchange(&pair, bytes);
    pair.close_together();
  }
}

TEST_F(Ofi, WithRegisteredMemoryTheSameMessagesArrive) {
  // As a provider with FI_MR_LOCAL would want it.
  Pair pair(functions_);
  for (Pair::End& end : pair.end) end.settings["WEIR_OFI_REGISTER"] = "1";
  pair.join();
  if (HasFatalFailure()) return;
  for (const size_t bytes : {0, 1, 8, 1024, 4096, 4097, 20'000, 300'000, 3'000'000}) {
    exchange(&pair, bytes);
  }
  pair.close_together();
}

TEST_F(Ofi, AProviderThatIsNotThereIsAnErrorThatNamesTheSettingAndWhatThereIs) {
  Pair pair(functions_);
  pair.end[0].settings["WEIR_OFI_PROVIDER"] = "nosuch";
  EXPECT_EQ(pair.open(0), WEIR_ERROR_UNSUPPORTED);
  EXPECT_NE(pair.end[0].error.find("WEIR_OFI_PROVIDER=nosuch"), std::string::npos)
      << pair.end[0].error;
  EXPECT_NE(pair.end[0].error.find("it offers"), std::string::npos) << pair.end[0].error;
}

TEST_F(Ofi, RanksWithoutACommonProviderSayWhatEachHas) {
  for (const char* provider : {"tcp;ofi_rxm", "sockets"}) {
    const std::string reason = why_not(provider);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  Pair pair(functions_);
  pair.end[0].settings["WEIR_OFI_PROVIDER"] = "tcp;ofi_rxm";
  pair.end[1].settings["WEIR_OFI_PROVIDER"] = "sockets";
  ASSERT_EQ(pair.open(0), WEIR_OK) << pair.end[0].error;
  ASSERT_EQ(pair.open(1), WEIR_OK) << pair.end[1].error;
  weir_result_t results[2] = {};
  std::thread helper([&] { results[1] = pair.connect(1, 5000); });
  results[0] = pair.connect(0, 5000);
  helper.join();
  for (const uint32_t rank : {0u, 1u}) {
    EXPECT_EQ(results[rank], WEIR_ERROR_UNSUPPORTED);
    EXPECT_NE(pair.end[rank].error.find("rank 0 has tcp;ofi_rxm, rank 1 has sockets"),
              std::string::npos)
        << pair.end[rank].error;
  }
}

TEST_F(Ofi, ARankThatClosesIsToldApartFromOneThatDies) {
  Pair pair(functions_);
  pair.join();
  if (HasFatalFailure()) return;
  uint64_t value = 0;
  weir_transport_op_t op{};
  ASSERT_EQ(pair.recv(1, &value, sizeof value, &op), WEIR_IN_PROGRESS);
  pair.f.close(pair.end[0].instance);
  pair.end[0].instance = nullptr;
  pair.end[0].control->network->leave();
  weir_result_t result = WEIR_IN_PROGRESS;
  for (const uint64_t end = monotonic_ns() + 10'000'000'000;
       result == WEIR_IN_PROGRESS && monotonic_ns() < end;) {
    result = pair.f.test(pair.end[1].instance, &op);
  }
  EXPECT_EQ(result, WEIR_ERROR_PEER_LOST);
  EXPECT_NE(pair.end[1].error.find("rank 0 has closed the communicator"), std::string::npos)
      << pair.end[1].error;
  EXPECT_EQ(pair.f.peer_alive(pair.end[1].instance, 0), WEIR_OK) << "it has not died";
}

TEST_F(Ofi, WhatWasSentBeforeAGoodbyeStillArrives) {
  Pair pair(functions_);
  pair.join();
  if (HasFatalFailure()) return;
  constexpr size_t kCount = 8;  // the credit: they complete though nobody receives
  constexpr size_t kBytes = 1000;
  std::vector<unsigned char> data(kBytes);
  const auto finish = [&](uint32_t rank, weir_transport_op_t* op, weir_result_t result) {
    for (const uint64_t end = monotonic_ns() + 10'000'000'000;
         result == WEIR_IN_PROGRESS && monotonic_ns() < end;) {
      result = pair.f.test(pair.end[rank].instance, op);
    }
    return result;
  };
  for (size_t i = 0; i < kCount; ++i) {
    data.assign(kBytes, static_cast<unsigned char>(i));
    weir_transport_op_t op{};
    ASSERT_EQ(finish(0, &op, pair.send(0, data.data(), kBytes, &op)), WEIR_OK) << i;
  }
  std::thread leaver([&] {
    pair.f.close(pair.end[0].instance);
    pair.end[0].instance = nullptr;
  });
  for (size_t i = 0; i < kCount; ++i) {
    std::vector<unsigned char> in(kBytes);
    weir_transport_op_t op{};
    EXPECT_EQ(finish(1, &op, pair.recv(1, in.data(), kBytes, &op)), WEIR_OK)
        << i << ": " << pair.end[1].error;
    EXPECT_EQ(in[17], static_cast<unsigned char>(i));
  }
  // What comes after the last one is known not to come.
  uint64_t more = 0;
  weir_transport_op_t op{};
  EXPECT_EQ(finish(1, &op, pair.recv(1, &more, sizeof more, &op)), WEIR_ERROR_PEER_LOST);
  leaver.join();
}

TEST_F(Ofi, NoCallCrashesWhenTheEndpointHasEnded) {
  Pair pair(functions_);
  pair.join();
  if (HasFatalFailure()) return;
  weir_transport_t* const instance = pair.end[0].instance;
  const weir_transport_functions_t& f = *functions_;
  std::vector<uint64_t> memory(64);
  char reason[256] = "";
  weir_transport_memory_t* region = nullptr;
  weir_transport_remote_t* remote = nullptr;
  unsigned char key[WEIR_TRANSPORT_KEY_BYTES_MAX];
  size_t key_bytes = 0;
  if (f.remote_caps(instance, reason, sizeof reason) == 0) GTEST_SKIP() << reason;
  ASSERT_EQ(f.memory_register(instance, memory.data(), 512, &region), WEIR_OK);
  ASSERT_EQ(f.memory_key(instance, region, key, &key_bytes), WEIR_OK);
  ASSERT_EQ(f.remote_open(instance, 0, key, key_bytes, &remote), WEIR_OK) << pair.end[0].error;

  f.quiesce(instance);
  EXPECT_EQ(f.remote_caps(instance, reason, sizeof reason), 0u);
  EXPECT_STRNE(reason, "");
  weir_transport_op_t op{};
  uint64_t value = 0;
  const auto is_refused = [&](weir_result_t result) {
    return result == WEIR_ERROR_INVALID_USAGE || result == WEIR_ERROR_SYSTEM;
  };
  EXPECT_TRUE(is_refused(f.memory_register(instance, memory.data(), 512, &region)));
  EXPECT_TRUE(is_refused(f.memory_key(instance, region, key, &key_bytes)));
  EXPECT_TRUE(is_refused(f.remote_open(instance, 0, key, key_bytes, &remote)));
  EXPECT_TRUE(is_refused(f.put(instance, remote, 0, &value, 8, &op)));
  EXPECT_TRUE(is_refused(f.get(instance, remote, 0, &value, 8, &op)));
  EXPECT_TRUE(is_refused(f.put_signal(instance, remote, 0, &value, 8, remote, 0, 1, &op)));
  EXPECT_TRUE(is_refused(f.signal_read(instance, region, 0, &value)));
  f.remote_close(instance, remote);
  f.memory_deregister(instance, region);
  EXPECT_TRUE(is_refused(f.send(instance, 1, 0, &value, 8, &op)));
  EXPECT_TRUE(is_refused(f.recv(instance, 1, 0, &value, 8, &op)));
  EXPECT_TRUE(is_refused(f.progress(instance)));
  EXPECT_EQ(f.peer_leave(instance, 1), WEIR_OK);
  EXPECT_EQ(f.device_viable(instance, 1, 0, reason, sizeof reason), WEIR_ERROR_UNSUPPORTED);
  char way[256];
  f.describe_peer(instance, 1, way, sizeof way);
  EXPECT_EQ(f.peer_alive(instance, 1), WEIR_OK);
}

TEST_F(Ofi, LoadingLibfabricLeavesTheSignalHandlersAsTheyWere) {
  // SetUp has loaded it; nothing in this program sets a handler for these.
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGABRT, SIGINT, SIGTERM}) {
    struct sigaction action;
    ASSERT_EQ(sigaction(signal, nullptr, &action), 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_EQ(action.sa_handler, SIG_DFL) << strsignal(signal);
#endif
  }
}

}  // namespace
}  // namespace weir::plugins
