// SPDX-License-Identifier: Apache-2.0
#include "unit/engine/reduce_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <type_traits>

namespace weir::test {
namespace {

struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;
  uint32_t nan_code;
};

Format format_of(DataType type) {
  switch (type) {
    case DataType::kFloat16:
      return {5, 10, true, 0x7e00};
    case DataType::kBfloat16:
      return {8, 7, true, 0x7fc0};
    case DataType::kFloat8E4M3:
      return {4, 3, false, 0x7f};
    default:
      return {5, 2, true, 0x7f};
  }
}

// Non-negative finite values in order; index = code.
const std::vector<double>& finite_values(DataType type) {
  static std::map<DataType, std::vector<double>> lists;
  std::vector<double>& list = lists[type];
  if (list.empty()) {
    const uint32_t codes = 1u << (format_of(type).exponent_bits + format_of(type).mantissa_bits);
    for (uint32_t code = 0; code < codes; ++code) {
      const double value = decode_small_float(type, code);
      if (!std::isfinite(value)) break;
      list.push_back(value);
    }
  }
  return list;
}

template <typename T>
T fold_two(Fold fold, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    switch (fold) {
      case Fold::kSum:
        return a + b;
      case Fold::kProd:
        return a * b;
      case Fold::kMax:
        if (a == b) return std::signbit(a) ? b : a;
        return a > b ? a : b;
      case Fold::kMin:
        if (a == b) return std::signbit(a) ? a : b;
        return a < b ? a : b;
    }
  } else {
    switch (fold) {
      case Fold::kSum:
        return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
      case Fold::kProd:
        return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
      case Fold::kMax:
        return a > b ? a : b;
      case Fold::kMin:
        return a < b ? a : b;
    }
  }
  return a;
}

template <typename T>
T divide(T value, uint32_t divisor) {
  if constexpr (std::is_floating_point_v<T>) {
    return value / static_cast<T>(divisor);
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<T>(static_cast<int64_t>(value) / static_cast<int64_t>(divisor));
  } else {
    return static_cast<T>(static_cast<uint64_t>(value) / divisor);
  }
}

template <typename T>
T load(const void* from, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const uint8_t*>(from) + index * sizeof(T), sizeof(T));
  return value;
}

// `Read` and `Write` convert between what is stored and what is computed with.
template <typename Stored, typename Read, typename Write>
std::vector<uint8_t> reduce_as(Fold fold, const ReduceArgs& args, Read read, Write write) {
  std::vector<uint8_t> out(args.element_count * sizeof(Stored));
  const bool copy = args.source_count == 1 && args.scaled_source == kNoSource && args.divisor == 1;
  for (size_t i = 0; i < args.element_count; ++i) {
    const auto operand = [&](uint32_t s) {
      auto value = read(load<Stored>(args.sources[s], i));
      if (s == args.scaled_source) {
        value = fold_two(Fold::kProd, value, read(load<Stored>(args.scale, 0)));
        if constexpr (std::is_floating_point_v<decltype(value)>) {
          if (!std::isnan(value)) value = read(static_cast<Stored>(write(value)));
        }
      }
      return value;
    };
    auto total = operand(0);
    for (uint32_t s = 1; s < args.source_count; ++s) total = fold_two(fold, total, operand(s));
    if (args.divisor != 1) total = divide(total, args.divisor);
    if constexpr (std::is_floating_point_v<decltype(total)>) {
      if (std::isnan(total)) total = std::numeric_limits<decltype(total)>::quiet_NaN();
    }
    const Stored stored =
        copy ? load<Stored>(args.sources[0], i) : static_cast<Stored>(write(total));
    std::memcpy(out.data() + i * sizeof(Stored), &stored, sizeof(Stored));
  }
  return out;
}

template <typename T>
std::vector<uint8_t> reduce_plain(Fold fold, const ReduceArgs& args) {
  const auto same = [](T value) { return value; };
  return reduce_as<T>(fold, args, same, same);
}

template <typename Stored>
std::vector<uint8_t> reduce_small(DataType type, Fold fold, const ReduceArgs& args) {
  return reduce_as<Stored>(
      fold, args, [type](Stored code) { return decode_small_float(type, code); },
      [type](float value) { return encode_small_float(type, value); });
}

}  // namespace

float decode_small_float(DataType type, uint32_t code) {
  const Format format = format_of(type);
  const int exponent_max = (1 << format.exponent_bits) - 1;
  const int bias = exponent_max / 2;
  const int exponent = static_cast<int>(code >> format.mantissa_bits) & exponent_max;
  const uint32_t mantissa = code & ((1u << format.mantissa_bits) - 1);
  const bool negative = (code >> (format.exponent_bits + format.mantissa_bits)) & 1;
  double value = 0;
  if (exponent == exponent_max && format.has_infinity) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  } else if (!format.has_infinity && (code & 0x7f) == 0x7f) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<double>(mantissa), 1 - bias - format.mantissa_bits);
  } else {
    value = std::ldexp(1.0 + std::ldexp(static_cast<double>(mantissa), -format.mantissa_bits),
                       exponent - bias);
  }
  return static_cast<float>(negative ? -value : value);
}

uint32_t encode_small_float(DataType type, float value) {
  const Format format = format_of(type);
  if (std::isnan(value)) return format.nan_code;
  const uint32_t sign =
      std::signbit(value) ? 1u << (format.exponent_bits + format.mantissa_bits) : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  const std::vector<double>& values = finite_values(type);
  const auto above = std::lower_bound(values.begin(), values.end(), magnitude);
  if (above == values.begin()) return sign;
  const auto below_code = static_cast<uint32_t>(above - values.begin()) - 1;
  const double below = values[below_code];
  // Past the largest value the grid goes on with one more step, which stands for the overflow.
  const double next = above == values.end() ? below + (below - values[below_code - 1]) : *above;
  const double middle = below + (next - below) / 2;
  const bool up = magnitude > middle || (magnitude == middle && below_code % 2 == 1);
  const uint32_t code = below_code + (up ? 1 : 0);
  if (code == values.size() && !format.has_infinity) return format.nan_code;
  return sign | code;
}

std::vector<uint8_t> reference_reduce(DataType type, Fold fold, const ReduceArgs& args) {
  switch (type) {
    case DataType::kInt8:
      return reduce_plain<int8_t>(fold, args);
    case DataType::kUint8:
      return reduce_plain<uint8_t>(fold, args);
    case DataType::kInt32:
      return reduce_plain<int32_t>(fold, args);
    case DataType::kUint32:
      return reduce_plain<uint32_t>(fold, args);
    case DataType::kInt64:
      return reduce_plain<int64_t>(fold, args);
    case DataType::kUint64:
      return reduce_plain<uint64_t>(fold, args);
    case DataType::kFloat32:
      return reduce_plain<float>(fold, args);
    case DataType::kFloat64:
      return reduce_plain<double>(fold, args);
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return reduce_small<uint16_t>(type, fold, args);
    case DataType::kFloat8E4M3:
    case DataType::kFloat8E5M2:
      return reduce_small<uint8_t>(type, fold, args);
  }
  return {};
}

}  // namespace weir::test
