// SPDX-License-Identifier: Apache-2.0
#include "nccl/host/symmetric.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include "core/base/per_process.h"
#include "output/owned_descriptor.h"

namespace weir::nccl {

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr std::string_view kName = "weir-symmetric";

// The last page, by which a process that maps the memory recognizes it.
struct Tail {
  char magic[8];  // "weirsym1"
  unsigned char number[16];
};
constexpr char kMagic[8] = {'w', 'e', 'i', 'r', 's', 'y', 'm', '1'};

size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

uint64_t machine_bytes() {
  struct sysinfo info {};
  if (sysinfo(&info) != 0) return UINT64_MAX;
  return (uint64_t{info.totalram} + info.totalswap) * info.mem_unit;
}

Outcome failed(const char* function, const char* what, size_t bytes) {
  return {ncclSystemError,
          fmt::format("{}: {} of {} bytes: {}", function, what, bytes, std::strerror(errno))};
}

// -1: it is no symmetric memory, or may not be opened.
int open_of_process(int process, int descriptor) {
  const std::string path = fmt::format("/proc/{}/fd/{}", process, descriptor);
  // Checked before it is opened: opening an arbitrary file may have side effects.
  char name[64];
  const ssize_t length = readlink(path.c_str(), name, sizeof name);
  if (length <= 0 ||
      std::string_view(name, static_cast<size_t>(length)).find(kName) == std::string_view::npos) {
    return -1;
  }
  return ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
}

// Allocations of ncclMemAlloc, by address; never destroyed, since threads may free while the
// process ends.
template <typename Kind>
using Allocations = std::map<const void*, std::shared_ptr<Kind>>;
constinit InheritedState<Allocations<Allocation>> allocations;
constinit InheritedState<Allocations<cuda::DeviceMemory>> device_allocations;

// Makes one and hands it out.
template <typename Kind, typename Make>
Outcome allocate_from(InheritedState<Allocations<Kind>>& table, void** memory, Make make) {
  std::shared_ptr<Kind> made;
  Outcome outcome = make(&made);
  if (!outcome.ok()) return outcome;
  *memory = made->base();
  table.use()->emplace(made->base(), made);
  return {};
}

// False: the table does not have the memory.
template <typename Kind>
bool free_from(InheritedState<Allocations<Kind>>& table, const char* function, void* memory,
               Outcome* outcome) {
  std::shared_ptr<Kind> gone;  // unmapped without the lock
  const auto all = table.use();
  const auto found = all->find(memory);
  if (found == all->end()) return false;
  if (const MakingProcess& maker = found->second->maker(); !maker.is_this()) {
    *outcome = not_freed(function, maker);
    return true;
  }
  gone = std::move(found->second);
  all->erase(found);
  return true;
}

template <typename Kind>
std::shared_ptr<Kind> owner_in(InheritedState<Allocations<Kind>>& table, const void* memory,
                               size_t bytes) {
  const auto all = table.use();
  auto after = all->upper_bound(memory);
  if (after == all->begin()) return nullptr;
  const auto& owner = std::prev(after)->second;
  const auto offset = static_cast<size_t>(static_cast<const unsigned char*>(memory) -
                                          static_cast<const unsigned char*>(owner->base()));
  return offset <= owner->bytes() && bytes <= owner->bytes() - offset ? owner : nullptr;
}

}  // namespace

// ---- Allocation ---------------------------------------------------------------------------------

Outcome Allocation::make(const char* function, size_t bytes, std::shared_ptr<Allocation>* made) {
  const size_t page = page_bytes();
  if (bytes > PTRDIFF_MAX - 2 * page) {
    return invalid_argument(fmt::format("{}: size {} exceeds the address space", function, bytes));
  }
  const size_t rounded = (bytes + page - 1) / page * page;
  // Pages are allocated now: running out of memory at the first write would end the process.
  if (rounded > machine_bytes()) {
    errno = ENOMEM;
    return failed(function, "shared memory", bytes);
  }
  std::shared_ptr<Allocation> it(new Allocation());
  OwnedDescriptor fd(memfd_create(kName.data(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) return failed(function, "memfd_create for shared memory", bytes);
  if (ftruncate(fd.get(), static_cast<off_t>(rounded + page)) != 0) {
    return failed(function, "shared memory", bytes);
  }
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return failed(function, "sealing memory", bytes);
  Tail tail{};
  std::memcpy(tail.magic, kMagic, sizeof tail.magic);
  if (getrandom(tail.number, sizeof tail.number, 0) != static_cast<ssize_t>(sizeof tail.number)) {
    return failed(function, "a random number for memory", bytes);
  }
  if (pwrite(fd.get(), &tail, sizeof tail, static_cast<off_t>(rounded)) !=
      static_cast<ssize_t>(sizeof tail)) {
    return failed(function, "writing to shared memory", bytes);
  }
  void* base = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return failed(function, "mmap", bytes);
  it->base_ = static_cast<unsigned char*>(base);
  it->bytes_ = rounded;
  it->descriptor_ = fd.release();
  std::memcpy(it->number_, tail.number, sizeof it->number_);
  *made = std::move(it);
  return {};
}

Allocation::~Allocation() {
  if (base_ != nullptr) munmap(base_, bytes_);
  if (descriptor_ >= 0) close(descriptor_);
}

void Allocation::stop_sharing() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

Share Allocation::share_of(const void* memory) const {
  Share share;
  share.process = getpid();
  share.descriptor = descriptor_;
  share.mapped_bytes = bytes_;
  share.offset = static_cast<uint64_t>(static_cast<const unsigned char*>(memory) - base_);
  std::memcpy(share.number, number_, sizeof share.number);
  return share;
}

Outcome allocate_symmetric(const char* function, size_t bytes, void** memory) {
  if (const cuda::Driver* driver = cuda::memory_driver(); driver != nullptr) {
    return allocate_from(device_allocations, memory, [&](auto* made) {
      return cuda::DeviceMemory::make(*driver, function, bytes, made);
    });
  }
  return allocate_from(allocations, memory,
                       [&](auto* made) { return Allocation::make(function, bytes, made); });
}

Outcome not_freed(const char* function, const MakingProcess& maker) {
  return invalid_usage(fmt::format(
      "{}: {}, which cannot free it; the memory is released when the child ends or calls exec",
      function, maker.origin("memory")));
}

Outcome free_symmetric(const char* function, void* memory) {
  Outcome outcome;
  if (free_from(allocations, function, memory, &outcome)) return outcome;
  if (free_from(device_allocations, function, memory, &outcome)) return outcome;
  return invalid_argument(fmt::format(
      "{}: {} was not allocated by ncclMemAlloc, or was freed already", function, memory));
}

std::shared_ptr<Allocation> symmetric_owner(const void* memory, size_t bytes) {
  return owner_in(allocations, memory, bytes);
}

std::shared_ptr<cuda::DeviceMemory> device_owner(const void* memory, size_t bytes) {
  return owner_in(device_allocations, memory, bytes);
}

// ---- Mapping ------------------------------------------------------------------------------------

std::unique_ptr<Mapping> Mapping::open(const Share& share, uint64_t range_bytes) {
  const size_t page = page_bytes();
  if (share.process <= 0 || share.descriptor < 0 || share.mapped_bytes % page != 0 ||
      share.mapped_bytes > PTRDIFF_MAX - page || share.offset > share.mapped_bytes ||
      range_bytes > share.mapped_bytes - share.offset) {
    return nullptr;
  }
  const OwnedDescriptor fd(share.process == getpid()
                               ? fcntl(share.descriptor, F_DUPFD_CLOEXEC, 0)
                               : open_of_process(share.process, share.descriptor));
  if (fd.get() < 0) return nullptr;
  struct stat status {};
  if (fstat(fd.get(), &status) != 0 ||
      static_cast<uint64_t>(status.st_size) != share.mapped_bytes + page) {
    return nullptr;
  }
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return nullptr;
  Tail tail{};
  if (pread(fd.get(), &tail, sizeof tail, static_cast<off_t>(share.mapped_bytes)) !=
          static_cast<ssize_t>(sizeof tail) ||
      std::memcmp(tail.magic, kMagic, sizeof kMagic) != 0 ||
      std::memcmp(tail.number, share.number, sizeof tail.number) != 0) {
    return nullptr;
  }
  void* base = mmap(nullptr, share.mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return nullptr;
  return std::unique_ptr<Mapping>(
      new Mapping(base, share.mapped_bytes, static_cast<unsigned char*>(base) + share.offset));
}

Mapping::~Mapping() { munmap(base_, bytes_); }

}  // namespace weir::nccl
