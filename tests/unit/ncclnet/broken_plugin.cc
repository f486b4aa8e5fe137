// SPDX-License-Identifier: Apache-2.0
// A plugin for NCCL in which something is wrong: the symbol of a version that nobody here knows, a
// function that is missing, no name, or (none of these) each function from WEIR_TEST_NET_FAILS on
// that fails with a warning.
#include <cstdlib>
#include <cstring>

#include "ncclnet/abi.h"

namespace {

using namespace weir::ncclnet;

Logger logger = nullptr;

Result outcome(const char* function) {
  const char* failing = getenv("WEIR_TEST_NET_FAILS");
  if (failing == nullptr || strcmp(failing, function) != 0) return kSuccess;
  if (logger != nullptr)
    logger(kLogWarn, kLogNet, __FILE__, __LINE__, "%s is out of order", function);
  return kSystemError;
}

Result init(void** context, uint64_t, CommConfig*, Logger log, ProfilerCallback) {
  static int nothing;
  logger = log;
  *context = &nothing;
  return outcome("init");
}
Result devices(int* count) {
  *count = getenv("WEIR_TEST_NET_NO_DEVICE") != nullptr ? 0 : 1;
  return outcome("devices");
}
Result get_properties(int, Properties<12>* properties) {
  static char name[] = "broken";
  *properties = {};
  properties->name = name;
  properties->pointer_kinds =
      getenv("WEIR_TEST_NET_ONLY_CUDA") != nullptr ? kPointerCuda : kPointerHost;
  properties->message_bytes_max = size_t{1} << 30;
  return outcome("getProperties");
}
Result listen(void*, int, void* handle, void** comm) {
  static int listener;
  memset(handle, 1, kHandleBytes);
  *comm = &listener;
  return outcome("listen");
}
Result connect(void*, int, void*, void** comm, DeviceHandle**) {
  static int connection;
  *comm = getenv("WEIR_TEST_NET_NEVER") != nullptr ? nullptr : &connection;
  return outcome("connect");
}
Result accept(void*, void** comm, DeviceHandle**) {
  static int connection;
  *comm = getenv("WEIR_TEST_NET_NEVER") != nullptr ? nullptr : &connection;
  return outcome("accept");
}
Result register_memory(void*, void*, size_t, int, void**) { return outcome("regMr"); }
Result deregister_memory(void*, void*) { return kSuccess; }
Result isend(void*, void*, size_t, int, void*, void*, void** request) {
  static int under_way;
  *request = &under_way;
  return outcome("isend");
}
Result irecv(void*, int, void**, size_t*, int*, void**, void**, void** request) {
  static int under_way;
  *request = &under_way;
  return outcome("irecv");
}
// Everything is done at once, and nothing has come.
Result test(void*, int* done, int* bytes) {
  *done = 1;
  if (bytes != nullptr) *bytes = 0;
  return outcome("test");
}
Result close_comm(void*) { return kSuccess; }
[[maybe_unused]] Result finalize(void*) { return kSuccess; }

constexpr Table<12> make_table() {
  Table<12> table = {};
#ifndef BROKEN_NAMELESS
  table.name = "broken";
#endif
  table.init = init;
  table.devices = devices;
  table.get_properties = get_properties;
  table.listen = listen;
  table.connect = connect;
  table.accept = accept;
  table.register_memory = register_memory;
  table.deregister_memory = deregister_memory;
  table.isend = isend;
  table.irecv = irecv;
  table.test = test;
  table.close_send = close_comm;
  table.close_recv = close_comm;
  table.close_listen = close_comm;
#ifndef BROKEN_MISSING
  table.finalize = finalize;
#endif
  return table;
}

}  // namespace

#ifndef BROKEN_SYMBOL
#define BROKEN_SYMBOL ncclNetPlugin_v12
#endif
#pragma GCC visibility push(default)
extern "C" {
extern const weir::ncclnet::Table<12> BROKEN_SYMBOL;
constinit const weir::ncclnet::Table<12> BROKEN_SYMBOL = make_table();
}
#pragma GCC visibility pop
