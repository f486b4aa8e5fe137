// SPDX-License-Identifier: Apache-2.0
#include "offload/store/store_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/log.h"
#include "offload/store/file_names.h"
#include "offload/store/metadata.h"

namespace weir::offload {

namespace {

constexpr size_t kFilesNamed = 8;

std::vector<std::string> slot_files(const std::string& directory) {
  return {next_slot_path(directory, 0), next_slot_path(directory, 1), slot_path(directory, 0),
          slot_path(directory, 1)};
}

std::vector<std::string> metadata_files(const std::string& directory) {
  return {meta_path(directory, 0) + ".new", meta_path(directory, 1) + ".new",
          meta_path(directory, 0), meta_path(directory, 1)};
}

std::vector<std::string> lock_files(const std::string& directory) { return {lock_path(directory)}; }

using Names = std::vector<std::string> (*)(const std::string& directory);

// Appends those of the names that exist, over all directories.
Status append_existing(Disk& disk, const std::vector<std::string>& directories, Names names,
                       std::vector<std::string>* files) {
  for (const std::string& directory : directories) {
    for (const std::string& path : names(directory)) {
      const Result<bool> exists = disk.exists(path);
      if (!exists.ok()) return exists.status();
      if (exists.value()) files->push_back(path);
    }
  }
  return {};
}

// All of one kind are durably gone before the first of the next kind goes.
Status remove_kind(Disk& disk, const std::vector<std::string>& directories, Names names) {
  for (const std::string& directory : directories) {
    std::vector<std::string> files;
    WEIR_RETURN_IF_ERROR(append_existing(disk, {directory}, names, &files));
    for (const std::string& path : files) WEIR_RETURN_IF_ERROR(disk.remove(path));
    if (!files.empty()) WEIR_RETURN_IF_ERROR(disk.sync_directory(directory));
  }
  return {};
}

std::string named(const std::vector<std::string>& files) {
  const size_t shown = std::min(files.size(), kFilesNamed);
  std::string text;
  for (size_t i = 0; i < shown; ++i) text += (i > 0 ? "', '" : "'") + files[i];
  text += "'";
  if (shown < files.size()) text += fmt::format(" and {} more", files.size() - shown);
  return text;
}

}  // namespace

Result<std::vector<std::string>> existing_files(Disk& disk,
                                                const std::vector<std::string>& directories) {
  std::vector<std::string> files;
  for (const Names names : {slot_files, metadata_files, lock_files}) {
    WEIR_RETURN_IF_ERROR(append_existing(disk, directories, names, &files));
  }
  return files;
}

Result<OpenFile> hold_lock(Disk& disk, const std::string& directory) {
  const std::string path = lock_path(directory);
  const Result<bool> exists = disk.exists(path);
  if (!exists.ok()) return exists.status();
  Result<OpenFile> file =
      OpenFile::open(disk, path, exists.value() ? OpenMode::kReadOnly : OpenMode::kCreate, 0);
  if (!file.ok()) return file.status();
  if (Status status = disk.lock(file.value().id()); !status.ok()) {
    if (status.code() != Code::kRefused) return status;
    return Status(Code::kRefused,
                  fmt::format("expected the store in '{}' to be free, found it open in another "
                              "process or elsewhere in this one ({}); end that first",
                              directory, status.text()));
  }
  return file;
}

Status remove_files(Disk& disk, const std::vector<std::string>& directories, bool locks) {
  WEIR_RETURN_IF_ERROR(remove_kind(disk, directories, slot_files));
  WEIR_RETURN_IF_ERROR(remove_kind(disk, directories, metadata_files));
  return locks ? remove_kind(disk, directories, lock_files) : Status();
}

Status clear_for_creation(Disk& disk, const std::vector<std::string>& directories,
                          uint64_t timeout_ms) {
  std::vector<std::string> slots;
  WEIR_RETURN_IF_ERROR(append_existing(disk, directories, slot_files, &slots));
  std::vector<std::string> all = slots;
  WEIR_RETURN_IF_ERROR(append_existing(disk, directories, metadata_files, &all));
  if (all.empty()) return {};
  // A file that never got its name holds nothing.
  const bool unnamed = std::all_of(all.begin(), all.end(),
                                   [](const std::string& path) { return path.ends_with(".new"); });
  if (!unnamed) {
    const std::string found =
        fmt::format("expected no store in '{}', found {}", directories[0], named(all));
    const std::string remedy = fmt::format("weir-fsck --discard {}", fmt::join(directories, " "));
    const Result<Metadata> read = read_metadata(disk, directories, timeout_ms);
    if (!read.ok() && read.status().code() != Code::kRefused) {
      return read.status().code() != Code::kMismatch
                 ? read.status()
                 : Status(Code::kMismatch, fmt::format("{} ({}): remove them with {}", found,
                                                       read.status().text(), remedy));
    }
    if (!read.ok()) {
      return Status(Code::kRefused,
                    fmt::format("{} and no metadata that can be read ({}): this may be a store "
                                "whose metadata was lost; if nothing of it is needed, remove its "
                                "files with {}",
                                found, read.status().text(), remedy));
    }
    const CommitRecord& newest = read.value().newest;
    if (newest.current != kNoSlot) {
      const SlotState& state = newest.slots[newest.current];
      return Status(Code::kRefused,
                    fmt::format("{}, and epoch {} (step {}) committed in it: open it, or remove it "
                                "first",
                                found, state.epoch, state.step));
    }
    log_info(fmt::format("offload: the store in '{}' has no committed step and is created anew",
                         directories[0]));
    if (read.value().newer_unreadable) {
      log_warn(
          fmt::format("offload: the store in '{}', which is created anew, has an unreadable "
                      "record of a first commit",
                      directories[0]));
    }
  }
  return remove_files(disk, directories, false);
}

Result<Discard> Discard::prepare(Disk& disk, const std::vector<std::string>& directories,
                                 uint64_t timeout_ms) {
  WEIR_RETURN_IF_ERROR(check_directories(disk, directories));
  Discard discard(disk, directories);
  Result<std::vector<std::string>> files = existing_files(disk, directories);
  if (!files.ok()) return files.status();
  if (files.value().empty()) {
    return Status(Code::kRefused,
                  fmt::format("no file of a store in '{}'", fmt::join(directories, "', '")));
  }
  // Those that are not there are made by remove: nothing is changed before.
  for (const std::string& directory : directories) {
    const Result<bool> exists = disk.exists(lock_path(directory));
    if (!exists.ok()) return exists.status();
    if (!exists.value()) continue;
    Result<OpenFile> lock = hold_lock(disk, directory);
    if (!lock.ok()) return lock.status();
    discard.locks_.push_back(lock.take());
  }
  // What was there before the lock was ours may be gone.
  files = existing_files(disk, directories);
  if (!files.ok()) return files.status();
  discard.files_ = files.take();
  Result<std::optional<CommitRecord>> commit = any_commit(disk, directories, timeout_ms);
  if (!commit.ok()) return commit.status();
  discard.commit_ = commit.take();
  return discard;
}

Status Discard::remove() {
  const Result<std::vector<std::string>> now = existing_files(*disk_, directories_);
  if (!now.ok()) return now.status();
  if (now.value() != files_) {
    return Status(Code::kRefused,
                  "the files have changed since they were listed: is a store made "
                  "there by somebody else? Nothing was removed");
  }
  for (const std::string& directory : directories_) {
    const Result<bool> exists = disk_->exists(lock_path(directory));
    if (!exists.ok()) return exists.status();
    if (exists.value()) continue;  // held since prepare
    Result<OpenFile> lock = hold_lock(*disk_, directory);
    if (!lock.ok()) return lock.status();
    locks_.push_back(lock.take());
  }
  return remove_files(*disk_, directories_, true);
}

}  // namespace weir::offload
