// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/pattern.h"

#include <algorithm>
#include <cstring>

namespace weir::perf {
namespace {

// splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t hash_of(size_t k, uint64_t salt) { return mix(mix(k + 1) ^ (salt * 0xd6e8feb86659fd93u)); }

uint64_t low_bytes(uint64_t bits, size_t bytes) {
  return bytes == 8 ? bits : bits & ((uint64_t{1} << (bytes * 8)) - 1);
}

size_t start_of(size_t first_index, uint64_t iteration) {
  return (first_index + static_cast<size_t>(iteration % Pattern::kPeriod) * 1021) %
         Pattern::kPeriod;
}

// Ranks take turns, in an order whose start depends on k: the first `contributor_count` ranks carry
// a value and the others are neutral. This bounds every partial result for any number of ranks.
bool contributes(int rank, size_t k, int rank_count, uint64_t contributor_count) {
  const uint64_t turn =
      (static_cast<uint64_t>(rank) + hash_of(k, 11)) % static_cast<uint64_t>(rank_count);
  return turn < contributor_count;
}

}  // namespace

Pattern::Pattern(const ElementType& type, Reduction reduction, int rank_count)
    : type_(type), reduction_(reduction), rank_count_(rank_count) {}

double Pattern::input_value(int rank, size_t k) const {
  const auto n = static_cast<uint64_t>(rank_count_);
  const auto budget = static_cast<uint64_t>(type_.exact_max);
  const uint64_t own = hash_of(k, 101 + static_cast<uint64_t>(rank));
  const double sign = type_.is_signed && (hash_of(k, 7) & 1) != 0 ? -1 : 1;
  switch (reduction_) {
    case Reduction::kNone:
      return 0;
    case Reduction::kSum:
      // One sign per element: partial sums only grow, so the budget bounds them all.
      if (budget / n >= 2) return sign * static_cast<double>(own % (budget / n + 1));
      return contributes(rank, k, rank_count_, hash_of(k, 13) % (std::min(budget, n) + 1)) ? sign
                                                                                           : 0;
    case Reduction::kMulSum:
      // Factors are 1 and 2 (factor_bits), so the inputs use only half of the budget.
      if (budget / n >= 4) return sign * static_cast<double>(own % (budget / n / 2 + 1));
      return contributes(rank, k, rank_count_, hash_of(k, 13) % (std::min(budget / 2, n) + 1))
                 ? sign
                 : 0;
    case Reduction::kProd: {
      // Powers of two with a bounded sum of exponents, one factor of 3, and signs: exact everywhere
      // with two significant bits. Integers wrap, with the same result in any order.
      const uint64_t twos =
          std::min<uint64_t>(type_.is_float ? static_cast<uint64_t>(type_.exponent_max) - 2 : 5, n);
      double value = contributes(rank, k, rank_count_, hash_of(k, 17) % (twos + 1)) ? 2 : 1;
      if (hash_of(k, 19) % n == static_cast<uint64_t>(rank) && (hash_of(k, 23) & 1) != 0) value = 3;
      if (type_.is_signed && (own & 1) != 0) value = -value;
      return value;
    }
    case Reduction::kMax:
    case Reduction::kMin: {
      const auto magnitude = static_cast<double>(own % (budget + 1));
      return type_.is_signed && ((own >> 40) & 1) != 0 ? -magnitude : magnitude;
    }
    case Reduction::kAvg: {
      if (!type_.is_float) {
        // Any sum that does not overflow: the truncation is part of what is checked.
        const uint64_t share = budget / n;
        if (share >= 1) return sign * static_cast<double>(own % (share + 1));
        return contributes(rank, k, rank_count_, hash_of(k, 13) % (budget + 1)) ? sign : 0;
      }
      // The sum is rank_count × mean, so that the quotient is exact however it is computed:
      // neighbours differ from the mean by +delta and -delta.
      const uint64_t share = budget / n;
      const bool paired = (rank ^ 1) < rank_count_;
      const double side = rank % 2 == 0 ? sign : -sign;
      if (share == 0) {  // a few pairs of +1 and -1
        return paired && contributes(rank / 2, k, rank_count_ / 2, budget) ? side : 0;
      }
      const uint64_t mean = hash_of(k, 29) % (share == 1 ? 2 : share / 2 + 1);
      uint64_t delta = hash_of(k, 31 + static_cast<uint64_t>(rank / 2)) % (share - mean + 1);
      if (delta > mean)
        delta = mean;  // no element crosses zero: partial sums stay within the budget
      return sign * static_cast<double>(mean) + (paired ? side * static_cast<double>(delta) : 0);
    }
  }
  return 0;
}

uint64_t Pattern::input_bits(int rank, size_t k) const {
  if (reduction_ == Reduction::kNone) {
    return low_bytes(hash_of(k, 1001 + static_cast<uint64_t>(rank)), type_.bytes);
  }
  return low_bytes(encode_exact(type_, input_value(rank, k)), type_.bytes);
}

uint64_t Pattern::factor_bits(int rank) const {
  return low_bytes(encode_exact(type_, 1 + rank % 2), type_.bytes);
}

uint64_t Pattern::reduced_bits(size_t k) const {
  // Doubles hold every intermediate result here exactly, except wrapping integer products.
  double value = input_value(0, k);
  auto wrapped = static_cast<uint64_t>(static_cast<int64_t>(value));
  for (int rank = 1; rank < rank_count_; ++rank) {
    const double operand = input_value(rank, k);
    switch (reduction_) {
      case Reduction::kNone:
        break;
      case Reduction::kSum:
      case Reduction::kAvg:
        value += operand;
        break;
      case Reduction::kMulSum:
        value += operand * (1 + rank % 2);
        break;
      case Reduction::kProd:
        value *= operand;
        wrapped *= static_cast<uint64_t>(static_cast<int64_t>(operand));
        break;
      case Reduction::kMax:
        value = std::max(value, operand);
        break;
      case Reduction::kMin:
        value = std::min(value, operand);
        break;
    }
  }
  if (reduction_ == Reduction::kProd && !type_.is_float) return low_bytes(wrapped, type_.bytes);
  if (reduction_ == Reduction::kAvg) value /= rank_count_;  // integers: encode_exact truncates
  return low_bytes(encode_exact(type_, value), type_.bytes);
}

const std::vector<uint8_t>& Pattern::table(int source) {
  std::vector<uint8_t>& bytes = tables_[source];
  if (!bytes.empty()) return bytes;
  const size_t element_bytes = type_.bytes;
  bytes.resize(2 * kPeriod * element_bytes);
  for (size_t k = 0; k < kPeriod; ++k) {
    const uint64_t bits = source == kReduced ? reduced_bits(k) : input_bits(source, k);
    std::memcpy(&bytes[k * element_bytes], &bits, element_bytes);
    std::memcpy(&bytes[(kPeriod + k) * element_bytes], &bits, element_bytes);
  }
  return bytes;
}

void Pattern::fill(void* dst, int source, size_t first_index, size_t count, uint64_t iteration) {
  const std::vector<uint8_t>& bytes = table(source);
  const uint8_t* run = &bytes[start_of(first_index, iteration) * type_.bytes];
  auto* out = static_cast<uint8_t*>(dst);
  while (count > 0) {
    const size_t now = std::min(count, kPeriod);
    std::memcpy(out, run, now * type_.bytes);
    out += now * type_.bytes;
    count -= now;
  }
}

size_t Pattern::count_wrong(const void* data, int source, size_t first_index, size_t count,
                            uint64_t iteration, Mismatch* first) {
  const std::vector<uint8_t>& bytes = table(source);
  const uint8_t* run = &bytes[start_of(first_index, iteration) * type_.bytes];
  const auto* in = static_cast<const uint8_t*>(data);
  const auto differs = [&](size_t offset) {
    const uint8_t* actual = in + offset * type_.bytes;
    const uint8_t* expected = run + (offset % kPeriod) * type_.bytes;
    if (std::memcmp(actual, expected, type_.bytes) == 0) return false;
    if (!type_.is_float || reduction_ == Reduction::kNone) return true;
    uint64_t actual_bits = 0;
    uint64_t expected_bits = 0;
    std::memcpy(&actual_bits, actual, type_.bytes);
    std::memcpy(&expected_bits, expected, type_.bytes);
    // Zero has two signs, and the sign of a sum of zeros is unspecified.
    return decode(type_, actual_bits) != decode(type_, expected_bits);
  };
  size_t wrong = 0;
  for (size_t done = 0; done < count; done += kPeriod) {
    const size_t now = std::min(count - done, kPeriod);
    if (std::memcmp(in + done * type_.bytes, run, now * type_.bytes) == 0) continue;
    for (size_t i = done; i < done + now; ++i) {
      if (!differs(i)) continue;
      if (wrong == 0 && first != nullptr) {
        first->index = i;
        first->expected_bits = 0;
        first->actual_bits = 0;
        std::memcpy(&first->expected_bits, run + (i % kPeriod) * type_.bytes, type_.bytes);
        std::memcpy(&first->actual_bits, in + i * type_.bytes, type_.bytes);
      }
      ++wrong;
    }
  }
  return wrong;
}

}  // namespace weir::perf
