// SPDX-License-Identifier: Apache-2.0
// The files of a store as a whole: who holds them, what a creation finds where it wants to make new
// ones, and their removal. No transfer may be in flight on the Disk meanwhile. Same thread as the
// Disk.
//
// Order makes every cut-short creation or removal recognizable: metadata is there before the first
// slot and goes after the last one, so that slots without metadata are never a store that is being
// made, only one whose metadata was lost. The lock's file comes first and goes last.
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

// The kernel lets go of the files of a killed process's io_uring, and so of its locks, a little
// after the process has ended: how long a program waits for that.
inline constexpr uint64_t kLockWaitMs = 2000;

// Makes the directory's lock file if it has none, and holds it. kRefused when somebody else does
// for `wait_ms`.
Result<OpenFile> hold_lock(Disk& disk, const std::string& directory, uint64_t wait_ms);

// The locks of those directories that have the file; makes none.
Result<std::vector<OpenFile>> hold_existing_locks(Disk& disk,
                                                  const std::vector<std::string>& directories,
                                                  uint64_t wait_ms);

// What is said of a directory with files of a store and no metadata that can be read.
inline constexpr const char* kMayBeOneOfSeveral =
    "it may be one of several directories of a store, whose metadata the others have: give "
    "weir-fsck all of them together";

// Removes every file of a store, its locks too when `locks`; durable on return. The locks are held
// by the caller.
Status remove_files(Disk& disk, const std::vector<std::string>& directories, bool locks);

// Directories in which a store or a checkpoint is to be made.
struct Claim {
  std::vector<OpenFile> locks;    // by directory
  std::vector<std::string> made;  // directories and locks that were not there, in order
};

// Makes the directories, holds their locks, and makes room: removes what a creation left that was
// cut short, and a store or checkpoint in which nothing was committed. kRefused, with the files,
// where there may be one that counts. After an error nothing of what this call made is left.
Result<Claim> claim_directories(Disk& disk, const std::vector<std::string>& directories,
                                uint64_t timeout_ms, uint64_t lock_wait_ms);

// The end of a claim in which nothing came to be: removes all files of a store, and what was made.
void give_back(Disk& disk, const std::vector<std::string>& directories, Claim claim);

// What weir-fsck --discard does: holds the locks from prepare until it is destroyed, and changes
// nothing before remove.
class Discard {
 public:
  // kRefused: no file of a store there, or in use. kMismatch: the metadata tells of a store over
  // other directories than these: all of one store are discarded together.
  static Result<Discard> prepare(Disk& disk, const std::vector<std::string>& directories,
                                 uint64_t timeout_ms, uint64_t lock_wait_ms = 0);
  const std::vector<std::string>& files() const { return files_; }
  // The newest commit that can be read of the metadata.
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
