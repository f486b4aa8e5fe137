// SPDX-License-Identifier: Apache-2.0
// OneSided: put, get and put_signal of one instance over UCX's remote memory access.
//
// What UCX promises, and what is built on it (ucp.h of 1.13):
//   - the completion of ucp_put_nbx means only that the buffer may be used again. "All the AMO and
//     RMA operations issued on the ep prior to" ucp_ep_flush_nbx "are completed both at the origin
//     and at the target" when the flush completes. So a put is its ucp_put_nbx and a flush behind
//     it, and is complete with the flush. One flush per endpoint is under way: puts that come
//     meanwhile share the next.
//   - ucp_worker_fence orders operations that follow it behind those before it. 1.13 does so within
//     each network interface only, and an endpoint may use several; and active messages, with which
//     UCX makes up for what a network lacks, do not count among them. The order of a signal
//     does not rest on it.
//   - nothing says that a word of 8 bytes that is put appears at once: over TCP it is read from a
//     socket, in as many parts as come. And a network's atomic operations are atomic towards
//     themselves, not towards another network's. So the word is never put. The signal is an active
//     message, and the target's own thread adds it.
// Where an endpoint reports errors, that is between hosts, UCX's put and get are not used, either.
// UCX 1.13 emulates what a network lacks of them with messages and answers, and when the other
// process dies in between, the missing answer is an error that ends this process ("Fatal:
// unexpected error: Endpoint timeout", seen over tcp). There put and get are messages of our own
// (transfers.cc), in parts that the target checks and answers, so that a put is complete when all
// its parts have been answered. Short parts travel beside their description in one of our cells; a
// longer one, up to kPartBytes, is sent from where it is, with its description as the header, and
// received by UCX to where it belongs.
//
// A put_signal of up to kInlineBytes is one active message with the bytes in it: they are stored
// before the word is touched, by the same thread. A longer one is a put, its flush, and the message
// when the flush is complete.
//
// One thread at a time. Only registering and opening allocate.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "net/auth.h"
#include "plugins/remote/key.h"
#include "plugins/remote/regions.h"
#include "plugins/ucx/flow.h"

namespace weir::plugins::ucx {

struct Instance;

// Memory of a peer.
struct Remote {
  uint32_t rank = 0;
  ucp_rkey_h rkey = nullptr;
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t region = 0;
  uint64_t registration = 0;
  uint32_t under_way = 0;  // operations
  bool closed = false;     // by the caller
};

// Meaning of weir_transport_op_t::word of a one-sided operation; `state` as in Op.
struct RemoteOp {
  uint64_t state;
  RemoteOp* next;  // in the list of those under way
  RemoteOp* before;
  uint64_t request;  // of UCX; of a put that waits for its flush the number of that; a Transfer
  Remote* remote;    // of a failed one its rank, in place of the pointer
  Remote* signal;    // null but for put_signal
  uint64_t word_offset_bytes;
  uint64_t value;
};
static_assert(sizeof(RemoteOp) == sizeof(weir_transport_op_t::word));
inline constexpr uint64_t kRemoteUnderWay = 6;
inline constexpr uint64_t kRemoteArrived = 7;  // the bytes are there, the signal is to be sent
inline constexpr uint64_t kRemoteUnflushed = 8;
inline constexpr uint64_t kRemoteInParts = 9;
inline constexpr uint64_t kRemoteFailed = 64;  // + weir_result_t

inline constexpr unsigned kSignalId = 1;  // of the active message

class OneSided {
 public:
  using Region = remote::Region;
  using Remote = ucx::Remote;
  using Op = RemoteOp;

  static constexpr uint64_t kInlineBytes = 4096;
  static constexpr uint32_t kCellCount = 160;
  // Of a part that is sent from where it is.
  static constexpr uint64_t kPartBytes = uint64_t{1} << 20;
  // Parts that a rank has under way to another one, unanswered.
  static constexpr uint32_t kPartsMax = 64;

  OneSided() = default;
  // After the worker has ended.
  ~OneSided() {
    while (landings_ != nullptr) landings_ = std::move(landings_->next);
  }
  OneSided(const OneSided&) = delete;
  OneSided& operator=(const OneSided&) = delete;

  // Called once the endpoints exist. "" or the reason.
  std::string attach(Instance* self, const net::Mac& proof);
  // Ends what is registered and open; before the worker ends. Operations are not looked at any
  // more.
  void close();

  weir_result_t memory_register(void* base, uint64_t bytes, remote::Region** region);
  weir_result_t memory_key(const remote::Region& region, unsigned char* key, size_t* bytes) const;
  void memory_deregister(remote::Region* region);
  weir_result_t remote_open(uint32_t peer, const unsigned char* key, size_t key_bytes,
                            Remote** remote);
  void remote_close(Remote* remote);

  weir_result_t access(Remote* remote, uint64_t offset_bytes, void* data, uint64_t bytes,
                       bool is_get, RemoteOp* op);
  weir_result_t put_signal(Remote* remote, uint64_t offset_bytes, const void* data, uint64_t bytes,
                           Remote* signal, uint64_t word_offset_bytes, uint64_t value,
                           RemoteOp* op);
  weir_result_t signal_read(const remote::Region& region, uint64_t offset_bytes,
                            uint64_t* value) const;
  // How a failed operation ended, reported to the host; WEIR_IN_PROGRESS: that is not known yet.
  weir_result_t outcome(const RemoteOp& op) const;

  // Sends the signals whose bytes have arrived.
  void move() {
    if (flushes_wanted_) [[unlikely]]
      start_flushes();
    if (arrived_count_ != 0) [[unlikely]]
      send_signals();
    if (!answers_.empty() || unsent_count_ != 0) [[unlikely]]
      drive_transfers();
  }
  // The peer has ended: its operations fail, also those that UCX keeps.
  void abandon(uint32_t peer);
  bool idle() const { return head_ == nullptr; }
  // Whether memory is registered that peers may put to.
  bool has_memory_open() const;
  // Whether an operation on memory of the peer is under way.
  bool awaits(uint32_t peer) const;
  // Signals that have left for the peer, and that have come from it.
  uint64_t sent_to(uint32_t peer) const { return peers_[peer].sent; }
  uint64_t received_from(uint32_t peer) const { return peers_[peer].received; }

 private:
  struct Transfer;
  struct Cell {
    OneSided* owner = nullptr;
    uint32_t peer = 0;
    bool busy = false;
    Transfer* transfer = nullptr;  // whose bytes UCX reads
    unsigned char bytes[remote::kSignalBytes + kInlineBytes];
  };
  struct PeerSide {
    OneSided* owner = nullptr;
    uint32_t rank = 0;
    bool flushing = false;
    uint64_t next_flush = 1;  // that puts will wait for
    uint64_t waiting = 0;     // puts for the next flush
    uint32_t parts = 0;       // unanswered
    uint64_t token_out = 0;
    uint64_t token_in = 0;
    uint64_t sent = 0;
    uint64_t received = 0;
  };

  // A put or get that goes in parts.
  struct Transfer {
    RemoteOp* op = nullptr;  // null: free
    uint64_t id = 0;
    bool is_get = false;
    unsigned char* data = nullptr;
    uint64_t bytes = 0;
    uint64_t offset_bytes = 0;  // in the remote memory
    uint64_t sent = 0;
    uint64_t done = 0;
    uint32_t in_use = 0;  // parts that UCX still reads or writes where they are
    bool refused = false;
    bool lacks_memory = false;
  };

  // A part that UCX receives to where it belongs.
  struct Landing {
    OneSided* owner = nullptr;
    bool busy = false;
    Transfer* transfer = nullptr;  // of a get; null: the get has ended, or a put
    remote::Signal message;
    std::unique_ptr<Landing> next;
  };

  // transfers.cc
  bool goes_in_parts(const Remote& remote) const;
  weir_result_t transfer(Remote* remote, uint64_t offset_bytes, void* data, uint64_t bytes,
                         bool is_get, RemoteOp* op);
  void drive_transfers();
  bool send_part(Transfer* transfer);
  bool send_answer(const remote::Signal& question);
  void hear_part(const remote::Signal& message, const unsigned char* payload);
  void send_in_place(Cell* cell, const remote::Signal& part, Transfer* transfer,
                     const unsigned char* data);
  Landing* free_landing();
  ucs_status_t land(const remote::Signal& message, void* descriptor);
  void answer_put(const remote::Signal& question, bool stored);
  void take_answer(const remote::Signal& message, const unsigned char* payload);
  Transfer* answered_by(const remote::Signal& message) const;
  void settle(Transfer* transfer);
  void give_back(Transfer* transfer);

  static void on_part_read(void* request, ucs_status_t status, void* cell);
  static void on_landed(void* request, ucs_status_t status, size_t bytes, void* landing);
  static void on_flushed(void* request, ucs_status_t status, void* peer_side);
  static void on_done(void* request, ucs_status_t status, void* self);
  static void on_sent(void* request, ucs_status_t status, void* cell);
  static ucs_status_t on_signal(void* self, const void* header, size_t header_bytes, void* data,
                                size_t bytes, const ucp_am_recv_param_t* param);
  weir_result_t check(const Remote* remote, uint64_t offset_bytes, uint64_t bytes,
                      const char* what) const;
  weir_result_t lost(uint32_t rank) const;
  weir_result_t refused(uint32_t rank, ucs_status_t status) const;
  void begin(Remote* remote, Remote* signal, RemoteOp* op);
  weir_result_t put_and_flush(uint64_t address, const void* data, uint64_t bytes, RemoteOp* op);
  void start_flush(PeerSide* side);
  void start_flushes();
  void flushed(const PeerSide& side, uint64_t number, ucs_status_t status);
  weir_result_t state_of(const RemoteOp& op) const;
  weir_result_t settle(ucs_status_ptr_t request, RemoteOp* op);
  void finish(RemoteOp* op, ucs_status_t status);
  void fail(RemoteOp* op, weir_result_t result);
  void release(RemoteOp* op);
  void let_go(Remote* remote);
  void destroy(Remote* remote);
  void make_cells();
  Cell* free_cell();
  void send_cell(Cell* cell, const remote::Signal& signal, const void* data);
  remote::Signal signal_of(const Remote& word, uint64_t word_offset_bytes, uint64_t value) const;
  void send_signals();

  Instance* self_ = nullptr;
  net::Mac proof_{};
  remote::Regions regions_;
  std::vector<std::unique_ptr<Remote>> remotes_;
  std::vector<PeerSide> peers_;
  std::vector<std::unique_ptr<Cell>> cells_;
  std::vector<std::unique_ptr<Cell>> kept_cells_;  // of peers that ended: UCX may still read them
  RemoteOp* head_ = nullptr;
  RemoteOp* posting_ = nullptr;
  uint32_t arrived_count_ = 0;
  bool flushes_wanted_ = false;
  std::vector<std::unique_ptr<Transfer>> transfers_;  // as many as there have been at once
  uint64_t next_transfer_ = 1;
  uint32_t unsent_count_ = 0;            // transfers with parts that have not left
  std::vector<remote::Signal> answers_;  // that are owed
  std::unique_ptr<Landing> landings_;    // as many as there have been at once
  bool closed_ = false;
  bool told_of_refusal_ = false;
};

}  // namespace weir::plugins::ucx
