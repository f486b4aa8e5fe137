// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/element.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace weir::perf {
namespace {

constexpr std::array<ElementType, 12> kTypes = {{
    {"int8", WEIR_INT8, 1, false, true, 0, 0, 127, 0},
    {"uint8", WEIR_UINT8, 1, false, false, 0, 0, 255, 0},
    {"int32", WEIR_INT32, 4, false, true, 0, 0, 1 << 20, 0},
    {"uint32", WEIR_UINT32, 4, false, false, 0, 0, 1 << 20, 0},
    {"int64", WEIR_INT64, 8, false, true, 0, 0, 1 << 20, 0},
    {"uint64", WEIR_UINT64, 8, false, false, 0, 0, 1 << 20, 0},
    {"half", WEIR_FLOAT16, 2, true, true, 10, 5, 2048, 15},
    {"float", WEIR_FLOAT32, 4, true, true, 23, 8, 1 << 20, 127},
    {"double", WEIR_FLOAT64, 8, true, true, 52, 11, 1 << 20, 1023},
    {"bfloat16", WEIR_BFLOAT16, 2, true, true, 7, 8, 256, 127},
    {"f8e4m3", WEIR_FLOAT8_E4M3, 1, true, true, 3, 4, 16, 8},
    {"f8e5m2", WEIR_FLOAT8_E5M2, 1, true, true, 2, 5, 8, 15},
}};

struct Alias {
  const char* alias;
  const char* name;
};
constexpr Alias kAliases[] = {
    {"char", "int8"},          {"int", "int32"},
    {"float16", "half"},       {"f16", "half"},
    {"float32", "float"},      {"f32", "float"},
    {"float64", "double"},     {"f64", "double"},
    {"bf16", "bfloat16"},      {"float8_e4m3", "f8e4m3"},
    {"float8_e5m2", "f8e5m2"}, {"fp8_e4m3", "f8e4m3"},
    {"fp8_e5m2", "f8e5m2"},    {"i8", "int8"},
    {"u8", "uint8"},           {"i32", "int32"},
    {"u32", "uint32"},         {"i64", "int64"},
    {"u64", "uint64"},         {"fp16", "half"},
};

constexpr std::array<Reduction, 6> kReductions = {Reduction::kSum, Reduction::kProd,
                                                  Reduction::kMax, Reduction::kMin,
                                                  Reduction::kAvg, Reduction::kMulSum};

}  // namespace

std::span<const ElementType> element_types() { return kTypes; }

const ElementType* find_element_type(std::string_view name) {
  for (const Alias& alias : kAliases) {
    if (name == alias.alias) name = alias.name;
  }
  for (const ElementType& type : kTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

std::string element_type_names() {
  std::string names;
  for (const ElementType& type : kTypes) {
    if (!names.empty()) names += ", ";
    names += type.name;
  }
  return names;
}

const char* reduction_name(Reduction reduction) {
  switch (reduction) {
    case Reduction::kNone:
      return "none";
    case Reduction::kSum:
      return "sum";
    case Reduction::kProd:
      return "prod";
    case Reduction::kMax:
      return "max";
    case Reduction::kMin:
      return "min";
    case Reduction::kAvg:
      return "avg";
    case Reduction::kMulSum:
      return "mulsum";
  }
  return "?";
}

std::span<const Reduction> reductions() { return kReductions; }

bool find_reduction(std::string_view name, Reduction* reduction) {
  for (const Reduction candidate : kReductions) {
    if (name == reduction_name(candidate)) {
      *reduction = candidate;
      return true;
    }
  }
  return false;
}

uint64_t encode_exact(const ElementType& type, double value) {
  if (!type.is_float) return static_cast<uint64_t>(static_cast<int64_t>(value));
  const uint64_t sign_bit = uint64_t{std::signbit(value)} << (type.bytes * 8 - 1);
  if (value == 0) return 0;
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(value), &exponent);  // in [0.5, 1)
  const int bias = (1 << (type.exponent_bits - 1)) - 1;
  const auto mantissa = static_cast<uint64_t>(std::ldexp(fraction * 2 - 1, type.mantissa_bits));
  const auto biased = static_cast<uint64_t>(exponent) - 1 + static_cast<uint64_t>(bias);
  return sign_bit | (biased << type.mantissa_bits) | mantissa;
}

double decode(const ElementType& type, uint64_t bits) {
  if (!type.is_float) {
    switch (type.type) {
      case WEIR_INT8:
        return static_cast<int8_t>(bits);
      case WEIR_UINT8:
        return static_cast<uint8_t>(bits);
      case WEIR_INT32:
        return static_cast<int32_t>(bits);
      case WEIR_UINT32:
        return static_cast<uint32_t>(bits);
      case WEIR_INT64:
        return static_cast<double>(static_cast<int64_t>(bits));
      default:
        return static_cast<double>(bits);
    }
  }
  const uint64_t mantissa = bits & ((uint64_t{1} << type.mantissa_bits) - 1);
  const uint64_t exponent_mask = (uint64_t{1} << type.exponent_bits) - 1;
  const uint64_t biased = (bits >> type.mantissa_bits) & exponent_mask;
  const bool negative = ((bits >> (type.bytes * 8 - 1)) & 1) != 0;
  const int bias = (1 << (type.exponent_bits - 1)) - 1;
  const double sign = negative ? -1 : 1;
  if (type.type == WEIR_FLOAT8_E4M3) {
    // In the OCP format the top exponent stands for numbers too, except with the all-ones mantissa.
    if (biased == exponent_mask && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  } else if (biased == exponent_mask) {
    if (mantissa != 0) return std::numeric_limits<double>::quiet_NaN();
    return sign * std::numeric_limits<double>::infinity();
  }
  if (biased == 0) {
    return sign * std::ldexp(static_cast<double>(mantissa), 1 - bias - type.mantissa_bits);
  }
  const double significand = 1.0 + std::ldexp(static_cast<double>(mantissa), -type.mantissa_bits);
  return sign * std::ldexp(significand, static_cast<int>(biased) - bias);
}

}  // namespace weir::perf
