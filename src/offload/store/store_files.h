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

// Makes the directory's lock file if it has none, and holds it. kRefused while somebody else does.
Result<OpenFile> hold_lock(Disk& disk, const std::string& directory);

// Removes every file of a store, its locks too when `locks`; durable on return. The locks are held
// by the caller.
Status remove_files(Disk& disk, const std::vector<std::string>& directories, bool locks);

// Makes room for a new store: removes what a creation left that was cut short, and a store in which
// nothing was committed. kRefused, with the files, where there may be a store that counts. The
// locks are held by the caller.
Status clear_for_creation(Disk& disk, const std::vector<std::string>& directories,
                          uint64_t timeout_ms);

// What weir-fsck --discard does: holds the locks from prepare until it is destroyed, and changes
// nothing before remove.
class Discard {
 public:
  // kRefused: no file of a store there, or in use.
  static Result<Discard> prepare(Disk& disk, const std::vector<std::string>& directories,
                                 uint64_t timeout_ms);
  const std::vector<std::string>& files() const { return files_; }
  // The newest commit that can be read of the metadata.
  const std::optional<CommitRecord>& commit() const { return commit_; }
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
