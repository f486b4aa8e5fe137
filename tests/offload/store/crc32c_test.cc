// SPDX-License-Identifier: Apache-2.0
#include "offload/store/crc32c.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace weir::offload {
namespace {

TEST(Crc32c, IsThatOfTheInternetStandard) {
  // RFC 3720, appendix B.4.
  std::vector<unsigned char> bytes(32, 0);
  EXPECT_EQ(crc32c(bytes.data(), 32), 0x8a9136aau);
  bytes.assign(32, 0xff);
  EXPECT_EQ(crc32c(bytes.data(), 32), 0x62a8ab43u);
  for (unsigned i = 0; i < 32; ++i) bytes[i] = static_cast<unsigned char>(i);
  EXPECT_EQ(crc32c(bytes.data(), 32), 0x46dd794eu);
  EXPECT_EQ(crc32c("123456789", 9), 0xe3069283u);
  EXPECT_EQ(crc32c_portable("123456789", 9), 0xe3069283u);
}

TEST(Crc32c, IsTheSameByInstructionAndByTableForEveryLengthAndAlignment) {
  std::mt19937_64 random(1);
  std::vector<unsigned char> bytes(20'000);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  for (size_t length = 0; length < 300; ++length) {
    for (size_t offset = 0; offset < 9; ++offset) {
      ASSERT_EQ(crc32c(bytes.data() + offset, length),
                crc32c_portable(bytes.data() + offset, length));
    }
  }
  for (size_t length = 3000; length < 19'000; length += 61) {
    ASSERT_EQ(crc32c(bytes.data() + length % 8, length),
              crc32c_portable(bytes.data() + length % 8, length));
  }
}

TEST(Crc32c, GoesOnWhereItStopped) {
  std::vector<unsigned char> bytes(10'000);
  std::mt19937_64 random(2);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  const uint32_t whole = crc32c(bytes.data(), bytes.size());
  for (size_t cut = 0; cut <= bytes.size(); cut += 777) {
    EXPECT_EQ(crc32c(bytes.data() + cut, bytes.size() - cut, crc32c(bytes.data(), cut)), whole);
  }
}

}  // namespace
}  // namespace weir::offload
