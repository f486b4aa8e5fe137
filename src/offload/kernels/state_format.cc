// SPDX-License-Identifier: Apache-2.0
#include "offload/kernels/state_format.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/base/check.h"
#include "offload/kernels/moment_code.h"

namespace weir::offload {
namespace {

uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

template <typename T>
T load(const unsigned char* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
void store(unsigned char* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

uint16_t nearest_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

float from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

void check_range(const ChunkLayout& layout, uint64_t first, uint64_t count) {
  WEIR_CHECK(first <= layout.element_count && count <= layout.element_count - first,
             "a range lies within its chunk");
  if (layout.format != StateFormat::kHalfMaster8) return;
  WEIR_CHECK(first % kMomentBlock == 0 &&
                 ((first + count) % kMomentBlock == 0 || first + count == layout.element_count),
             "a range of 8-bit moments is made of whole blocks");
}

// Encodes one moment of a range. `values` may be nullptr: zeros.
template <class Code>
void encode_blocks(const float* values, uint64_t count, unsigned char* codes,
                   unsigned char* scales) {
  for (uint64_t at = 0; at < count; at += kMomentBlock) {
    const uint64_t block = std::min(kMomentBlock, count - at);
    uint32_t largest = 0;
    for (uint64_t i = 0; values != nullptr && i < block; ++i) {
      largest = std::max(largest, std::bit_cast<uint32_t>(values[at + i]) & 0x7fffffffu);
    }
    const MomentScale scale = moment_scale(largest);
    for (uint64_t i = 0; i < block; ++i) {
      codes[at + i] = values == nullptr ? 0 : Code::encode_nearest(values[at + i], scale.inverse);
    }
    store(scales + at / kMomentBlock * sizeof(float), scale.scale);
  }
}

template <class Code>
void decode_blocks(const unsigned char* codes, const unsigned char* scales, uint64_t count,
                   float* values) {
  for (uint64_t i = 0; i < count; ++i) {
    values[i] = Code::decode(codes[i]) * load<float>(scales + i / kMomentBlock * sizeof(float));
  }
}

template <class Code>
void encode_moment(const ChunkLayout& layout, Plane moment, Plane scale, uint64_t first,
                   uint64_t count, const float* values, unsigned char* chunk) {
  const PlaneExtent& extent = layout.plane(moment);
  if (extent.bytes == 0) return;
  unsigned char* const to = chunk + extent.offset_bytes;
  switch (layout.format) {
    case StateFormat::kFloat32:
      if (values != nullptr) {
        std::memcpy(to + first * 4, values, count * 4);
      } else {
        std::memset(to + first * 4, 0, count * 4);
      }
      return;
    case StateFormat::kHalfMaster:
      for (uint64_t i = 0; i < count; ++i) {
        store(to + (first + i) * 2, values == nullptr ? uint16_t{0} : nearest_bf16(values[i]));
      }
      return;
    case StateFormat::kHalfMaster8:
      encode_blocks<Code>(
          values, count, to + first,
          chunk + layout.plane(scale).offset_bytes + first / kMomentBlock * sizeof(float));
      return;
  }
}

template <class Code>
void decode_moment(const ChunkLayout& layout, Plane moment, Plane scale, uint64_t first,
                   uint64_t count, const unsigned char* chunk, float* values) {
  const PlaneExtent& extent = layout.plane(moment);
  if (extent.bytes == 0 || values == nullptr) return;
  const unsigned char* const from = chunk + extent.offset_bytes;
  switch (layout.format) {
    case StateFormat::kFloat32:
      std::memcpy(values, from + first * 4, count * 4);
      return;
    case StateFormat::kHalfMaster:
      for (uint64_t i = 0; i < count; ++i) {
        values[i] = from_bf16(load<uint16_t>(from + (first + i) * 2));
      }
      return;
    case StateFormat::kHalfMaster8:
      decode_blocks<Code>(
          from + first,
          chunk + layout.plane(scale).offset_bytes + first / kMomentBlock * sizeof(float), count,
          values);
      return;
  }
}

}  // namespace

const char* name_of(StateFormat format) {
  switch (format) {
    case StateFormat::kFloat32:
      return "float32";
    case StateFormat::kHalfMaster:
      return "half_master";
    case StateFormat::kHalfMaster8:
      return "half_master8";
  }
  return "unknown";
}

ChunkLayout chunk_layout(Method method, StateFormat format, uint64_t element_count) {
  ChunkLayout layout;
  layout.method = method;
  layout.format = format;
  layout.element_count = element_count;
  const uint64_t moment_bytes = format == StateFormat::kFloat32      ? 4
                                : format == StateFormat::kHalfMaster ? 2
                                                                     : 1;
  const uint64_t scale_bytes =
      format == StateFormat::kHalfMaster8
          ? round_up(element_count, kMomentBlock) / kMomentBlock * sizeof(float)
          : 0;
  uint64_t end = 0;
  const auto add = [&](Plane plane, uint64_t bytes) {
    if (bytes == 0) return;
    layout.planes[static_cast<uint32_t>(plane)] = {end, bytes};
    end = round_up(end + bytes, kPlaneAlignment);
  };
  add(Plane::kMaster, element_count * (format == StateFormat::kFloat32 ? 4 : 2));
  if (has_first_moment(method)) add(Plane::kFirstMoment, element_count * moment_bytes);
  if (has_second_moment(method)) add(Plane::kSecondMoment, element_count * moment_bytes);
  if (has_first_moment(method)) add(Plane::kFirstScale, scale_bytes);
  if (has_second_moment(method)) add(Plane::kSecondScale, scale_bytes);
  end = round_up(end, kChunkAlignment);
  layout.state_bytes = end;
  if (has_half_master(format)) add(Plane::kParameterCopy, element_count * 2);
  layout.chunk_bytes = round_up(end, kChunkAlignment);
  return layout;
}

uint64_t elements_within(Method method, StateFormat format, uint64_t chunk_bytes_max) {
  uint64_t low = 0;                                    // in blocks; fits
  uint64_t high = chunk_bytes_max / kMomentBlock + 1;  // does not
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    const bool fits =
        chunk_layout(method, format, middle * kMomentBlock).chunk_bytes <= chunk_bytes_max;
    (fits ? low : high) = middle;
  }
  return low * kMomentBlock;
}

void encode_state(const ChunkLayout& layout, uint64_t first, uint64_t count, const float* master,
                  const float* first_moment, const float* second_moment, unsigned char* chunk,
                  uint16_t* copy) {
  check_range(layout, first, count);
  unsigned char* const to = chunk + layout.plane(Plane::kMaster).offset_bytes;
  if (!has_half_master(layout.format)) {
    std::memcpy(to + first * 4, master, count * 4);
  } else {
    const bool keeps_copy = layout.plane(Plane::kParameterCopy).bytes > 0;
    unsigned char* const copies = chunk + layout.plane(Plane::kParameterCopy).offset_bytes;
    for (uint64_t i = 0; i < count; ++i) {
      uint32_t bits = std::bit_cast<uint32_t>(master[i]);
      // The carry from a NaN's low bits would turn its copy into zero.
      if ((bits & 0x7fffffffu) > 0x7f800000u) bits = 0x7fc00000u;
      store(to + (first + i) * 2, static_cast<uint16_t>(bits));
      if (keeps_copy) store(copies + (first + i) * 2, copy_of(bits));
      copy[i] = copy_of(bits);
    }
  }
  encode_moment<FirstMomentCode>(layout, Plane::kFirstMoment, Plane::kFirstScale, first, count,
                                 first_moment, chunk);
  encode_moment<SecondMomentCode>(layout, Plane::kSecondMoment, Plane::kSecondScale, first, count,
                                  second_moment, chunk);
}

void decode_state(const ChunkLayout& layout, uint64_t first, uint64_t count,
                  const unsigned char* chunk, const uint16_t* copy, float* master,
                  float* first_moment, float* second_moment) {
  check_range(layout, first, count);
  const unsigned char* const from = chunk + layout.plane(Plane::kMaster).offset_bytes;
  if (master != nullptr && !has_half_master(layout.format)) {
    std::memcpy(master, from + first * 4, count * 4);
  } else if (master != nullptr) {
    for (uint64_t i = 0; i < count; ++i) {
      const uint32_t bits = master_from(copy[i], load<uint16_t>(from + (first + i) * 2));
      master[i] = std::bit_cast<float>(bits);
    }
  }
  decode_moment<FirstMomentCode>(layout, Plane::kFirstMoment, Plane::kFirstScale, first, count,
                                 chunk, first_moment);
  decode_moment<SecondMomentCode>(layout, Plane::kSecondMoment, Plane::kSecondScale, first, count,
                                  chunk, second_moment);
}

}  // namespace weir::offload
