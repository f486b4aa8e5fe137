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
