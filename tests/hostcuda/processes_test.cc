// SPDX-License-Identifier: Apache-2.0
// Memory between processes, and what is left of CUDA in a forked process. Children are forked
// before this process uses CUDA, as CUDA wants it.
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "hostcuda/support.h"

namespace weir::test {
namespace {

struct Pipe {
  int ends[2];
  Pipe() { EXPECT_EQ(pipe(ends), 0); }
  ~Pipe() {
    close(ends[0]);
    close(ends[1]);
  }
  template <class Type>
  bool send(const Type& value) {
    return write(ends[1], &value, sizeof value) == static_cast<ssize_t>(sizeof value);
  }
  template <class Type>
  bool receive(Type* value) {
    return read(ends[0], value, sizeof *value) == static_cast<ssize_t>(sizeof *value);
  }
};

// Opens the parent's memory, checks it, changes it in stream order and answers. 0: all was right.
int open_and_change(Pipe& from_parent, Pipe& to_parent) {
  cudaIpcMemHandle_t handle{};
  if (!from_parent.receive(&handle)) return 1;
  void* opened = nullptr;
  if (cudaIpcOpenMemHandle(&opened, handle, 1) != cudaSuccess) return 2;
  void* again = nullptr;
  if (cudaIpcOpenMemHandle(&again, handle, 1) != cudaSuccess || again != opened) return 3;
  char got[100];
  if (cudaMemcpy(got, opened, sizeof got, cudaMemcpyDeviceToHost) != cudaSuccess) return 4;
  for (const char byte : got) {
    if (byte != 0x11) return 5;
  }
  if (cudaMemset(opened, 0x22, sizeof got) != cudaSuccess) return 6;
  if (cudaDeviceSynchronize() != cudaSuccess) return 7;
  cudaPointerAttributes a{};
  if (cudaPointerGetAttributes(&a, opened) != cudaSuccess) return 8;
  if (a.type != cudaMemoryTypeDevice) return 9;
  if (cudaIpcCloseMemHandle(opened) != cudaSuccess) return 10;
  if (cudaIpcCloseMemHandle(opened) != cudaSuccess) return 11;
  if (cudaIpcCloseMemHandle(opened) != cudaErrorInvalidValue) return 12;
  std::memset(&handle, 0x5a, sizeof handle);
  if (cudaIpcOpenMemHandle(&opened, handle, 1) != cudaErrorInvalidValue) return 13;
  return to_parent.send('k') ? 0 : 14;
}

// 0: all was right. PyTorch asks for the number of devices first, and then asks the driver.
int count_devices_first() {
  unsigned flags = 0;
  int active = -1;
  if (cuDevicePrimaryCtxGetState(0, &flags, &active) != CUDA_ERROR_NOT_INITIALIZED) return 1;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return 2;
  int wrong = 3;
  std::thread([&] {
    if (cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS) wrong = 0;
  }).join();
  if (wrong == 0 && active != 0) wrong = 4;
  return wrong;
}

TEST(HostCudaProcesses, TheNumberOfDevicesInitializesTheDriverForAllThreads) {
  const pid_t child = fork();
  if (child == 0) _exit(count_devices_first());
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// The child waits in its stream for the parent's event and then reads the memory behind it. 0: all
// was right.
int wait_for_parents_event(Pipe& from_parent, Pipe& to_parent) {
  struct {
    cudaIpcMemHandle_t memory;
    cudaIpcEventHandle_t event;
  } given{};
  if (!from_parent.receive(&given)) return 1;
  void* memory = nullptr;
  cudaEvent_t event = nullptr;
  if (cudaIpcOpenMemHandle(&memory, given.memory, 1) != cudaSuccess) return 2;
  if (cudaIpcOpenEventHandle(&event, given.event) != cudaSuccess) return 3;
  if (cudaEventQuery(event) != cudaErrorNotReady) return 4;
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, kNonBlocking) != cudaSuccess) return 5;
  if (cudaStreamWaitEvent(stream, event, 0) != cudaSuccess) return 6;
  char seen = 0;
  void* copy = nullptr;
  if (cudaMalloc(&copy, 1) != cudaSuccess) return 7;
  if (cudaMemcpyAsync(copy, memory, 1, cudaMemcpyDeviceToDevice, stream) != cudaSuccess) return 8;
  if (cudaStreamQuery(stream) != cudaErrorNotReady) return 9;
  if (!to_parent.send('w')) return 10;  // the parent opens its gate now
  if (cudaEventSynchronize(event) != cudaSuccess) return 11;
  if (cudaStreamSynchronize(stream) != cudaSuccess) return 12;
  if (cudaMemcpy(&seen, copy, 1, cudaMemcpyDeviceToHost) != cudaSuccess) return 13;
  if (seen != 0x44) return 14;
  if (cudaEventQuery(event) != cudaSuccess) return 15;
  cudaIpcEventHandle_t again{};
  if (cudaIpcGetEventHandle(&again, event) != cudaErrorInvalidResourceHandle) return 16;
  if (cudaEventDestroy(event) != cudaSuccess) return 17;
  std::memset(&given.event, 0x5a, sizeof given.event);
  if (cudaIpcOpenEventHandle(&event, given.event) != cudaErrorInvalidValue) return 18;
  return 0;
}

// Run in a child, so that later tests can fork before CUDA is used.
int share_an_event() {
  Pipe down;
  Pipe up;
  const pid_t child = fork();
  if (child == 0) _exit(wait_for_parents_event(down, up));
  close(up.ends[1]);
  up.ends[1] = -1;
  void* const memory = allocate(1);
  cudaEvent_t event = nullptr;
  if (cudaEventCreateWithFlags(&event, 4) != cudaErrorInvalidValue) return 31;  // with timing
  if (cudaEventCreateWithFlags(&event, 4 | 2) != cudaSuccess) return 32;
  if (cudaEventQuery(event) != cudaSuccess) return 33;  // never recorded
  const cudaStream_t stream = make_stream(kNonBlocking);
  Gate gate;
  gate.close(stream);
  if (cudaMemsetAsync(memory, 0x44, 1, stream) != cudaSuccess) return 34;
  if (cudaEventRecord(event, stream) != cudaSuccess) return 35;
  struct {
    cudaIpcMemHandle_t memory;
    cudaIpcEventHandle_t event;
  } given{};
  if (cudaIpcGetMemHandle(&given.memory, memory) != cudaSuccess) return 36;
  if (cudaIpcGetEventHandle(&given.event, event) != cudaSuccess) return 37;
  const cudaEvent_t plain = make_event();
  cudaIpcEventHandle_t none{};
  if (cudaIpcGetEventHandle(&none, plain) != cudaErrorInvalidResourceHandle) return 38;
  char answer = 0;
  const bool answered = down.send(given) && up.receive(&answer);
  gate.open();
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || !answered) {
    return WIFEXITED(status) && WEXITSTATUS(status) != 0 ? WEXITSTATUS(status) : 39;
  }
  if (cudaEventQuery(event) != cudaSuccess) return 40;
  return WEXITSTATUS(status);
}

TEST(HostCudaProcesses, AStreamWaitsForAnEventOfAnotherProcess) {
  const pid_t child = fork();
  if (child == 0) _exit(share_an_event());
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Records an event behind a gate that never opens and dies, or waits for that event. 0: all right.
int outlive_the_recorder() {
  Pipe up;
  Pipe down;
  const pid_t recorder = fork();
  if (recorder == 0) {
    cudaEvent_t event = nullptr;
    cudaIpcEventHandle_t handle{};
    const cudaStream_t stream = make_stream(kNonBlocking);
    auto* const gate = new Gate;
    gate->close(stream);
    if (cudaEventCreateWithFlags(&event, 4 | 2) != cudaSuccess) _exit(1);
    if (cudaEventRecord(event, stream) != cudaSuccess) _exit(2);
    if (cudaIpcGetEventHandle(&handle, event) != cudaSuccess || !up.send(handle)) _exit(3);
    char answer = 0;
    (void)down.receive(&answer);
    _exit(0);
  }
  cudaIpcEventHandle_t handle{};
  cudaEvent_t event = nullptr;
  if (!up.receive(&handle)) return 4;
  if (cudaIpcOpenEventHandle(&event, handle) != cudaSuccess) return 5;
  if (cudaEventQuery(event) != cudaErrorNotReady) return 6;
  if (!down.send('e')) return 7;
  // The recorder is not waited for: its parent may be any process.
  if (cudaEventSynchronize(event) != cudaSuccess) return 8;
  int status = 0;
  return waitpid(recorder, &status, 0) == recorder && WEXITSTATUS(status) == 0 ? 0 : 9;
}

TEST(HostCudaProcesses, AWaitForAnEventOfAProcessThatEndsEnds) {
  const pid_t child = fork();
  if (child == 0) _exit(outlive_the_recorder());
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(HostCudaProcesses, AnotherProcessOpensAndChangesDeviceMemory) {
  Pipe down;
  Pipe up;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(open_and_change(down, up));
  allocate(300);  // so that the memory does not begin at a page
  void* const memory = allocate(100);
  ASSERT_CUDA(cudaMemset(memory, 0x11, 100));
  ASSERT_CUDA(cudaDeviceSynchronize());
  cudaIpcMemHandle_t handle{};
  ASSERT_CUDA(cudaIpcGetMemHandle(&handle, memory));
  void* opened = nullptr;
  EXPECT_CUDA_ERROR(201, cudaIpcOpenMemHandle(&opened, handle, 1));  // not in the same process
  char answer = 0;
  ASSERT_TRUE(down.send(handle));
  close(up.ends[1]);
  up.ends[1] = -1;
  const bool answered = up.receive(&answer);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(answered);
  char got[100];
  ASSERT_CUDA(cudaMemcpy(got, memory, sizeof got, cudaMemcpyDeviceToHost));
  for (const char byte : got) EXPECT_EQ(byte, 0x22);

  // CUDA does not survive a fork once it was used.
  const pid_t late = fork();
  ASSERT_GE(late, 0);
  if (late == 0) {
    void* mine = nullptr;
    _exit(cudaMalloc(&mine, 16) == cudaErrorInitializationError ? 0 : 1);
  }
  ASSERT_EQ(waitpid(late, &status, 0), late);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace weir::test
