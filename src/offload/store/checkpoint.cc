// SPDX-License-Identifier: Apache-2.0
// Checkpoints: holding an epoch. The order is: metadata that says that nothing is committed (so
// that an interrupted checkpoint can be told from a store whose metadata is lost), links to the
// data, a record that says "held" (so that the store never writes to a file with two names), then
// the metadata that makes it a checkpoint.
#include <fmt/format.h>

#include "offload/store/aligned_buffer.h"
#include "offload/store/chunk_trailer.h"
#include "offload/store/file_names.h"
#include "offload/store/scan.h"
#include "offload/store/store.h"
#include "offload/store/store_files.h"
#include "offload/store/transfer_all.h"

namespace weir::offload {

namespace {

std::string parent_of(const std::string& path) {
  std::string trimmed = path;
  while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
  const size_t slash = trimmed.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : trimmed.substr(0, slash);
}

}  // namespace

Status Store::checkpoint(const std::vector<std::string>& directories) {
  WEIR_RETURN_IF_ERROR(check_usable(true));
  if (options_.read_only) {
    return Status(Code::kInvalidUsage, "the store is open read only");
  }
  if (in_step_ || uncommitted_ || record_.current == kNoSlot) {
    return Status(Code::kInvalidUsage, "a checkpoint holds a committed step: commit one first");
  }
  if (directories.size() != directories_.size()) {
    return invalid_argument(fmt::format("a checkpoint of this store needs {} directories, not {}",
                                        directories_.size(), directories.size()));
  }
  const uint32_t slot = record_.current;
  const std::string where = "checkpoint in '" + directories[0] + "'";
  Result<Claim> claimed =
      claim_directories(disk_, directories, options_.timeout_ms, options_.lock_wait_ms);
  if (!claimed.ok()) return claimed.status().with_context(where);
  Claim claim = claimed.take();
  const auto fail = [&](const Status& status) {
    give_back(disk_, directories, std::move(claim));
    return status.with_context(where);
  };
  CommitRecord nothing;
  nothing.id = header_.id;
  if (Status status = write_metadata(directories, nothing, nullptr); !status.ok()) {
    return fail(status);
  }
  bool any_linked = false;
  std::vector<std::string> next_files;
  const auto name_data = [&]() -> Status {
    for (uint32_t d = 0; d < directories.size(); ++d) {
      bool linked = false;
      WEIR_RETURN_IF_ERROR(hold_in(d, directories[d], &linked));
      any_linked |= linked;
    }
    if (!any_linked || record_.slots[slot].held) return {};
    for (uint32_t d = 0; d < directories.size(); ++d) {
      next_files.push_back(next_slot_path(directories_[d].path, slot));
      WEIR_RETURN_IF_ERROR(preallocate_next(d, slot));
    }
    return {};
  };
  if (Status status = name_data(); !status.ok()) {
    for (const std::string& path : next_files) static_cast<void>(disk_.remove(path));
    return fail(status);
  }
  // From here on the store needs its next files.
  if (any_linked && !record_.slots[slot].held) {
    CommitRecord record = record_;
    ++record.sequence;
    record.slots[slot].held = true;
    WEIR_RETURN_IF_ERROR(write_record(record));
  }
  CommitRecord of_checkpoint = nothing;
  ++of_checkpoint.sequence;
  of_checkpoint.current = slot;
  of_checkpoint.slots[slot] = record_.slots[slot];
  of_checkpoint.slots[slot].held = false;
  const auto complete = [&]() -> Status {
    for (const std::string& to : directories) WEIR_RETURN_IF_ERROR(disk_.sync_directory(to));
    WEIR_RETURN_IF_ERROR(write_metadata(directories, of_checkpoint, &nothing));
    for (const std::string& to : directories) {
      WEIR_RETURN_IF_ERROR(disk_.sync_directory(parent_of(to)));
    }
    return {};
  };
  if (Status status = complete(); !status.ok()) return fail(status);
  for (const std::string& to : directories) static_cast<void>(disk_.remove(lock_path(to)));
  return {};
}

// Of a checkpoint.
Status Store::write_metadata(const std::vector<std::string>& directories,
                             const CommitRecord& newest, const CommitRecord* older) {
  Header header = header_;
  header.kind = StoreKind::kCheckpoint;
  for (uint32_t d = 0; d < directories.size(); ++d) {
    header.directory_index = d;
    for (uint32_t copy = 0; copy < kMetaCopies; ++copy) {
      WEIR_RETURN_IF_ERROR(write_metadata_file(disk_, directories[d], copy, header, newest, older,
                                               options_.timeout_ms));
    }
  }
  return {};
}

Status Store::hold_in(uint32_t directory, const std::string& to, bool* linked) {
  const uint32_t slot = record_.current;
  const std::string from = slot_path(directories_[directory].path, slot);
  const std::string path = slot_path(to, slot);
  Status status = disk_.link(from, path);
  *linked = status.ok();
  if (status.ok() || status.code() != Code::kUnsupported) return status;
  status = disk_.clone(from, path);
  if (!status.ok()) {
    if (status.code() != Code::kUnsupported) return status;
    return copy_slot(directory, slot, path);
  }
  Result<OpenFile> file = OpenFile::open(disk_, path, OpenMode::kReadWrite);
  if (!file.ok()) return file.status();
  WEIR_RETURN_IF_ERROR(disk_.sync(file.value().id()));
  return file.value().close();
}

// Chunk by chunk, each checked, so that a checkpoint never starts out bad.
Status Store::copy_slot(uint32_t directory, uint32_t slot, const std::string& to) {
  const uint64_t count = directories_.size();
  const uint64_t chunk_bytes = header_.description.chunk_bytes;
  Result<OpenFile> file = OpenFile::open(disk_, to, OpenMode::kCreate, slot_file_bytes(directory));
  if (!file.ok()) return file.status();
  Result<AlignedBuffer> buffer = AlignedBuffer::make(chunk_bytes);
  if (!buffer.ok()) return buffer.status();
  for (uint64_t chunk = directory; chunk < chunk_count_; chunk += count) {
    Transfer read = transfer_of(chunk, slot, buffer.value().data());
    BatchOutcome outcome = transfer_all(disk_, {&read, 1}, options_.timeout_ms);
    if (outcome.first_error().ok()) {
      WEIR_RETURN_IF_ERROR(check_read(chunk, buffer.value().data()));
      Transfer write = read;
      write.write = true;
      write.file = file.value().id();
      outcome = transfer_all(disk_, {&write, 1}, options_.timeout_ms);
    }
    if (outcome.stuck) buffer.value().leak();
    WEIR_RETURN_IF_ERROR(outcome.first_error());
  }
  WEIR_RETURN_IF_ERROR(disk_.sync(file.value().id()));
  return file.value().close();
}

Status Store::preallocate_next(uint32_t directory, uint32_t slot) {
  const std::string& path = directories_[directory].path;
  const std::string next = next_slot_path(path, slot);
  const Result<bool> exists = disk_.exists(next);
  if (!exists.ok()) return exists.status();
  if (exists.value()) WEIR_RETURN_IF_ERROR(disk_.remove(next));
  Result<OpenFile> file =
      OpenFile::open(disk_, next, OpenMode::kCreate, slot_file_bytes(directory));
  if (!file.ok()) return file.status();
  Status status = disk_.sync(file.value().id());
  if (status.ok()) status = file.value().close();
  if (!status.ok()) static_cast<void>(disk_.remove(next));
  return status;
}

// The next file takes the name of the file that a checkpoint holds. Repeating this after a crash
// costs only time: the slot holds no state that counts.
Status Store::replace_held_slot(uint32_t slot) {
  for (uint32_t d = 0; d < directories_.size(); ++d) {
    Directory& directory = directories_[d];
    const std::string next = next_slot_path(directory.path, slot);
    const Result<bool> exists = disk_.exists(next);
    if (!exists.ok()) return exists.status();
    if (!exists.value()) WEIR_RETURN_IF_ERROR(preallocate_next(d, slot));
    Result<OpenFile> file = OpenFile::open(disk_, next, OpenMode::kReadWrite);
    if (!file.ok()) return file.status();
    const Result<uint64_t> size = disk_.size(file.value().id());
    if (!size.ok()) return size.status();
    if (size.value() != slot_file_bytes(d)) {
      WEIR_RETURN_IF_ERROR(file.value().close());
      WEIR_RETURN_IF_ERROR(preallocate_next(d, slot));
      file = OpenFile::open(disk_, next, OpenMode::kReadWrite);
      if (!file.ok()) return file.status();
    }
    WEIR_RETURN_IF_ERROR(disk_.rename(next, slot_path(directory.path, slot)));
    directory.slot[slot] = file.take();
    if (Status status = disk_.sync_directory(directory.path); !status.ok()) {
      return poison("sync of a directory", status);
    }
  }
  record_.slots[slot].held = false;
  return {};
}

}  // namespace weir::offload
