// SPDX-License-Identifier: Apache-2.0
#include "net/ip_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "net/auth.h"
#include "net/ip_socket.h"

namespace weir::net {
namespace {

IpAddress address(const char* text) {
  IpAddress made;
  made.family = inet_pton(AF_INET, text, made.bytes.data()) == 1 ? 4 : 6;
  if (made.family == 6) {
    EXPECT_EQ(inet_pton(AF_INET6, text, made.bytes.data()), 1) << text;
  }
  return made;
}

TEST(IpAddress, PassesThroughTheKernelsForm) {
  for (const char* text : {"10.0.0.1", "127.0.0.1", "fd00::1:2", "::1"}) {
    sockaddr_storage name;
    to_sockaddr(address(text), 4000, &name);
    EXPECT_EQ(from_sockaddr(reinterpret_cast<const sockaddr*>(&name)), address(text));
    EXPECT_EQ(port_of(name), 4000);
    EXPECT_EQ(to_string(address(text)), text);
  }
  EXPECT_EQ(to_string(address("::1"), 7), "[::1]:7");
}

TEST(IpAddress, WildcardsMulticastAndBroadcastAreNoHosts) {
  for (const char* text : {"0.0.0.0", "224.0.0.1", "255.255.255.255", "::", "ff02::1"}) {
    EXPECT_FALSE(address(text).is_host()) << text;
  }
  EXPECT_FALSE(IpAddress().is_host());
  EXPECT_TRUE(address("192.168.1.7").is_host());
  EXPECT_TRUE(address("::1").is_loopback());
  EXPECT_TRUE(address("127.8.0.1").is_loopback());
  EXPECT_FALSE(address("fd00::1").is_loopback());
}

TEST(IpAddress, SubnetsAreComparedToTheBit) {
  EXPECT_TRUE(same_subnet(address("10.1.2.3"), address("10.1.3.4"), 23));
  EXPECT_FALSE(same_subnet(address("10.1.2.3"), address("10.1.3.4"), 24));
  EXPECT_TRUE(same_subnet(address("10.1.2.3"), address("99.1.3.4"), 0));
  EXPECT_FALSE(same_subnet(address("10.1.2.3"), address("fd00::1"), 0));
  EXPECT_TRUE(same_subnet(address("fd00::1"), address("fd00::ffff"), 112));
  EXPECT_FALSE(same_subnet(address("fd00::1"), address("fd00::1:1"), 112));
}

TEST(IpSocket, AWildcardIsNeverBound) {
  uint16_t port = 0;
  EXPECT_EQ(listen_at(address("0.0.0.0"), &port, 1), -1);
  EXPECT_EQ(errno, EADDRNOTAVAIL);
  EXPECT_EQ(listen_at(address("::"), &port, 1), -1);
}

TEST(IpSocket, AListenerIsReachedAtItsPort) {
  uint16_t port = 0;
  const int listener = listen_at(address("127.0.0.1"), &port, 1);
  ASSERT_GE(listener, 0);
  ASSERT_NE(port, 0);
  const int client = begin_connect(address("127.0.0.1"), port, {});
  ASSERT_GE(client, 0);
  IpAddress from;
  int server = -1;
  for (int i = 0; i < 10'000 && server < 0; ++i) {
    server = accept_from(listener, &from);
    if (server < 0) usleep(100);
  }
  ASSERT_GE(server, 0);
  EXPECT_EQ(connect_error(client), 0);
  EXPECT_EQ(from, address("127.0.0.1"));
  close(server);
  close(client);
  close(listener);
}

TEST(Auth, HmacIsThatOfTheStandard) {
  // RFC 4231, test case 2.
  const Mac mac = hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28);
  const Mac expected = {0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e, 0x6a, 0x04, 0x24,
                        0x26, 0x08, 0x95, 0x75, 0xc7, 0x5a, 0x00, 0x3f, 0x08, 0x9d, 0x27,
                        0x39, 0x83, 0x9d, 0xec, 0x58, 0xb9, 0x64, 0xec, 0x38, 0x43};
  EXPECT_EQ(mac, expected);
  EXPECT_TRUE(equal_in_constant_time(mac.data(), expected.data(), mac.size()));
  Mac other = expected;
  other[31] ^= 1;
  EXPECT_FALSE(equal_in_constant_time(mac.data(), other.data(), mac.size()));
}

}  // namespace
}  // namespace weir::net
