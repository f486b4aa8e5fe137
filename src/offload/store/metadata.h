// SPDX-License-Identifier: Apache-2.0
// Metadata of a store: header and commit records, read from all their copies, written to all of
// them. No transfer may be in flight on the Disk meanwhile. Same thread as the Disk.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "offload/disk/disk.h"
#include "offload/store/commit_record.h"
#include "offload/store/header.h"

namespace weir::offload {

struct MetadataCopy {
  std::string path;
  bool good = false;     // header and newest record are there: nothing to repair
  bool blocked = false;  // something other than a file has the name: it is not replaced
};

struct Metadata {
  Header header;  // directory_index is 0
  CommitRecord newest;
  CommitRecord older;                 // on the other page; made up when no copy of it can be read
  std::vector<MetadataCopy> copies;   // directory by directory, a before b
  std::vector<std::string> problems;  // one sentence for each damaged or outdated copy
  // The page of the record after `newest` was written, and no copy of it can be read: an
  // interrupted commit, a commit whose record is damaged in every copy, or damage to the record
  // before.
  bool newer_unreadable = false;
  bool needs_repair() const;
  const MetadataCopy* blocked() const;  // the first one, or null
};

// Checks that no directory is given twice, as far as their names tell.
Status check_distinct(const std::vector<std::string>& directories);

// Checks that there is at least one directory, that none is given twice, and that all exist.
Status check_directories(Disk& disk, const std::vector<std::string>& directories);

// Reads all copies in all directories, which come in the order that the store was made with. A copy
// of another store beside one of this store is a damaged copy. Errors: a missing directory or
// store, directories of different stores or in another order (kMismatch), another format version
// (kUnsupported), or no readable copy (kRefused, with the reason of each).
Result<Metadata> read_metadata(Disk& disk, const std::vector<std::string>& directories,
                               uint64_t timeout_ms);

// The newest commit that any copy in these directories records, whatever is wrong with the others;
// none when no record can be read or nothing was committed.
Result<std::optional<CommitRecord>> any_commit(Disk& disk,
                                               const std::vector<std::string>& directories,
                                               uint64_t timeout_ms);

// Writes a whole metadata file, replacing any old one; durable on return. `older` goes to the other
// page, which stays zero without it.
Status write_metadata_file(Disk& disk, const std::string& directory, uint32_t copy,
                           const Header& header, const CommitRecord& newest,
                           const CommitRecord* older, uint64_t timeout_ms);

// Rewrites every copy that is not good. kRefused, and nothing is written, where one is blocked.
Status repair_metadata(Disk& disk, const std::vector<std::string>& directories,
                       const Metadata& metadata, uint64_t timeout_ms);

}  // namespace weir::offload
