// SPDX-License-Identifier: Apache-2.0
// Endpoint: libfabric's objects of one instance (fabric, domain, completion queue, address vector,
// reliable datagram endpoint), and the operations that the provider has. One thread at a time.
//
// Every operation that a provider has is a Request out of a fixed pool, which holds the context that
// the provider may write to. So an operation that its caller has been told failed may be forgotten
// at once, whatever the provider still does with its context.
//
// Memory registration (FI_MR_LOCAL). Where the provider wants local buffers registered, up to
// kCellBytes travel through registered cells of the pool, and larger buffers are registered for as
// long as their operation is under way. They are not kept registered afterwards, since nobody tells
// a transport when memory is unmapped, and a registration that outlives its mapping moves the wrong
// bytes; the providers that need registration (verbs, efa) watch the mappings, and make registering
// again cheap.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugins/ofi/channel.h"
#include "plugins/ofi/providers.h"

namespace weir::plugins::ofi {

struct Completion {
  Op* op;
  uint64_t bytes;    // of the message; of a truncated one, all that was sent, if that is known
  bool bytes_known;  // false: a truncated message of unknown length
  int error;         // 0, FI_ETRUNC, or another one of the provider, told by reason()
};

enum class Posted : uint8_t {
  kUnderWay,  // a Completion will come
  kComplete,  // the buffer is the caller's again
  kFull,      // nothing was taken: later
  kFailed,    // reason() tells why
};

class Endpoint {
 public:
  static constexpr size_t kPollMax = 16;
  // Messages of this size complete before they are received, whatever the provider does.
  static constexpr uint64_t kBufferedBytes = 1024;
  static constexpr uint64_t kCellBytes = 4096;

  explicit Endpoint(const Library& library) : library_(library), info_(nullptr, {&library}) {}
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // `registers`: as if the provider wanted FI_MR_LOCAL. False: reason() tells why.
  bool open(Info info, uint32_t rank_count, bool registers);
  // What peers insert.
  const std::vector<unsigned char>& name() const { return name_; }
  const std::string& provider() const { return provider_; }
  uint64_t token_mask() const { return token_mask_; }
  uint64_t message_bytes_max() const { return info_->ep_attr->max_msg_size; }
  // Rank `peer` is reached by `name`.
  bool insert(uint32_t peer, const std::vector<unsigned char>& name);

  Posted send(uint32_t peer, uint64_t tag, Op* op);
  Posted recv(uint64_t tag, Op* op);
  // No completion of `op` will be told any more; its buffer is left alone as far as the provider can.
  void forget(Op* op);
  // Makes progress and writes up to kPollMax completions; negative: the queue is broken.
  int poll(Completion* completions);

  const std::string& reason() const { return reason_; }

 private:
  struct Request {
    fi_context2 context;  // first: the provider hands its address back
    Op* op;               // null: nobody waits for it
    Request* next;        // in the list of free ones
    fid_mr* region;       // of the caller's buffer
    unsigned char* cell;  // null: there are none
    bool is_send;
    bool uses_cell;
    bool busy;
  };
  // A fixed number of requests.
  struct Pool {
    std::vector<Request> requests;
    Request* free = nullptr;
    std::unique_ptr<unsigned char[]> memory;  // of cells; not touched before it is used
    size_t memory_bytes = 0;
    fid_mr* region = nullptr;

    void make(size_t count, bool is_send, uint64_t cell_bytes);
    Request* take() {
      Request* request = free;
      if (request != nullptr) {
        free = request->next;
        request->busy = true;
      }
      return request;
    }
    void give_back(Request* request);
    bool owns(const void* context) const;
  };

  bool fail(const char* what, int64_t error);
  bool open_objects();
  bool register_cells(Pool* pool, uint64_t access);
  fid_mr* register_memory(const void* data, uint64_t bytes, uint64_t access);
  bool describe(Request* request, const void* data, uint64_t bytes, void** descriptor);
  Posted outcome(ssize_t result, Pool* pool, Request* request);
  void finish(Request* request);
  int read_error(Completion* completion);

  const Library& library_;
  Info info_;
  std::string provider_;
  std::string reason_;
  std::vector<unsigned char> name_;
  std::vector<fi_addr_t> peers_;
  uint64_t token_mask_ = 0;
  uint64_t inject_bytes_ = 0;
  bool registers_ = false;
  uint64_t next_key_ = 1;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_cq* queue_ = nullptr;
  fid_av* addresses_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  Pool sends_;
  Pool recvs_;
};

}  // namespace weir::plugins::ofi
