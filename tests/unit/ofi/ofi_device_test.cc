// SPDX-License-Identifier: Apache-2.0
// Memory of devices over the transport ofi, with a libfabric that plays one built for CUDA
// (fabric_double.h) and memory that nobody else can read.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "core/plugin/registry.h"
#include "unit/ofi/fabric_double.h"
#include "unit/plugin/device_block.h"
#include "unit/plugin/pair.h"

namespace weir::plugins {
namespace {

constexpr char kProvider[] = "tcp;ofi_rxm";
constexpr int kDevice = 3;
constexpr size_t kBytesMax = 1'000'000;

// Loaded before anybody asks for libfabric.
FabricDouble* fabric_double() {
  static FabricDouble* const state = [] {
    void* library = dlopen(WEIR_TEST_FABRIC_DOUBLE, RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(library, nullptr) << dlerror();
    return reinterpret_cast<FabricDoubleFunction>(dlsym(library, "fabric_double"))();
  }();
  return state;
}

class OfiDevice : public testing::Test {
 protected:
  void SetUp() override {
    *fabric_double() = {};
    fabric_double()->alias_of = DeviceBlock::alias_of;
    const auto found = plugin::find_transport("ofi");
    ASSERT_TRUE(found.ok()) << found.status().text();
    ofi_ = found.value();
    char reason[512] = "";
    weir_host_t host = {sizeof host, nullptr, [](void*, const char*) {},
                        [](void*, int, const char*) {},
                        [](void*, const char* name) -> const char* {
                          return strcmp(name, "WEIR_OFI_PROVIDER") == 0 ? kProvider : nullptr;
                        }};
    if (ofi_->viable(ofi_->context, &host, reason, sizeof reason) != WEIR_OK)
      GTEST_SKIP() << reason;
  }
  // It stays loaded.
  static void use_cuda() {
    ASSERT_NE(dlopen(WEIR_TEST_CUDA_DRIVER, RTLD_NOW | RTLD_LOCAL), nullptr) << dlerror();
  }
  static void join(Pair* pair, const char* registers = "0") {
    for (Pair::End& end : pair->end) {
      end.settings["WEIR_OFI_PROVIDER"] = kProvider;
      end.settings["WEIR_OFI_REGISTER"] = registers;
    }
    pair->join();
  }
  std::string gap(Pair* pair) const {
    char reason[512] = "";
    const weir_result_t result =
        ofi_->device_viable(pair->end[0].instance, 1, kDevice, reason, sizeof reason);
    EXPECT_EQ(result == WEIR_OK, reason[0] == 0) << reason;
    return reason;
  }
  void expect_refused(Pair* pair, const std::string& word) const {
    DeviceBlock block(4096);
    weir_transport_op_t send_op{}, recv_op{};
    EXPECT_EQ(ofi_->device_send(pair->end[0].instance, 1, 0, block.device(), 8, kDevice, &send_op),
              WEIR_ERROR_UNSUPPORTED);
    EXPECT_NE(pair->end[0].error.find(word), std::string::npos) << pair->end[0].error;
    EXPECT_EQ(ofi_->device_recv(pair->end[1].instance, 0, 0, block.device(), 8, kDevice, &recv_op),
              WEIR_ERROR_UNSUPPORTED);
    // Nothing has been posted: the next message is the first.
    uint64_t out = 41, in = 0;
    send_op = recv_op = {};
    const weir_result_t received = pair->recv(1, &in, sizeof in, &recv_op);
    const weir_result_t sent = pair->send(0, &out, sizeof out, &send_op);
    EXPECT_EQ(pair->wait(1, &recv_op, received), WEIR_OK) << pair->end[1].error;
    EXPECT_EQ(pair->wait(0, &send_op, sent), WEIR_OK) << pair->end[0].error;
    EXPECT_EQ(in, out);
  }
  // Messages of every size, each end on a device or on the host, 20 posted ahead.
  void exchange(Pair* pair) const {
    constexpr size_t kCount = 20;
    constexpr size_t kSizes[] = {1, 8, 4096, 4097, 50'000};
    struct Message {
      DeviceBlock from{50'000}, into{50'000};
      std::vector<unsigned char> out, in;
      weir_transport_op_t send_op{}, recv_op{};
      weir_result_t sent = WEIR_OK, received = WEIR_OK;
    };
    std::vector<Message> messages(kCount);
    int device_ends = 0;
    for (size_t i = 0; i < kCount; ++i) {
      Message& m = messages[i];
      const size_t bytes = kSizes[i % 5];
      m.out.resize(bytes);
      m.in.resize(bytes);
      for (size_t k = 0; k < bytes; ++k) m.out[k] = static_cast<unsigned char>(k * 7 + i);
      memcpy(m.from.alias(), m.out.data(), bytes);
      const bool receives_device = i % 2 == 0;
      const bool sends_device = i % 4 < 2;
      device_ends += (receives_device ? 1 : 0) + (sends_device ? 1 : 0);
      m.received = receives_device ? ofi_->device_recv(pair->end[1].instance, 0, 0, m.into.device(),
                                                       bytes, kDevice, &m.recv_op)
                                   : pair->recv(1, m.in.data(), bytes, &m.recv_op);
      m.sent = sends_device ? ofi_->device_send(pair->end[0].instance, 1, 0, m.from.device(), bytes,
                                                kDevice, &m.send_op)
                            : pair->send(0, m.out.data(), bytes, &m.send_op);
    }
    for (size_t i = 0; i < kCount; ++i) {
      Message& m = messages[i];
      ASSERT_EQ(pair->wait(1, &m.recv_op, m.received), WEIR_OK) << pair->end[1].error;
      ASSERT_EQ(pair->wait(0, &m.send_op, m.sent), WEIR_OK) << pair->end[0].error;
      const unsigned char* arrived = i % 2 == 0 ? m.into.alias() : m.in.data();
      EXPECT_EQ(memcmp(arrived, m.out.data(), m.out.size()), 0) << "message " << i;
    }
    EXPECT_EQ(fabric_double()->registered_count, device_ends);
    EXPECT_EQ(fabric_double()->sent_count + fabric_double()->received_count, device_ends);
    EXPECT_EQ(fabric_double()->device, kDevice);
  }

  const weir_transport_functions_t* ofi_ = nullptr;
};

// The first of all.
TEST_F(OfiDevice, WithoutCudaNobodyAsksForFiHmem) {
  fabric_double()->grants = true;
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) != nullptr) {
    GTEST_SKIP() << "this process has loaded CUDA's driver";
  }
  Pair pair(ofi_);
  join(&pair);
  if (HasFatalFailure()) return;
  EXPECT_EQ(fabric_double()->asked_count, 0);
  expect_refused(&pair, "libcuda.so.1");
  pair.close_together();
}

TEST_F(OfiDevice,
       WhereFiHmemIsGrantedMessagesGoFromAndIntoRegisteredMemoryThatOnlyLibfabricReaches) {
  use_cuda();
  fabric_double()->grants = true;
  Pair pair(ofi_);
  join(&pair);
  if (HasFatalFailure()) return;
  EXPECT_EQ(gap(&pair), "");
  exchange(&pair);
  pair.close_together();
  EXPECT_EQ(fabric_double()->closed_count, fabric_double()->registered_count);
}

TEST_F(OfiDevice, WithRegisteredMemoryOfTheHostTooTheSameMessagesArrive) {
  use_cuda();
  fabric_double()->grants = true;
  Pair pair(ofi_);
  join(&pair, "1");
  if (HasFatalFailure()) return;
  exchange(&pair);
  pair.close_together();
  EXPECT_EQ(fabric_double()->closed_count, fabric_double()->registered_count);
}

TEST_F(OfiDevice, RegistrationsEndWithOperationsThatAreNotDone) {
  use_cuda();
  fabric_double()->grants = true;
  constexpr int kCount = 40;  // more than the provider is given at a time
  DeviceBlock block(kBytesMax);
  {
    Pair pair(ofi_);
    join(&pair);
    if (HasFatalFailure()) return;
    weir_transport_op_t ops[kCount] = {};
    for (weir_transport_op_t& op : ops) {
      EXPECT_EQ(ofi_->device_recv(pair.end[1].instance, 0, 0, block.device(), 8, kDevice, &op),
                WEIR_IN_PROGRESS);
    }
    ofi_->quiesce(pair.end[1].instance);
    EXPECT_EQ(fabric_double()->registered_count, kCount);
    EXPECT_EQ(fabric_double()->closed_count, kCount);
  }
}

TEST_F(OfiDevice, WhereFiHmemIsNotGrantedItSaysSoAndMemoryOfTheHostGoesOn) {
  use_cuda();
  Pair pair(ofi_);
  join(&pair);
  if (HasFatalFailure()) return;
  EXPECT_NE(gap(&pair).find("FI_HMEM"), std::string::npos) << gap(&pair);
  EXPECT_GT(fabric_double()->asked_count, 0);
  expect_refused(&pair, "provider tcp;ofi_rxm does not support device memory");
  EXPECT_EQ(fabric_double()->registered_count, 0);
  pair.close_together();
}

TEST_F(OfiDevice, MemoryThatCannotBeRegisteredIsRefusedBeforeAnythingIsPosted) {
  use_cuda();
  fabric_double()->grants = true;
  fabric_double()->registers = false;
  Pair pair(ofi_);
  join(&pair);
  if (HasFatalFailure()) return;
  expect_refused(&pair, "fi_mr_regattr of memory of a CUDA device");
  pair.close_together();
}

TEST_F(OfiDevice, SealedItTakesMemoryOfTheHostOnly) {
  const auto sealed = plugin::sealed_for("all", ofi_);
  ASSERT_TRUE(sealed.ok()) << sealed.status().text();
  EXPECT_NE(ofi_->caps.bits & WEIR_CAP_DEVICE_MEMORY, 0u);
  EXPECT_EQ(sealed.value()->caps.bits & WEIR_CAP_DEVICE_MEMORY, 0u);
  EXPECT_EQ(sealed.value()->caps.memory_kinds, uint32_t{WEIR_MEMORY_HOST});
}

}  // namespace
}  // namespace weir::plugins
