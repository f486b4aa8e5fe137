// SPDX-License-Identifier: Apache-2.0
#include "offload/io/open_disk.h"

#include <fmt/format.h>

#include "core/base/log.h"
#include "offload/io/posix_disk.h"
#if WEIR_HAVE_URING
#include "offload/io/uring_disk.h"
#endif

namespace weir::offload {
namespace {

Result<std::unique_ptr<Disk>> open_uring([[maybe_unused]] const DiskOptions& options) {
#if WEIR_HAVE_URING
  Result<std::unique_ptr<UringDisk>> disk = UringDisk::create(options);
  const bool is_wished = options.sqpoll || options.iopoll;
  if (!disk.ok())
    return is_wished ? disk.status() : disk.status().with_context("io_uring left out");
  return std::unique_ptr<Disk>(disk.take());
#else
  return Status(Code::kUnsupported, "io_uring left out: this build has no liburing");
#endif
}

Result<std::unique_ptr<Disk>> open_posix(const DiskOptions& options, const std::string& reason) {
  Result<std::unique_ptr<PosixDisk>> disk = PosixDisk::create(options, reason);
  if (!disk.ok()) return disk.status();
  return std::unique_ptr<Disk>(disk.take());
}

}  // namespace

Status check(const DiskOptions& options) {
  constexpr uint32_t kDepthMax = 4096;
  constexpr uint32_t kThreadsMax = 64;
  constexpr uint64_t kRequestBytesMax = uint64_t{1} << 30;
  if (options.depth == 0 || options.depth > kDepthMax)
    return invalid_argument(
        fmt::format("disk depth {}: allowed are 1 to {}", options.depth, kDepthMax));
  if (options.posix_threads == 0 || options.posix_threads > kThreadsMax)
    return invalid_argument(
        fmt::format("{} disk threads: allowed are 1 to {}", options.posix_threads, kThreadsMax));
  if (options.request_bytes_max == 0 || options.request_bytes_max > kRequestBytesMax ||
      options.request_bytes_max % kDiskAlignment != 0)
    return invalid_argument(
        fmt::format("requests of at most {} bytes: allowed are multiples of {} to {}",
                    options.request_bytes_max, kDiskAlignment, kRequestBytesMax));
  if (options.kind == DiskKind::kPosix && (options.sqpoll || options.iopoll))
    return invalid_argument(
        "SQPOLL and IOPOLL are io_uring's: a disk of pread and pwrite has none");
  return Status();
}

Result<std::unique_ptr<Disk>> open_disk(const DiskOptions& options) {
  WEIR_RETURN_IF_ERROR(check(options));
  Result<std::unique_ptr<Disk>> disk = Status(Code::kInternal, "no disk was tried");
  if (options.kind == DiskKind::kPosix) {
    disk = open_posix(options, "io_uring was not asked for");
  } else {
    disk = open_uring(options);
    if (!disk.ok() && options.kind == DiskKind::kAuto && !options.sqpoll && !options.iopoll)
      disk = open_posix(options, disk.status().text());
  }
  if (disk.ok()) log_info("disk: " + disk.value()->describe());
  return disk;
}

}  // namespace weir::offload
