// SPDX-License-Identifier: Apache-2.0
// Inputs whose reduction is known in advance, whatever the order of the additions, and the count of
// the elements that differ from it.
//
// Element i of rank r's send buffer depends on (r, i, iteration). For reductions it is a small
// number chosen so that every partial result is exact in the type (so also with one rounding per
// step, and in half precision or fp8); for operations that only move data it is arbitrary bits.
// Values repeat with a prime period, so that a block that lands a power of two away from its place
// is detected, and filling and checking run at memory speed. Not thread-safe (tables are made on
// first use); one per rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "perf/harness/element.h"

namespace weir::perf {

struct Mismatch {
  size_t index = 0;  // element within the checked range
  uint64_t expected_bits = 0;
  uint64_t actual_bits = 0;
};

class Pattern {
 public:
  static constexpr size_t kPeriod = 4093;
  static constexpr int kReduced = -1;  // as `source`: the reduction over all ranks

  Pattern(const ElementType& type, Reduction reduction, int rank_count);

  // dst[k] = element first_index + k of rank `source`'s input, or of the reduced result.
  void fill(void* dst, int source, size_t first_index, size_t count, uint64_t iteration);

  // How many of data[0..count) differ from the values that fill() would write. *first is the index
  // of the first one.
  size_t count_wrong(const void* data, int source, size_t first_index, size_t count,
                     uint64_t iteration, Mismatch* first);

  // The factor of `rank` in the pre-multiplied sum, as one element in the low bytes.
  uint64_t factor_bits(int rank) const;

  const ElementType& type() const { return type_; }
  Reduction reduction() const { return reduction_; }

 private:
  // Two periods long, so that a run of one period starts anywhere.
  const std::vector<uint8_t>& table(int source);
  double input_value(int rank, size_t k) const;
  uint64_t input_bits(int rank, size_t k) const;
  uint64_t reduced_bits(size_t k) const;

  const ElementType& type_;
  Reduction reduction_;
  int rank_count_;
  std::unordered_map<int, std::vector<uint8_t>> tables_;
};

}  // namespace weir::perf
