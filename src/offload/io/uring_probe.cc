// SPDX-License-Identifier: Apache-2.0
#include "offload/io/uring_probe.h"

#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>

#include "offload/disk/disk.h"

namespace weir::offload {
namespace {

// One read through a polled ring. A file system may take the ring and refuse the transfer.
Status read_polled(int fd, unsigned char* block) {
  io_uring ring;
  int number = -io_uring_queue_init(1, &ring, IORING_SETUP_IOPOLL);
  if (number != 0) return system_error("io_uring_setup", number);
  io_uring_sqe* sqe = io_uring_get_sqe(&ring);
  io_uring_prep_read(sqe, fd, block, kDiskAlignment, 0);
  int submitted = 0;
  do {
    submitted = io_uring_submit(&ring);
  } while (submitted == -EINTR);
  io_uring_cqe* cqe = nullptr;
  if (submitted != 1) {
    number = submitted < 0 ? -submitted : EIO;
  } else {
    do {
      number = -io_uring_wait_cqe(&ring, &cqe);
    } while (number == EINTR);
    if (number == 0 && cqe->res < 0) number = -cqe->res;
    if (number == 0 && cqe->res != static_cast<int>(kDiskAlignment)) number = EIO;
  }
  io_uring_queue_exit(&ring);
  return number == 0 ? Status() : system_error("a polled read", number);
}

}  // namespace

Status probe_iopoll(const std::string& directory) {
  if (directory.empty()) return invalid_argument("no directory to probe was given");
  const int fd = open(directory.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
  if (fd < 0) return system_error("a file of direct I/O in '" + directory + "'");
  const std::unique_ptr<unsigned char, void (*)(void*)> block(
      static_cast<unsigned char*>(std::calloc(2, kDiskAlignment)), std::free);
  Status status(Code::kNoMemory, "no memory for a block");
  if (block != nullptr) {
    unsigned char* aligned =
        block.get() + kDiskAlignment - reinterpret_cast<uintptr_t>(block.get()) % kDiskAlignment;
    if (pwrite(fd, aligned, kDiskAlignment, 0) == static_cast<ssize_t>(kDiskAlignment))
      status = read_polled(fd, aligned);
    else
      status = system_error("write a block in '" + directory + "'");
  }
  close(fd);
  return status;
}

}  // namespace weir::offload
