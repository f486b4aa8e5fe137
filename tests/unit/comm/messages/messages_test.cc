// SPDX-License-Identifier: Apache-2.0
#include "core/comm/messages/messages.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/comm/device/device_route.h"
#include "unit/comm/parts_support.h"

namespace weir::comm {
namespace {

// What the transport answers.
weir_result_t posted = WEIR_OK;
weir_result_t tested = WEIR_OK;

struct MessagesTest : testing::Test {
  CommState state;
  MappedRanks ranks{3, &state};
  weir_transport_functions_t transport = *state.context.transport;
  PeerReports reports{state};
  Requests requests{state, reports};
  DeviceRoute devices{state};
  Messages messages{state, requests, devices};
  OperationFailure failure;
  Request request;
  unsigned char byte = 0;

  void SetUp() override {
    posted = tested = WEIR_IN_PROGRESS;
    transport.send = [](weir_transport_t*, uint32_t, uint32_t, const void*, uint64_t,
                        weir_transport_op_t*) { return posted; };
    transport.recv = [](weir_transport_t*, uint32_t, uint32_t, void*, uint64_t,
                        weir_transport_op_t*) { return posted; };
    transport.test = [](weir_transport_t*, weir_transport_op_t*) { return tested; };
    transport.progress = [](weir_transport_t*) { return WEIR_OK; };
    state.context.transport = &transport;
    request.kind = RequestKind::kSend;
    request.peer = 2;
    request.bytes = 1;
    request.call.input = &byte;
  }

  void start() {
    requests.begin(request);
    messages.start(request, &failure);
  }
};

TEST_F(MessagesTest, OneThatTheTransportTakesAtOnceIsDone) {
  posted = WEIR_OK;
  start();
  EXPECT_TRUE(request.done.load());
  EXPECT_TRUE(messages.is_empty());
}

TEST_F(MessagesTest, OneIsDoneWhenTheTransportSaysSo) {
  start();
  EXPECT_FALSE(messages.poll(&failure));
  EXPECT_FALSE(messages.is_empty());
  tested = WEIR_OK;
  EXPECT_TRUE(messages.poll(&failure));
  EXPECT_TRUE(request.done.load());
  EXPECT_TRUE(messages.is_empty());
  EXPECT_FALSE(requests.any());
}

TEST_F(MessagesTest, WhatTheTransportFailsIsTheCommunicatorsFailureAndEndsWithAllOthers) {
  start();
  state.transport_error = "the cable was cut";
  tested = WEIR_ERROR_PEER_LOST;
  EXPECT_TRUE(messages.poll(&failure));
  EXPECT_EQ(failure.status.code(), Code::kPeerLost);
  EXPECT_EQ(failure.status.text(), "message with rank 2: the cable was cut");
  EXPECT_EQ(failure.request, &request);
  EXPECT_FALSE(request.done.load());
  messages.fail_all(Status(Code::kPeerLost, "rank 2 died"));
  EXPECT_EQ(request.status.text(), "rank 2 died");
}

TEST_F(MessagesTest, OneThatCannotBePostedFailsInTheSameWay) {
  posted = WEIR_ERROR_SYSTEM;
  start();
  EXPECT_EQ(failure.status.code(), Code::kSystem);
  EXPECT_FALSE(request.done.load());
  messages.fail_all(failure.status);
  EXPECT_TRUE(request.done.load());
}

TEST_F(MessagesTest, BuffersOnDevicesNeedATransportThatTakesThem) {
  const Status status = messages.take_device_buffer(request, 1);
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_FALSE(messages.takes_device(2, 1));
  EXPECT_EQ(messages.device_of(2, &byte), -1);
}

}  // namespace
}  // namespace weir::comm
