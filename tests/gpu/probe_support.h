// SPDX-License-Identifier: Apache-2.0
// What the experiments of driver_probe share: the driver's API, looked up at run time, words that
// device and host share, and calls that may never return.
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace weir::probe {

inline constexpr unsigned kExperimentSeconds = 20;
inline constexpr unsigned kCallsSeconds = 60;  // each that waits is given 2 s
inline constexpr int kSkipped = 77;
inline constexpr int kFailed = 3;

using Handle = void*;
using DeviceAddress = unsigned long long;

inline void* g_library = nullptr;
inline Handle g_context = nullptr;

// cuda.h is not needed to build the probe; -1: the driver has no such function.
template <typename... Arguments>
inline int cu(const char* name, Arguments... arguments) {
  auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(g_library, name));
  return function == nullptr ? -1 : function(arguments...);
}

[[noreturn]] inline void end(int status) {
  std::fflush(stdout);
  _exit(status);
}

inline void need(int result, const char* what) {
  if (result == 0) return;
  std::printf("FAILED %s: error %d\n", what, result);
  end(kFailed);
}

inline double now_us() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

inline void use_context() { need(cu("cuCtxSetCurrent", g_context), "cuCtxSetCurrent"); }

inline void open_driver() {
  g_library = dlopen("libcuda.so.1", RTLD_NOW);
  if (g_library == nullptr) {
    std::printf("skipped: %s\n", dlerror());
    end(kSkipped);
  }
  int count = 0;
  if (cu("cuInit", 0U) != 0 || cu("cuDeviceGetCount", &count) != 0 || count == 0) {
    std::printf("skipped: the driver has no device\n");
    end(kSkipped);
  }
  int device = 0;
  need(cu("cuDeviceGet", &device, 0), "cuDeviceGet");
  need(cu("cuDevicePrimaryCtxRetain", &g_context, device), "cuDevicePrimaryCtxRetain");
  use_context();
}

inline constexpr unsigned kNonBlocking = 1;

inline Handle new_stream(unsigned flags = kNonBlocking) {
  Handle stream = nullptr;
  need(cu("cuStreamCreate", &stream, flags), "cuStreamCreate");
  return stream;
}

// Words that device and host share, a cache line apart.
class Flags {
 public:
  Flags() {
    void* memory = nullptr;
    need(cu("cuMemHostAlloc", &memory, size_t{kCount * 64}, 3U), "cuMemHostAlloc");
    std::memset(memory, 0, kCount * 64);
    words_ = static_cast<uint32_t*>(memory);
  }
  std::atomic_ref<uint32_t> operator[](size_t index) const {
    return std::atomic_ref(words_[index * 16]);
  }
  DeviceAddress address(size_t index) const {
    return reinterpret_cast<uintptr_t>(words_ + index * 16);
  }

 private:
  static constexpr size_t kCount = 128;
  uint32_t* words_ = nullptr;
};

inline DeviceAddress device_memory(size_t bytes) {
  DeviceAddress memory = 0;
  need(cu("cuMemAlloc_v2", &memory, bytes), "cuMemAlloc");
  return memory;
}

// cuda.h's CUmemAllocationProp and CUmemAccessDesc.
struct AllocationProperties {
  int type = 1;                    // pinned
  int requested_handle_types = 1;  // a descriptor
  int location_type = 1;           // a device
  int location_id = 0;
  void* win32_handle_meta_data = nullptr;
  unsigned char flags[8] = {};
};
struct AccessDescription {
  int location_type = 1;
  int location_id = 0;
  int flags = 3;  // read and write
};
inline constexpr int kDescriptor = 1;
inline constexpr size_t kMappedUnit = 2 << 20;
inline constexpr int kNotReady = 600;

inline unsigned long long made_memory(size_t bytes) {
  const AllocationProperties properties;
  unsigned long long made = 0;
  need(cu("cuMemCreate", &made, bytes, &properties, 0ULL), "cuMemCreate");
  return made;
}
inline DeviceAddress reserved_addresses(size_t bytes) {
  DeviceAddress address = 0;
  need(cu("cuMemAddressReserve", &address, bytes, size_t{0}, DeviceAddress{0}, 0ULL),
       "cuMemAddressReserve");
  return address;
}
inline int map(DeviceAddress address, size_t bytes, unsigned long long made) {
  return cu("cuMemMap", address, bytes, size_t{0}, made, 0ULL);
}
inline int give_access(DeviceAddress address, size_t bytes) {
  static const AccessDescription access;
  return cu("cuMemSetAccess", address, bytes, &access, size_t{1});
}

inline int wait_at_least(Handle stream, const Flags& flags, size_t index, uint32_t value) {
  return cu("cuStreamWaitValue32_v2", stream, flags.address(index), value, 0U);
}
inline int write_value(Handle stream, const Flags& flags, size_t index, uint32_t value) {
  return cu("cuStreamWriteValue32_v2", stream, flags.address(index), value, 0U);
}
inline int copy(Handle stream, DeviceAddress to, DeviceAddress from, size_t bytes) {
  return cu("cuMemcpyAsync", to, from, bytes, stream);
}

// A kernel that does nothing, in a module of its own; nullptr: the driver refuses it.
inline Handle load_kernel(int number) {
  char text[128];
  std::snprintf(text, sizeof text,
                ".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry k%d() { ret; }\n",
                number);
  char name[16];
  std::snprintf(name, sizeof name, "k%d", number);
  Handle module = nullptr;
  Handle kernel = nullptr;
  if (cu("cuModuleLoadData", &module, static_cast<const void*>(text)) != 0) return nullptr;
  if (cu("cuModuleGetFunction", &kernel, module, static_cast<const char*>(name)) != 0) {
    return nullptr;
  }
  return kernel;
}

inline int launch(Handle stream, Handle kernel) {
  return cu("cuLaunchKernel", kernel, 1U, 1U, 1U, 32U, 1U, 1U, 0U, stream,
            static_cast<void**>(nullptr), static_cast<void**>(nullptr));
}

// Gives the processor away after a while: the machine may have fewer than there are that wait.
inline void spin_until(const std::function<bool()>& done) {
  for (int spins = 0; !done(); ++spins) {
    if (spins > 10'000) std::this_thread::yield();
  }
}
inline void await(const Flags& flags, size_t index, uint32_t value) {
  spin_until([&] { return flags[index].load() == value; });
}

// Runs in a thread with the context, which may never end.
struct Timed {
  bool ended;
  double us;
};
inline Timed within(int ms, std::function<void()> action) {
  auto done = std::make_shared<std::atomic<bool>>(false);
  const double begin = now_us();
  std::thread([action = std::move(action), done] {
    use_context();
    action();
    *done = true;
  }).detach();
  while (!*done && now_us() - begin < ms * 1e3) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return {*done, now_us() - begin};
}

inline std::string connections() {
  const char* set = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return set == nullptr ? "8" : set;
}

inline void say_model(bool same, const std::string& assumed) {
  std::printf(" model=%s\n", same ? "as assumed" : ("differs: assumes " + assumed).c_str());
}

// cuda.h's CUipcMemHandle.
struct IpcHandle {
  char bytes[64];
};

}  // namespace weir::probe
