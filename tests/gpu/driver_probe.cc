// SPDX-License-Identifier: Apache-2.0
// What CUDA's driver does while a stream waits for a value in memory, and whether that is what the
// strict libcuda of the tests (tests/nccl/strict_cuda) does. The driver's API alone, looked up at
// run time.
//
//   driver_probe            every experiment in a process of its own, 20 s each (calls: 60 s); a
//                           line for each
//   driver_probe NAME [X]   one experiment
//   driver_probe list       the experiments: a line "VARIABLE=VALUE|- NAME [X]" for each
//
// A line is "NAME key=value … model=…". `model` is "as assumed", or says what the model does
// instead, or "-" where it assumes nothing (times). The exit status is 77 without a device, 1 where
// an experiment fails or does not end, else 0, also where the model differs: the table is for
// people.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

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
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gpu/probe_processes.h"
#include "gpu/probe_support.h"

namespace weir::probe {
namespace {

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

// A process with memory of its own that others can open, until it is told.
struct Owner {
  std::atomic<uint32_t> turn;
  IpcHandle handle;
};
Owner* start_owner() {
  void* memory =
      mmap(nullptr, sizeof(Owner), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) need(errno, "mmap");
  auto* owner = new (memory) Owner{};
  if (fork() != 0) {
    while (owner->turn != 1) sleep_ms(1);
    return owner;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(kCallsSeconds);
  open_driver();
  need(cu("cuIpcGetMemHandle", static_cast<void*>(&owner->handle), device_memory(kMappedUnit)),
       "cuIpcGetMemHandle");
  owner->turn = 1;
  while (owner->turn != 2) sleep_ms(1);
  end(0);
}

void calls(const char* /*unused*/) {
  Owner* const owner = start_owner();
  open_driver();
  const Flags flags;
  const DeviceAddress memory = device_memory(1 << 20);
  DeviceAddress gone = device_memory(1 << 20);
  void* host = nullptr;
  need(cu("cuMemHostAlloc", &host, size_t{4096}, 3U), "cuMemHostAlloc");
  void* ordinary = std::aligned_alloc(4096, 1 << 20);
  const unsigned long long made = made_memory(kMappedUnit);
  const DeviceAddress range = reserved_addresses(kMappedUnit);
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
  static DeviceAddress opened;
  static std::atomic<int> result;
  enum Model { kReturns, kWaits };
  struct Call {
    const char* name;
    Model model;
    std::function<int()> run;
  };
  const std::vector<Call> all = {
      {"cuPointerGetAttributes", kReturns,
       [=] {
         int attributes[] = {2};
         void* data[] = {&type};
         return cu("cuPointerGetAttributes", 1U, &attributes[0], &data[0], memory);
       }},
      {"cuMemGetAddressRange", kReturns,
       [=] { return cu("cuMemGetAddressRange_v2", &base, &size, memory); }},
      {"cuIpcGetMemHandle", kReturns,
       [=] { return cu("cuIpcGetMemHandle", static_cast<void*>(handle), memory); }},
      {"cuIpcOpenMemHandle", kReturns,
       [=] { return cu("cuIpcOpenMemHandle_v2", &opened, owner->handle, 1U); }},
      {"cuIpcCloseMemHandle", kWaits, [] { return cu("cuIpcCloseMemHandle", opened); }},
      {"cuStreamQuery", kReturns,
       [=] { return cu("cuStreamQuery", stream) == kNotReady ? 0 : -1; }},
      {"cuEventCreate", kReturns, [] { return cu("cuEventCreate", &out, 2U); }},
      {"cuEventDestroy", kReturns, [=] { return cu("cuEventDestroy_v2", event); }},
      {"cuStreamCreate", kReturns, [] { return cu("cuStreamCreate", &out, kNonBlocking); }},
      {"cuStreamDestroy", kReturns, [=] { return cu("cuStreamDestroy_v2", old); }},
      {"cuMemHostAlloc", kReturns,
       [] { return cu("cuMemHostAlloc", reinterpret_cast<void**>(&out), size_t{8 << 20}, 3U); }},
      {"cuMemHostRegister", kReturns,
       [=] { return cu("cuMemHostRegister_v2", ordinary, size_t{1 << 20}, 3U); }},
      {"cuMemHostUnregister", kWaits, [=] { return cu("cuMemHostUnregister", ordinary); }},
      {"cuMemAlloc", kReturns, [] { return cu("cuMemAlloc_v2", &base, size_t{64 << 20}); }},
      {"cuMemMap", kReturns, [=] { return map(range, kMappedUnit, made); }},
      {"cuMemSetAccess", kReturns, [=] { return give_access(range, kMappedUnit); }},
      {"cuMemUnmap", kWaits, [=] { return cu("cuMemUnmap", range, kMappedUnit); }},
      {"cuModuleLoadData", kWaits, [] { return load_kernel(2) == nullptr ? -1 : 0; }},
      {"cuMemFreeHost", kWaits, [=] { return cu("cuMemFreeHost", host); }},
      {"cuMemFree", kWaits, [=] { return cu("cuMemFree_v2", gone); }},
  };
  need(wait_at_least(stream, flags, 0, 1), "cuStreamWaitValue32");
  sleep_ms(20);
  std::printf("calls");
  std::string others;
  uint32_t round = 1;
  for (const Call& call : all) {
    result = 0;
    const Timed timed = within(1000, [&call] { result = call.run(); });
    bool locked_out = false;
    if (!timed.ended) {
      locked_out = !within(1000, [=] { copy(proxy, memory, memory + 4096, 64); }).ended;
    }
    std::printf(" %s=%s", call.name,
                timed.ended && result != 0 ? ("error" + std::to_string(result)).c_str()
                : timed.ended ? (std::to_string(static_cast<int>(timed.us)) + "us").c_str()
                : locked_out  ? "WAITS,LOCKS_OTHERS_OUT"
                              : "WAITS");
    const bool differs = timed.ended == (call.model == kWaits);
    if (differs && (!timed.ended || result == 0))
      others += (others.empty() ? "" : ", ") + std::string(call.name);
    if (!timed.ended) {
      flags[0] = round;
      cu("cuStreamSynchronize", stream);
      need(wait_at_least(stream, flags, 0, ++round), "cuStreamWaitValue32");
      sleep_ms(20);
    }
  }
  say_model(others.empty(), "the opposite of " + others);
  flags[0] = round;
  owner->turn = 2;
}

// ---- Times --------------------------------------------------------------------------------------

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
  std::printf("leaving model=as assumed, if the status is 0\n");
  std::fflush(stdout);
  std::exit(0);  // with the driver's exit handlers, unlike the others
}

void facts(const char* /*unused*/) {
  int version = 0;
  int devices = 0;
  size_t free_bytes = 0;
  size_t all_bytes = 0;
  char name[128] = "";
  int memory_operations = 0;
  int wait_nor = 0;
  int ipc_events = 0;
  int least = 0;
  int greatest = 0;
  cu("cuDriverGetVersion", &version);
  cu("cuDeviceGetCount", &devices);
  cu("cuMemGetInfo_v2", &free_bytes, &all_bytes);
  cu("cuDeviceGetName", static_cast<char*>(name), 128, 0);
  cu("cuDeviceGetAttribute", &memory_operations, 122, 0);
  cu("cuDeviceGetAttribute", &wait_nor, 123, 0);
  cu("cuDeviceGetAttribute", &ipc_events, 133, 0);
  cu("cuCtxGetStreamPriorityRange", &least, &greatest);
  std::printf(
      "facts driver=%d devices=%d memory_MiB=%zu device='%s' attributes_122_123=%d,%d "
      "attribute_133=%d priorities=%d..%d "
      "model=-\n",
      version, devices, all_bytes >> 20, name, memory_operations, wait_nor, ipc_events, least,
      greatest);
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
    {"running", running}, {"two_processes_by_descriptor", two_processes_by_descriptor},
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
    {nullptr, "two_processes_by_descriptor", ""},
};

int list() {
  for (const Run& run : kRuns) {
    std::printf("%s %s %s\n", run.variable == nullptr ? "-" : run.variable, run.name, run.argument);
  }
  return 0;
}

int run_one(const char* name, const char* argument) {
  if (std::strcmp(name, "list") == 0) return list();
  for (const Experiment& experiment : kExperiments) {
    if (std::strcmp(experiment.name, name) != 0) continue;
    alarm(experiment.run == calls ? kCallsSeconds : kExperimentSeconds);
    // Parents open the driver after they have forked.
    if (experiment.run != calls && experiment.run != two_processes &&
        experiment.run != two_processes_by_descriptor) {
      open_driver();
    }
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
      std::printf("leaving status=%d ms=%.0f", status, (now_us() - begin) * 1e-3);
      say_model(good, "that a process can end while a stream waits");
    } else if (!good && WIFSIGNALED(status)) {
      std::printf("%s %s: ended by signal %d%s\n", run.name, run.argument, WTERMSIG(status),
                  WTERMSIG(status) == SIGALRM ? " (its time was over)" : "");
    }
    if (!good) worst = 1;
  }
  return worst;
}

}  // namespace
}  // namespace weir::probe

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc == 1) return weir::probe::run_all(argv[0]);
  return weir::probe::run_one(argv[1], argc > 2 ? argv[2] : "");
}
