// SPDX-License-Identifier: Apache-2.0
// OpenFile: a file of a Disk, closed when it goes out of scope. One owner; same thread as the Disk.
#pragma once

#include <string>
#include <utility>

#include "offload/disk/disk.h"

namespace weir::offload {

class OpenFile {
 public:
  OpenFile() = default;
  static Result<OpenFile> open(Disk& disk, const std::string& path, OpenMode mode,
                               uint64_t bytes = 0) {
    const Result<FileId> id = disk.open(path, mode, bytes);
    if (!id.ok()) return id.status();
    return OpenFile(&disk, id.value());
  }
  OpenFile(OpenFile&& other) noexcept { *this = std::move(other); }
  OpenFile& operator=(OpenFile&& other) noexcept {
    std::swap(disk_, other.disk_);
    std::swap(id_, other.id_);
    return *this;
  }
  // A caller who wants to see errors calls close(); here one cannot be reported.
  ~OpenFile() { static_cast<void>(close()); }

  bool is_open() const { return disk_ != nullptr; }
  FileId id() const { return id_; }
  Status close() {
    if (disk_ == nullptr) return {};
    return std::exchange(disk_, nullptr)->close(id_);
  }

 private:
  OpenFile(Disk* disk, FileId id) : disk_(disk), id_(id) {}
  Disk* disk_ = nullptr;
  FileId id_ = 0;
};

}  // namespace weir::offload
