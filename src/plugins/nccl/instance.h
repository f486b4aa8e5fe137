// SPDX-License-Identifier: Apache-2.0
// Instance: one rank of one communicator of the real NCCL. The communicator is nonblocking, so that
// no call of NCCL's waits for peers; ncclCommGetAsyncError reports what is in progress. One thread
// at a time, as in plugin.h.
//
// Introduction, as it lies in memory (236 bytes; ranks with another layout send another number):
//   0    u32  "WNCL"
//   4    i32  NCCL's version
//   8    i32  ordinal of the device, for texts
//   12   u32  how many bytes of the unique id follow: of rank 0
//   16   16   the device's UUID
//   32   128  unique id
//   160  76   host name, for texts
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plugins/nccl/driver.h"
#include "plugins/nccl/ending.h"
#include "plugins/nccl/library.h"
#include "weir/plugin.h"

namespace weir::plugins::nccl {

struct Introduction {
  static constexpr uint32_t kMark = 0x4c434e57;

  uint32_t mark = kMark;
  int32_t version = 0;
  int32_t device = 0;
  uint32_t id_bytes = 0;
  cuda::Uuid uuid;
  ncclUniqueId id{};
  char host[76] = {};
};
static_assert(sizeof(Introduction) == 236 && sizeof(ncclUniqueId) == 128);

// Of a weir_datatype_t.
size_t element_bytes(int32_t type);

class Instance {
 public:
  Instance(const weir_host_t* host, const weir_transport_config_t& config, const Library& library,
           const Driver& driver);
  // Ends the communicator, waiting for a bounded time.
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  weir_result_t introduce(int device, unsigned char* text, size_t* bytes);
  weir_result_t join(const unsigned char* const* texts, const size_t* bytes);
  weir_result_t joined();
  weir_result_t start(const weir_collective_call_t& call, weir_transport_op_t* op);
  weir_result_t enqueued(weir_transport_op_t* op);
  weir_result_t test(weir_transport_op_t* op);
  weir_result_t abort();
  const Library& library() const { return library_; }

 private:
  // The meaning of weir_transport_op_t::word.
  enum Word { kPhase, kStream, kEvent, kCopy };
  enum Phase : uint64_t { kStarting = 1, kEnqueued = 2, kCaptured = 3 };

  weir_result_t fail(weir_result_t code, const std::string& text) const;
  weir_result_t fail_nccl(const char* function, ncclResult_t result) const;
  weir_result_t fail_cuda(const char* function, int error) const;
  // Whether the communicator's current operation has ended: WEIR_OK, WEIR_IN_PROGRESS, or an error.
  weir_result_t state(const char* what) const;
  // Refuses what cannot be done, before anything is done.
  weir_result_t check(const weir_collective_call_t& call) const;
  // Enqueues a copy of what an in-place all_to_all sends, since NCCL needs separate buffers.
  weir_result_t copy_of_send(const weir_collective_call_t& call, void* stream,
                             cuda::DevicePointer* copy);
  // Frees it in the order of the stream.
  void free_copy(cuda::DevicePointer copy, void* stream);
  // Calls of NCCL's (enqueue.cc); ncclInProgress counts as success.
  ncclResult_t enqueue(const weir_collective_call_t& call, void* stream);
  ncclResult_t enqueue_in_group(const weir_collective_call_t& call, ncclRedOp_t op, void* stream);
  ncclResult_t enqueue_blocks(const weir_collective_call_t& call, ncclRedOp_t op, void* stream);
  ncclResult_t exchange_blocks(const weir_collective_call_t& call, void* stream);

  const weir_host_t* host_;
  const Library& library_;
  const Driver& driver_;
  const uint32_t rank_;
  const uint32_t rank_count_;
  int device_ = -1;
  void* context_ = nullptr;  // the device's primary one
  ncclComm_t comm_ = nullptr;
  void* stream_ = nullptr;  // for calls that name none
  std::vector<void*> free_events_;
  std::vector<void*> all_events_;
  std::vector<cuda::DevicePointer> copies_;  // that NCCL's calls read
  Ending ending_;
};

}  // namespace weir::plugins::nccl
