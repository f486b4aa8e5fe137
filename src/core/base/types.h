// SPDX-License-Identifier: Apache-2.0
// The vocabulary of collectives: element types, folds, operation kinds. Values of DataType and of
// the user's reduction are those of weir.h (and so of NCCL). Plain values; no thread rule.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weir {

using Rank = uint32_t;

enum class DataType : uint8_t {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
  kFloat8E4M3 = 10,
  kFloat8E5M2 = 11,
};
inline constexpr uint32_t kDataTypeCount = 12;

// The binary operation of a reduction. Average is a sum with a divisor, the pre-multiplied sum a
// sum with a scaled operand: neither needs its own fold.
enum class Fold : uint8_t { kSum = 0, kProd = 1, kMax = 2, kMin = 3 };
inline constexpr uint32_t kFoldCount = 4;

// What a fold of floating-point numbers does with overflow of fp8 and with NaN: engine/reduce.h.
enum class Arithmetic : uint8_t { kIeee, kNccl };

enum class Collective : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kBarrier,
  kSendRecv,
};
inline constexpr uint32_t kCollectiveCount = 10;

// Whether one rank's buffer is the source or the destination of all data.
constexpr bool is_rooted(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce ||
         collective == Collective::kGather || collective == Collective::kScatter;
}

constexpr size_t element_bytes(DataType type) {
  switch (type) {
    case DataType::kInt8:
    case DataType::kUint8:
    case DataType::kFloat8E4M3:
    case DataType::kFloat8E5M2:
      return 1;
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return 2;
    case DataType::kInt32:
    case DataType::kUint32:
    case DataType::kFloat32:
      return 4;
    case DataType::kInt64:
    case DataType::kUint64:
    case DataType::kFloat64:
      return 8;
  }
  return 0;
}

const char* name_of(DataType type);          // "float32", "bfloat16", "float8_e4m3", …
const char* name_of(Fold fold);              // "sum", "prod", "max", "min"
const char* name_of(Collective collective);  // "all_reduce", "reduce_scatter", …

}  // namespace weir
