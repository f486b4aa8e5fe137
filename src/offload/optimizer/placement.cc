// SPDX-License-Identifier: Apache-2.0
#include "offload/optimizer/placement.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/check.h"

namespace weir::offload {
namespace {

uint64_t round_up(uint64_t bytes) {
  return (bytes + kChunkAlignment - 1) / kChunkAlignment * kChunkAlignment;
}

// FNV-1a.
class Fingerprint {
 public:
  void add(const void* data, size_t bytes) {
    const auto* const at = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < bytes; ++i) value_ = (value_ ^ at[i]) * 0x100000001b3u;
  }
  void add(uint64_t number) { add(&number, sizeof number); }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

Status check_group(const ParameterGroup& group, size_t index) {
  const std::string who = fmt::format("group {} ('{}')", index, group.name);
  if (static_cast<uint32_t>(group.format) >= kStateFormatCount)
    return invalid_argument(fmt::format("{}: state format {}; allowed are 0 to {}", who,
                                        static_cast<uint32_t>(group.format),
                                        kStateFormatCount - 1));
  if (group.element_count > uint64_t{1} << 48 || group.first_element > uint64_t{1} << 48)
    return invalid_argument(fmt::format("{}: {} elements from {} on; at most 2^48 are allowed", who,
                                        group.element_count, group.first_element));
  return validate(group.method, group.hyper).with_context(who);
}

}  // namespace

std::string copy_name(const std::string& group) { return group + " (bf16 copy)"; }

ChunkLayout state_layout(Method method, StateFormat format, uint64_t element_count) {
  ChunkLayout layout = chunk_layout(method, format, element_count);
  layout.planes[static_cast<uint32_t>(Plane::kParameterCopy)] = {};
  layout.chunk_bytes = layout.state_bytes;
  return layout;
}

uint64_t chunk_elements(Method method, StateFormat format, uint64_t payload_bytes) {
  const auto fits = [&](uint64_t elements) {
    const ChunkLayout layout = state_layout(method, format, elements);
    uint64_t end = 0;
    for (const PlaneExtent& plane : layout.planes)
      end = std::max(end, plane.offset_bytes + plane.bytes);
    return end <= payload_bytes;
  };
  uint64_t low = 0;                                  // in blocks; fits
  uint64_t high = payload_bytes / kMomentBlock + 1;  // does not
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    (fits(middle * kMomentBlock) ? low : high) = middle;
  }
  return low * kMomentBlock;
}

Result<Placement> Placement::make(const OptimizerOptions& options,
                                  const std::vector<ParameterGroup>& groups) {
  Placement placement;
  StoreDescription& description = placement.description_;
  description.model = options.model;
  description.rank = options.rank;
  description.rank_count = options.rank_count;
  description.chunk_bytes = options.chunk_bytes == 0 ? kDefaultChunkBytes : options.chunk_bytes;
  if (description.chunk_bytes < kChunkBytesMin || description.chunk_bytes > kChunkBytesMax ||
      description.chunk_bytes % kChunkAlignment != 0)
    return invalid_argument(fmt::format("chunk_bytes is {}: it must be a multiple of {} up to {}",
                                        options.chunk_bytes, kChunkAlignment, kChunkBytesMax));
  if (groups.empty()) return invalid_argument("there are no parameter groups");
  Fingerprint fingerprint;
  for (size_t i = 0; i < groups.size(); ++i) {
    const ParameterGroup& group = groups[i];
    WEIR_RETURN_IF_ERROR(check_group(group, i));
    Group own;
    own.element_count = group.element_count;
    own.chunk_elements = chunk_elements(group.method, group.format, description.payload_bytes());
    if (own.chunk_elements == 0)
      return invalid_argument(
          fmt::format("group {} ('{}'): a chunk of {} bytes holds no block of "
                      "{} elements; raise chunk_bytes",
                      i, group.name, description.chunk_bytes, kMomentBlock));
    own.first_chunk = placement.state_count_;
    own.chunk_count = (own.element_count + own.chunk_elements - 1) / own.chunk_elements;
    own.has_copy = has_half_master(group.format);
    own.full = state_layout(group.method, group.format, own.chunk_elements);
    if (own.chunk_count > 0)
      own.last = state_layout(group.method, group.format,
                              own.element_count - (own.chunk_count - 1) * own.chunk_elements);
    placement.state_count_ += own.chunk_count;
    placement.element_count_ += own.element_count;
    placement.groups_.push_back(own);
    if (own.has_copy) placement.copied_.push_back(static_cast<uint32_t>(i));
    description.groups.push_back({group.name, group.element_count, group.first_element,
                                  own.chunk_elements, static_cast<uint32_t>(group.method),
                                  static_cast<uint32_t>(group.format)});
    fingerprint.add(group.name.data(), group.name.size());
    for (const uint64_t number :
         {static_cast<uint64_t>(group.name.size()), static_cast<uint64_t>(group.method),
          static_cast<uint64_t>(group.format)})
      fingerprint.add(number);
  }
  for (const uint32_t i : placement.copied_) {
    GroupDescription copy = description.groups[i];
    copy.name = copy_name(copy.name);
    copy.chunk_elements =
        description.payload_bytes() / sizeof(uint16_t) / kMomentBlock * kMomentBlock;
    copy.state_format += kCopyFormat;
    description.groups.push_back(copy);
  }
  description.fingerprint = fingerprint.value();
  WEIR_RETURN_IF_ERROR(offload::validate(description));
  placement.chunk_count_ = description.chunk_count();
  return placement;
}

StateChunk Placement::state(uint64_t chunk) const {
  WEIR_CHECK(chunk < state_count_, "a chunk of state");
  const auto after = std::upper_bound(
      groups_.begin(), groups_.end(), chunk,
      [](uint64_t number, const Group& group) { return number < group.first_chunk; });
  // Groups without chunks share the number of the next one: the last of them is the one that
  // counts.
  const auto index = static_cast<uint32_t>(after - groups_.begin() - 1);
  const Group& group = groups_[index];
  const uint64_t in_group = chunk - group.first_chunk;
  const bool last = in_group + 1 == group.chunk_count;
  const ChunkLayout& layout = last ? group.last : group.full;
  return {index, in_group * group.chunk_elements, layout.element_count, &layout};
}

CopyChunk Placement::copy(uint64_t chunk) const {
  const ChunkPlace place = place_of(description_, chunk);
  return {copied_[place.group - groups_.size()], place.first_element, place.element_count};
}

std::pair<uint64_t, uint64_t> Placement::chunks_of(uint32_t group, uint64_t first,
                                                   uint64_t count) const {
  const Group& own = groups_[group];
  return {own.first_chunk + first / own.chunk_elements,
          own.first_chunk + (first + count - 1) / own.chunk_elements + 1};
}

uint64_t Placement::state_bytes() const {
  uint64_t bytes = 0;
  for (const Group& group : groups_)
    if (group.chunk_count > 0)
      bytes += (group.chunk_count - 1) * group.full.state_bytes + group.last.state_bytes;
  return bytes;
}

uint64_t Placement::state_bytes_max() const {
  uint64_t bytes = kChunkAlignment;
  for (const Group& group : groups_)
    if (group.chunk_count > 0)
      bytes =
          std::max(bytes, group.chunk_count > 1 ? group.full.state_bytes : group.last.state_bytes);
  return bytes;
}

uint64_t Placement::copy_bytes() const {
  uint64_t bytes = 0;
  for (const uint32_t i : copied_) bytes += round_up(groups_[i].element_count * sizeof(uint16_t));
  return bytes;
}

}  // namespace weir::offload
