// SPDX-License-Identifier: Apache-2.0
#include "offload/store/header.h"

#include <fmt/format.h>

#include <cstring>

#include "offload/disk/disk.h"
#include "offload/store/bytes.h"
#include "offload/store/crc32c.h"

namespace weir::offload {

namespace {

constexpr char kMagic[8] = {'W', 'E', 'I', 'R', 'H', 'D', 'R', 0};
constexpr size_t kFixedBytes = 88;
constexpr size_t kGroupFixedBytes = 36;

Status damaged(const std::string& why) { return Status(Code::kRefused, "header " + why); }

// The checksum with its own field taken as zero.
uint32_t checksum(std::span<const unsigned char> bytes) {
  constexpr unsigned char kZero[4] = {};
  uint32_t crc = crc32c(bytes.data(), 12);
  crc = crc32c(kZero, 4, crc);
  return crc32c(bytes.data() + 16, bytes.size() - 16, crc);
}

}  // namespace

std::vector<unsigned char> encode(const Header& header) {
  const StoreDescription& d = header.description;
  size_t used = kFixedBytes + d.model.size();
  for (const GroupDescription& group : d.groups) used += kGroupFixedBytes + group.name.size();
  const size_t total = (used + kDiskAlignment - 1) / kDiskAlignment * kDiskAlignment;
  std::vector<unsigned char> bytes(total, 0);
  unsigned char* p = bytes.data();
  std::memcpy(p, kMagic, 8);
  put_little<uint32_t>(p + 8, kFormatVersion);
  put_little<uint64_t>(p + 16, total);
  std::memcpy(p + 24, header.id.bytes.data(), 16);
  put_little(p + 40, static_cast<uint32_t>(header.kind));
  put_little(p + 44, header.directory_index);
  put_little(p + 48, header.directory_count);
  put_little(p + 52, d.rank);
  put_little(p + 56, d.rank_count);
  put_little(p + 60, static_cast<uint32_t>(d.groups.size()));
  put_little(p + 64, d.chunk_bytes);
  put_little(p + 72, d.fingerprint);
  put_little(p + 80, static_cast<uint32_t>(d.model.size()));
  std::memcpy(p + kFixedBytes, d.model.data(), d.model.size());
  p += kFixedBytes + d.model.size();
  for (const GroupDescription& group : d.groups) {
    put_little(p, group.element_count);
    put_little(p + 8, group.first_element);
    put_little(p + 16, group.chunk_elements);
    put_little(p + 24, group.method);
    put_little(p + 28, group.state_format);
    put_little(p + 32, static_cast<uint32_t>(group.name.size()));
    std::memcpy(p + kGroupFixedBytes, group.name.data(), group.name.size());
    p += kGroupFixedBytes + group.name.size();
  }
  put_little(bytes.data() + 12, checksum(bytes));
  return bytes;
}

Result<Header> decode_header(std::span<const unsigned char> bytes) {
  if (bytes.size() < kFixedBytes) return damaged("is cut short");
  const unsigned char* p = bytes.data();
  if (std::memcmp(p, kMagic, 8) != 0) return damaged("has no magic number");
  const uint64_t total = get_little<uint64_t>(p + 16);
  if (total < kFixedBytes || total > bytes.size()) return damaged("has an impossible length");
  bytes = bytes.first(total);
  if (get_little<uint32_t>(p + 12) != checksum(bytes)) return damaged("has a wrong checksum");
  const uint32_t version = get_little<uint32_t>(p + 8);
  if (version != kFormatVersion) {
    return Status(Code::kUnsupported,
                  fmt::format("expected format version {}, found {}; use the version of Weir that "
                              "wrote it, or restore a checkpoint with it",
                              kFormatVersion, version));
  }
  Header header;
  std::memcpy(header.id.bytes.data(), p + 24, 16);
  const uint32_t kind = get_little<uint32_t>(p + 40);
  if (kind != 1 && kind != 2) return damaged(fmt::format("has unknown kind {}", kind));
  header.kind = static_cast<StoreKind>(kind);
  header.directory_index = get_little<uint32_t>(p + 44);
  header.directory_count = get_little<uint32_t>(p + 48);
  StoreDescription& d = header.description;
  d.rank = get_little<uint32_t>(p + 52);
  d.rank_count = get_little<uint32_t>(p + 56);
  const uint32_t group_count = get_little<uint32_t>(p + 60);
  d.chunk_bytes = get_little<uint64_t>(p + 64);
  d.fingerprint = get_little<uint64_t>(p + 72);
  size_t at = kFixedBytes;
  // The checksum does not protect against malice: every length is checked against the bytes left.
  const auto take_text = [&](uint32_t length, std::string* text) {
    if (length > total - at) return false;
    text->assign(reinterpret_cast<const char*>(p + at), length);
    at += length;
    return true;
  };
  if (!take_text(get_little<uint32_t>(p + 80), &d.model)) return damaged("ends within the name");
  for (uint32_t g = 0; g < group_count; ++g) {
    if (total - at < kGroupFixedBytes) return damaged("ends within the groups");
    GroupDescription group;
    group.element_count = get_little<uint64_t>(p + at);
    group.first_element = get_little<uint64_t>(p + at + 8);
    group.chunk_elements = get_little<uint64_t>(p + at + 16);
    group.method = get_little<uint32_t>(p + at + 24);
    group.state_format = get_little<uint32_t>(p + at + 28);
    const uint32_t name_bytes = get_little<uint32_t>(p + at + 32);
    at += kGroupFixedBytes;
    if (!take_text(name_bytes, &group.name)) return damaged("ends within a group's name");
    d.groups.push_back(std::move(group));
  }
  if (header.directory_count == 0 || header.directory_index >= header.directory_count) {
    return damaged("has an impossible directory index");
  }
  if (Status status = validate(d); !status.ok()) return damaged("is refused: " + status.text());
  return header;
}

}  // namespace weir::offload
