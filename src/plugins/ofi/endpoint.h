// SPDX-License-Identifier: Apache-2.0
// Endpoint: libfabric's objects of one instance (fabric, domain, completion queue, address vector,
// reliable datagram endpoint), and the operations that the provider has. One thread at a time.
//
// Every operation that a provider has is a Request out of a fixed pool, which holds the context
// that the provider may write to. So an operation whose failure was reported to its caller may be
// forgotten at once, whatever the provider still does with its context.
//
// Memory of peers (rma.cc). A write is requested with FI_DELIVERY_COMPLETE: by fi_cq(3) it is
// complete when its bytes "have been placed at the destination". No order of operations
// (FI_ORDER_WAW, FI_ORDER_SAW) is relied on, since providers differ in it and few keep it for data
// of all sizes; a signal is a message that leaves when its write is complete, or that carries its
// bytes. Of the registration modes, FI_MR_VIRT_ADDR decides whether peers name memory by its
// address or from 0, FI_MR_PROV_KEY which side chooses the key; basic registration (FI_MR_BASIC)
// means both of them and FI_MR_ALLOCATED, which always holds.
//
// Memory registration (FI_MR_LOCAL). Where the provider wants local buffers registered, up to
// kCellBytes travel through registered cells of the pool, and larger buffers are registered for as
// long as their operation is under way. They are not kept registered afterwards, since a transport
// is not told when memory is unmapped, and a registration that outlives its mapping moves the wrong
// bytes; the providers that need registration (verbs, efa) watch the mappings, and make repeated
// registration cheap.
//
// Memory of devices (FI_HMEM), where the provider granted it. With FI_MR_HMEM or FI_MR_LOCAL a
// buffer is registered, with its device, in the call for its message, so that memory which cannot
// be registered is refused before anything is posted; cells are for memory of the host.
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
#include "plugins/remote/regions.h"

namespace weir::plugins::ofi {

class OneSided;
struct RemoteOp;

struct Completion {
  Op* op;
  RemoteOp* remote;  // in place of `op`
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

// Memory of a peer as its provider names it.
struct Target {
  uint32_t peer;
  uint64_t address;
  uint64_t key;
};

class Endpoint {
 public:
  static constexpr size_t kPollMax = 16;
  static constexpr int kHost = -1;  // in place of a device
  // Of a put_signal: so many bytes travel in the signal's message.
  static constexpr uint64_t kInlineBytes = 4096;
  static constexpr uint64_t kCellBytes = 4096;

  explicit Endpoint(const Library& library) : library_(library), info_(nullptr, {&library}) {}
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // `registers`: as if the provider wanted FI_MR_LOCAL. False: reason() tells why.
  bool open(Info info, uint32_t rank_count, bool registers);
  // The name that peers insert.
  const std::vector<unsigned char>& name() const { return name_; }
  const std::string& provider() const { return provider_; }
  // Data move without calls of this process.
  bool progresses_alone() const { return info_->domain_attr->data_progress == FI_PROGRESS_AUTO; }
  uint64_t token_mask() const { return token_mask_; }
  uint64_t message_bytes_max() const { return info_->ep_attr->max_msg_size; }
  // Rank `peer` is reached by `name`.
  bool insert(uint32_t peer, const std::vector<unsigned char>& name);

  // The provider takes memory of devices.
  bool takes_devices() const { return (info_->caps & FI_HMEM) != 0; }
  // `op`, to be posted, has its buffer on that CUDA device. False: it cannot be registered,
  // reason().
  bool place(Op* op, int device);
  // For an operation that will not be posted: undoes `place`.
  void displace(Op* op);

  Posted send(uint32_t peer, uint64_t tag, Op* op);
  Posted recv(uint64_t tag, Op* op);
  // No completion of `op` will be reported any more; the provider leaves its buffer alone as far as
  // it can.
  void forget(Op* op);
  // Operations that were forgotten, and that the provider has not given back.
  uint32_t forgotten_count() const { return forgotten_count_; }
  // Makes progress and writes up to kPollMax completions; negative: the queue is broken.
  int poll(Completion* completions);
  // Before the end: cancels the receives, and makes progress until the provider has given back
  // every receive, put and get, whose results are not wanted any more, or the time is over. False:
  // some are left, and fi_close may crash: libfabric 1.17's tcp;ofi_rxm does while it reads memory
  // of a peer, as it also does for the receive of a long message
  // (tests/libraries/ofi_close_with_read.c).
  bool end_operations(uint64_t until_ns);

  // rma.cc: one-sided operations. "" or why the provider has none.
  const std::string& remote_gap() const { return remote_gap_; }
  // Lets peers read and write the memory under `*key` and `*address`, until it is hidden or the
  // endpoint ends. Null: reason().
  fid_mr* expose(void* base, uint64_t bytes, uint64_t* key, uint64_t* address);
  void hide(fid_mr* region);
  // `local`: a registration that contains the buffer, or null. Ends with a Completion.
  Posted write(const Target& target, const void* data, uint64_t bytes, fid_mr* local, RemoteOp* op);
  Posted read(const Target& target, void* data, uint64_t bytes, fid_mr* local, RemoteOp* op);
  void forget(RemoteOp* op);
  // Signals that arrive are handed to `listener`, from poll. False: reason().
  bool hear_signals(OneSided* listener);
  // Room for signals to be sent. False: reason().
  bool prepare_signals();
  // kComplete: the payload is the caller's again.
  Posted send_signal(uint32_t peer, const remote::Signal& signal, const void* payload);
  // The peer has ended: signals in flight to it are not waited for, and take no room from others.
  void forget_signals(uint32_t peer);
  // Signals that have not come to their peers yet.
  uint32_t signals_under_way() const { return signals_under_way_; }

  const std::string& reason() const { return reason_; }

 private:
  struct Pool;
  struct Request {
    fi_context2 context;  // first: the provider hands its address back
    Op* op;               // null: nobody waits for it
    RemoteOp* remote;     // in place of `op`
    Pool* home;
    uint32_t peer;        // of a signal
    Request* next;        // in the list of free ones
    fid_mr* region;       // of the caller's buffer
    unsigned char* cell;  // null: there are none
    bool is_send;
    bool uses_cell;
    bool busy;
    bool forgotten;
  };
  // A fixed number of requests.
  struct Pool {
    std::vector<Request> requests;
    Request* free = nullptr;
    std::unique_ptr<unsigned char[]> memory;  // of cells; not touched before it is used
    size_t memory_bytes = 0;
    fid_mr* region = nullptr;

    uint64_t access = 0;  // of the cells

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
  fid_mr* register_memory(const void* data, uint64_t bytes, uint64_t access, uint64_t key,
                          int device = kHost);
  Posted keep(Posted posted, Request* request, Op* op);
  Request* request_of(void* context);
  Posted access_remote(const Target& target, const void* data, uint64_t bytes, fid_mr* local,
                       bool is_read, RemoteOp* op);
  bool add_signal_pool(size_t count);
  bool post_signal_receive(Request* request);
  bool settle_signal(Request* request, uint64_t bytes);
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
  bool registers_ = false;
  uint64_t next_key_ = 1;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_cq* queue_ = nullptr;
  fid_av* addresses_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  uint32_t forgotten_count_ = 0;
  Pool sends_;
  Pool recvs_;
  std::string remote_gap_;
  Pool remotes_;
  Pool signals_in_;
  std::vector<std::unique_ptr<Pool>> signals_out_;
  std::vector<Request*> unposted_;  // of signals_in_
  uint32_t signals_under_way_ = 0;
  OneSided* listener_ = nullptr;
  std::vector<fid_mr*> exposed_;
  std::vector<fid_mr*> placed_;  // of operations that the provider has not
};

}  // namespace weir::plugins::ofi
