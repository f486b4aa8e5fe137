// SPDX-License-Identifier: Apache-2.0
#include "offload/store/store_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "offload/store/file_names.h"
#include "offload/store/metadata.h"

namespace weir::offload {

namespace {

constexpr size_t kFilesNamed = 8;
constexpr std::chrono::milliseconds kLockPause(2);

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

// All files of one kind are durably removed before the first of the next kind.
Status remove_kind(Disk& disk, const std::vector<std::string>& directories, Names names) {
  for (const std::string& directory : directories) {
    std::vector<std::string> files;
    WEIR_RETURN_IF_ERROR(append_existing(disk, {directory}, names, &files));
    for (const std::string& path : files) WEIR_RETURN_IF_ERROR(disk.remove(path));
    if (!files.empty()) WEIR_RETURN_IF_ERROR(disk.sync_directory(directory));
  }
  return {};
}

void remove_made(Disk& disk, const Claim& claim) {
  for (size_t i = claim.made.size(); i-- > 0;) static_cast<void>(disk.remove(claim.made[i]));
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

Result<OpenFile> hold_lock(Disk& disk, const std::string& directory, uint64_t wait_ms) {
  const std::string path = lock_path(directory);
  const uint64_t deadline_ns = now_ns() + wait_ms * 1'000'000u;
  while (true) {
    const Result<bool> exists = disk.exists(path);
    if (!exists.ok()) return exists.status();
    Result<OpenFile> file =
        OpenFile::open(disk, path, exists.value() ? OpenMode::kReadOnly : OpenMode::kCreate, 0);
    if (!file.ok()) return file.status();
    const auto fail = [&](const Status& status) {
      if (!exists.value()) static_cast<void>(disk.remove(path));
      return status;
    };
    const Status status = disk.lock(file.value().id());
    if (status.ok()) {
      // The previous holder may have removed the file: then locking it excludes nobody.
      const Result<bool> named = disk.is_name_of(path, file.value().id());
      if (!named.ok()) return fail(named.status());
      if (named.value()) return file;
    } else if (status.code() != Code::kRefused) {
      return fail(status);
    } else if (now_ns() >= deadline_ns) {
      return Status(Code::kRefused,
                    fmt::format("the store in '{}' is in use: expected it to be free, found it "
                                "open in another process or elsewhere in this one ({}); end that "
                                "first",
                                directory, status.text()));
    } else {
      std::this_thread::sleep_for(kLockPause);
    }
  }
}

Result<std::vector<OpenFile>> hold_existing_locks(Disk& disk,
                                                  const std::vector<std::string>& directories,
                                                  uint64_t wait_ms) {
  std::vector<OpenFile> locks;
  for (const std::string& directory : directories) {
    const Result<bool> exists = disk.exists(lock_path(directory));
    if (!exists.ok()) return exists.status();
    if (!exists.value()) continue;
    Result<OpenFile> lock = hold_lock(disk, directory, wait_ms);
    if (!lock.ok()) return lock.status();
    locks.push_back(lock.take());
  }
  return locks;
}

Status remove_files(Disk& disk, const std::vector<std::string>& directories, bool locks) {
  WEIR_RETURN_IF_ERROR(remove_kind(disk, directories, slot_files));
  WEIR_RETURN_IF_ERROR(remove_kind(disk, directories, metadata_files));
  return locks ? remove_kind(disk, directories, lock_files) : Status();
}

namespace {

// The caller holds the locks.
Status clear_for_creation(Disk& disk, const std::vector<std::string>& directories,
                          uint64_t timeout_ms) {
  std::vector<std::string> slots;
  WEIR_RETURN_IF_ERROR(append_existing(disk, directories, slot_files, &slots));
  std::vector<std::string> all = slots;
  WEIR_RETURN_IF_ERROR(append_existing(disk, directories, metadata_files, &all));
  if (all.empty()) return {};
  // A file that never got its final name holds nothing.
  const bool unnamed = std::all_of(all.begin(), all.end(),
                                   [](const std::string& path) { return path.ends_with(".new"); });
  if (!unnamed) {
    const std::string found = fmt::format("expected no store or checkpoint in '{}', found {}",
                                          directories[0], named(all));
    const std::string remedy = fmt::format("weir-fsck --discard {}", fmt::join(directories, " "));
    const Result<Metadata> read = read_metadata(disk, directories, timeout_ms);
    if (!read.ok() && read.status().code() != Code::kRefused) {
      return read.status().code() != Code::kMismatch
                 ? read.status()
                 : Status(Code::kMismatch,
                          fmt::format("{} ({}): take another directory, or remove them with "
                                      "weir-fsck --discard and all directories of their store",
                                      found, read.status().text()));
    }
    if (!read.ok()) {
      return Status(Code::kRefused,
                    fmt::format("{} and no metadata that can be read ({}): this may be a store "
                                "whose metadata was lost; {}; if nothing of it is needed, remove "
                                "its files with {}",
                                found, read.status().text(), kMayBeOneOfSeveral, remedy));
    }
    const CommitRecord& newest = read.value().newest;
    if (newest.current != kNoSlot) {
      const SlotState& state = newest.slots[newest.current];
      return Status(Code::kRefused,
                    fmt::format("{}, and epoch {} (step {}) committed in it: open it, take another "
                                "directory, or remove it with {} --discard-committed",
                                found, state.epoch, state.step, remedy));
    }
    log_info(fmt::format("offload: the store in '{}' has no committed step and is created again",
                         directories[0]));
    if (read.value().newer_unreadable) {
      log_warn(
          fmt::format("offload: the store in '{}', which is created again, has an unreadable "
                      "record of a first commit",
                      directories[0]));
    }
  }
  return remove_files(disk, directories, false);
}

}  // namespace

Result<Claim> claim_directories(Disk& disk, const std::vector<std::string>& directories,
                                uint64_t timeout_ms, uint64_t lock_wait_ms) {
  WEIR_RETURN_IF_ERROR(check_distinct(directories));
  Claim claim;
  const auto claim_all = [&]() -> Status {
    for (const std::string& directory : directories) {
      const Result<bool> there = disk.exists(directory);
      if (!there.ok()) return there.status();
      WEIR_RETURN_IF_ERROR(disk.make_directory(directory));
      if (!there.value()) claim.made.push_back(directory);
      const Result<bool> exists = disk.exists(lock_path(directory));
      if (!exists.ok()) return exists.status();
      Result<OpenFile> lock = hold_lock(disk, directory, lock_wait_ms);
      if (!lock.ok()) return lock.status();
      claim.locks.push_back(lock.take());
      if (!exists.value()) claim.made.push_back(lock_path(directory));
    }
    return clear_for_creation(disk, directories, timeout_ms);
  };
  if (Status status = claim_all(); !status.ok()) {
    remove_made(disk, claim);
    return status;
  }
  return claim;
}

// Report the first error, not one of the clean-up.
void give_back(Disk& disk, const std::vector<std::string>& directories, const Claim& claim) {
  static_cast<void>(remove_files(disk, directories, true));
  remove_made(disk, claim);
}

Result<Discard> Discard::prepare(Disk& disk, const std::vector<std::string>& directories,
                                 uint64_t timeout_ms, uint64_t lock_wait_ms) {
  WEIR_RETURN_IF_ERROR(check_directories(disk, directories));
  Discard discard(disk, directories);
  Result<std::vector<std::string>> files = existing_files(disk, directories);
  if (!files.ok()) return files.status();
  if (files.value().empty()) {
    return Status(Code::kRefused,
                  fmt::format("no file of a store in '{}'", fmt::join(directories, "', '")));
  }
  // remove makes missing lock files: until then nothing is changed.
  Result<std::vector<OpenFile>> locks = hold_existing_locks(disk, directories, lock_wait_ms);
  if (!locks.ok()) return locks.status();
  discard.locks_ = locks.take();
  // Files seen before the lock was held may be gone.
  files = existing_files(disk, directories);
  if (!files.ok()) return files.status();
  discard.files_ = files.take();
  const Status metadata = read_metadata(disk, directories, timeout_ms).status();
  if (metadata.code() == Code::kMismatch) {
    return Status(metadata.code(),
                  fmt::format("nothing was removed: {}; give all directories of one store, in "
                              "their order, and an empty directory in place of one that is gone",
                              metadata.text()));
  }
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
                  "nothing was removed: the files have changed since they were listed; is another "
                  "process creating a store there?");
  }
  for (const std::string& directory : directories_) {
    const Result<bool> exists = disk_->exists(lock_path(directory));
    if (!exists.ok()) return exists.status();
    if (exists.value()) continue;  // held since prepare
    Result<OpenFile> lock = hold_lock(*disk_, directory, 0);
    if (!lock.ok()) return lock.status();
    locks_.push_back(lock.take());
  }
  Status status = remove_files(*disk_, directories_, true);
  if (status.ok()) return status;
  const Result<std::vector<std::string>> left = existing_files(*disk_, directories_);
  if (!left.ok()) return status.with_context("not all files were removed");
  std::vector<std::string> removed;
  std::copy_if(files_.begin(), files_.end(), std::back_inserter(removed),
               [&](const std::string& path) {
                 return std::count(left.value().begin(), left.value().end(), path) == 0;
               });
  return Status(status.code(),
                fmt::format("{}; {} of {} files were removed{}{}; the others are left: fix the "
                            "cause, and discard the store again",
                            status.text(), removed.size(), files_.size(),
                            removed.empty() ? "" : ": ", removed.empty() ? "" : named(removed)));
}

}  // namespace weir::offload
