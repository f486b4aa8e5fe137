// SPDX-License-Identifier: Apache-2.0
// Memory of devices over the transport ucx. This program plays a UCX that has CUDA: its own
// ucp_context_query, ucp_tag_send_nbx and ucp_tag_recv_nbx stand before those of the library, which
// gets what they hand on. Memory that UCX is not told to be a device's they hand on as it is, and
// nobody can read that.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <ucp/api/ucp.h>

#include <cstdlib>
#include <vector>

#include "core/plugin/registry.h"
#include "unit/plugin/device_block.h"
#include "unit/plugin/pair.h"

namespace {

bool has_cuda = false;
int sent_from_device = 0;
int received_into_device = 0;

template <typename Function>
Function real(const char* name, Function) {
  void* library = dlopen("libucp.so.0", RTLD_NOW | RTLD_NOLOAD);
  EXPECT_NE(library, nullptr);
  return reinterpret_cast<Function>(dlsym(library, name));
}

// As UCX without CUDA is to see it.
const ucp_request_param_t* translate(const void** data, const ucp_request_param_t* param,
                                     ucp_request_param_t* copy, int* count) {
  if ((param->op_attr_mask & UCP_OP_ATTR_FIELD_MEMORY_TYPE) == 0) return param;
  EXPECT_EQ(param->memory_type, UCS_MEMORY_TYPE_CUDA);
  EXPECT_TRUE(has_cuda);
  // Else UCX may send it inline, whatever its type.
  EXPECT_NE(param->op_attr_mask & UCP_OP_ATTR_FLAG_NO_IMM_CMPL, 0u);
  ++*count;
  void* alias = weir::plugins::DeviceBlock::alias_of(*data);
  EXPECT_NE(alias, nullptr) << "memory of the host is told to be a device's";
  *data = alias;
  *copy = *param;
  copy->memory_type = UCS_MEMORY_TYPE_HOST;
  return copy;
}

}  // namespace

#define BEFORE_UCX extern "C" __attribute__((visibility("default")))

BEFORE_UCX ucs_status_t ucp_context_query(ucp_context_h context, ucp_context_attr_t* attributes) {
  static const auto call = real("ucp_context_query", &ucp_context_query);
  const ucs_status_t status = call(context, attributes);
  if (has_cuda) attributes->memory_types |= UCS_BIT(UCS_MEMORY_TYPE_CUDA);
  return status;
}

BEFORE_UCX ucs_status_ptr_t ucp_tag_send_nbx(ucp_ep_h endpoint, const void* data, size_t bytes,
                                             ucp_tag_t tag, const ucp_request_param_t* param) {
  static const auto call = real("ucp_tag_send_nbx", &ucp_tag_send_nbx);
  ucp_request_param_t copy;
  param = translate(&data, param, &copy, &sent_from_device);
  return call(endpoint, data, bytes, tag, param);
}

BEFORE_UCX ucs_status_ptr_t ucp_tag_recv_nbx(ucp_worker_h worker, void* data, size_t bytes,
                                             ucp_tag_t tag, ucp_tag_t mask,
                                             const ucp_request_param_t* param) {
  static const auto call = real("ucp_tag_recv_nbx", &ucp_tag_recv_nbx);
  ucp_request_param_t copy;
  const void* at = data;
  param = translate(&at, param, &copy, &received_into_device);
  return call(worker, const_cast<void*>(at), bytes, tag, mask, param);
}

namespace weir::plugins {
namespace {

class UcxDevice : public testing::Test {
 protected:
  void SetUp() override {
    const auto found = plugin::find_transport("ucx");
    ASSERT_TRUE(found.ok()) << found.status().text();
    ucx_ = found.value();
    char reason[512] = "";
    weir_host_t host = {sizeof host, nullptr, [](void*, const char*) {},
                        [](void*, int, const char*) {},
                        [](void*, const char*) -> const char* { return nullptr; }};
    if (ucx_->viable(ucx_->context, &host, reason, sizeof reason) != WEIR_OK)
      GTEST_SKIP() << reason;
    sent_from_device = received_into_device = 0;
  }
  const weir_transport_functions_t* ucx_ = nullptr;
};

TEST_F(UcxDevice, WithCudaMessagesGoFromAndIntoMemoryThatOnlyUcxReaches) {
  has_cuda = true;
  Pair pair(ucx_);
  pair.join();
  if (HasFatalFailure()) return;
  char reason[512] = "";
  ASSERT_EQ(ucx_->device_viable(pair.end[0].instance, 1, 0, reason, sizeof reason), WEIR_OK)
      << reason;
  constexpr size_t kBytesMax = 3'000'000;
  DeviceBlock from(kBytesMax), into(kBytesMax);
  std::vector<unsigned char> out(kBytesMax), in(kBytesMax);
  int sent_count = 0, received_count = 0;
  for (const size_t bytes : {size_t{1}, size_t{8}, size_t{1024}, size_t{9000}, kBytesMax}) {
    for (int way = 0; way < 4; ++way) {
      const bool sends_device = way % 2 == 0;
      const bool receives_device = way / 2 == 0;
      unsigned char* source = sends_device ? from.alias() : out.data();
      unsigned char* target = receives_device ? into.alias() : in.data();
      for (size_t i = 0; i < bytes; ++i)
        source[i] = static_cast<unsigned char>(i * 7 + bytes + static_cast<size_t>(way));
      memset(target, 0, bytes);
      weir_transport_op_t send_op{}, recv_op{};
      const weir_result_t received =
          receives_device
              ? ucx_->device_recv(pair.end[1].instance, 0, 0, into.device(), bytes, 0, &recv_op)
              : pair.recv(1, in.data(), bytes, &recv_op);
      const weir_result_t sent = sends_device ? ucx_->device_send(pair.end[0].instance, 1, 0,
                                                                  from.device(), bytes, 0, &send_op)
                                              : pair.send(0, out.data(), bytes, &send_op);
      ASSERT_EQ(pair.wait(1, &recv_op, received), WEIR_OK) << pair.end[1].error;
      ASSERT_EQ(pair.wait(0, &send_op, sent), WEIR_OK) << pair.end[0].error;
      EXPECT_EQ(memcmp(source, target, bytes), 0) << bytes << " bytes, way " << way;
      sent_count += sends_device ? 1 : 0;
      received_count += receives_device ? 1 : 0;
    }
  }
  EXPECT_EQ(sent_from_device, sent_count);
  EXPECT_EQ(received_into_device, received_count);
}

TEST_F(UcxDevice, WithoutCudaItSaysSoAndMemoryOfTheHostGoesOn) {
  has_cuda = false;
  Pair pair(ucx_);
  pair.join();
  if (HasFatalFailure()) return;
  char reason[512] = "";
  EXPECT_EQ(ucx_->device_viable(pair.end[0].instance, 1, 0, reason, sizeof reason),
            WEIR_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(reason).find("cannot use CUDA memory here"), std::string::npos) << reason;
  DeviceBlock block(4096);
  weir_transport_op_t send_op{}, recv_op{};
  EXPECT_EQ(ucx_->device_send(pair.end[0].instance, 1, 0, block.device(), 8, 0, &send_op),
            WEIR_ERROR_UNSUPPORTED);
  EXPECT_NE(pair.end[0].error.find("cannot use CUDA memory here"), std::string::npos)
      << pair.end[0].error;
  EXPECT_EQ(ucx_->device_recv(pair.end[1].instance, 0, 0, block.device(), 8, 0, &recv_op),
            WEIR_ERROR_UNSUPPORTED);
  uint64_t out = 41, in = 0;
  const weir_result_t received = pair.recv(1, &in, sizeof in, &recv_op);
  const weir_result_t sent = pair.send(0, &out, sizeof out, &send_op);
  EXPECT_EQ(pair.wait(1, &recv_op, received), WEIR_OK) << pair.end[1].error;
  EXPECT_EQ(pair.wait(0, &send_op, sent), WEIR_OK) << pair.end[0].error;
  EXPECT_EQ(in, out);
  EXPECT_EQ(sent_from_device + received_into_device, 0);
}

TEST_F(UcxDevice, SealedItTakesMemoryOfTheHostOnly) {
  const auto sealed = plugin::sealed_for("all", ucx_);
  ASSERT_TRUE(sealed.ok()) << sealed.status().text();
  EXPECT_NE(ucx_->caps.bits & WEIR_CAP_DEVICE_MEMORY, 0u);
  EXPECT_EQ(sealed.value()->caps.bits & WEIR_CAP_DEVICE_MEMORY, 0u);
  EXPECT_EQ(sealed.value()->caps.memory_kinds, uint32_t{WEIR_MEMORY_HOST});
  EXPECT_EQ(sealed.value()->device_send, nullptr);
}

}  // namespace
}  // namespace weir::plugins
