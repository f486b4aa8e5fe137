// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/element.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace weir::perf {
namespace {

TEST(Element, EveryExactIntegerSurvivesEncodingAndDecoding) {
  for (const ElementType& type : element_types()) {
    const int64_t most = std::min<int64_t>(type.exact_max, 4096);
    for (int64_t value = type.is_signed ? -most : 0; value <= most; ++value) {
      const auto number = static_cast<double>(value);
      EXPECT_EQ(decode(type, encode_exact(type, number)), number) << type.name;
    }
  }
}

TEST(Element, FloatAndDoubleBitsAreTheCompilers) {
  const ElementType& f32 = *find_element_type("float");
  const ElementType& f64 = *find_element_type("double");
  for (const double value : {0.0, 1.0, -1.0, 0.5, 3.0, -1048576.0, 0.1875, 1e-3}) {
    const auto single = static_cast<float>(value);
    EXPECT_EQ(encode_exact(f32, single), std::bit_cast<uint32_t>(single));
    EXPECT_EQ(encode_exact(f64, value), std::bit_cast<uint64_t>(value));
  }
}

TEST(Element, SmallFormatsHaveTheBitsOfTheirStandards) {
  EXPECT_EQ(encode_exact(*find_element_type("half"), 1.0), 0x3c00u);
  EXPECT_EQ(encode_exact(*find_element_type("half"), -2.0), 0xc000u);
  EXPECT_EQ(encode_exact(*find_element_type("bfloat16"), 1.0), 0x3f80u);
  EXPECT_EQ(encode_exact(*find_element_type("f8e4m3"), 1.0), 0x38u);
  EXPECT_EQ(encode_exact(*find_element_type("f8e4m3"), 448.0), 0x7eu);
  EXPECT_EQ(encode_exact(*find_element_type("f8e5m2"), 1.0), 0x3cu);
  EXPECT_TRUE(std::isnan(decode(*find_element_type("f8e4m3"), 0x7f)));
  EXPECT_TRUE(std::isinf(decode(*find_element_type("f8e5m2"), 0x7c)));
}

TEST(Element, NamesAndTheirOtherSpellingsAreFound) {
  EXPECT_EQ(find_element_type("float32"), find_element_type("float"));
  EXPECT_EQ(find_element_type("bf16")->type, WEIR_BFLOAT16);
  EXPECT_EQ(find_element_type("complex"), nullptr);
  Reduction reduction = Reduction::kNone;
  EXPECT_TRUE(find_reduction("mulsum", &reduction));
  EXPECT_EQ(reduction, Reduction::kMulSum);
  EXPECT_FALSE(find_reduction("none", &reduction));
}

}  // namespace
}  // namespace weir::perf
