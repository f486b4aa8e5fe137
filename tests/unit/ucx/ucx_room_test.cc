// SPDX-License-Identifier: Apache-2.0
// The transport ucx where UCX has no room left: what is told sent has left this rank, and what the
// credit promises is sent though its receiver makes no call.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/plugin/registry.h"
#include "unit/plugin/pair.h"

namespace weir::plugins {
namespace {

constexpr uint32_t kLanes = 8;

// A variable of the environment, for as long as it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

// Ranks in one thread's hands: what makes a call is up to the test.
class Group {
 public:
  Group(const weir_transport_functions_t* functions, uint32_t count)
      : f(*functions), ranks_(count) {
    std::vector<const unsigned char*> addresses;
    std::vector<size_t> bytes;
    std::vector<std::string> networks;
    for (uint32_t i = 0; i < count; ++i) {
      Rank& rank = ranks_[i];
      rank.host = {sizeof rank.host, &rank, error, [](void*, int, const char*) {},
                   [](void*, const char*) -> const char* { return nullptr; }};
      const weir_transport_config_t config = {sizeof config,  i,    count, 5, secret_,
                                              sizeof secret_, 4096, 0};
      rank.control = std::make_unique<testing_support::ControlRank>(config);
      rank.host.control = rank.control->functions();
      networks.push_back(rank.control->address());
      if (f.open(f.context, &rank.host, &config, &rank.instance) != WEIR_OK ||
          f.address(rank.instance, rank.address, &rank.address_bytes) != WEIR_OK) {
        ADD_FAILURE() << rank.error;
        return;
      }
      addresses.push_back(rank.address);
      bytes.push_back(rank.address_bytes);
    }
    std::vector<weir_result_t> results(count);
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < count; ++i) {
      threads.emplace_back([&, i] {
        const uint64_t deadline_ns = monotonic_ns() + 60'000'000'000;
        const Status met = ranks_[i].control->join(networks, deadline_ns);
        EXPECT_TRUE(met.ok()) << met.text();
        results[i] = f.connect(ranks_[i].instance, addresses.data(), bytes.data(), deadline_ns);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (uint32_t i = 0; i < count; ++i) EXPECT_EQ(results[i], WEIR_OK) << ranks_[i].error;
    joined = !testing::Test::HasFailure();
  }
  ~Group() {
    for (Rank& rank : ranks_) {
      if (rank.instance != nullptr) f.close(rank.instance);
    }
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  weir_transport_t* instance(uint32_t rank) { return ranks_[rank].instance; }
  const std::string& error_of(uint32_t rank) const { return ranks_[rank].error; }
  // Until the operation of `rank` is complete; only the ranks of `callers` make calls.
  weir_result_t wait(uint32_t rank, weir_transport_op_t* op, weir_result_t posted,
                     std::initializer_list<uint32_t> callers) {
    const uint64_t end = monotonic_ns() + 30'000'000'000;
    while (posted == WEIR_IN_PROGRESS && monotonic_ns() < end) {
      for (const uint32_t caller : callers) (void)f.progress(instance(caller));
      posted = f.test(instance(rank), op);
    }
    return posted;
  }

  const weir_transport_functions_t& f;
  bool joined = false;

 private:
  struct Rank {
    weir_host_t host{};
    weir_transport_t* instance = nullptr;
    unsigned char address[WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
    size_t address_bytes = 0;
    std::string error;
    std::unique_ptr<testing_support::ControlRank> control;
  };
  static void error(void* context, const char* text) { static_cast<Rank*>(context)->error = text; }

  std::vector<Rank> ranks_;
  unsigned char secret_[32] = {1, 2, 3, 4};
};

struct Message {
  std::vector<unsigned char> data;
  uint32_t lane = 0;
  bool told = false;  // that it is sent
  weir_result_t result = WEIR_IN_PROGRESS;
  weir_transport_op_t op{};
};

class UcxRoom : public testing::Test {
 protected:
  void SetUp() override {
    const auto found = plugin::find_transport("ucx");
    ASSERT_TRUE(found.ok()) << found.status().text();
    functions_ = found.value();
    char reason[512] = "";
    weir_host_t host = {sizeof host, nullptr, [](void*, const char*) {},
                        [](void*, int, const char*) {},
                        [](void*, const char*) -> const char* { return nullptr; }};
    if (functions_->viable(functions_->context, &host, reason, sizeof reason) != WEIR_OK)
      GTEST_SKIP() << reason;
  }

  const weir_transport_functions_t* functions_ = nullptr;
};

TEST_F(UcxRoom, WhatIsToldSentArrivesThoughItsRankMakesNoFurtherCall) {
  // Over tcp, room that is soon full; the property holds with any.
  const Variable out("UCX_TCP_SNDBUF", "64k"), in("UCX_TCP_RCVBUF", "64k");
  const char* given = getenv("WEIR_TEST_SEED");
  const uint64_t seed = given != nullptr ? strtoull(given, nullptr, 10) : std::random_device()();
  SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  Group group(functions_, 2);
  ASSERT_TRUE(group.joined);
  const auto& f = group.f;
  std::deque<Message> sent;
  const auto send = [&](int tests) {
    Message& m = sent.emplace_back();
    m.lane = static_cast<uint32_t>(random() % kLanes);
    m.data.resize(random() % 4 == 0 ? random() % 20'000 : random() % 1025);
    for (unsigned char& byte : m.data) byte = static_cast<unsigned char>(random());
    m.result = f.send(group.instance(0), 1, m.lane, m.data.data(), m.data.size(), &m.op);
    for (int i = 0; m.result == WEIR_IN_PROGRESS && i < tests; ++i) {
      m.result = f.test(group.instance(0), &m.op);
    }
  };
  while (sent.size() < 50'000 && (sent.empty() || sent.back().result == WEIR_OK)) send(20);
  ASSERT_EQ(sent.back().result, WEIR_IN_PROGRESS) << "there was always room";
  // What is posted now waits, on whatever lane.
  for (int i = 0; i < 100; ++i) send(0);
  for (int i = static_cast<int>(random() % 4); i > 0; --i) {
    for (Message& m : sent) {
      if (m.result == WEIR_IN_PROGRESS) m.result = f.test(group.instance(0), &m.op);
    }
  }
  for (const Message& m : sent) {
    ASSERT_TRUE(m.result == WEIR_OK || m.result == WEIR_IN_PROGRESS) << group.error_of(0);
  }
  // Within a lane they complete in the order in which they were posted.
  std::vector<size_t> told(kLanes);
  for (size_t i = 0; i < sent.size(); ++i) {
    if (sent[i].result == WEIR_OK) told[sent[i].lane] = i + 1;
  }
  for (size_t i = 0; i < sent.size(); ++i) sent[i].told = i < told[sent[i].lane];
  for (const bool all : {false, true}) {
    for (size_t i = 0; i < sent.size(); ++i) {
      const Message& m = sent[i];
      if (m.told == all) continue;
      std::vector<unsigned char> data(m.data.size());
      weir_transport_op_t op{};
      weir_result_t result = f.recv(group.instance(1), 0, m.lane, data.data(), data.size(), &op);
      result = all ? group.wait(1, &op, result, {0, 1}) : group.wait(1, &op, result, {1});
      ASSERT_EQ(result, WEIR_OK) << "message " << i << " of " << sent.size()
                                 << (all ? "" : ", told sent") << " on lane " << m.lane << ": "
                                 << group.error_of(1);
      ASSERT_EQ(data, m.data);
    }
  }
  for (Message& m : sent) {
    EXPECT_EQ(group.wait(0, &m.op, m.result, {0, 1}), WEIR_OK) << group.error_of(0);
  }
}

// A receiver's queue gives room back by halves, so it matters how many messages came before.
void expect_credit(const weir_transport_functions_t* functions, uint32_t rank_count) {
  Group group(functions, rank_count);
  ASSERT_TRUE(group.joined);
  const auto& f = group.f;
  uint64_t number = 0;
  for (const uint32_t before : {0u, 31u, 1u, 63u, 64u, 65u, 17u, 127u, 130u}) {
    for (uint32_t i = 0; i < before; ++i) {
      weir_transport_op_t send_op{}, recv_op{};
      const uint64_t out = ++number;
      uint64_t in = 0;
      const weir_result_t posted = f.recv(group.instance(0), 1, 0, &in, sizeof in, &recv_op);
      const weir_result_t result = f.send(group.instance(1), 0, 0, &out, sizeof out, &send_op);
      ASSERT_EQ(group.wait(0, &recv_op, posted, {0, 1}), WEIR_OK) << group.error_of(0);
      ASSERT_EQ(group.wait(1, &send_op, result, {1}), WEIR_OK) << group.error_of(1);
      ASSERT_EQ(in, out);
    }
    std::vector<unsigned char> data(1024);
    for (uint32_t from = 1; from < rank_count; ++from) {
      for (uint32_t i = 0; i < functions->caps.credit * kLanes; ++i) {
        std::fill(data.begin(), data.end(), static_cast<unsigned char>(from * 100 + i));
        weir_transport_op_t op{};
        const weir_result_t posted =
            f.send(group.instance(from), 0, i % kLanes, data.data(), data.size(), &op);
        ASSERT_EQ(group.wait(from, &op, posted, {from}), WEIR_OK)
            << "send " << i << " of rank " << from << " after " << before
            << " others: " << group.error_of(from);
      }
    }
    for (uint32_t from = 1; from < rank_count; ++from) {
      for (uint32_t i = 0; i < functions->caps.credit * kLanes; ++i) {
        weir_transport_op_t op{};
        const weir_result_t posted =
            f.recv(group.instance(0), from, i % kLanes, data.data(), data.size(), &op);
        ASSERT_EQ(group.wait(0, &op, posted, {0}), WEIR_OK) << group.error_of(0);
        ASSERT_EQ(data.front(), static_cast<unsigned char>(from * 100 + i));
        ASSERT_EQ(data.back(), data.front());
      }
    }
  }
}

TEST_F(UcxRoom, TheCreditOfAllLanesIsSentThoughTheReceiverMakesNoCall) {
  expect_credit(functions_, 2);
}

TEST_F(UcxRoom, SoIsThatOfTwoRanksAtOnce) { expect_credit(functions_, 3); }

}  // namespace
}  // namespace weir::plugins
