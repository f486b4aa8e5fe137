// SPDX-License-Identifier: Apache-2.0
#include "core/comm/collective/scales.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace weir::comm {
namespace {

TEST(Scales, AFactorIsFoundByItsNumberUntilItIsDestroyed) {
  const std::string name = "test";
  Scales scales(name);
  const float half = 0.5f;
  auto made = scales.create(DataType::kFloat32, &half);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made.value(), Scales::kFirst);
  auto found = scales.find(made.value());
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found.value().type, DataType::kFloat32);
  EXPECT_EQ(std::memcmp(found.value().value, &half, sizeof half), 0);
  EXPECT_TRUE(scales.destroy(made.value()).ok());
  EXPECT_EQ(scales.find(made.value()).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(scales.destroy(made.value()).code(), Code::kInvalidArgument);
}

TEST(Scales, TheLowestFreeNumberIsGivenNext) {
  const std::string name = "test";
  Scales scales(name);
  const double two = 2.0;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(scales.create(DataType::kFloat64, &two).value(), Scales::kFirst + i);
  }
  ASSERT_TRUE(scales.destroy(Scales::kFirst + 1).ok());
  EXPECT_EQ(scales.create(DataType::kFloat64, &two).value(), Scales::kFirst + 1);
}

TEST(Scales, NumbersThatWereNotGivenAndTooManyAreRefused) {
  const std::string name = "test";
  Scales scales(name);
  const float one = 1.0f;
  for (const int op : {-1, 0, Scales::kFirst - 1, Scales::kFirst, 1 << 30}) {
    const Status status = scales.find(op).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << op;
    EXPECT_NE(status.text().find("'test'"), std::string::npos) << status.text();
  }
  for (size_t i = 0; i < Scales::kCountMax; ++i) {
    ASSERT_TRUE(scales.create(DataType::kFloat32, &one).ok());
  }
  EXPECT_EQ(scales.create(DataType::kFloat32, &one).status().code(), Code::kNoMemory);
}

}  // namespace
}  // namespace weir::comm
