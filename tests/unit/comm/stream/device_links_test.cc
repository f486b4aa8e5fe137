// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/device_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace weir::comm {
namespace {

constexpr Rank kRanks = 8;

// What ranks that are threads gather, which `change` may spoil: the number of the gather, and what
// rank 0 tells.
class Ranks {
 public:
  using Change = std::function<void(int round, std::string* of_rank_0)>;

  std::vector<Result<DeviceLinks>> run(const std::vector<std::string>& devices,
                                       const Change& change = {}) {
    Settings settings;
    settings.topology_file = WEIR_FIXTURES "/rccl-8p-rome-n4.nccl.xml";
    settings.topology_merge = "0";
    std::vector<Result<DeviceLinks>> links(kRanks, Status(Code::kInternal, "it has not run"));
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        int round = 0;
        const auto gather = [&](const void* mine, void* all, size_t bytes) {
          told_[rank].assign(static_cast<const char*>(mine), bytes);
          if (rank == 0 && change) change(round, &told_[0]);
          ++round;
          meet_.arrive_and_wait();
          for (Rank p = 0; p < kRanks; ++p) {
            std::memcpy(static_cast<char*>(all) + p * bytes, told_[p].data(), bytes);
          }
          meet_.arrive_and_wait();
          return Status();
        };
        links[rank] = agree_on_device_links(settings, rank, kRanks, devices[rank], gather);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return links;
  }

 private:
  std::barrier<> meet_{kRanks};
  std::vector<std::string> told_ = std::vector<std::string>(kRanks);
};

std::vector<std::string> all_devices() {
  std::vector<std::string> devices;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    devices.push_back("ffff:00:00.0 " + std::to_string(rank));
  }
  return devices;
}

TEST(AgreedDeviceLinks, AllRanksKnowTheRingsThatRank0Found) {
  const auto links = Ranks().run(all_devices());
  for (const auto& it : links) {
    ASSERT_TRUE(it.ok()) << it.status().text();
    ASSERT_NE(it.value().ways, nullptr);
    EXPECT_TRUE(it.value().ways->rings_are_faster());
    EXPECT_EQ(it.value().ways->rings.orders, links[0].value().ways->rings.orders);
    EXPECT_EQ(it.value().ways->straight_ns_per_byte, links[0].value().ways->straight_ns_per_byte);
  }
  EXPECT_THAT(links[0].value().reason, testing::HasSubstr("along 3 rings"));
}

TEST(AgreedDeviceLinks, NothingIsKnownWhereOneDeviceIsNotInTheTopologyOrNotTold) {
  for (const char* device : {"", "ffff:00:00.0 17"}) {
    std::vector<std::string> devices = all_devices();
    devices[5] = device;
    for (const auto& it : Ranks().run(devices)) {
      ASSERT_TRUE(it.ok()) << it.status().text();
      EXPECT_EQ(it.value().ways, nullptr);
    }
  }
}

TEST(AgreedDeviceLinks, WhatIsNoAnswerIsRefused) {
  // In each case on all ranks alike.
  const auto expect_refused = [](const Ranks::Change& change) {
    for (const auto& it : Ranks().run(all_devices(), change)) {
      ASSERT_FALSE(it.ok());
      EXPECT_EQ(it.status().code(), Code::kRefused);
      EXPECT_THAT(it.status().text(), testing::HasSubstr("rank 0"));
    }
  };
  expect_refused([](int round, std::string* told) {
    if (round == 1) told->replace(3, 1, 1, '\x7f');  // a size beyond all bounds
  });
  expect_refused([](int round, std::string* told) {
    if (round == 1) told->replace(0, 8, std::string("\x08\0\0\0\0\0\0\0", 8));
  });
  for (const size_t at : {size_t{7}, size_t{15}}) {  // negative times
    expect_refused([at](int round, std::string* told) {
      if (round == 2) (*told)[at] = static_cast<char>((*told)[at] | '\x80');
    });
  }
  expect_refused([](int round, std::string* told) {
    if (round == 2) told->back() = '\x7f';  // a rank that is not there
  });
}

}  // namespace
}  // namespace weir::comm
