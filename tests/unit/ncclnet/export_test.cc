// SPDX-License-Identifier: Apache-2.0
// libnccl-net-weir.so as NCCL uses it, both ends in one process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdarg>
#include <cstring>

#include "ncclnet/loaded_plugin.h"
#include "net/interfaces.h"
#include "unit/ncclnet/net_end.h"

namespace weir::ncclnet {
namespace {

class EachVersion : public testing::TestWithParam<int> {};

// Messages of many lengths, each into a receive that has room for more, all under way at once.
TEST_P(EachVersion, MovesMessagesThatMayBeShorterThanTheirReceives) {
  in_child([] {
    NetEnd a(GetParam()), b(GetParam());
    join(&a, &b);
    if (testing::Test::HasFailure()) return;
    const std::vector<size_t> sizes = {0, 1, 55, 56, 57, 64, 1000, 4096, 70'000, 1'000'000, 3, 0};
    const size_t room = 1'000'100;
    std::vector<std::vector<unsigned char>> out, in;
    std::vector<void*> sends, receives;
    for (size_t i = 0; i < sizes.size(); ++i) {
      out.emplace_back(sizes[i] + 1);
      for (size_t k = 0; k < sizes[i]; ++k) out[i][k] = static_cast<unsigned char>(k * 7 + i);
      in.emplace_back(room, 0xaa);
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      void* memory = nullptr;
      void* request = nullptr;
      ASSERT_EQ(b.p->register_memory(b.recv_comm, in[i].data(), room, &memory), kSuccess);
      ASSERT_EQ(b.p->irecv(b.recv_comm, in[i].data(), room, memory, &request), kSuccess);
      ASSERT_NE(request, nullptr);
      receives.push_back(request);
      ASSERT_EQ(a.p->register_memory(a.send_comm, out[i].data(), out[i].size(), &memory), kSuccess);
      ASSERT_EQ(a.p->isend(a.send_comm, out[i].data(), sizes[i], memory, &request), kSuccess);
      ASSERT_NE(request, nullptr);
      sends.push_back(request);
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      int sent = -1, got = -1, sent_done = 0, got_done = 0;
      ASSERT_TRUE(until([&] {
        if (sent_done == 0) {
          EXPECT_EQ(a.p->test(sends[i], &sent_done, &sent), kSuccess);
        }
        if (got_done == 0) {
          EXPECT_EQ(b.p->test(receives[i], &got_done, &got), kSuccess);
        }
        return (sent_done != 0 && got_done != 0) || testing::Test::HasFailure();
      }));
      EXPECT_EQ(sent, static_cast<int>(sizes[i]));
      EXPECT_EQ(got, static_cast<int>(sizes[i]));
      EXPECT_EQ(memcmp(in[i].data(), out[i].data(), sizes[i]), 0) << "message " << i;
      EXPECT_EQ(in[i][sizes[i]], 0xaa) << "message " << i;
    }
  });
}
INSTANTIATE_TEST_SUITE_P(NcclNet, EachVersion, testing::Values(8, 9, 10, 11, 12));

const Table<12>& table_of(const NetEnd& end) {
  return *static_cast<const Table<12>*>(end.p->table());
}

TEST(NcclNet, AsManyRequestsAsNcclMayAskForAreUnderWayAndMoreAreToComeAgain) {
  NetEnd a, b;
  join(&a, &b);
  if (HasFatalFailure()) return;
  unsigned char byte = 7;
  std::vector<unsigned char> in(200);
  std::vector<void*> requests;
  void* request = nullptr;
  for (;;) {
    ASSERT_EQ(b.p->irecv(b.recv_comm, &in[requests.size()], 1, nullptr, &request), kSuccess);
    if (request == nullptr || requests.size() == in.size() - 1) break;
    requests.push_back(request);
  }
  EXPECT_GE(requests.size(), static_cast<size_t>(kRequestCountMin));
  EXPECT_EQ(request, nullptr) << "there is no limit";
  for (void* one : requests) {
    int bytes = 0;
    ASSERT_EQ(a.p->isend(a.send_comm, &byte, 1, nullptr, &request), kSuccess);
    ASSERT_NE(request, nullptr);
    ASSERT_EQ(a.finish(request, nullptr), kSuccess);
    ASSERT_EQ(b.finish(one, &bytes), kSuccess);
    EXPECT_EQ(bytes, 1);
  }
  ASSERT_EQ(b.p->irecv(b.recv_comm, in.data(), 1, nullptr, &request), kSuccess);
  EXPECT_NE(request, nullptr) << "the requests that are done were not given back";
}

TEST(NcclNet, MemoryOfTheDeviceIsRefusedWithAText) {
  NetEnd a, b;
  join(&a, &b);
  if (HasFatalFailure()) return;
  DeviceProperties properties;
  ASSERT_EQ(a.p->properties(0, &properties), kSuccess);
  EXPECT_EQ(properties.pointer_kinds, kPointerHost);
  int word = 0;
  void* memory = nullptr;
  EXPECT_EQ(table_of(a).register_memory(a.send_comm, &word, sizeof word, kPointerCuda, &memory),
            kInvalidUsage);
  EXPECT_NE(take_warning().find("only host memory"), std::string::npos);
  EXPECT_EQ(table_of(a).register_dmabuf, nullptr);
}

TEST(NcclNet, AGroupOfReceivesIsRefusedAndAFlushIsNotNeeded) {
  NetEnd a, b;
  join(&a, &b);
  if (HasFatalFailure()) return;
  DeviceProperties properties;
  ASSERT_EQ(b.p->properties(0, &properties), kSuccess);
  EXPECT_EQ(properties.grouped_receives_max, 1);
  int words[2] = {};
  void* data[2] = {&words[0], &words[1]};
  size_t sizes[2] = {4, 4};
  int tags[2] = {}, int_sizes[2] = {4, 4};
  void* memory[2] = {};
  void* events[2] = {};
  void* request = nullptr;
  EXPECT_EQ(table_of(b).irecv(b.recv_comm, 2, data, sizes, tags, memory, events, &request),
            kInternalError);
  EXPECT_NE(take_warning().find("group of 2"), std::string::npos);
  request = &request;
  EXPECT_EQ(table_of(b).iflush(b.recv_comm, 1, data, int_sizes, memory, &request), kSuccess);
  EXPECT_EQ(request, nullptr);
}

TEST(NcclNet, EveryDeviceIsAnInterfaceWithItsSpeed) {
  NetEnd a;
  ASSERT_EQ(a.outcome, kSuccess) << take_warning();
  int count = 0;
  ASSERT_EQ(a.p->devices(&count), kSuccess);
  std::vector<net::Interface> interfaces;
  std::string reason;
  ASSERT_TRUE(net::list_interfaces(net::InterfaceFilter(), &interfaces, &reason)) << reason;
  ASSERT_GE(count, 1);
  for (int i = 0; i < count; ++i) {
    DeviceProperties properties;
    ASSERT_EQ(a.p->properties(i, &properties), kSuccess);
    EXPECT_GT(properties.speed_mbits, 0);
    EXPECT_TRUE(std::any_of(interfaces.begin(), interfaces.end(), [&](const net::Interface& one) {
      return one.name == properties.name &&
             (one.speed_mbits == 0 || static_cast<int>(one.speed_mbits) == properties.speed_mbits);
    })) << properties.name;
  }
  DeviceProperties none;
  EXPECT_EQ(a.p->properties(count, &none), kInternalError);
  EXPECT_EQ(a.p->properties(-1, &none), kInternalError);
}

// With loopback asked for there are two interfaces on any machine that has a network.
TEST(NcclNet, AVirtualDeviceJoinsInterfacesAndConnects) {
  std::vector<net::Interface> interfaces;
  std::string reason;
  ASSERT_TRUE(net::list_interfaces(net::InterfaceFilter(), &interfaces, &reason)) << reason;
  std::vector<std::string> names;
  for (const net::Interface& one : interfaces) {
    if (std::find(names.begin(), names.end(), one.name) == names.end()) names.push_back(one.name);
  }
  if (names.size() < 2) GTEST_SKIP() << "needs two network interfaces";
  in_child([&] {
    setenv("WEIR_IFNAME", ("=" + names[0] + "," + names[1]).c_str(), 1);
    NetEnd a, b;
    ASSERT_EQ(a.outcome, kSuccess) << take_warning();
    const Table<12>& table = table_of(a);
    int count = 0;
    ASSERT_EQ(a.p->devices(&count), kSuccess);
    ASSERT_EQ(count, 2);
    int made = -1;
    VirtualDevice<12> members = {1, {1}};
    ASSERT_EQ(table.make_virtual_device(&made, &members), kSuccess);
    EXPECT_EQ(made, 1) << "of one device it is that device";
    for (const VirtualDevice<12>& bad :
         {VirtualDevice<12>{0, {}}, VirtualDevice<12>{9, {}}, VirtualDevice<12>{2, {0, 0}},
          VirtualDevice<12>{2, {0, 7}}, VirtualDevice<12>{2, {-1, 0}}}) {
      VirtualDevice<12> asked = bad;
      EXPECT_EQ(table.make_virtual_device(&made, &asked), kInvalidUsage);
      EXPECT_NE(take_warning().find("virtual device"), std::string::npos);
    }
    members = {2, {0, 1}};
    ASSERT_EQ(table.make_virtual_device(&made, &members), kSuccess) << take_warning();
    EXPECT_EQ(made, 2);
    Properties<12> properties;
    ASSERT_EQ(table.get_properties(made, &properties), kSuccess);
    EXPECT_EQ(properties.name, names[0] + "+" + names[1]);
    EXPECT_EQ(properties.virtual_device.count, 2);
    members = {2, {2, 0}};
    EXPECT_EQ(table.make_virtual_device(&made, &members), kInvalidUsage) << "of a virtual one";
    ASSERT_EQ(b.p->listen(b.context, 2, b.handle, &b.listen_comm), kSuccess) << take_warning();
    ASSERT_TRUE(until([&] {
      if (a.send_comm == nullptr) {
        EXPECT_EQ(a.p->connect(a.context, 2, b.handle, &a.send_comm), kSuccess) << take_warning();
      }
      EXPECT_EQ(b.accept(), kSuccess) << take_warning();
      return (a.send_comm != nullptr && b.recv_comm != nullptr) || testing::Test::HasFailure();
    }));
  });
}

std::string heard;

void hear(int level, unsigned long, const char*, int, const char* format, ...) {
  if (level != kLogInfo) return;
  va_list arguments;
  va_start(arguments, format);
  char text[500];
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  heard += text;
}

TEST(NcclNet, TheTrafficClassIsTakenAndSaidToBeWithoutEffect) {
  heard.clear();
  NetEnd a;
  ASSERT_EQ(a.outcome, kSuccess);
  CommConfig config = {104};
  void* context = nullptr;
  ASSERT_EQ(table_of(a).init(&context, 5, &config, hear, nullptr), kSuccess);
  EXPECT_NE(heard.find("traffic class 104 has no effect"), std::string::npos) << heard;
  Attributes attributes = {};
  EXPECT_EQ(table_of(a).set_attributes(context, &attributes), kSuccess);
  EXPECT_EQ(table_of(a).finalize(context), kSuccess);
}

}  // namespace
}  // namespace weir::ncclnet
