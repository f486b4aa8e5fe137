// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/descriptors.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace weir::comm {

namespace {

constexpr int kNoSuchCall = ENOSYS;

int open_process(int32_t process) {
#ifdef SYS_pidfd_open
  return static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(process), 0));
#else
  (void)process;
  errno = kNoSuchCall;
  return -1;
#endif
}

int take_descriptor(int process, int number) {
#ifdef SYS_pidfd_getfd
  return static_cast<int>(syscall(SYS_pidfd_getfd, process, number, 0));
#else
  (void)process;
  (void)number;
  errno = kNoSuchCall;
  return -1;
#endif
}

// 0 where the kernel has no Yama.
int yama() {
  int scope = 0;
  std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
  return file >> scope ? scope : 0;
}

std::string refused(int32_t process, int error) {
  switch (error) {
    case ENOSYS:
      return "the kernel does not copy descriptors of other processes: this needs Linux 5.6, and a "
             "container that allows pidfd_open and pidfd_getfd";
    case EPERM:
    case EACCES:
      if (const int scope = yama(); scope > 0) {
        return fmt::format(
            "the kernel refuses a descriptor of process {}, because kernel.yama.ptrace_scope is "
            "{}: set it to 0, or give the processes CAP_SYS_PTRACE",
            process, scope);
      }
      return fmt::format(
          "the kernel refuses a descriptor of process {}: both processes must be of one user and "
          "dumpable, and a container must allow pidfd_getfd (--cap-add=SYS_PTRACE)",
          process);
    case EMFILE:
    case ENFILE:
      return "this process is out of file descriptors: raise its limit (ulimit -n)";
    case ESRCH:
    case EBADF:
    case EINVAL:
      return fmt::format(
          "process {} has no such descriptor: it has ended, or the processes do not see each other "
          "(containers need one view of processes, --pid=host)",
          process);
    default:
      return fmt::format("a descriptor of process {} cannot be copied: {}", process,
                         std::strerror(error));
  }
}

}  // namespace

OwnedDescriptor::~OwnedDescriptor() {
  if (number_ >= 0) close(number_);
}

OtherProcess::OtherProcess(int32_t process, std::string* reason)
    : process_(process), handle_(open_process(process)) {
  if (!handle_.ok()) *reason = refused(process_, errno);
}

OwnedDescriptor OtherProcess::take(int32_t number, std::string* reason) const {
  OwnedDescriptor taken(take_descriptor(handle_.get(), number));
  if (!taken.ok()) *reason = refused(process_, errno);
  return taken;
}

}  // namespace weir::comm
