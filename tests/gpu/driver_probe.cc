// SPDX-License-Identifier: Apache-2.0
// What CUDA's driver does while a stream waits for a value in memory, and whether that is what the
// strict libcuda of the tests (tests/nccl/strict_cuda) does. The driver's API alone, looked up at
// run time.
//
//   driver_probe            every experiment in a process of its own, 20 s each; a line for each
//   driver_probe NAME [X]   one experiment
//
// A line is "NAME key=value … model=…". `model` is "as assumed", or says what the model does
// instead, or "-" where it assumes nothing (times). The exit status is 77 without a device, 1 where
// an experiment fails or does not end, else 0, also where the model differs: the table is for
// people.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr unsigned kExperimentSeconds = 20;
constexpr int kSkipped = 77;
constexpr int kFailed = 3;

using Handle = void*;
using DeviceAddress = unsigned long long;

void* g_library = nullptr;
Handle g_context = nullptr;

// cuda.h is not needed to build the probe; -1: the driver has no such function.
template <typename... Arguments>
int cu(const char* name, Arguments... arguments) {
  auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(g_library, name));
  return function == nullptr ? -1 : function(arguments...);
}

[[noreturn]] void end(int status) {
  std::fflush(stdout);
  _exit(status);
}

void need(int result, const char* what) {
  if (result == 0) return;
  std::printf("FAILED %s: error %d\n", what, result);
  end(kFailed);
}

double now_us() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void use_context() { need(cu("cuCtxSetCurrent", g_context), "cuCtxSetCurrent"); }

void open_driver() {
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

constexpr unsigned kNonBlocking = 1;

Handle new_stream(unsigned flags = kNonBlocking) {
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

DeviceAddress device_memory(size_t bytes) {
  DeviceAddress memory = 0;
  need(cu("cuMemAlloc_v2", &memory, bytes), "cuMemAlloc");
  return memory;
}

// Memory made by mapping, for this device; 0: the driver refuses it.
constexpr size_t kMappedBytes = 2 << 20;
DeviceAddress mapped_memory() {
  struct Location {
    int type;
    int id;
  };
  struct {
    int type;
    int handle_types;
    Location location;
    void* unused[2];
  } const wanted{1, 1, {1, 0}, {}};  // pinned, by descriptors, of device 0
  struct {
    Location location;
    int flags;
  } const access{{1, 0}, 3};  // to read and write
  DeviceAddress handle = 0;
  DeviceAddress at = 0;
  const bool made =
      cu("cuMemCreate", &handle, kMappedBytes, static_cast<const void*>(&wanted), 0ULL) == 0 &&
      cu("cuMemAddressReserve", &at, kMappedBytes, size_t{0}, 0ULL, 0ULL) == 0 &&
      cu("cuMemMap", at, kMappedBytes, size_t{0}, handle, 0ULL) == 0 &&
      cu("cuMemSetAccess", at, kMappedBytes, static_cast<const void*>(&access), size_t{1}) == 0;
  return made ? at : 0;
}

int wait_at_least(Handle stream, const Flags& flags, size_t index, uint32_t value) {
  return cu("cuStreamWaitValue32_v2", stream, flags.address(index), value, 0U);
}
int write_value(Handle stream, const Flags& flags, size_t index, uint32_t value) {
  return cu("cuStreamWriteValue32_v2", stream, flags.address(index), value, 0U);
}
int copy(Handle stream, DeviceAddress to, DeviceAddress from, size_t bytes) {
  return cu("cuMemcpyAsync", to, from, bytes, stream);
}

// A kernel that does nothing, in a module of its own; nullptr: the driver refuses it.
Handle load_kernel(int number) {
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

int launch(Handle stream, Handle kernel) {
  return cu("cuLaunchKernel", kernel, 1U, 1U, 1U, 32U, 1U, 1U, 0U, stream,
            static_cast<void**>(nullptr), static_cast<void**>(nullptr));
}

// Runs in a thread with the context, which may never end.
struct Timed {
  bool ended;
  double us;
};
Timed within(int ms, std::function<void()> action) {
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

std::string connections() {
  const char* set = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return set == nullptr ? "8" : set;
}

void say_model(bool same, const std::string& assumed) {
  std::printf(" model=%s\n", same ? "as assumed" : ("differs: assumes " + assumed).c_str());
}

// ---- Which streams stand behind one that waits --------------------------------------------------

enum class Behind { kMemoryOperation, kKernel, kCopyOnDevice, kCopyFromHost };

void alias(const char* priority_text) {
  const int priority = std::atoi(priority_text);
  const Flags flags;
  const DeviceAddress memory = device_memory(1 << 20);
  const Handle kernel = load_kernel(0);
  need(wait_at_least(new_stream(), flags, 0, 1), "cuStreamWaitValue32");
  sleep_ms(20);
  constexpr size_t kStreams = 32;
  std::vector<Handle> streams;
  for (size_t i = 0; i < kStreams; ++i) {
    Handle stream = nullptr;
    if (cu("cuStreamCreateWithPriority", &stream, kNonBlocking, priority) != 0) {
      stream = new_stream();
    }
    streams.push_back(stream);
  }
  std::array<int, 4> stuck{};
  for (const Behind what :
       {Behind::kMemoryOperation, Behind::kKernel, Behind::kCopyOnDevice, Behind::kCopyFromHost}) {
    const auto kind = static_cast<size_t>(what);
    if (what == Behind::kKernel && kernel == nullptr) {
      stuck[kind] = -1;
      continue;
    }
    const auto value = static_cast<uint32_t>(kind + 1);
    for (size_t i = 0; i < kStreams; ++i) {
      if (what == Behind::kKernel) launch(streams[i], kernel);
      if (what == Behind::kCopyOnDevice) {
        copy(streams[i], memory + i * 4096, memory + (512 << 10) + i * 4096, 4096);
      }
      if (what == Behind::kCopyFromHost) {
        copy(streams[i], memory + i * 4096, flags.address(64), 64);
      }
      write_value(streams[i], flags, 1 + i, value);
    }
    sleep_ms(200);
    for (size_t i = 0; i < kStreams; ++i) stuck[kind] += flags[1 + i].load() != value ? 1 : 0;
    if (stuck[kind] != 0) break;
  }
  const int count = std::atoi(connections().c_str());
  // Streams of another priority than the waiting one's have queues of their own.
  const int assumed = priority != 0 ? 0 : (static_cast<int>(kStreams) + count - 1) / count;
  std::printf(
      "alias connections=%s priority=%d of=%zu stuck_memory_operation=%d stuck_kernel=%d "
      "stuck_copy_on_device=%d stuck_copy_from_host=%d",
      connections().c_str(), priority, kStreams, stuck[0], stuck[1], stuck[2], stuck[3]);
  // One queue is the waiting stream's alone where there are as many as streams.
  say_model(std::abs(stuck[0] - assumed) <= 1, std::to_string(assumed) + " stuck");
  flags[0] = 1;
}

// ---- Whether a kernel that runs holds up the streams behind it ----------------------------------

// A kernel that runs until a word is not 0; nullptr: the driver refuses it.
Handle load_spinning_kernel() {
  constexpr const char* kText =
      ".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry spin(.param .u64 word) {\n"
      ".reg .u64 %address;\n.reg .u32 %value;\n.reg .pred %zero;\n"
      "ld.param.u64 %address, [word];\nagain:\nld.volatile.global.u32 %value, [%address];\n"
      "setp.eq.u32 %zero, %value, 0;\n@%zero bra again;\nret;\n}\n";
  Handle module = nullptr;
  Handle kernel = nullptr;
  if (cu("cuModuleLoadData", &module, static_cast<const void*>(kText)) != 0) return nullptr;
  if (cu("cuModuleGetFunction", &kernel, module, static_cast<const char*>("spin")) != 0)
    return nullptr;
  return kernel;
}

void running(const char* /*unused*/) {
  const Flags flags;
  const Handle kernel = load_spinning_kernel();
  if (kernel == nullptr) {
    std::printf("running connections=%s kernel=refused model=-\n", connections().c_str());
    return;
  }
  const Handle runs = new_stream();
  const Handle other = new_stream();
  const Handle last = new_stream();
  DeviceAddress word = flags.address(0);
  void* arguments[] = {&word};
  need(cu("cuLaunchKernel", kernel, 1U, 1U, 1U, 32U, 1U, 1U, 0U, runs,
          static_cast<void**>(arguments), static_cast<void**>(nullptr)),
       "cuLaunchKernel");
  write_value(other, flags, 1, 1);
  sleep_ms(200);
  const bool passes = flags[1].load() == 1;
  // What waits for the end of the kernel stands before this one.
  write_value(runs, flags, 2, 1);
  write_value(last, flags, 3, 1);
  sleep_ms(200);
  std::printf("running connections=%s kernel=runs behind_kernel=%s behind_its_end=%s",
              connections().c_str(), passes ? "goes_on" : "stuck",
              flags[3].load() == 1 ? "goes_on" : "stuck");
  say_model(passes, "that what stands behind a kernel goes on");
  flags[0] = 1;
}

// ---- How much goes into a stream that waits, and whether others may submit then -----------------

void depth(const char* kind_text) {
  const std::string_view kind = kind_text;
  const Flags flags;
  const DeviceAddress memory = device_memory(1 << 20);
  const Handle kernel = load_kernel(0);
  const Handle stream = new_stream();
  const Handle other = new_stream();
  if (kernel != nullptr) launch(stream, kernel);
  copy(other, memory, memory + 4096, 64);
  cu("cuStreamSynchronize", stream);
  cu("cuStreamSynchronize", other);
  need(wait_at_least(stream, flags, 0, 1), "cuStreamWaitValue32");
  constexpr int kMost = 20000;
  std::atomic<int> submitted{0};
  Handle event = nullptr;
  cu("cuEventCreate", &event, 2U);
  std::thread([&] {
    use_context();
    for (int i = 0; i < kMost; ++i, ++submitted) {
      if (kind == "kernel" && kernel != nullptr) {
        launch(stream, kernel);
      } else if (kind == "copy_on_device") {
        copy(stream, memory, memory + 8192, 64);
      } else if (kind == "copy_to_host") {
        copy(stream, flags.address(64), memory, 64);
      } else if (kind == "event") {
        cu("cuEventRecord", event, stream);
      } else {
        write_value(stream, flags, 2, static_cast<uint32_t>(i));
      }
    }
  }).detach();
  for (int before = -1; submitted != before && submitted < kMost;) {
    before = submitted;
    sleep_ms(300);
  }
  const Timed others = within(2000, [&] {
    copy(other, memory, memory + 4096, 64);
    write_value(other, flags, 4, 7);
  });
  sleep_ms(100);
  const int room = submitted < kMost ? submitted.load() : -1;
  std::printf("depth kind=%s room=%d another_thread_submits=%d us=%.0f executed=%d", kind_text,
              room, others.ended ? 1 : 0, others.us, flags[4].load() == 7 ? 1 : 0);
  say_model(room > 0 && room <= 2048 && !others.ended,
            "room for 1024, and that another thread waits meanwhile");
  flags[0] = 1;
}

// ---- A kernel's first launch beside a stream that waits -----------------------------------------

void lazy(const char* /*unused*/) {
  const Flags flags;
  const DeviceAddress memory = device_memory(1 << 20);
  static_cast<void>(load_kernel(0));
  const Handle stream = new_stream();
  const Handle mine = new_stream();
  const Handle proxy = new_stream();
  copy(proxy, memory, memory + 4096, 64);
  cu("cuStreamSynchronize", proxy);
  need(wait_at_least(stream, flags, 0, 1), "cuStreamWaitValue32");
  sleep_ms(20);
  const Timed load = within(3000, [&] {
    if (Handle kernel = load_kernel(1)) launch(mine, kernel);
  });
  const Timed others = within(3000, [&] {
    copy(proxy, memory, memory + 4096, 64);
    write_value(proxy, flags, 4, 7);
  });
  sleep_ms(50);
  std::printf("lazy first_launch_returns=%d us=%.0f another_thread_submits=%d us=%.0f executed=%d",
              load.ended ? 1 : 0, load.us, others.ended ? 1 : 0, others.us,
              flags[4].load() == 7 ? 1 : 0);
  say_model(!load.ended && !others.ended, "that it waits for the device, with the context's lock");
  flags[0] = 1;
}

// ---- Which calls wait for a stream that waits ---------------------------------------------------

void calls(const char* /*unused*/) {
  const Flags flags;
  const DeviceAddress memory = device_memory(1 << 20);
  DeviceAddress gone = device_memory(1 << 20);
  void* host = nullptr;
  need(cu("cuMemHostAlloc", &host, size_t{4096}, 3U), "cuMemHostAlloc");
  alignas(4096) static char page[4096];
  need(cu("cuMemHostRegister_v2", static_cast<void*>(page), sizeof page, 3U), "cuMemHostRegister");
  const DeviceAddress mapped = mapped_memory();
  const Handle stream = new_stream();
  const Handle old = new_stream();
  const Handle proxy = new_stream();
  copy(proxy, memory, memory + 4096, 64);
  cu("cuStreamSynchronize", proxy);
  cu("cuStreamSynchronize", old);
  Handle event = nullptr;
  cu("cuEventCreate", &event, 2U);
  // The threads of calls that never return may write here later.
  static char handle[64];
  static int type;
  static DeviceAddress base;
  static size_t size;
  static Handle out;
  struct Call {
    const char* name;
    bool waits;  // on the model
    std::function<void()> run;
  };
  const std::vector<Call> all = {
      {"cuPointerGetAttributes", false,
       [=] {
         int attributes[] = {2};
         void* data[] = {&type};
         cu("cuPointerGetAttributes", 1U, &attributes[0], &data[0], memory);
       }},
      {"cuMemGetAddressRange", false, [=] { cu("cuMemGetAddressRange_v2", &base, &size, memory); }},
      {"cuIpcGetMemHandle", false,
       [=] { cu("cuIpcGetMemHandle", static_cast<void*>(handle), memory); }},
      {"cuStreamQuery", false, [=] { cu("cuStreamQuery", stream); }},
      {"cuEventCreate", false, [] { cu("cuEventCreate", &out, 2U); }},
      {"cuEventDestroy", false, [=] { cu("cuEventDestroy_v2", event); }},
      {"cuStreamCreate", false, [] { cu("cuStreamCreate", &out, kNonBlocking); }},
      {"cuStreamDestroy", false, [=] { cu("cuStreamDestroy_v2", old); }},
      {"cuMemHostAlloc", false,
       [] { cu("cuMemHostAlloc", reinterpret_cast<void**>(&out), size_t{8 << 20}, 3U); }},
      {"cuMemAlloc", false, [] { cu("cuMemAlloc_v2", &base, size_t{64 << 20}); }},
      {"cuModuleLoadData", true, [] { static_cast<void>(load_kernel(2)); }},
      {"cuMemHostUnregister", true, [] { cu("cuMemHostUnregister", static_cast<void*>(page)); }},
      {"cuMemUnmap", true, [=] { cu("cuMemUnmap", mapped, kMappedBytes); }},
      {"cuMemFreeHost", true, [=] { cu("cuMemFreeHost", host); }},
      {"cuMemFree", true, [=] { cu("cuMemFree_v2", gone); }},
  };
  need(wait_at_least(stream, flags, 0, 1), "cuStreamWaitValue32");
  sleep_ms(20);
  std::printf("calls");
  std::string others;
  uint32_t round = 1;
  for (const Call& call : all) {
    const Timed timed = within(1000, call.run);
    bool locked_out = false;
    if (!timed.ended) {
      locked_out = !within(1000, [=] { copy(proxy, memory, memory + 4096, 64); }).ended;
    }
    std::printf(" %s=%s", call.name,
                timed.ended  ? (std::to_string(static_cast<int>(timed.us)) + "us").c_str()
                : locked_out ? "WAITS,LOCKS_OTHERS_OUT"
                             : "WAITS");
    if (timed.ended == call.waits) others += (others.empty() ? "" : ", ") + std::string(call.name);
    if (!timed.ended) {
      flags[0] = round;
      cu("cuStreamSynchronize", stream);
      need(wait_at_least(stream, flags, 0, ++round), "cuStreamWaitValue32");
      sleep_ms(20);
    }
  }
  say_model(others.empty(), "the opposite of " + others);
  flags[0] = round;
}

// ---- Times --------------------------------------------------------------------------------------

void await(const Flags& flags, size_t index, uint32_t value) {
  while (flags[index].load() != value) {
  }
}

void times(const char* /*unused*/) {
  constexpr size_t kCopied = 32 << 20;
  const Flags flags;
  const DeviceAddress memory = device_memory(2 * kCopied);
  const Handle stream = new_stream();
  std::vector<double> seen;
  std::vector<double> released;
  std::vector<double> staged;
  std::vector<double> copied;
  for (uint32_t i = 1; i <= 200; ++i) {
    double begin = now_us();
    write_value(stream, flags, 0, i);
    await(flags, 0, i);
    seen.push_back(now_us() - begin);

    wait_at_least(stream, flags, 1, i);
    write_value(stream, flags, 2, i);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    begin = now_us();
    flags[1] = i;
    await(flags, 2, i);
    released.push_back(now_us() - begin);

    copy(stream, flags.address(32), memory, 64);
    write_value(stream, flags, 3, i);
    wait_at_least(stream, flags, 4, i);
    copy(stream, memory, flags.address(32), 64);
    write_value(stream, flags, 5, i);
    begin = now_us();
    await(flags, 3, i);
    flags[4] = i;
    await(flags, 5, i);
    staged.push_back(now_us() - begin);

    if (i > 50) continue;
    begin = now_us();
    copy(stream, memory, memory + kCopied, kCopied);
    write_value(stream, flags, 6, i);
    await(flags, 6, i);
    copied.push_back(now_us() - begin);
  }
  std::printf(
      "times write_seen_us=%.1f release_to_seen_us=%.1f staged_round_us=%.1f copy_32MiB_us=%.1f "
      "read_and_written_GBps=%.0f model=-\n",
      median(seen), median(released), median(staged), median(copied),
      2e-3 * kCopied / median(copied));
}

// ---- Graphs, the legacy stream, the end ---------------------------------------------------------

void graph(const char* /*unused*/) {
  const Flags flags;
  const DeviceAddress memory = device_memory(1 << 20);
  const Handle stream = new_stream();
  need(cu("cuStreamBeginCapture_v2", stream, 0), "cuStreamBeginCapture");
  int relaxed_allocation = -1;
  std::thread([&] {
    use_context();
    int mode = 2;
    cu("cuThreadExchangeStreamCaptureMode", &mode);
    void* host = nullptr;
    relaxed_allocation = cu("cuMemHostAlloc", &host, size_t{4096}, 3U);
  }).join();
  const int recorded = copy(stream, flags.address(32), memory, 64) |
                       write_value(stream, flags, 0, 1) | wait_at_least(stream, flags, 1, 1) |
                       write_value(stream, flags, 1, 0);
  Handle captured = nullptr;
  Handle executable = nullptr;
  const int ended = cu("cuStreamEndCapture", stream, &captured);
  const int made = ended != 0 ? -1 : cu("cuGraphInstantiateWithFlags", &executable, captured, 0ULL);
  bool right = made == 0;
  std::vector<double> replays;
  for (int i = 0; right && i < 100; ++i) {
    const double begin = now_us();
    right = cu("cuGraphLaunch", executable, stream) == 0;
    while (flags[0].load() != 1 && now_us() - begin < 2e6) {
    }
    right = right && flags[0].load() == 1;
    flags[0] = 0;
    flags[1] = 1;
    right = right && cu("cuStreamSynchronize", stream) == 0 && flags[1].load() == 0;
    replays.push_back(now_us() - begin);
  }
  std::printf("graph recorded=%d instantiated=%d relaxed_allocation=%d replays=%s us=%.1f",
              recorded, made, relaxed_allocation, right ? "right" : "WRONG", median(replays));
  say_model(right && relaxed_allocation == 0, "right replays, and allocation in a relaxed thread");
}

void legacy(const char* /*unused*/) {
  const Flags flags;
  const Handle blocking = new_stream(0);
  const Handle apart = new_stream();
  const int waits = wait_at_least(nullptr, flags, 0, 1);
  write_value(apart, flags, 1, 1);
  sleep_ms(100);
  const bool apart_goes_on = flags[1].load() == 1;
  const Timed submits = within(1500, [&] { write_value(blocking, flags, 2, 1); });
  sleep_ms(100);
  std::printf("legacy wait=%d nonblocking_goes_on=%d blocking_submits=%d blocking_goes_on=%d",
              waits, apart_goes_on ? 1 : 0, submits.ended ? 1 : 0, flags[2].load() == 1 ? 1 : 0);
  say_model(waits == 0 && apart_goes_on, "that nonblocking streams go on");
  flags[0] = 1;
}

// The process ends while a stream waits.
void leaving(const char* /*unused*/) {
  const Flags flags;
  need(wait_at_least(new_stream(), flags, 0, 1), "cuStreamWaitValue32");
  std::printf("leaving");
  std::fflush(stdout);
  std::exit(0);  // with the driver's exit handlers, unlike the others
}

// ---- Two processes, one device ------------------------------------------------------------------

struct Shared {
  std::array<std::atomic<uint32_t>, 8 * 16> words;
  char handle[64];
};

void two_processes(const char* /*unused*/) {
  constexpr size_t kBytes = 256 << 20;
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) need(errno, "mmap");
  auto* shared = new (memory) Shared{};
  const pid_t child = fork();
  const size_t own = child != 0 ? 0 : 1;
  open_driver();
  const Flags flags;
  const Handle stream = new_stream();
  const DeviceAddress buffer = device_memory(kBytes);
  std::atomic<uint32_t>& turn = shared->words[0];
  std::vector<double> exchanges;
  for (uint32_t i = 1; i <= 200; ++i) {
    write_value(stream, flags, 0, i);
    wait_at_least(stream, flags, 1, i);
    write_value(stream, flags, 2, i);
    const double begin = now_us();
    await(flags, 0, i);
    shared->words[16 * (1 + own)] = i;
    while (shared->words[16 * (2 - own)] < i) {
    }
    flags[1] = i;
    await(flags, 2, i);
    exchanges.push_back(now_us() - begin);
  }
  if (own == 1) {
    need(cu("cuIpcGetMemHandle", static_cast<void*>(shared->handle), buffer), "cuIpcGetMemHandle");
    turn = 1;
    while (turn != 2) sleep_ms(1);
    end(0);
  }
  while (turn != 1) sleep_ms(1);
  struct IpcHandle {
    char bytes[64];
  } handle{};
  std::memcpy(handle.bytes, shared->handle, sizeof handle.bytes);
  DeviceAddress peer = 0;
  double begin = now_us();
  const int opened = cu("cuIpcOpenMemHandle_v2", &peer, handle, 1U);
  const double open_us = now_us() - begin;
  std::vector<double> copies;
  for (uint32_t i = 1; opened == 0 && i <= 20; ++i) {
    begin = now_us();
    copy(stream, buffer, peer, kBytes);
    write_value(stream, flags, 3, i);
    await(flags, 3, i);
    copies.push_back(now_us() - begin);
  }
  std::printf("two_processes exchange_us=%.1f ipc_open=%d open_us=%.0f copy_read_and_written_GBps=",
              median(exchanges), opened, open_us);
  std::printf("%.0f", copies.empty() ? 0.0 : 2e-3 * kBytes / median(copies));
  say_model(opened == 0, "that memory of another process can be opened");
  turn = 2;
  waitpid(child, nullptr, 0);
}

void facts(const char* /*unused*/) {
  int version = 0;
  char name[128] = "";
  int memory_operations = 0;
  int wait_nor = 0;
  int ipc_events = 0;
  int least = 0;
  int greatest = 0;
  cu("cuDriverGetVersion", &version);
  cu("cuDeviceGetName", static_cast<char*>(name), 128, 0);
  cu("cuDeviceGetAttribute", &memory_operations, 122, 0);
  cu("cuDeviceGetAttribute", &wait_nor, 123, 0);
  cu("cuDeviceGetAttribute", &ipc_events, 133, 0);
  cu("cuCtxGetStreamPriorityRange", &least, &greatest);
  std::printf(
      "facts driver=%d device='%s' attributes_122_123=%d,%d attribute_133=%d priorities=%d..%d "
      "model=-\n",
      version, name, memory_operations, wait_nor, ipc_events, least, greatest);
}

// ---- All of them --------------------------------------------------------------------------------

struct Experiment {
  const char* name;
  void (*run)(const char* argument);
};
constexpr Experiment kExperiments[] = {
    {"facts", facts},     {"alias", alias},
    {"depth", depth},     {"lazy", lazy},
    {"calls", calls},     {"times", times},
    {"graph", graph},     {"legacy", legacy},
    {"leaving", leaving}, {"two_processes", two_processes},
    {"running", running},
};

struct Run {
  const char* variable;  // NAME=VALUE or nullptr
  const char* name;
  const char* argument;
};
constexpr Run kRuns[] = {
    {nullptr, "facts", ""},
    {nullptr, "alias", "0"},
    {nullptr, "alias", "-5"},
    {"CUDA_DEVICE_MAX_CONNECTIONS=32", "alias", "0"},
    {"CUDA_DEVICE_MAX_CONNECTIONS=1", "alias", "0"},
    {"CUDA_DEVICE_MAX_CONNECTIONS=1", "alias", "-5"},
    {"CUDA_DEVICE_MAX_CONNECTIONS=1", "running", ""},
    {nullptr, "depth", "kernel"},
    {nullptr, "depth", "copy_on_device"},
    {nullptr, "depth", "copy_to_host"},
    {nullptr, "depth", "memory_operation"},
    {nullptr, "depth", "event"},
    {nullptr, "lazy", ""},
    {"CUDA_MODULE_LOADING=EAGER", "lazy", ""},
    {nullptr, "calls", ""},
    {nullptr, "times", ""},
    {nullptr, "graph", ""},
    {nullptr, "legacy", ""},
    {nullptr, "leaving", ""},
    {nullptr, "two_processes", ""},
};

int run_one(const char* name, const char* argument) {
  for (const Experiment& experiment : kExperiments) {
    if (std::strcmp(experiment.name, name) != 0) continue;
    alarm(kExperimentSeconds);
    // The parent of two processes opens the driver after it has forked.
    if (experiment.run != two_processes) open_driver();
    experiment.run(argument);
    end(0);
  }
  std::fprintf(stderr, "driver_probe: no experiment '%s'\n", name);
  return 2;
}

int run_all(const char* program) {
  int worst = 0;
  for (const Run& run : kRuns) {
    std::fflush(stdout);
    const double begin = now_us();
    const pid_t child = fork();
    if (child == 0) {
      setpgid(0, 0);
      if (run.variable != nullptr) putenv(const_cast<char*>(run.variable));
      execl("/proc/self/exe", program, run.name, run.argument, static_cast<char*>(nullptr));
      _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    kill(-child, SIGKILL);  // what the experiment has started
    if (WIFEXITED(status) && WEXITSTATUS(status) == kSkipped) return kSkipped;
    const bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (std::strcmp(run.name, "leaving") == 0) {
      std::printf(" status=%d ms=%.0f", status, (now_us() - begin) * 1e-3);
      say_model(good, "that a process can end while a stream waits");
    } else if (!good && WIFSIGNALED(status)) {
      std::printf("%s %s: ended by signal %d%s\n", run.name, run.argument, WTERMSIG(status),
                  WTERMSIG(status) == SIGALRM ? " (20 s were over)" : "");
    }
    if (!good) worst = 1;
  }
  return worst;
}

}  // namespace

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  return argc > 1 ? run_one(argv[1], argc > 2 ? argv[2] : "") : run_all(argv[0]);
}
