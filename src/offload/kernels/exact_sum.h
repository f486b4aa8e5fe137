// SPDX-License-Identifier: Apache-2.0
// ExactSum: the sum of non-negative doubles without rounding, so that it does not depend on the
// order of its terms: threads, chunks and ranks may be added in any order, and the result, rounded
// once, has the same bits. A fixed-point number of 40 limbs; adding takes a few instructions.
// Infinity and NaN are kept: once added, they are the value. One thread at a time per object.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/base/check.h"

namespace weir::offload {

class ExactSum {
  __extension__ using Wide = unsigned __int128;

 public:
  // value >= 0, infinite or NaN; below 2^-639 it counts as zero, from 2^544 on as infinite.
  void add(double value) {
    const uint64_t bits = std::bit_cast<uint64_t>(value);
    const int exponent = static_cast<int>(bits >> 52) - 1075;  // of the mantissa's unit
    if (value == 0) return;
    if (!(value > 0) || exponent > kExponentMax) {
      special_ = !(value >= 0) || special_ != special_ ? kNan : kInfinity;
      return;
    }
    if (exponent < kExponentMin) return;
    const uint64_t mantissa = (bits & ((uint64_t{1} << 52) - 1)) | (uint64_t{1} << 52);
    const uint32_t shift = static_cast<uint32_t>(exponent - kExponentMin);
    const uint32_t limb = shift / kLimbBits;
    const Wide wide = static_cast<Wide>(mantissa) << (shift % kLimbBits);
    limbs_[limb] += static_cast<uint32_t>(wide);
    limbs_[limb + 1] += static_cast<uint32_t>(wide >> 32);
    limbs_[limb + 2] += static_cast<uint32_t>(wide >> 64);
    if (++pending_ == kPendingMax) carry();
  }

  void add(const ExactSum& other) {
    ExactSum copy = other;
    copy.carry();
    for (uint32_t i = 0; i < kLimbs; ++i) limbs_[i] += copy.limbs_[i];
    if (copy.special_ != 0) special_ = special_ != special_ ? special_ : special_ + copy.special_;
    if (++pending_ == kPendingMax) carry();
  }

  // Rounded to nearest even, once.
  double value() const {
    if (special_ != 0) return special_;
    ExactSum sum = *this;
    sum.carry();
    int top = kLimbs - 1;
    while (top >= 0 && sum.limbs_[top] == 0) --top;
    if (top < 0) return 0;
    // 64 bits from the highest set bit on; of the bits below only matters whether any is set.
    Wide wide = 0;
    for (int i = top; i > top - 3; --i) wide = (wide << 32) | (i >= 0 ? sum.limbs_[i] : 0);
    bool rest = false;
    for (int i = top - 3; i >= 0; --i) rest = rest || sum.limbs_[i] != 0;
    const int drop = 32 - std::countl_zero(static_cast<uint32_t>(sum.limbs_[top]));
    uint64_t head = static_cast<uint64_t>(wide >> drop);
    rest = rest || (wide & ((static_cast<Wide>(1) << drop) - 1)) != 0;
    const uint64_t cut = head & 0x7ff;
    head >>= 11;  // 53 bits
    if (cut > 0x400 || (cut == 0x400 && (rest || (head & 1) != 0))) ++head;
    return std::ldexp(static_cast<double>(head), kExponentMin + 32 * (top - 2) + drop + 11);
  }

 private:
  static constexpr int kLimbs = 40;
  static constexpr int kLimbBits = 32;
  static constexpr int kExponentMin = -692;
  static constexpr int kExponentMax = 491;  // the top limb is left to carries
  static constexpr uint32_t kPendingMax = 1u << 30;
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

  void carry() {
    uint64_t over = 0;
    for (uint64_t& limb : limbs_) {
      limb += over;
      over = limb >> 32;
      limb &= 0xffffffffu;
    }
    if (over != 0) special_ = kInfinity;
    pending_ = 0;
  }

  uint64_t limbs_[kLimbs] = {};  // 32 bits each, and room for carries
  uint32_t pending_ = 0;
  double special_ = 0;  // infinity or NaN once one was added
};

}  // namespace weir::offload
