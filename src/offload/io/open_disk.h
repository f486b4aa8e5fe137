// SPDX-License-Identifier: Apache-2.0
// open_disk: opens the disk that this machine allows: io_uring where permitted, otherwise pread and
// pwrite on a few threads. Thread-safe; the disk it returns has the thread rule of disk.h.
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
  kUring,  // an error says why it cannot be used
  kPosix,
};

struct DiskOptions {
  DiskKind kind = DiskKind::kAuto;
  uint32_t depth = 32;  // transfers that may be under way, 1 to 4096
  bool direct = true;   // O_DIRECT where the file system has it
  // Its memory is registered with io_uring, so that transfers do not pin pages each time; all of it
  // counts as locked memory. It must outlive the disk. Transfers of other memory work too.
  Arena* arena = nullptr;
  // For io_uring; an error says why one cannot be had. A kernel thread submits; completions are
  // polled, which a small read in each of the directories tries out.
  bool sqpoll = false;
  bool iopoll = false;
  std::vector<std::string> iopoll_directories = {};
  uint32_t posix_threads = 4;  // 1 to 64
  // The most that one request to the kernel asks for; longer transfers become several requests.
  uint64_t request_bytes_max = uint64_t{1} << 30;
};

Result<std::unique_ptr<Disk>> open_disk(const DiskOptions& options);

// kInvalidArgument that names the option.
Status check(const DiskOptions& options);

}  // namespace weir::offload
