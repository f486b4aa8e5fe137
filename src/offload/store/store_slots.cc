// SPDX-License-Identifier: Apache-2.0
// The slot files of a store: opening them, and mending those that are missing, too short or too
// long.
#include <fmt/format.h>

#include <algorithm>

#include "core/base/log.h"
#include "offload/store/file_names.h"
#include "offload/store/store.h"

namespace weir::offload {

namespace {

// An interrupted creation: the metadata, which is made first, says so.
Status never_completed(const std::string& directory, const std::string& path) {
  return Status(Code::kRefused,
                fmt::format("the store in '{}' was never completed: nothing is committed, and '{}' "
                            "is not there as a whole; create it again",
                            directory, path));
}

}  // namespace

uint64_t Store::slot_file_bytes(uint32_t directory) const {
  return slot_bytes(chunk_count_, header_.description.chunk_bytes, directory,
                    static_cast<uint32_t>(directories_.size()));
}

// Changes nothing. Fails when a file may only be out of reach rather than missing.
Status Store::open_slots(std::vector<HurtFile>* hurt) {
  for (uint32_t d = 0; d < directories_.size(); ++d) {
    for (uint32_t slot = 0; slot < 2; ++slot) {
      if (options_.read_only && slot != record_.current) continue;
      const std::string path = slot_path(directories_[d].path, slot);
      const uint64_t expected = slot_file_bytes(d);
      const Result<bool> exists = disk_.exists(path);
      if (!exists.ok()) return exists.status();
      uint64_t bytes = 0;
      if (exists.value()) {
        Result<OpenFile> file = OpenFile::open(
            disk_, path, options_.read_only ? OpenMode::kReadOnly : OpenMode::kReadWrite);
        if (!file.ok()) return file.status();
        const Result<uint64_t> size = disk_.size(file.value().id());
        if (!size.ok()) return size.status();
        bytes = size.value();
        directories_[d].slot[slot] = file.take();
      }
      if (exists.value() && bytes == expected) continue;
      if (record_.current == kNoSlot) return never_completed(directories_[0].path, path);
      std::string why = fmt::format("expected file '{}', found none", path);
      if (exists.value()) {
        why = fmt::format("expected '{}' to have {} bytes, found {}: {}", path, expected, bytes,
                          bytes < expected ? "it was truncated" : "it has grown");
      }
      hurt->push_back({d, slot, bytes, why});
    }
  }
  return {};
}

// The chunks of the committed state that are missing with these files. The state before no longer
// counts as committed if some of its chunks are missing too.
ChunkDamage Store::lost_with(const std::vector<HurtFile>& hurt) {
  const uint64_t count = directories_.size();
  const uint64_t chunk_bytes = header_.description.chunk_bytes;
  ChunkDamage damage;
  const SlotState* state = committed();
  if (state == nullptr) return damage;
  damage.chunk_count = chunk_count_;
  damage.epoch = state->epoch;
  damage.step = state->step;
  bool any_missing = false;
  for (const HurtFile& file : hurt) {
    const uint64_t in_file = slot_file_bytes(file.directory) / chunk_bytes;
    const uint64_t there = std::min(file.bytes / chunk_bytes, in_file);
    if (there == in_file) continue;
    if (!damage.why.empty()) damage.why += "; ";
    damage.why += file.why;
    any_missing |= file.bytes == 0;
    if (file.slot != record_.current) {
      record_.slots[file.slot].committed = false;
      continue;
    }
    damage.bad_count += in_file - there;
    for (uint64_t i = there; i < std::min(in_file, there + kBadChunksNamed); ++i) {
      damage.chunks.push_back(i * count + file.directory);
    }
  }
  if (damage.bad_count == 0) return damage;
  if (any_missing) damage.why += " (is its drive mounted?)";
  std::sort(damage.chunks.begin(), damage.chunks.end());
  if (damage.chunks.size() > kBadChunksNamed) damage.chunks.resize(kBadChunksNamed);
  const uint64_t first = damage.chunks[0];
  damage.file = slot_path(directories_[first % count].path, record_.current);
  damage.offset_bytes = first / count * chunk_bytes;
  return damage;
}

// Truncates files that are too long. Recreates files that are missing or short: they belong to the
// slot that does not count, or have no chunks, so nothing is lost.
Status Store::mend_slots(const std::vector<HurtFile>& hurt) {
  const uint32_t slot = target_slot();
  bool replaced = false;
  for (const HurtFile& file : hurt) {
    Directory& directory = directories_[file.directory];
    const std::string path = slot_path(directory.path, file.slot);
    const uint64_t expected = slot_file_bytes(file.directory);
    std::string text = file.why;
    if (file.bytes > expected) {
      WEIR_RETURN_IF_ERROR(disk_.truncate(directory.slot[file.slot].id(), expected));
      text += ", the bytes behind these were cut off";
    } else {
      if (file.slot == slot && record_.slots[slot].held) {
        // A checkpoint holds the file, and the next file exists already.
        if (!replaced) WEIR_RETURN_IF_ERROR(replace_held_slot(slot));
        replaced = true;
      } else {
        directory.slot[file.slot] = OpenFile();
        const Result<bool> exists = disk_.exists(path);
        if (!exists.ok()) return exists.status();
        if (exists.value()) WEIR_RETURN_IF_ERROR(disk_.remove(path));
        Result<OpenFile> made = OpenFile::open(disk_, path, OpenMode::kCreate, expected);
        if (!made.ok()) return made.status();
        WEIR_RETURN_IF_ERROR(disk_.sync(made.value().id()));
        WEIR_RETURN_IF_ERROR(disk_.sync_directory(directory.path));
        directory.slot[file.slot] = made.take();
      }
      text +=
          "; it was created again, and until the next commit there is no earlier commit to go back "
          "to";
    }
    log_warn("offload: " + text);
    mended_.push_back(std::move(text));
  }
  return {};
}

// The process that made the slots may have been killed before their names were durable.
Status Store::sync_slots() {
  for (Directory& directory : directories_) {
    for (const OpenFile& slot : directory.slot) WEIR_RETURN_IF_ERROR(disk_.sync(slot.id()));
    WEIR_RETURN_IF_ERROR(disk_.sync_directory(directory.path));
  }
  return {};
}

// After a file has lost its name, nobody who opens the store finds what is written to it; a lock
// file that has lost its name excludes nobody.
Status Store::check_names(uint32_t slot) {
  for (const Directory& directory : directories_) {
    std::vector<std::pair<std::string, FileId>> files = {
        {slot_path(directory.path, slot), directory.slot[slot].id()}};
    if (directory.lock.is_open()) {
      files.emplace_back(lock_path(directory.path), directory.lock.id());
    }
    for (uint32_t copy = 0; copy < kMetaCopies; ++copy) {
      files.emplace_back(meta_path(directory.path, copy), directory.meta[copy].id());
    }
    for (const auto& [path, file] : files) {
      const Result<bool> named = disk_.is_name_of(path, file);
      if (!named.ok()) return named.status();
      if (!named.value()) {
        return Status(Code::kRefused, fmt::format("'{}' was removed, or another file has taken its "
                                                  "name, while the store was open",
                                                  path));
      }
    }
  }
  return {};
}

Status Store::check_names() {
  for (uint32_t slot = 0; slot < 2; ++slot) WEIR_RETURN_IF_ERROR(check_names(slot));
  return {};
}

}  // namespace weir::offload
