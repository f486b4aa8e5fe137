// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/core/shared_mark.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <new>
#include <string>

namespace weir::hostcuda {

struct SharedMark::Page {
  std::atomic<uint64_t> begun{0};
  std::atomic<uint64_t> finished{0};
  std::atomic<uint32_t> changes{0};  // for waiters
  std::atomic<int32_t> recorder{0};  // the process of the latest record
};

namespace {

constexpr uint64_t kMagic = 0x3154564548524557;  // "WERHEVT1"
constexpr size_t kPageBytes = 4096;
constexpr timespec kCheck{0, 20'000'000};
constexpr const char* kName = "weir_hostcuda_event";

// The contents of a handle's 64 bytes; only this machine reads them.
struct Content {
  uint64_t magic;
  int32_t process;
  int32_t descriptor;
  uint64_t inode;
  uint64_t reserved[5];
};
static_assert(sizeof(Content) == sizeof(IpcHandle));

bool ours(int descriptor, const Content& content) {
  struct stat facts {};
  if (fstat(descriptor, &facts) != 0 || facts.st_ino != content.inode ||
      facts.st_size != static_cast<off_t>(kPageBytes)) {
    return false;
  }
  char target[64] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const std::string expected = std::string("/memfd:") + kName;
  return readlink(link.c_str(), target, sizeof target - 1) > 0 &&
         std::strncmp(target, expected.c_str(), expected.size()) == 0;
}

// Also one that has ended and that its parent has not waited for.
bool has_ended(int32_t process) {
  if (kill(process, 0) != 0) return errno == ESRCH;
  const std::string path = "/proc/" + std::to_string(process) + "/stat";
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return false;
  char text[256] = {};
  const ssize_t length = read(descriptor, text, sizeof text - 1);
  close(descriptor);
  // "12 (name) Z …"; the name may have any characters.
  const char* const name_end = length > 0 ? std::strrchr(text, ')') : nullptr;
  return name_end != nullptr && (name_end[2] == 'Z' || name_end[2] == 'X');
}

void* map_page(int descriptor) {
  return mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
}

}  // namespace

Error SharedMark::create(std::shared_ptr<SharedMark>* mark) {
  const int descriptor = memfd_create(kName, MFD_CLOEXEC);
  if (descriptor < 0) return Error::kOutOfMemory;
  void* const page = ftruncate(descriptor, static_cast<off_t>(kPageBytes)) == 0
                         ? map_page(descriptor)
                         : MAP_FAILED;
  if (page == MAP_FAILED) {
    close(descriptor);
    return Error::kOutOfMemory;
  }
  mark->reset(new SharedMark(new (page) Page, descriptor));
  return Error::kSuccess;
}

Error SharedMark::open(const IpcHandle& handle, std::shared_ptr<SharedMark>* mark) {
  Content content{};
  std::memcpy(&content, &handle, sizeof content);
  if (content.magic != kMagic) return Error::kInvalidValue;
  if (content.process == getpid()) return Error::kInvalidContext;
  const std::string path =
      "/proc/" + std::to_string(content.process) + "/fd/" + std::to_string(content.descriptor);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) {
    std::fprintf(stderr,
                 "hostcuda: an event of process %d cannot be opened: %s; it must exist, and both "
                 "must be of one user and see each other in /proc\n",
                 content.process, std::strerror(errno));
    return Error::kMapFailed;
  }
  void* const page = ours(descriptor, content) ? map_page(descriptor) : nullptr;
  close(descriptor);
  if (page == nullptr) return Error::kInvalidValue;
  if (page == MAP_FAILED) return Error::kMapFailed;
  mark->reset(new SharedMark(static_cast<Page*>(page), -1));
  return Error::kSuccess;
}

SharedMark::~SharedMark() {
  munmap(page_, kPageBytes);
  if (descriptor_ >= 0) close(descriptor_);
}

Error SharedMark::give(IpcHandle* handle) const {
  struct stat facts {};
  if (descriptor_ < 0 || fstat(descriptor_, &facts) != 0) return Error::kInvalidValue;
  Content content{};
  content.magic = kMagic;
  content.process = getpid();
  content.descriptor = descriptor_;
  content.inode = facts.st_ino;
  std::memcpy(handle, &content, sizeof content);
  return Error::kSuccess;
}

uint64_t SharedMark::begin() {
  page_->recorder.store(getpid());
  return page_->begun.fetch_add(1) + 1;
}

void SharedMark::finish(uint64_t number) {
  uint64_t reached = page_->finished.load();
  while (reached < number && !page_->finished.compare_exchange_weak(reached, number)) {
  }
  page_->changes.fetch_add(1);
  syscall(SYS_futex, &page_->changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

uint64_t SharedMark::latest() const { return page_->begun.load(); }

bool SharedMark::done(uint64_t number) const { return page_->finished.load() >= number; }

void SharedMark::wait(uint64_t number, const Cancel* cancel) const {
  while (true) {
    const uint32_t seen = page_->changes.load();
    if (done(number) || (cancel != nullptr && cancel->load())) return;
    const int32_t recorder = page_->recorder.load();
    if (has_ended(recorder)) {
      std::fprintf(stderr,
                   "hostcuda: process %d ended before its stream reached an event that this one "
                   "waits for; the wait ends\n",
                   recorder);
      return;
    }
    syscall(SYS_futex, &page_->changes, FUTEX_WAIT, seen, &kCheck, nullptr, 0);
  }
}

}  // namespace weir::hostcuda
