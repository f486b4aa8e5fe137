// SPDX-License-Identifier: Apache-2.0
// Types of elements in kernels of programs, and their values. No state; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weir::hostcuda::kernels {

enum class ElementKind : uint8_t { kSigned, kUnsigned, kBool, kFloat, kComplex };

struct Element {
  std::string_view name;  // as a demangled name of a kernel has it
  ElementKind kind;
  size_t bytes;
  // Of floating-point types, without the leading one.
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity = true;  // the OCP's E4M3 has none: its largest exponent is of numbers, too
  int torch_number = -1;     // of c10::ScalarType

  bool is_integer() const { return kind == ElementKind::kSigned || kind == ElementKind::kUnsigned; }
};

// The type with that name; nullptr if there is none. A name may be NVIDIA's or PyTorch's.
const Element* element_named(std::string_view name);
const Element* element_of_torch(int number);

// Floating-point types with `bytes` bytes, rounded to the nearest, ties to even; too large a number
// becomes infinity, or NaN where the type has none.
double read_float(const Element& type, const void* from);
void write_float(const Element& type, double value, void* to);

// One element, converted as C++ converts it.
void convert(const Element& from_type, const void* from, const Element& to_type, void* to);

}  // namespace weir::hostcuda::kernels
