// SPDX-License-Identifier: Apache-2.0
#include "gpu/probe_processes.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <new>

#include "gpu/probe_support.h"

namespace weir::probe {

namespace {

struct Shared {
  std::array<std::atomic<uint32_t>, 8 * 16> words;
  char handle[64];
};

}  // namespace

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
  for (uint32_t i = 1; i <= 100; ++i) {
    write_value(stream, flags, 0, i);
    wait_at_least(stream, flags, 1, i);
    write_value(stream, flags, 2, i);
    const double begin = now_us();
    await(flags, 0, i);
    shared->words[16 * (1 + own)] = i;
    spin_until([&] { return shared->words[16 * (2 - own)] >= i; });
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
  IpcHandle handle{};
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

void two_processes_by_descriptor(const char* /*unused*/) {
  constexpr size_t kBytes = 256 << 20;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) need(errno, "socketpair");
  const pid_t child = fork();
  open_driver();
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const DeviceAddress range = reserved_addresses(kBytes);
  if (child == 0) {
    close(ends[0]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(kExperimentSeconds);
    const unsigned long long made = made_memory(kBytes);
    need(map(range, kBytes, made), "cuMemMap");
    need(give_access(range, kBytes), "cuMemSetAccess");
    need(cu("cuMemsetD32_v2", range, 42U, kBytes / 4), "cuMemsetD32");
    need(cu("cuCtxSynchronize"), "cuCtxSynchronize");
    int descriptor = -1;
    need(cu("cuMemExportToShareableHandle", static_cast<void*>(&descriptor), made, kDescriptor,
            0ULL),
         "cuMemExportToShareableHandle");
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    if (sendmsg(ends[1], &message, 0) != 1) need(errno, "sendmsg");
    (void)!read(ends[1], &byte, 1);
    end(0);
  }
  close(ends[1]);
  if (recvmsg(ends[0], &message, 0) != 1 || CMSG_FIRSTHDR(&message) == nullptr) {
    need(EPIPE, "recvmsg");
  }
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
  const Flags flags;
  const Handle stream = new_stream();
  const DeviceAddress buffer = device_memory(kBytes);
  double begin = now_us();
  unsigned long long theirs = 0;
  const auto number = static_cast<uintptr_t>(descriptor);
  int imported =
      cu("cuMemImportFromShareableHandle", &theirs, reinterpret_cast<void*>(number), kDescriptor);
  if (imported == 0) imported = map(range, kBytes, theirs);
  if (imported == 0) imported = give_access(range, kBytes);
  const double open_us = now_us() - begin;
  std::vector<double> copies;
  for (uint32_t i = 1; imported == 0 && i <= 20; ++i) {
    begin = now_us();
    copy(stream, buffer, range, kBytes);
    write_value(stream, flags, 3, i);
    await(flags, 3, i);
    copies.push_back(now_us() - begin);
  }
  copy(stream, flags.address(4), buffer + kBytes - 64, 64);
  cu("cuStreamSynchronize", stream);
  const bool right = imported == 0 && flags[4].load() == 42;
  std::printf(
      "two_processes_by_descriptor import=%d open_us=%.0f values=%s "
      "copy_read_and_written_GBps=%.0f",
      imported, open_us, right ? "right" : "WRONG",
      copies.empty() ? 0.0 : 2e-3 * kBytes / median(copies));
  say_model(right, "that memory of another process can be mapped");
  close(ends[0]);
  waitpid(child, nullptr, 0);
}

}  // namespace weir::probe
