// SPDX-License-Identifier: Apache-2.0
// OneSidedService: one-sided operations that this process does not do by loads and stores, as
// messages of a communicator that carries nothing else. The target does what arrives, in the order
// in which its origin has sent it; so a fence is a mark in a message, and a flush is a message with
// a reply.
//
// Where the transport has puts and gets of its own, these are used, and are complete when they are
// done at the target. Some networks need the target's processor for them, and the target cannot see
// that: an origin whose operations are slow sends it a message from time to time, so that it polls
// instead of sleeping. All changes of words are done by the target's processor, so that they are
// atomic with each other.
//
// A rank that retires its part of a window tells the others. Each of them answers once it has no
// operation under way there; from then on its operations there fail. Every rank goes on serving
// until all have retired.
//
// Each rank has one receive of a cell posted for every other rank. The bytes that follow a cell go
// directly into the window, or the buffer of the caller. A rank has at most kRepliesMax replies
// from one target under way, which bounds what a target must keep; further operations wait here.
//
// Owned by the carrying communicator; every function is called with its lock held.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/comm/messages/one_sided_wire.h"
#include "core/comm/messages/service_failure.h"
#include "core/comm/requests/one_sided_call.h"
#include "core/comm/requests/request.h"
#include "core/engine/context.h"

namespace weir::comm {

class OneSidedService {
 public:
  // Called when an operation is done. The request is not touched afterwards.
  using Complete = std::function<void(Request&, const Status&)>;

  OneSidedService(engine::Context& context, Complete complete);
  OneSidedService(const OneSidedService&) = delete;
  OneSidedService& operator=(const OneSidedService&) = delete;

  // From now on operations of peers on it are done.
  void add_window(const OneSidedWindow* window);
  // No peer has an operation on it under way. Ends waits for its signals.
  void remove_window(const OneSidedWindow* window);
  // This rank has retired its part. Keeps the window until the others have.
  void keep(std::unique_ptr<OneSidedWindow> window);
  // Registers a window that not all ranks map: peers' messages are received while there are any
  // such windows.
  void serve(const OneSidedWindow& window);
  // Any thread may ask.
  uint32_t served() const { return served_.load(std::memory_order_relaxed); }
  // No window is served from now on: peers then see this rank, which has nothing under way, as
  // having left.
  void stop() { served_.store(0, std::memory_order_relaxed); }
  // How many windows have stopped being served since the last call.
  uint32_t take_ended() { return std::exchange(ended_windows_, 0); }

  using Failure = ServiceFailure;
  // Takes an operation over, and may complete it at once. False: it has failed.
  bool start(Request& request, Failure* failure);
  void fence(Rank target);
  // True when something moved. `failure` has a result where the communicator must fail.
  bool poll(Failure* failure);
  // The transport does no more with what was posted.
  void fail_all(const Status& status);

  bool is_idle() const { return requests_.empty(); }
  // Ranks that the operation needs in order to continue.
  void collect_awaited(const Request& request, std::vector<Rank>* ranks) const;
  const std::vector<Request*>& requests() const { return requests_; }

  // The process of the rank has ended, or it has left: its messages may still be under way, but it
  // answers none.
  void excuse(Rank rank);

  // Whether loads and stores would be in order with the messages that this rank has sent to
  // `target`. Any thread may ask.
  bool may_go_directly(Rank target) const {
    return !peers_[target].is_ordered.load(std::memory_order_acquire);
  }

 private:
  // A message of this rank, with the payload that follows it.
  struct Outgoing {
    Cell cell;
    weir_transport_op_t cell_op{};
    weir_transport_op_t data_op{};
    bool cell_done = false;
    bool data_done = false;
    const void* data = nullptr;
    Rank peer = 0;
    Request* request = nullptr;  // complete when this has been sent
    bool reads_window = false;
    uint32_t window = 0;  // of a reply, and of the end of a window
  };

  enum class Receiving : uint8_t { kNothing, kCell, kPayload, kHeld };

  // An operation that is to be sent, and the number of operations started for the target before it.
  struct Held {
    Request* request;
    uint64_t started;
  };

  struct Peer {
    Cell cell;
    weir_transport_op_t op{};
    Receiving receiving = Receiving::kNothing;
    bool left = false;
    bool is_excused = false;
    uint32_t window_replies = 0;  // to it, which read a window
    // As an origin:
    uint32_t replies_awaited = 0;
    std::deque<Held> held;
    bool fenced = false;  // the next operation is
    uint64_t started = 0;
    uint64_t flushed = 0;                 // how many of the started are done at the target
    uint64_t ordered = 0;                 // how many of the started came before the latest fence
    std::atomic<bool> is_ordered{false};  // flushed < ordered
    // By the network:
    uint32_t network_count = 0;   // started and not done
    uint32_t network_posted = 0;  // of them, with the transport
    uint64_t epoch = 0;
    bool network_fenced = false;  // the next operation waits for the earlier ones
    uint64_t woken_ns = 0;        // when this rank has sent it kWake last
  };

  // An operation that waits for its reply.
  struct Ticket {
    Request* request = nullptr;
    Rank peer = 0;
    uint64_t started = 0;  // of a flush: what it covers
  };

  // A flush that waits for the network's operations of earlier epochs with one target.
  struct NetworkFlush {
    Request* request = nullptr;
    Rank peer = 0;
    uint64_t epoch = 0;
    uint32_t left = 0;
  };

  static bool may_begin(const OneSidedCall& call, const Peer& peer);
  bool may_do(const Cell& cell, Rank rank) const;
  bool goes_by_network(const OneSidedCall& call, Rank target) const;
  void network_done(Request& request, const Status& status);
  // No operation of this rank is under way in the window, except waits for its signals.
  bool is_unused(const OneSidedWindow* window) const;
  // No peer reads or writes this rank's part at present.
  bool is_untouched(const OneSidedWindow* window) const;
  bool poll_retiring(Failure* failure);
  void poll_kept();
  void end_part(const OneSidedWindow* window);
  void release_ticket(uint32_t number);

  // The functions below return false when the communicator must fail.
  bool start_at(Request& request, Rank target, Failure* failure);
  bool send(const Held& next, Rank target, Failure* failure);
  bool send_held(Rank rank, Failure* failure);
  bool post(Outgoing* out, Failure* failure);
  bool post_to_network(Request& request, Rank target, Failure* failure);
  bool poll_network(Failure* failure);
  bool wake_if_slow(const Request& request, uint64_t now_ns, Failure* failure);
  bool poll_outgoing(Failure* failure);
  bool poll_peer(Rank rank, Failure* failure);
  bool begin(Rank rank, Failure* failure);   // a cell has come
  bool finish(Rank rank, Failure* failure);  // and what follows it
  bool begin_reply(Rank rank, Failure* failure);
  bool receive_payload(Rank rank, void* data, Failure* failure);
  bool reply(Rank rank, uint64_t old, const unsigned char* data, Failure* failure);
  bool refuse(Rank rank, const std::string& text, Failure* failure);
  bool broken(Rank rank, weir_result_t result, Request* request, Failure* failure);

  void poll_waits();
  Outgoing* take_outgoing(Rank peer, CellKind kind);
  uint32_t take_ticket(const Held& asked, Rank peer);
  unsigned char* place(uint32_t window, uint64_t offset, uint64_t bytes);
  unsigned char* waste();
  unsigned char* word(uint32_t window, uint64_t offset);
  Request* request_that_needs(Rank rank) const;
  void settle(Request& request, const Status& status);
  void change_order(Peer& peer, uint64_t flushed, uint64_t ordered);

  engine::Context& context_;
  const Complete complete_;
  std::vector<Peer> peers_;
  std::unordered_map<uint32_t, const OneSidedWindow*> windows_;
  std::vector<std::unique_ptr<OneSidedWindow>> kept_;
  uint32_t latest_window_ = 0;
  // Receives data that arrives late for windows that have ended.
  uint64_t ended_bytes_max_ = 0;
  uint64_t waste_bytes_ = 0;
  std::vector<std::unique_ptr<uint64_t[]>> waste_;  // the last one is in use; none moves
  std::atomic<uint32_t> served_{0};
  uint32_t ended_windows_ = 0;
  bool ended_ = false;
  bool moved_ = false;              // in the present poll
  std::vector<Request*> requests_;  // under way
  std::vector<Request*> waits_;     // of them, those for a signal
  std::vector<Request*> network_;   // of them, those by the network
  std::vector<Request*> retiring_;  // of them, the ends of windows
  std::vector<NetworkFlush> network_flushes_;
  std::vector<Ticket> tickets_;
  std::vector<uint32_t> free_tickets_;
  std::vector<std::unique_ptr<Outgoing>> pool_;
  std::vector<Outgoing*> free_outgoing_;
  std::vector<Outgoing*> outgoing_;
};

}  // namespace weir::comm
