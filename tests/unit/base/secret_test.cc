// SPDX-License-Identifier: Apache-2.0
#include "core/base/secret.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

namespace weir {
namespace {

std::string hex(const std::array<unsigned char, 32>& bytes) {
  std::string text;
  for (const unsigned char byte : bytes) {
    text.push_back("0123456789abcdef"[byte >> 4]);
    text.push_back("0123456789abcdef"[byte & 15]);
  }
  return text;
}

// HMAC pads a key to a block with zeros, so a shorter key is the same as one padded to 32 bytes,
// and it hashes a key longer than a block, as secret_from_text does.
Secret key(const std::string& bytes) {
  if (bytes.size() > 64) return secret_from_text(bytes);
  Secret secret;
  std::copy(bytes.begin(), bytes.end(), secret.bytes.begin());
  return secret;
}

TEST(Secret, SignsTheVectorsOfRfc4231) {
  std::string count_to_25;
  for (char byte = 1; byte <= 25; ++byte) count_to_25.push_back(byte);
  const struct {
    std::string key, message, mac;
  } vectors[] = {
      {std::string(20, '\x0b'), "Hi There",
       "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {"Jefe", "what do ya want for nothing?",
       "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {std::string(20, '\xaa'), std::string(50, '\xdd'),
       "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
      {count_to_25, std::string(50, '\xcd'),
       "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
      {std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First",
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
      {std::string(131, '\xaa'),
       "This is a test using a larger than block-size key and a larger than block-size data. The "
       "key needs to be hashed before being used by the HMAC algorithm.",
       "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
  };
  for (const auto& vector : vectors) {
    EXPECT_EQ(hex(key(vector.key).sign(vector.message)), vector.mac) << vector.message;
  }
}

TEST(Secret, OfTextIsItsSha256) {
  // FIPS 180-4, "abc".
  EXPECT_EQ(hex(secret_from_text("abc").bytes),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Secret, DerivesTheSameForTheSameLabelAndAnotherForAnother) {
  const Secret secret = secret_from_text("a job");
  EXPECT_EQ(secret.derive("split 1").bytes, secret.derive("split 1").bytes);
  EXPECT_NE(secret.derive("split 1").bytes, secret.derive("split 2").bytes);
  EXPECT_NE(secret.derive("split 1").bytes, secret_from_text("b job").derive("split 1").bytes);
  EXPECT_NE(secret.public_id(), secret_from_text("b job").public_id());
}

TEST(Secret, RandomOnesDiffer) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    Result<Secret> secret = Secret::random();
    ASSERT_TRUE(secret.ok()) << secret.status().text();
    EXPECT_TRUE(seen.insert(hex(secret.value().bytes)).second);
  }
}

TEST(Secret, ComparisonSeesEveryBit) {
  const auto a = secret_from_text("a").bytes;
  EXPECT_TRUE(equal_in_constant_time(a.data(), a.data(), a.size()));
  for (size_t bit = 0; bit < a.size() * 8; ++bit) {
    auto b = a;
    b[bit / 8] = static_cast<unsigned char>(b[bit / 8] ^ (1u << (bit % 8)));
    EXPECT_FALSE(equal_in_constant_time(a.data(), b.data(), a.size())) << bit;
  }
}

}  // namespace
}  // namespace weir
