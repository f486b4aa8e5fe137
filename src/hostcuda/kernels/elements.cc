// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/kernels/elements.h"

#include <cmath>
#include <cstring>

namespace weir::hostcuda::kernels {

namespace {

constexpr auto kS = ElementKind::kSigned;
constexpr auto kU = ElementKind::kUnsigned;
constexpr auto kF = ElementKind::kFloat;
constexpr auto kC = ElementKind::kComplex;

constexpr Element kElements[] = {
    {"signed char", kS, 1, 0, 0, true, 1},
    {"unsigned char", kU, 1, 0, 0, true, 0},
    {"short", kS, 2, 0, 0, true, 2},
    {"unsigned short", kU, 2, 0, 0, true, 27},
    {"int", kS, 4, 0, 0, true, 3},
    {"unsigned int", kU, 4, 0, 0, true, 28},
    {"long", kS, 8, 0, 0, true, 4},
    {"unsigned long", kU, 8, 0, 0, true, 29},
    {"bool", ElementKind::kBool, 1, 0, 0, true, 11},
    {"float", kF, 4, 8, 23, true, 6},
    {"double", kF, 8, 11, 52, true, 7},
    {"c10::Half", kF, 2, 5, 10, true, 5},
    {"c10::BFloat16", kF, 2, 8, 7, true, 15},
    {"c10::Float8_e4m3fn", kF, 1, 4, 3, false, 24},
    {"c10::Float8_e5m2", kF, 1, 5, 2, true, 23},
    {"c10::complex<float>", kC, 8, 0, 0, true, 9},
    {"c10::complex<double>", kC, 16, 0, 0, true, 10},
    {"__half", kF, 2, 5, 10},
    {"__nv_bfloat16", kF, 2, 8, 7},
    {"__nv_fp8_e4m3", kF, 1, 4, 3, false},
    {"__nv_fp8_e5m2", kF, 1, 5, 2},
};

template <class Word>
Word read(const void* from) {
  Word word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

template <class Word>
void write(Word word, void* to) {
  std::memcpy(to, &word, sizeof word);
}

int64_t read_signed(const Element& type, const void* from) {
  switch (type.bytes) {
    case 1:
      return read<int8_t>(from);
    case 2:
      return read<int16_t>(from);
    case 4:
      return read<int32_t>(from);
  }
  return read<int64_t>(from);
}

uint64_t read_unsigned(const Element& type, const void* from) {
  uint64_t word = 0;
  std::memcpy(&word, from, type.bytes);
  return word;
}

// A number outside the range has no defined result in C++; this one is the same everywhere.
uint64_t integer_of(double value) {
  if (!(value > -0x1p63)) return uint64_t{1} << 63;
  if (value < 0x1p63) return static_cast<uint64_t>(static_cast<int64_t>(value));
  return value < 0x1p64 ? static_cast<uint64_t>(value) : ~uint64_t{0};
}

// The real and the imaginary part of a complex type are its two halves.
const Element& part_of(const Element& type) {
  if (type.kind != ElementKind::kComplex) return type;
  return *element_named(type.bytes == 8 ? "float" : "double");
}

// A real number has the imaginary part 0, which is dropped where the result is real.
void convert_complex(const Element& from_type, const void* from, const Element& to_type, void* to) {
  const Element& from_part = part_of(from_type);
  const Element& to_part = part_of(to_type);
  convert(from_part, from, to_part, to);
  if (to_type.kind != ElementKind::kComplex) return;
  void* const imaginary = static_cast<char*>(to) + to_part.bytes;
  std::memset(imaginary, 0, to_part.bytes);
  if (from_type.kind != ElementKind::kComplex) return;
  convert(from_part, static_cast<const char*>(from) + from_part.bytes, to_part, imaginary);
}

}  // namespace

const Element* element_named(std::string_view name) {
  for (const Element& element : kElements) {
    if (element.name == name) return &element;
  }
  return nullptr;
}

const Element* element_of_torch(int number) {
  for (const Element& element : kElements) {
    if (element.torch_number == number) return &element;
  }
  return nullptr;
}

double read_float(const Element& type, const void* from) {
  if (type.bytes == 8) return read<double>(from);
  if (type.bytes == 4) return read<float>(from);
  const uint64_t bits = read_unsigned(type, from);
  const int exponent_max = (1 << type.exponent_bits) - 1;
  const int bias = exponent_max >> 1;
  const auto mantissa = static_cast<int>(bits & ((uint64_t{1} << type.mantissa_bits) - 1));
  const int exponent = static_cast<int>(bits >> type.mantissa_bits) & exponent_max;
  const bool negative = (bits >> (type.mantissa_bits + type.exponent_bits) & 1) != 0;
  const int all_ones = (1 << type.mantissa_bits) - 1;
  double value = 0;
  if (exponent == exponent_max && (type.has_infinity || mantissa == all_ones)) {
    value = type.has_infinity && mantissa == 0 ? HUGE_VAL : std::nan("");
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - bias - type.mantissa_bits);
  } else {
    value = std::ldexp(mantissa + (1 << type.mantissa_bits), exponent - bias - type.mantissa_bits);
  }
  return negative ? -value : value;
}

void write_float(const Element& type, double value, void* to) {
  if (type.bytes == 8) return write(value, to);
  if (type.bytes == 4) return write(static_cast<float>(value), to);
  const int exponent_max = (1 << type.exponent_bits) - 1;
  const int bias = exponent_max >> 1;
  const uint64_t infinity = static_cast<uint64_t>(exponent_max) << type.mantissa_bits;
  const uint64_t none = infinity | ((uint64_t{1} << type.mantissa_bits) - 1);
  const uint64_t too_large = type.has_infinity ? infinity : none;
  uint64_t bits = 0;
  const double size = std::fabs(value);
  if (std::isnan(value)) {
    bits = none;
  } else if (std::isinf(value)) {
    bits = too_large;
  } else if (size > 0) {
    int exponent = 0;
    (void)std::frexp(size, &exponent);
    // The unit of the last place; the smallest is that of numbers with exponent 1.
    const int unit = (exponent - 1 < 1 - bias ? 1 - bias : exponent - 1) - type.mantissa_bits;
    const auto count = static_cast<uint64_t>(std::nearbyint(std::ldexp(size, -unit)));
    // A carry out of the mantissa makes the exponent one larger, as it should.
    const auto steps = static_cast<uint64_t>(unit + type.mantissa_bits - (1 - bias));
    bits = (steps << type.mantissa_bits) + count;
    const uint64_t largest = type.has_infinity ? infinity - 1 : none - 1;
    if (bits > largest) bits = too_large;
  }
  if (std::signbit(value)) bits |= uint64_t{1} << (type.mantissa_bits + type.exponent_bits);
  std::memcpy(to, &bits, type.bytes);
}

void convert(const Element& from_type, const void* from, const Element& to_type, void* to) {
  if (&from_type == &to_type) {
    std::memcpy(to, from, from_type.bytes);
    return;
  }
  if (from_type.kind == ElementKind::kComplex || to_type.kind == ElementKind::kComplex) {
    return convert_complex(from_type, from, to_type, to);
  }
  const bool from_float = from_type.kind == ElementKind::kFloat;
  double number = 0;
  uint64_t word = 0;
  if (from_float) {
    number = read_float(from_type, from);
    if (to_type.kind != ElementKind::kFloat) word = integer_of(number);
  } else if (from_type.kind == ElementKind::kSigned) {
    const int64_t signed_word = read_signed(from_type, from);
    word = static_cast<uint64_t>(signed_word);
    number = static_cast<double>(signed_word);
  } else {
    word = read_unsigned(from_type, from);
    number = static_cast<double>(word);
  }
  if (to_type.kind == ElementKind::kBool) {
    const bool is_true = from_float ? number != 0 : word != 0;
    write(static_cast<uint8_t>(is_true ? 1 : 0), to);
  } else if (to_type.kind == ElementKind::kFloat) {
    // A type shorter than float is made from a float.
    write_float(to_type,
                to_type.bytes < 4 ? static_cast<double>(static_cast<float>(number)) : number, to);
  } else {
    std::memcpy(to, &word, to_type.bytes);
  }
}

}  // namespace weir::hostcuda::kernels
