// SPDX-License-Identifier: Apache-2.0
// The arithmetic of reductions is that of NCCL's kernels: fp8 saturates, for every pair of values,
// and max and min ignore NaN.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "nccl/support.h"

namespace weir::nccl::test {
namespace {

// An 8-bit float, by its specification: sign, kExponent, kMantissa.
struct Format {
  ncclDataType_t type;
  int mantissa;
  int bias;
  int largest;   // code of the largest number; those above are infinity or NaN
  int infinity;  // -1: none
};
constexpr Format kE4M3{ncclFloat8e4m3, 3, 7, 0x7e, -1};
constexpr Format kE5M2{ncclFloat8e5m2, 2, 15, 0x7b, 0x7c};

double value_of(const Format& format, int code) {
  const int magnitude = code & 0x7f;
  const double sign = (code & 0x80) != 0 ? -1 : 1;
  if (magnitude == format.infinity) return sign * std::numeric_limits<double>::infinity();
  if (magnitude > format.largest) return std::nan("");
  const int exponent = magnitude >> format.mantissa;
  const int fraction = magnitude & ((1 << format.mantissa) - 1);
  const int whole = exponent == 0 ? 0 : 1 << format.mantissa;
  const int scale = (exponent == 0 ? 1 : exponent) - format.bias - format.mantissa;
  return sign * std::ldexp(whole + fraction, scale);
}

// The nearest number, of two the even one; beyond the largest, the largest. By trying all.
int code_of(const Format& format, double value) {
  if (std::isnan(value)) return 0x7f;
  const int sign = std::signbit(value) ? 0x80 : 0;
  int best = 0;
  for (int code = 1; code <= format.largest; ++code) {
    const double off = std::abs(value_of(format, code) - std::abs(value));
    const double of_best = std::abs(value_of(format, best) - std::abs(value));
    if (off < of_best || (off == of_best && code % 2 == 0)) best = code;
  }
  // (Infinity is as far from every number.)
  if (std::abs(value) > value_of(format, format.largest)) best = format.largest;
  return best | sign;
}

// Of numbers; -0 is less than +0.
double larger(double a, double b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}

double expected(ncclRedOp_t op, double a, double b) {
  if (op == ncclSum) return a + b;
  if (op == ncclProd) return a * b;
  return op == ncclMax ? larger(a, b) : -larger(-a, -b);
}

// One element of each of two ranks, reduced.
template <typename T>
std::vector<T> reduced(const std::vector<T>& a, const std::vector<T>& b, ncclDataType_t type,
                       ncclRedOp_t op) {
  static const AllRanks ranks(2);
  std::vector<T> out[2] = {std::vector<T>(a.size()), std::vector<T>(a.size())};
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclAllReduce(a.data(), out[0].data(), a.size(), type, op, ranks[0], nullptr));
  EXPECT_NCCL(ncclAllReduce(b.data(), out[1].data(), a.size(), type, op, ranks[1], nullptr));
  EXPECT_NCCL(ncclGroupEnd());
  EXPECT_EQ(std::memcmp(out[0].data(), out[1].data(), a.size() * sizeof(T)), 0);
  return out[0];
}

TEST(NcclArithmetic, EveryPairOfFp8ValuesGivesWhatNcclGives) {
  std::vector<unsigned char> a(65536);
  std::vector<unsigned char> b(65536);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<unsigned char>(i / 256);
    b[i] = static_cast<unsigned char>(i % 256);
  }
  for (const Format& format : {kE4M3, kE5M2}) {
    for (const ncclRedOp_t op : {ncclSum, ncclProd, ncclMax, ncclMin}) {
      const auto out = reduced(a, b, format.type, op);
      size_t wrong = 0;
      for (size_t i = 0; i < out.size() && wrong < 5; ++i) {
        const int wanted =
            code_of(format, expected(op, value_of(format, a[i]), value_of(format, b[i])));
        if (out[i] == wanted) continue;
        ++wrong;
        ADD_FAILURE() << "type " << format.type << ", op " << op << ": " << int{a[i]} << " and "
                      << int{b[i]} << " gave " << int{out[i]} << ", not " << wanted;
      }
    }
  }
}

TEST(NcclArithmetic, TheLargestFp8NumbersStayTheLargest) {
  // 448 + 448, -448 - 448, 448 * 448 in e4m3; the same of 57344 in e5m2.
  EXPECT_EQ(reduced<unsigned char>({0x7e, 0xfe}, {0x7e, 0xfe}, ncclFloat8e4m3, ncclSum),
            (std::vector<unsigned char>{0x7e, 0xfe}));
  EXPECT_EQ(reduced<unsigned char>({0x7e, 0xfe}, {0x7e, 0x7e}, ncclFloat8e4m3, ncclProd),
            (std::vector<unsigned char>{0x7e, 0xfe}));
  EXPECT_EQ(reduced<unsigned char>({0x7b, 0xfb}, {0x7b, 0xfb}, ncclFloat8e5m2, ncclSum),
            (std::vector<unsigned char>{0x7b, 0xfb}));
}

// Numbers of each kind as bits, with NaN in every place.
template <typename T>
void expect_nan_is_ignored(ncclDataType_t type, T one, T two, T nan, T canonical_nan) {
  const std::vector<T> a = {nan, one, nan, two, one};
  const std::vector<T> b = {one, nan, nan, one, two};
  EXPECT_EQ(reduced(a, b, type, ncclMax), (std::vector<T>{one, one, canonical_nan, two, two}));
  EXPECT_EQ(reduced(a, b, type, ncclMin), (std::vector<T>{one, one, canonical_nan, one, one}));
}

TEST(NcclArithmetic, MaximumAndMinimumIgnoreNan) {
  expect_nan_is_ignored<uint16_t>(ncclFloat16, 0x3c00, 0x4000, 0xfe01, 0x7e00);
  expect_nan_is_ignored<uint16_t>(ncclBfloat16, 0x3f80, 0x4000, 0xffc1, 0x7fc0);
  expect_nan_is_ignored<uint32_t>(ncclFloat32, 0x3f800000, 0x40000000, 0xffc00001, 0x7fc00000);
  expect_nan_is_ignored<uint64_t>(ncclFloat64, 0x3ff0000000000000, 0x4000000000000000,
                                  0xfff8000000000001, 0x7ff8000000000000);
}

// Sums are as everywhere: NaN gives NaN, and what has infinity overflows to it.
TEST(NcclArithmetic, SumsOfWiderTypesOverflowToInfinityAndKeepNan) {
  EXPECT_EQ(reduced<uint16_t>({0x7bff, 0x7e00}, {0x7bff, 0x3c00}, ncclFloat16, ncclSum),
            (std::vector<uint16_t>{0x7c00, 0x7e00}));
  EXPECT_EQ(reduced<uint32_t>({0x7f7fffff, 0x7fc00000}, {0x7f7fffff, 0}, ncclFloat32, ncclSum),
            (std::vector<uint32_t>{0x7f800000, 0x7fc00000}));
}

}  // namespace
}  // namespace weir::nccl::test
