// SPDX-License-Identifier: Apache-2.0
// Library: libfabric, loaded when it is first needed. So this plugin loads even where libfabric is
// not installed, and can report that reason.
//
// Loading it must not change the process: Debian's libfabric pulls in libpsm2 and libinfinipath,
// which install handlers of their own for SIGSEGV, SIGABRT, SIGINT, SIGTERM and others, and so do
// endpoints of the provider shm. The handlers that were there are put back. Thread-safe.
#pragma once

#include <rdma/fabric.h>

#include <string>

namespace weir::plugins::ofi {

// The functions that are symbols; all others are reached through objects.
struct Library {
  decltype(&fi_getinfo) getinfo = nullptr;
  decltype(&fi_freeinfo) freeinfo = nullptr;
  decltype(&fi_dupinfo) dupinfo = nullptr;
  decltype(&fi_fabric) fabric = nullptr;
  decltype(&fi_strerror) strerror = nullptr;
  decltype(&fi_version) version = nullptr;

  // "No route to host", of a negative or positive error number.
  std::string reason(int64_t error) const {
    const auto number = static_cast<int>(error < 0 ? -error : error);
    const char* text = strerror(number);
    return text != nullptr && *text != 0 ? text : "error " + std::to_string(number);
  }
};

// Never unloaded. Null with the reason and the remedy.
const Library* load_library(std::string* reason);

// Puts back, when it ends, the signal handlers that were there when it was made. One at a time in a
// process: others wait.
class SignalHandlersKept {
 public:
  SignalHandlersKept();
  ~SignalHandlersKept();
  SignalHandlersKept(const SignalHandlersKept&) = delete;
  SignalHandlersKept& operator=(const SignalHandlersKept&) = delete;

 private:
  struct Saved;
  Saved* saved_;
};

}  // namespace weir::plugins::ofi
