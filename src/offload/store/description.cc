// SPDX-License-Identifier: Apache-2.0
#include "offload/store/description.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "offload/disk/disk.h"

namespace weir::offload {

uint64_t StoreDescription::chunk_count(const GroupDescription& group) {
  return group.element_count / group.chunk_elements +
         (group.element_count % group.chunk_elements != 0 ? 1 : 0);
}

uint64_t StoreDescription::chunk_count() const {
  return first_chunk(static_cast<uint32_t>(groups.size()));
}

uint64_t StoreDescription::first_chunk(uint32_t group) const {
  uint64_t count = 0;
  for (uint32_t g = 0; g < group; ++g) count += chunk_count(groups[g]);
  return count;
}

Status validate(const StoreDescription& description) {
  if (description.chunk_bytes < kChunkBytesMin || description.chunk_bytes > kChunkBytesMax ||
      description.chunk_bytes % kDiskAlignment != 0) {
    return invalid_argument(fmt::format("chunk_bytes {} is not a multiple of {} between {} and {}",
                                        description.chunk_bytes, kDiskAlignment, kChunkBytesMin,
                                        kChunkBytesMax));
  }
  if (description.rank_count == 0 || description.rank >= description.rank_count) {
    return invalid_argument(
        fmt::format("rank {} of {} ranks", description.rank, description.rank_count));
  }
  if (description.model.size() > kNameBytesMax) {
    return invalid_argument(fmt::format("the model's name has {} bytes; at most {}",
                                        description.model.size(), kNameBytesMax));
  }
  if (description.groups.empty() || description.groups.size() > kGroupCountMax) {
    return invalid_argument(
        fmt::format("{} groups; a store has 1 to {}", description.groups.size(), kGroupCountMax));
  }
  std::unordered_set<std::string> names;
  uint64_t chunks = 0;
  for (const GroupDescription& group : description.groups) {
    if (group.name.empty() || group.name.size() > kNameBytesMax) {
      return invalid_argument(fmt::format("a group's name has {} bytes; 1 to {} are allowed",
                                          group.name.size(), kNameBytesMax));
    }
    if (!names.insert(group.name).second) {
      return invalid_argument(fmt::format("two groups are named '{}'", group.name));
    }
    if (group.chunk_elements == 0) {
      return invalid_argument(fmt::format("group '{}' has no elements in a chunk", group.name));
    }
    if (group.first_element + group.element_count < group.first_element) {
      return invalid_argument(fmt::format("group '{}' ends beyond 2^64 elements", group.name));
    }
    const uint64_t of_group = StoreDescription::chunk_count(group);
    if (of_group > kChunkCountMax || (chunks += of_group) > kChunkCountMax) {
      return invalid_argument(fmt::format("more than {} chunks with group '{}'; take larger chunks",
                                          kChunkCountMax, group.name));
    }
  }
  if (chunks == 0) return invalid_argument("no group has an element");
  return {};
}

ChunkPlace place_of(const StoreDescription& description, uint64_t chunk) {
  uint64_t first = 0;
  for (uint32_t g = 0; g < description.groups.size(); ++g) {
    const GroupDescription& group = description.groups[g];
    const uint64_t count = StoreDescription::chunk_count(group);
    if (chunk < first + count) {
      ChunkPlace place;
      place.group = g;
      place.chunk = chunk;
      place.first_element = (chunk - first) * group.chunk_elements;
      place.element_count =
          std::min(group.chunk_elements, group.element_count - place.first_element);
      return place;
    }
    first += count;
  }
  WEIR_CHECK(false, "place_of a chunk that does not exist");
}

namespace {

Status differs(const std::string& what, const std::string& expected, const std::string& found) {
  return Status(
      Code::kMismatch,
      fmt::format("expected {} {}, found {}; open it with the run that made it, or restore "
                  "a checkpoint",
                  what, expected, found));
}

template <typename T>
Status same(const std::string& what, const T& expected, const T& found) {
  if (expected == found) return {};
  return differs(what, fmt::format("{}", expected), fmt::format("{}", found));
}

}  // namespace

Status compare(const StoreDescription& expected, const StoreDescription& found) {
  if (expected.model != found.model) {
    return differs("the state of model", "'" + expected.model + "'", "'" + found.model + "'");
  }
  WEIR_RETURN_IF_ERROR(same("a rank count of", expected.rank_count, found.rank_count));
  WEIR_RETURN_IF_ERROR(same("the state of rank", expected.rank, found.rank));
  WEIR_RETURN_IF_ERROR(same("chunk_bytes", expected.chunk_bytes, found.chunk_bytes));
  for (size_t g = 0; g < std::min(expected.groups.size(), found.groups.size()); ++g) {
    const GroupDescription& a = expected.groups[g];
    const GroupDescription& b = found.groups[g];
    if (a.name != b.name) {
      return differs(fmt::format("group {} to be", g), "'" + a.name + "'", "'" + b.name + "'");
    }
    const std::string of = "in group '" + a.name + "' ";
    WEIR_RETURN_IF_ERROR(same(of + "element count", a.element_count, b.element_count));
    WEIR_RETURN_IF_ERROR(same(of + "first element", a.first_element, b.first_element));
    WEIR_RETURN_IF_ERROR(same(of + "method", a.method, b.method));
    WEIR_RETURN_IF_ERROR(same(of + "state format", a.state_format, b.state_format));
    WEIR_RETURN_IF_ERROR(same(of + "chunk elements", a.chunk_elements, b.chunk_elements));
  }
  WEIR_RETURN_IF_ERROR(same("a group count of", expected.groups.size(), found.groups.size()));
  // If nothing above differs, what differs is known only to the caller.
  if (expected.fingerprint == found.fingerprint) return {};
  return differs("a model with fingerprint", fmt::format("{:016x}", expected.fingerprint),
                 fmt::format("{:016x}", found.fingerprint));
}

}  // namespace weir::offload
