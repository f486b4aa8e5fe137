// SPDX-License-Identifier: Apache-2.0
#include "core/comm/device/device_memory.h"

#include <link.h>
#include <sys/single_threaded.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <system_error>

#include "core/base/bounded_call.h"
#include "core/base/clock.h"
#include "core/base/fork_barred.h"
#include "core/base/per_process.h"
#include "core/comm/record/ticks.h"
#include "cuda/driver.h"
#include "cuda/driver_table.h"

namespace weir::comm {

namespace device_memory {
std::atomic<bool> known{false};
}

namespace {

std::atomic<const cuda::Driver*> driver{nullptr};
std::atomic<unsigned long long> loaded_seen{0};

// Some microseconds: the clocks of x86 count faster than others.
#if defined(__x86_64__) || defined(__i386__)
constexpr uint64_t kTicksPerLook = 8192;
#else
constexpr uint64_t kTicksPerLook = 128;
#endif
std::atomic<uint64_t> looked_ticks{0};

// How many objects the loader has loaded so far.
int read_loaded(dl_phdr_info* info, size_t, void* count) {
  *static_cast<unsigned long long*>(count) = info->dlpi_adds;
  return 1;
}

unsigned long long count_loaded() {
  unsigned long long count = 0;
  dl_iterate_phdr(read_loaded, &count);
  return count;
}

// dl_iterate_phdr takes a lock of the C library that fork() leaves as it is: if another thread of
// the parent held it at that moment, no thread of the child can ever take it. So a process with
// threads, or a child of one, first lets a spare thread try.
class LoaderLock {
 public:
  LoaderLock() : is_free_(std::make_shared<std::atomic<bool>>(__libc_single_threaded)) {
    constexpr uint64_t kPatienceNs = 2'000'000'000;
    if (is_free()) return;
    const auto ask = [is_free = is_free_] {
      (void)count_loaded();
      is_free->store(true);
    };
    try {
      (void)run_bounded(ask, now_ns() + kPatienceNs);
    } catch (const std::system_error&) {
      is_free_->store(true);  // no thread can be created
    }
  }
  bool is_free() const { return is_free_->load(std::memory_order_relaxed); }

 private:
  const std::shared_ptr<std::atomic<bool>> is_free_;
};

constinit PerProcess<LoaderLock> loader_lock;

}  // namespace

bool look_for_driver() {
  if (driver_is_known()) return true;
  // Where it is not free, nothing can be loaded any more.
  if (!loader_lock->is_free()) return false;
  const ForkBarred barred;
  const unsigned long long loaded = count_loaded();
  if (loaded == loaded_seen.load(std::memory_order_relaxed)) return false;
  const cuda::Driver* found = cuda::find_driver(cuda::Look::kInUse);
  if (found != nullptr && found->cuPointerGetAttributes != nullptr) {
    driver.store(found, std::memory_order_release);
    device_memory::known.store(true, std::memory_order_release);
    return true;
  }
  loaded_seen.store(loaded, std::memory_order_relaxed);
  return false;
}

bool look_again_for_driver() {
  const uint64_t now = ticks();
  if (now - looked_ticks.load(std::memory_order_relaxed) < kTicksPerLook) return driver_is_known();
  // Before the look, so that the time that it takes counts.
  looked_ticks.store(now, std::memory_order_relaxed);
  return look_for_driver();
}

int device_of_memory(const void* pointer) {
  const cuda::Driver* it = driver.load(std::memory_order_acquire);
  if (it == nullptr || pointer == nullptr) return -1;
  unsigned type = 0;
  int managed = 0;
  int device = 0;
  int attributes[] = {cuda::kAttributeMemoryType, cuda::kAttributeIsManaged,
                      cuda::kAttributeDeviceOrdinal};
  void* data[] = {&type, &managed, &device};
  // Fails before cuInit, and for memory that CUDA does not know.
  if (it->cuPointerGetAttributes(3, attributes, data, reinterpret_cast<uintptr_t>(pointer)) != 0)
    return -1;
  return type == cuda::kMemoryDevice && managed == 0 ? device : -1;
}

bool is_no_memory(const void* pointer) {
  // The kernel reads the set of signals before it looks at what to do with it, which it refuses (as
  // in Abseil's AddressIsReadable). A process that hides its memory from others may ask so, too.
  constexpr uintptr_t kSetBytes = 8;
  const uintptr_t set = reinterpret_cast<uintptr_t>(pointer) / kSetBytes * kSetBytes;
  const int error_before = errno;
  const bool is_unreadable =
      syscall(SYS_rt_sigprocmask, ~0, set, nullptr, kSetBytes) != 0 && errno == EFAULT;
  errno = error_before;
  // The devices of the stand-in are memory of the host, and keep what was freed.
  return is_unreadable || !fault_of_memory(pointer, 1, false).empty();
}

std::string fault_of_memory(const void* memory, size_t bytes, bool writes) {
  const cuda::Driver* it = driver.load(std::memory_order_acquire);
  return it == nullptr ? "" : it->fault_of(memory, bytes, writes);
}

int current_device() {
  const cuda::Driver* it = driver.load(std::memory_order_acquire);
  cuda::Device device = 0;
  const bool known =
      it != nullptr && it->cuCtxGetDevice != nullptr && it->cuCtxGetDevice(&device) == 0;
  return known ? device : -1;
}

std::string told_device(int device) {
  const cuda::Driver* it = driver.load(std::memory_order_acquire);
  return it == nullptr ? "" : cuda::told_device(*it, device);
}

}  // namespace weir::comm
