// SPDX-License-Identifier: Apache-2.0
// For tests that call the library wrongly: memory that may not be touched, and all operations by
// one type.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <functional>
#include <string>
#include <vector>

#include "nccl/support.h"

namespace weir::nccl::test {

// Memory that may not be touched.
class Forbidden {
 public:
  Forbidden() : page_(mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    EXPECT_NE(page_, MAP_FAILED);
  }
  ~Forbidden() { munmap(page_, 4096); }
  Forbidden(const Forbidden&) = delete;
  Forbidden& operator=(const Forbidden&) = delete;
  void* get() const { return page_; }

 private:
  void* page_;
};

// An operation with all that it may be given; what it does not take is left out.
struct Operation {
  const char* name;
  bool reduces;
  const char* one_rank;  // "root", "peer" or NULL
  bool sends;
  bool receives;
  std::function<ncclResult_t(const void* send, void* recv, size_t count, int type, int op, int root,
                             ncclComm_t comm)>
      call;
};

#define WEIR_OPERATION(name, reduces, one_rank, sends, receives, ...)                         \
  {                                                                                           \
#name, reduces, one_rank, sends, receives,                                                  \
        [](const void* send, void* recv, size_t count, int type, int op, int root,              \
           ncclComm_t comm) {                                                                   \
          (void)send, (void)recv, (void)op, (void)root;                                         \
          const auto t = static_cast<ncclDataType_t>(type);                                     \
          [[maybe_unused]] const auto o = static_cast<ncclRedOp_t>(op);                         \
          return name(__VA_ARGS__, comm, nullptr);                                              \
        } \
  }

inline const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = {
      WEIR_OPERATION(ncclAllReduce, true, nullptr, true, true, send, recv, count, t, o),
      WEIR_OPERATION(ncclReduce, true, "root", true, true, send, recv, count, t, o, root),
      WEIR_OPERATION(ncclReduceScatter, true, nullptr, true, true, send, recv, count, t, o),
      WEIR_OPERATION(ncclBroadcast, false, "root", true, true, send, recv, count, t, root),
      WEIR_OPERATION(ncclBcast, false, "root", false, true, recv, count, t, root),
      WEIR_OPERATION(ncclAllGather, false, nullptr, true, true, send, recv, count, t),
      WEIR_OPERATION(ncclAlltoAll, false, nullptr, true, true, send, recv, count, t),
      WEIR_OPERATION(ncclGather, false, "root", true, true, send, recv, count, t, root),
      WEIR_OPERATION(ncclScatter, false, "root", true, true, send, recv, count, t, root),
      WEIR_OPERATION(ncclSend, false, "peer", true, false, send, count, t, root),
      WEIR_OPERATION(ncclRecv, false, "peer", false, true, recv, count, t, root),
  };
  return all;
}

}  // namespace weir::nccl::test
