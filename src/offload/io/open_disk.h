// SPDX-License-Identifier: Apache-2.0
// open_disk: the disk that this machine allows, io_uring where it may be used and pread/pwrite with
// a few threads elsewhere. Thread-safe; the disk it returns has the rule of disk.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "offload/disk/disk.h"

namespace weir::offload {

class Arena;

enum class DiskKind : uint8_t {
  kAuto,   // io_uring, else posix with the reason in describe()
  kUring,  // or an error that says why not
  kPosix,
};

struct DiskOptions {
  DiskKind kind = DiskKind::kAuto;
  uint32_t depth = 32;  // transfers that may be under way, 1 to 4096
  bool direct = true;   // O_DIRECT where the file system has it
  // Its memory is registered with io_uring, so that transfers do not pin pages each time; all of it
  // counts as locked memory. It outlives the disk. Transfers of other memory work too.
  Arena* arena = nullptr;
  // Of io_uring, and errors that say why not where they cannot be had: a kernel thread submits;
  // completions are polled, which a small read in each of the directories tries.
  bool sqpoll = false;
  bool iopoll = false;
  std::vector<std::string> iopoll_directories = {};
  uint32_t posix_threads = 4;  // 1 to 64
  // What one request to the kernel asks for at most; longer transfers are several requests.
  uint64_t request_bytes_max = uint64_t{1} << 30;
};

Result<std::unique_ptr<Disk>> open_disk(const DiskOptions& options);

// kInvalidArgument that names the option.
Status check(const DiskOptions& options);

}  // namespace weir::offload
