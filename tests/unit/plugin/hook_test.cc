// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/plugin/registry.h"
#include "plugins/hook_fault/plan.h"
#include "unit/plugin/pair.h"

namespace weir::plugins {
namespace {

namespace fs = std::filesystem;

const weir_transport_functions_t* hooked(const char* hooks) {
  return plugin::wrap_with_hooks(plugin::find_transport("shm").value(), hooks).value();
}

// ---- trace ----

TEST(HookTrace, EveryOperationIsInTheFileWithItsBytes) {
  std::string pattern = fs::temp_directory_path() / "weir-trace-XXXXXX";
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  {
    Pair pair(hooked("trace"));
    for (auto& end : pair.end) end.settings["WEIR_TRACE_FILE"] = pattern + "/t%%-%r.json";
    pair.join();
    std::vector<unsigned char> data(1 << 20);
    for (int i = 0; i < 5; ++i) {
      weir_transport_op_t send_op{}, recv_op{};
      const auto sent = pair.send(0, data.data(), data.size(), &send_op);
      const auto received = pair.recv(1, data.data(), data.size(), &recv_op);
      ASSERT_EQ(pair.wait(1, &recv_op, received), WEIR_OK);
      ASSERT_EQ(pair.wait(0, &send_op, sent), WEIR_OK);
    }
  }
  for (int rank = 0; rank < 2; ++rank) {
    std::ifstream file(pattern + "/t%-" + std::to_string(rank) + ".json");
    const auto json = nlohmann::json::parse(file);
    int operations = 0;
    for (const auto& event : json["traceEvents"]) {
      if (event["ph"] != "X") continue;
      ++operations;
      EXPECT_EQ(event["name"], rank == 0 ? "send" : "recv");
      EXPECT_EQ(event["args"]["bytes"], 1 << 20);
      EXPECT_EQ(event["args"]["peer"], 1 - rank);
      EXPECT_GE(event["dur"].get<double>(), 0);
      EXPECT_FALSE(event["args"]["failed"].get<bool>());
    }
    EXPECT_EQ(operations, 5);
    EXPECT_EQ(json["otherData"]["operations"], 5);
  }
  fs::remove_all(pattern);
}

TEST(HookTrace, ABadPatternIsRefusedByOpen) {
  Pair pair(hooked("trace"));
  pair.end[0].settings["WEIR_TRACE_FILE"] = "trace-%d.json";
  EXPECT_EQ(pair.open(0), WEIR_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(pair.end[0].error.find("trace-%d.json"), std::string::npos) << pair.end[0].error;
}

TEST(HookTrace, AFileThatCannotBeWrittenIsAWarning) {
  Pair pair(hooked("trace"));
  for (auto& end : pair.end) end.settings["WEIR_TRACE_FILE"] = "/nonexistent-directory/t.json";
  pair.join();
  pair.close();
  EXPECT_NE(pair.end[0].warning.find("/nonexistent-directory/t.json"), std::string::npos);
}

// ---- check ----

class HookCheck : public testing::Test {
 protected:
  HookCheck() : pair_(hooked("check")) {}
  void SetUp() override { pair_.join(); }

  void expect_breach(weir_result_t result, const std::string& word) {
    EXPECT_EQ(result, WEIR_ERROR_INVALID_USAGE);
    EXPECT_NE(pair_.end[0].error.find(word), std::string::npos) << pair_.end[0].error;
    EXPECT_NE(pair_.end[0].error.find("check(shm)"), std::string::npos) << pair_.end[0].error;
  }

  Pair pair_;
  weir_transport_op_t op_{};
  std::vector<unsigned char> large_ = std::vector<unsigned char>(4 << 20, 3);
};

TEST_F(HookCheck, ABufferThatChangesWhileItIsSentIsTold) {
  const auto sent = pair_.send(0, large_.data(), large_.size(), &op_);
  ASSERT_EQ(sent, WEIR_IN_PROGRESS);
  large_[100] ^= 1;
  std::vector<unsigned char> in(large_.size());
  weir_transport_op_t recv_op{};
  ASSERT_EQ(pair_.wait(1, &recv_op, pair_.recv(1, in.data(), in.size(), &recv_op)), WEIR_OK);
  expect_breach(pair_.wait(0, &op_, sent), "changed while it was in flight");
}

TEST_F(HookCheck, AnOperationThatWasNotZeroedIsTold) {
  op_.word[7] = 1;
  expect_breach(pair_.send(0, "x", 1, &op_), "zeroed");
}

TEST_F(HookCheck, AnOperationPostedTwiceIsTold) {
  ASSERT_EQ(pair_.send(0, large_.data(), large_.size(), &op_), WEIR_IN_PROGRESS);
  expect_breach(pair_.send(0, large_.data(), large_.size(), &op_), "in flight already");
}

TEST_F(HookCheck, WrongPeerLaneLengthAndBufferAreTold) {
  auto* instance = pair_.end[0].instance;
  expect_breach(pair_.f.send(instance, 2, 0, "x", 1, &op_), "no such peer");
  expect_breach(pair_.f.send(instance, 1, 16, "x", 1, &op_), "no such lane");
  expect_breach(pair_.f.send(instance, 1, 0, nullptr, 1, &op_), "no buffer");
  expect_breach(pair_.f.send(instance, 1, 0, "x", ~uint64_t{0}, &op_), "too long");
  EXPECT_EQ(pair_.f.send(instance, 1, 0, nullptr, 0, &op_), WEIR_OK);
}

TEST_F(HookCheck, TestOfACompleteOperationIsTold) {
  ASSERT_EQ(pair_.send(0, "x", 1, &op_), WEIR_OK);
  expect_breach(pair_.f.test(pair_.end[0].instance, &op_), "not in flight");
}

TEST_F(HookCheck, UseAfterCloseIsTold) {
  auto* instance = pair_.end[0].instance;
  pair_.f.close(instance);
  pair_.end[0].instance = nullptr;
  expect_breach(pair_.f.send(instance, 1, 0, "x", 1, &op_), "closed");
  expect_breach(pair_.f.progress(instance), "closed");
}

TEST_F(HookCheck, ConnectingTwiceIsTold) { expect_breach(pair_.connect(0), "twice"); }

TEST(HookCheckEarly, AnOperationBeforeConnectIsTold) {
  Pair pair(hooked("check"));
  ASSERT_EQ(pair.open(0), WEIR_OK);
  weir_transport_op_t op{};
  EXPECT_EQ(pair.send(0, "x", 1, &op), WEIR_ERROR_INVALID_USAGE);
}

// A transport that breaks its promises: completes in the wrong order.
TEST(HookCheckEarly, ATransportThatCompletesOutOfOrderIsTold) {
  static weir_transport_functions_t liar = *plugin::find_transport("shm").value();
  liar.name = "liar";
  liar.test = [](weir_transport_t*, weir_transport_op_t* op) {
    return op->word[4] == 2u << 20 ? WEIR_OK : WEIR_IN_PROGRESS;  // word 4 holds the length in shm
  };
  Pair pair(plugin::wrap_with_hooks(&liar, "check").value());
  pair.join();
  std::vector<unsigned char> data(3 << 20);
  weir_transport_op_t first{}, second{};
  ASSERT_EQ(pair.send(0, data.data(), 3 << 20, &first), WEIR_IN_PROGRESS);
  ASSERT_EQ(pair.send(0, data.data(), 2 << 20, &second), WEIR_IN_PROGRESS);
  EXPECT_EQ(pair.f.test(pair.end[0].instance, &second), WEIR_ERROR_INTERNAL);
  EXPECT_NE(pair.end[0].error.find("before an earlier one"), std::string::npos)
      << pair.end[0].error;
}

// ---- sum ----

class HookSum : public testing::Test {
 protected:
  // `fault` happens to rank 1, beneath the checksums.
  void start(const char* transport, const std::string& fault) {
    auto inner = plugin::find_transport(transport);
    ASSERT_TRUE(inner.ok()) << inner.status().text();
    auto wrapped =
        plugin::wrap_with_hooks(inner.value(), fault.empty() ? "sum,check" : "sum,fault,check");
    ASSERT_TRUE(wrapped.ok()) << wrapped.status().text();
    pair_ = std::make_unique<Pair>(wrapped.value());
    pair_->end[1].settings["WEIR_FAULT"] = fault;
    pair_->join();
  }
  // A message from rank 0 to rank 1; the receiver's end.
  weir_result_t transfer(size_t bytes, uint32_t seed, std::vector<unsigned char>* in) {
    std::vector<unsigned char> out(bytes);
    for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(i * 7 + seed);
    in->assign(bytes, 0);
    weir_transport_op_t send_op{}, recv_op{};
    const auto sent = pair_->send(0, out.data(), bytes, &send_op);
    const auto received = pair_->wait(1, &recv_op, pair_->recv(1, in->data(), bytes, &recv_op));
    EXPECT_EQ(pair_->wait(0, &send_op, sent), WEIR_OK) << pair_->end[0].error;
    same_ = *in == out;
    return received;
  }
  std::unique_ptr<Pair> pair_;
  bool same_ = false;
};

TEST_F(HookSum, WholeMessagesOfAnySizeArrive) {
  for (const char* transport : {"shm", "tcp"}) {
    start(transport, "");
    std::vector<unsigned char> in;
    uint32_t seed = 0;
    for (const size_t bytes : {0u, 1u, 23u, 24u, 25u, 1000u, 100'000u, 3'000'000u}) {
      ASSERT_EQ(transfer(bytes, ++seed, &in), WEIR_OK) << pair_->end[1].error;
      EXPECT_TRUE(same_) << bytes;
    }
  }
}

TEST_F(HookSum, OneChangedBitIsAnErrorThatNamesTheMessage) {
  for (const char* transport : {"shm", "tcp"}) {
    for (const size_t bytes : {8u, 24u, 100'000u}) {
      // The third message of rank 1 with a byte is the second one's body, the fourth its checksum.
      for (const char* fault : {"corrupt_at=3,seed=11", "corrupt_at=4,seed=12"}) {
        start(transport, fault);
        std::vector<unsigned char> in;
        ASSERT_EQ(transfer(bytes, 1, &in), WEIR_OK) << pair_->end[1].error;
        EXPECT_EQ(transfer(bytes, 2, &in), WEIR_ERROR_SYSTEM) << transport << " " << fault;
        const std::string& text = pair_->end[1].error;
        EXPECT_NE(text.find("from rank 0 to rank 1 (lane 0"), std::string::npos) << text;
      }
    }
  }
}

TEST_F(HookSum, WithoutItTheChangedBitIsNotSeen) {
  pair_ = std::make_unique<Pair>(hooked("fault"));
  pair_->end[1].settings["WEIR_FAULT"] = "corrupt_at=2";
  pair_->join();
  std::vector<unsigned char> in;
  ASSERT_EQ(transfer(100, 1, &in), WEIR_OK);
  ASSERT_EQ(transfer(100, 2, &in), WEIR_OK);
  EXPECT_FALSE(same_);
}

TEST_F(HookSum, ARepeatedMessageIsFoundEvenIfItIsAsLongAsAChecksum) {
  auto wrapped = plugin::wrap_with_hooks(plugin::find_transport("shm").value(), "sum,fault");
  pair_ = std::make_unique<Pair>(wrapped.value());
  pair_->end[0].settings["WEIR_FAULT"] = "duplicate_at=1";
  pair_->join();
  std::vector<unsigned char> in;
  EXPECT_EQ(transfer(32, 1, &in), WEIR_ERROR_SYSTEM);
  EXPECT_NE(pair_->end[1].error.find("lost or repeated"), std::string::npos) << pair_->end[1].error;
}

// ---- fault ----

TEST(HookFaultPlan, EveryWordIsRead) {
  hook_fault::Plan plan;
  EXPECT_EQ(
      hook_fault::parse_plan("delay_us=100,seed=7,corrupt_at=12,drop_at=3,duplicate_at=4,kill_at=5,"
                             "stop_at=6,error_at=8,rank=2,reorder_at=9,fail_from=10,still_from=11,"
                             "peer=1,connect_fails=1",
                             &plan),
      "");
  EXPECT_EQ(plan.delay_us, 100u);
  EXPECT_EQ(plan.seed, 7u);
  EXPECT_EQ(plan.corrupt_at, 12u);
  EXPECT_EQ(plan.drop_at, 3u);
  EXPECT_EQ(plan.duplicate_at, 4u);
  EXPECT_EQ(plan.kill_at, 5u);
  EXPECT_EQ(plan.stop_at, 6u);
  EXPECT_EQ(plan.error_at, 8u);
  EXPECT_EQ(plan.rank, 2u);
  EXPECT_EQ(plan.reorder_at, 9u);
  EXPECT_EQ(plan.fail_from, 10u);
  EXPECT_EQ(plan.still_from, 11u);
  EXPECT_EQ(plan.peer, 1u);
  EXPECT_EQ(plan.connect_fails, 1u);
}

TEST(HookFaultPlan, WhatDoesNotParseIsNamed) {
  hook_fault::Plan plan;
  for (const char* text : {"delay_us", "delay_us=", "delay_us=1x", "delay_us=-1", "delay_us=1,",
                           ",seed=1", "seed=1,seed=2", "kill_at=0", "explode=1", "seed = 1",
                           "delay_us=60000001", "seed=18446744073709551616", "=1"}) {
    EXPECT_NE(hook_fault::parse_plan(text, &plan), "") << text;
  }
  EXPECT_NE(
      hook_fault::parse_plan("explode=1", &plan).find("'explode=1' is unknown; known are delay_us"),
      std::string::npos);
  Pair pair(hooked("fault"));
  pair.end[0].settings["WEIR_FAULT"] = "explode=1";
  EXPECT_EQ(pair.open(0), WEIR_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(pair.end[0].error.find("WEIR_FAULT=explode=1"), std::string::npos) << pair.end[0].error;
}

class HookFault : public testing::Test {
 protected:
  HookFault() : pair_(hooked("fault")) {}
  void start(uint32_t rank, const std::string& fault) {
    pair_.end[rank].settings["WEIR_FAULT"] = fault;
    pair_.join();
  }
  // One message from rank 0 to rank 1.
  weir_result_t transfer(uint64_t value, uint64_t* got) {
    weir_transport_op_t send_op{}, recv_op{};
    const auto sent = pair_.send(0, &value, 8, &send_op);
    if (sent > WEIR_IN_PROGRESS) return sent;
    const auto received = pair_.wait(1, &recv_op, pair_.recv(1, got, 8, &recv_op));
    if (received != WEIR_OK) return received;
    return pair_.wait(0, &send_op, sent);
  }
  Pair pair_;
};

TEST_F(HookFault, TheChosenReceiveHasOneBitFlippedAndTheSameEveryTime) {
  uint64_t flipped[2] = {};
  for (uint64_t& bits : flipped) {
    Pair pair(hooked("fault"));
    pair.end[1].settings["WEIR_FAULT"] = "corrupt_at=3,seed=11";
    pair.join();
    for (int i = 1; i <= 5; ++i) {
      uint64_t value = 1000, got = 0;
      weir_transport_op_t send_op{}, recv_op{};
      ASSERT_EQ(pair.send(0, &value, 8, &send_op), WEIR_OK);
      ASSERT_EQ(pair.wait(1, &recv_op, pair.recv(1, &got, 8, &recv_op)), WEIR_OK);
      if (i == 3) {
        bits = got ^ value;
      } else {
        EXPECT_EQ(got, value) << i;
      }
    }
    EXPECT_EQ(__builtin_popcountll(bits), 1);
  }
  EXPECT_EQ(flipped[0], flipped[1]);
}

TEST_F(HookFault, ADroppedSendAndWhatFollowsNeverComplete) {
  start(0, "drop_at=2");
  uint64_t got = 0;
  ASSERT_EQ(transfer(1, &got), WEIR_OK);
  uint64_t value = 2;
  weir_transport_op_t ops[2] = {}, recv_op{};
  EXPECT_EQ(pair_.send(0, &value, 8, &ops[0]), WEIR_IN_PROGRESS);
  EXPECT_EQ(pair_.send(0, &value, 8, &ops[1]), WEIR_IN_PROGRESS);
  const auto received = pair_.recv(1, &got, 8, &recv_op);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(pair_.f.progress(pair_.end[0].instance), WEIR_OK);
    EXPECT_EQ(pair_.f.test(pair_.end[0].instance, &ops[i % 2]), WEIR_IN_PROGRESS);
    EXPECT_EQ(pair_.f.test(pair_.end[1].instance, &recv_op), WEIR_IN_PROGRESS);
  }
  EXPECT_EQ(received, WEIR_IN_PROGRESS);
}

TEST_F(HookFault, ADuplicatedSendArrivesTwice) {
  start(0, "duplicate_at=1");
  std::vector<unsigned char> out(1 << 20, 9), in(1 << 20);
  weir_transport_op_t send_op{};
  const auto sent = pair_.send(0, out.data(), out.size(), &send_op);
  for (int i = 0; i < 2; ++i) {
    weir_transport_op_t recv_op{};
    std::fill(in.begin(), in.end(), static_cast<unsigned char>(0));
    ASSERT_EQ(pair_.wait(1, &recv_op, pair_.recv(1, in.data(), in.size(), &recv_op)), WEIR_OK);
    EXPECT_EQ(in, out);
  }
  EXPECT_EQ(pair_.wait(0, &send_op, sent), WEIR_OK);
  uint64_t got = 0;
  ASSERT_EQ(transfer(77, &got), WEIR_OK);
  EXPECT_EQ(got, 77u);
}

TEST_F(HookFault, TheChosenOperationFails) {
  start(0, "error_at=2");
  uint64_t got = 0;
  EXPECT_EQ(transfer(1, &got), WEIR_OK);
  EXPECT_EQ(transfer(2, &got), WEIR_ERROR_SYSTEM);
  EXPECT_NE(pair_.end[0].error.find("WEIR_FAULT"), std::string::npos);
}

TEST_F(HookFault, DelayedMessagesComeLaterAndInOrder) {
  start(0, "delay_us=3000,seed=5");
  uint64_t values[20];
  weir_transport_op_t ops[20] = {};
  weir_result_t sent[20];
  const uint64_t start_ns = monotonic_ns();
  for (uint64_t i = 0; i < 20; ++i) {
    values[i] = i;
    sent[i] = pair_.send(0, &values[i], 8, &ops[i]);
  }
  for (uint64_t i = 0; i < 20; ++i) {
    uint64_t got = 99;
    weir_transport_op_t recv_op{};
    ASSERT_EQ(pair_.wait(1, &recv_op, pair_.recv(1, &got, 8, &recv_op)), WEIR_OK);
    EXPECT_EQ(got, i);
    EXPECT_EQ(pair_.wait(0, &ops[i], sent[i]), WEIR_OK);
  }
  EXPECT_GT(monotonic_ns() - start_ns, 1'000'000u);
}

TEST_F(HookFault, AReorderedSendArrivesBehindTheNext) {
  start(0, "reorder_at=2");
  uint64_t values[4] = {10, 11, 12, 13};
  weir_transport_op_t ops[4] = {};
  weir_result_t sent[4];
  for (int i = 0; i < 4; ++i) sent[i] = pair_.send(0, &values[i], 8, &ops[i]);
  for (const uint64_t expected : {10u, 12u, 11u, 13u}) {
    uint64_t got = 99;
    weir_transport_op_t recv_op{};
    ASSERT_EQ(pair_.wait(1, &recv_op, pair_.recv(1, &got, 8, &recv_op)), WEIR_OK);
    EXPECT_EQ(got, expected);
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(pair_.wait(0, &ops[i], sent[i]), WEIR_OK) << i;
}

TEST_F(HookFault, AReorderedSendWithNoneBehindItIsOnlyLate) {
  start(0, "reorder_at=1");
  uint64_t got = 0;
  ASSERT_EQ(transfer(5, &got), WEIR_OK);
  EXPECT_EQ(got, 5u);
}

TEST_F(HookFault, FromTheChosenOperationOnAllFailWithThePeerEvenThoseUnderWay) {
  start(0, "fail_from=3,peer=1");
  uint64_t got = 0, value = 1;
  weir_transport_op_t recv_op{}, other_op{}, send_op{}, self_op{};
  ASSERT_EQ(pair_.recv(0, &got, 8, &recv_op), WEIR_IN_PROGRESS);
  ASSERT_EQ(pair_.recv(0, &got, 8, &other_op), WEIR_IN_PROGRESS);
  EXPECT_EQ(pair_.send(0, &value, 8, &send_op), WEIR_ERROR_SYSTEM);
  EXPECT_NE(pair_.end[0].error.find("WEIR_FAULT"), std::string::npos);
  EXPECT_EQ(pair_.f.test(pair_.end[0].instance, &recv_op), WEIR_ERROR_SYSTEM);
  EXPECT_EQ(pair_.f.test(pair_.end[0].instance, &other_op), WEIR_ERROR_SYSTEM);
  EXPECT_EQ(pair_.f.send(pair_.end[0].instance, 0, 0, &value, 8, &self_op), WEIR_OK);
}

TEST_F(HookFault, FromTheChosenOperationOnNoneCompletesWithThePeer) {
  start(0, "still_from=2,peer=1");
  uint64_t got = 0, value = 7;
  weir_transport_op_t recv_op{}, send_op{}, peer_op{}, self_op{};
  ASSERT_EQ(pair_.recv(0, &got, 8, &recv_op), WEIR_IN_PROGRESS);
  EXPECT_EQ(pair_.send(0, &value, 8, &send_op), WEIR_IN_PROGRESS);
  EXPECT_EQ(pair_.send(1, &value, 8, &peer_op), WEIR_OK);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(pair_.f.progress(pair_.end[0].instance), WEIR_OK);
    EXPECT_EQ(pair_.f.test(pair_.end[0].instance, &recv_op), WEIR_IN_PROGRESS);
    EXPECT_EQ(pair_.f.test(pair_.end[0].instance, &send_op), WEIR_IN_PROGRESS);
  }
  EXPECT_EQ(pair_.f.send(pair_.end[0].instance, 0, 0, &value, 8, &self_op), WEIR_OK);
}

TEST_F(HookFault, OnlyTheNamedRankMisbehaves) {
  for (auto& end : pair_.end) end.settings["WEIR_FAULT"] = "error_at=1,rank=1";
  pair_.join();
  weir_transport_op_t send_op{}, recv_op{};
  uint64_t value = 1;
  EXPECT_EQ(pair_.send(0, &value, 8, &send_op), WEIR_OK);
  EXPECT_EQ(pair_.recv(1, &value, 8, &recv_op), WEIR_ERROR_SYSTEM);
}

// The process is killed or stopped at exactly the operation asked for.
int end_of_child(const std::string& fault) {
  const pid_t child = fork();
  if (child == 0) {
    Pair pair(hooked("fault"));
    pair.end[0].settings["WEIR_FAULT"] = fault;
    pair.join();
    for (int i = 0; i < 3; ++i) {
      uint64_t value = 1;
      weir_transport_op_t op{};
      if (i == 2) _exit(3);  // the third is not reached
      (void)pair.send(0, &value, 8, &op);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  if (WIFSTOPPED(status)) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  return status;
}

TEST(HookFaultProcess, KillAndStopComeAtTheirOperation) {
  int status = end_of_child("kill_at=2");
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  status = end_of_child("stop_at=1");
  EXPECT_TRUE(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP) << status;
  status = end_of_child("kill_at=3");
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << status;
}

}  // namespace
}  // namespace weir::plugins
