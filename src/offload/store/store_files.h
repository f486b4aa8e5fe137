// SPDX-License-Identifier: Apache-2.0
// The files of a store as a whole: their locks, the room for new ones, and their removal. No
// transfer may be in flight on the Disk meanwhile. Same thread as the Disk.
//
// Their order makes every interrupted creation or removal recognizable: metadata is made before the
// first slot and removed after the last one, so slots without metadata always mean lost metadata
// and never a store being made. The lock file is made first and removed last.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "offload/disk/disk.h"
#include "offload/store/commit_record.h"
#include "offload/store/open_file.h"

namespace weir::offload {

// The store's files that exist in these directories, in the order of their removal, locks last.
Result<std::vector<std::string>> existing_files(Disk& disk,
                                                const std::vector<std::string>& directories);

// How long a program waits for a lock: the kernel closes the files of a killed process's io_uring,
// and so releases its locks, a little after the process has ended.
inline constexpr uint64_t kLockWaitMs = 2000;

// Makes the directory's lock file if it has none, and locks it. kRefused when another holder keeps
// it for `wait_ms`.
Result<OpenFile> hold_lock(Disk& disk, const std::string& directory, uint64_t wait_ms);

// Locks the lock files of those directories that have one; makes none.
Result<std::vector<OpenFile>> hold_existing_locks(Disk& disk,
                                                  const std::vector<std::string>& directories,
                                                  uint64_t wait_ms);

// The error for a directory with files of a store but no readable metadata.
inline constexpr const char* kMayBeOneOfSeveral =
    "it may be one of several directories of a store, whose metadata the others have: give "
    "weir-fsck all of them together";

// Removes every file of a store, its locks too when `locks`; durable on return. The caller holds
// the locks.
Status remove_files(Disk& disk, const std::vector<std::string>& directories, bool locks);

// Directories in which a store or a checkpoint is to be made.
struct Claim {
  std::vector<OpenFile> locks;    // by directory
  std::vector<std::string> made;  // directories and locks that were not there, in order
};

// Makes the directories, takes their locks, and makes room: removes the remains of an interrupted
// creation, and a store or checkpoint in which nothing was committed. kRefused, naming the files,
// where a committed one may exist. After an error nothing that this call made is left.
Result<Claim> claim_directories(Disk& disk, const std::vector<std::string>& directories,
                                uint64_t timeout_ms, uint64_t lock_wait_ms);

// Undoes a claim after a failed creation: removes all files of a store, and whatever the claim
// made.
void give_back(Disk& disk, const std::vector<std::string>& directories, const Claim& claim);

// Implements weir-fsck --discard: holds the locks from prepare until it is destroyed, and changes
// nothing before remove.
class Discard {
 public:
  // kRefused: no file of a store there, or in use. kMismatch: the metadata names a store over other
  // directories than these: all directories of a store are discarded together.
  static Result<Discard> prepare(Disk& disk, const std::vector<std::string>& directories,
                                 uint64_t timeout_ms, uint64_t lock_wait_ms = 0);
  const std::vector<std::string>& files() const { return files_; }
  // The newest commit that the metadata records, as far as it can be read.
  const std::optional<CommitRecord>& commit() const { return commit_; }
  // An error says which files were removed before it; those that are left can be removed later.
  Status remove();

 private:
  Discard(Disk& disk, const std::vector<std::string>& directories)
      : disk_(&disk), directories_(directories) {}

  Disk* disk_;
  std::vector<std::string> directories_;
  std::vector<OpenFile> locks_;
  std::vector<std::string> files_;
  std::optional<CommitRecord> commit_;
};

}  // namespace weir::offload
