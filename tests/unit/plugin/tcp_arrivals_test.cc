// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "plugins/tcp/arrivals.h"

namespace weir::plugins::tcp {
namespace {

using Found = std::vector<std::pair<uint32_t, uint32_t>>;

Found collect(Arrivals* arrivals) {
  Found found;
  arrivals->collect([&](const Arrivals::Connection& one) {
    found.emplace_back(one.peer, one.rail * 2 + (one.is_control ? 1 : 0));
  });
  std::sort(found.begin(), found.end());
  return found;
}

TEST(TcpArrivals, TellsOfWhatArrivedSinceTheLastCall) {
  constexpr uint32_t kPeers = 200;  // more than one call of epoll finds
  Arrivals arrivals;
  std::vector<int> near, far;
  for (uint32_t i = 0; i < kPeers; ++i) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    near.push_back(ends[0]);
    far.push_back(ends[1]);
    arrivals.watch(ends[0], {i, 7, i % 2 == 1});
  }
  ASSERT_TRUE(arrivals.is_complete());
  EXPECT_EQ(collect(&arrivals), Found());
  ASSERT_EQ(write(far[3], "abc", 3), 3);
  ASSERT_EQ(write(far[6], "abc", 3), 3);
  EXPECT_EQ(collect(&arrivals), (Found{{3, 15}, {6, 14}}));
  // What is left unread is not told again, but what comes to it is.
  EXPECT_EQ(collect(&arrivals), Found());
  ASSERT_EQ(write(far[3], "d", 1), 1);
  EXPECT_EQ(collect(&arrivals), (Found{{3, 15}}));
  // The end of a connection, too.
  for (const int fd : far) close(fd);
  EXPECT_EQ(collect(&arrivals).size(), kPeers);
  for (const int fd : near) close(fd);
  EXPECT_EQ(collect(&arrivals), Found());
}

TEST(TcpArrivals, KnowsThatItMissesAConnection) {
  Arrivals arrivals;
  arrivals.watch(-1, {0, 0, false});
  EXPECT_FALSE(arrivals.is_complete());
}

}  // namespace
}  // namespace weir::plugins::tcp
