// SPDX-License-Identifier: Apache-2.0
// How optimizer state lies in a chunk: one contiguous piece of memory (and of the store) that holds
// the master weights and the moments of `element_count` consecutive parameters, plane after plane.
// Every plane starts on 64 bytes; reads and writes are multiples of 4096 bytes, for O_DIRECT.
// Little-endian. Values; thread-safe.
//
//   plane            kFloat32       kHalfMaster       kHalfMaster8
//   kMaster          f32 master     low 16 bits       low 16 bits
//   kFirstMoment     f32            bf16              1 byte: sign, 4 bits exponent, 3 mantissa
//   kSecondMoment    f32            bf16              1 byte: 5 bits exponent, 3 mantissa
//   kFirstScale      -              -                 f32, one a block of 256 elements
//   kSecondScale     -              -                 f32, one a block of 256 elements
//   -- state_bytes: what a step reads ends here --
//   kParameterCopy   -              bf16 copy         bf16 copy
//   -- chunk_bytes: what a durable step writes ends here --
// A plane that the method has no use for (has_first_moment, has_second_moment) is empty.
//
// Half master: the bf16 copy of the f32 master w, kept by the caller in memory, is w rounded to
// nearest with ties away from zero, copy = (bits(w) + 0x8000) >> 16; with the low half of bits(w)
// it gives w back exactly (with ties to even it would not). kParameterCopy is a second home of the
// copy, for a store that must outlive the memory.
//
// 8-bit moments: value = scale * code. scale is the smallest power of two that is not below any
// magnitude of the block (2^-126 to 2^126). Codes are small floats with subnormals: first moment
// with bias 15 (1 down to 2^-17 of the scale), second with bias 31 (down to 2^-33, so that both
// keep the same range of the gradient). Zero is exact; a second moment that is not zero is never
// stored as zero, since the root of it divides. Infinite and NaN moments saturate.
//
// The kernels round moments stochastically in both half formats: with nearest rounding, a second
// moment with beta2 = 0.999 moves by less than half a unit of bf16 in a step and would stand still.
#pragma once

#include <array>
#include <cstdint>

#include "offload/kernels/method.h"

namespace weir::offload {

// The numbers are part of the store's format.
enum class StateFormat : uint8_t { kFloat32 = 0, kHalfMaster = 1, kHalfMaster8 = 2 };
inline constexpr uint32_t kStateFormatCount = 3;

const char* name_of(StateFormat format);  // "float32", "half_master", "half_master8"

constexpr bool has_half_master(StateFormat format) { return format != StateFormat::kFloat32; }

inline constexpr uint64_t kPlaneAlignment = 64;
inline constexpr uint64_t kChunkAlignment = 4096;
inline constexpr uint64_t kMomentBlock = 256;  // elements that share a scale

enum class Plane : uint8_t {
  kMaster = 0,
  kFirstMoment = 1,
  kSecondMoment = 2,
  kFirstScale = 3,
  kSecondScale = 4,
  kParameterCopy = 5,
};
inline constexpr uint32_t kPlaneCount = 6;

struct PlaneExtent {
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;  // 0: there is no such plane
};

struct ChunkLayout {
  Method method = Method::kAdamW;
  StateFormat format = StateFormat::kFloat32;
  uint64_t element_count = 0;
  std::array<PlaneExtent, kPlaneCount> planes;
  uint64_t state_bytes = 0;  // multiple of 4096
  uint64_t chunk_bytes = 0;  // multiple of 4096; == state_bytes where there is no copy plane

  const PlaneExtent& plane(Plane which) const { return planes[static_cast<uint32_t>(which)]; }
};

ChunkLayout chunk_layout(Method method, StateFormat format, uint64_t element_count);

// The largest element count, a multiple of kMomentBlock, whose chunk fits chunk_bytes_max; 0 if
// none does.
uint64_t elements_within(Method method, StateFormat format, uint64_t chunk_bytes_max);

// Elements first to first + count of a chunk, in f32. Moments that the method lacks are ignored or
// may be nullptr; encode_state takes a nullptr moment as zero; decode_state skips it. `copy` is the
// caller's bf16 copy of those elements, nullptr for kFloat32; encode_state writes it and the plane
// kParameterCopy, if the layout has that plane (a caller may clear it). For kHalfMaster8, `first`
// is a multiple of kMomentBlock, and the range ends on one or with the chunk. Moments are rounded
// to nearest here: the same state gives the same bytes, and decoding and encoding again changes
// none.
void encode_state(const ChunkLayout& layout, uint64_t first, uint64_t count, const float* master,
                  const float* first_moment, const float* second_moment, unsigned char* chunk,
                  uint16_t* copy);
void decode_state(const ChunkLayout& layout, uint64_t first, uint64_t count,
                  const unsigned char* chunk, const uint16_t* copy, float* master,
                  float* first_moment, float* second_moment);

// The f32 master's halves, as above.
constexpr uint16_t copy_of(uint32_t master_bits) {
  return static_cast<uint16_t>((master_bits + 0x8000u) >> 16);
}
constexpr uint32_t master_from(uint16_t copy, uint16_t low_bits) {
  return (static_cast<uint32_t>(copy) << 16) + low_bits - ((low_bits & 0x8000u) << 1);
}

}  // namespace weir::offload
