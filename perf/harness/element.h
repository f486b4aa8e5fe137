// SPDX-License-Identifier: Apache-2.0
// Element types and reductions by the names of the perf tools (those of nccl-tests), and the bit
// patterns of small numbers in every type. The conversions here are independent of the library's,
// so that the check does not share a mistake with it. Pure; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <weir/weir.h>

namespace weir::perf {

struct ElementType {
  const char* name;  // "float", "half", "f8e4m3", …
  weir_datatype_t type;
  size_t bytes;
  bool is_float;
  bool is_signed;
  int mantissa_bits;  // floats: stored bits, without the implicit one
  int exponent_bits;  // floats
  int64_t exact_max;  // every integer up to this magnitude is represented exactly
  int exponent_max;   // floats: 2^exponent_max is finite; integers: products wrap, unused
};

std::span<const ElementType> element_types();

// Accepts the name or a common other spelling ("float32", "int8", "bfloat16", "float8_e4m3").
const ElementType* find_element_type(std::string_view name);
std::string element_type_names();  // "int8, uint8, …" for error texts

enum class Reduction : uint8_t { kNone, kSum, kProd, kMax, kMin, kAvg, kMulSum };

const char* reduction_name(Reduction reduction);  // "sum", …, "mulsum"; "none"
std::span<const Reduction> reductions();          // all but kNone
bool find_reduction(std::string_view name, Reduction* reduction);

// The bits of `value` in the low bytes of the result. The value must be exactly representable: an
// integer that fits (wrapping for integer types), or for floats a number with few enough bits.
uint64_t encode_exact(const ElementType& type, double value);
// The number that the bits represent, for messages.
double decode(const ElementType& type, uint64_t bits);

}  // namespace weir::perf
