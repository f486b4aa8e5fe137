// SPDX-License-Identifier: Apache-2.0
// TagService: messages with tags, which a receive matches by sender and tag, or by tag alone. They
// use a lane of the transport of their own, so that the order of all other messages stays that of
// the schedules.
//
// Matching is that of MPI (MPI-4.1, 3.5): a message goes to the first of the posted receives that
// fits, a receive takes the first of the arrived messages that fits, and messages of one sender are
// matched in the order in which they were sent.
//
// A short message is sent at once, and waits at the receiver if its receive is not posted. Each
// rank allows each other one kHeldBytesMax of such messages; more, and longer ones, are announced,
// and follow once their receive is posted, directly into its buffer.
//
// A rank receives headers from another one from the first operation that needs it on, and only
// while operations are under way.
//
// Every function is called with the communicator's lock held.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/comm/messages/service_failure.h"
#include "core/comm/messages/tag_wire.h"
#include "core/comm/requests/request.h"
#include "core/engine/context.h"

namespace weir::comm {

class TagService {
 public:
  static constexpr uint64_t kHeldBytesMax = 65536;

  // Called when an operation is done. The request is not touched afterwards.
  using Complete = std::function<void(Request&, const Status&)>;

  // `lane` of the transport is its own.
  TagService(engine::Context& context, uint32_t lane, Complete complete);
  TagService(const TagService&) = delete;
  TagService& operator=(const TagService&) = delete;

  // Takes a kTagSend or kTagRecv over, and may complete it at once. Not OK: it is not taken. A
  // failure: the communicator must fail.
  Status start(Request& request, ServiceFailure* failure);
  // True when something moved. `failure` has a result where the communicator must fail.
  bool poll(ServiceFailure* failure);
  // The transport does no more with what was posted.
  void fail_all(const Status& status);

  bool is_idle() const { return requests_.empty(); }
  // Headers are on their way to ranks that have not left.
  bool has_unsent() const;
  const std::vector<Request*>& requests() const { return requests_; }
  // The rank that the operation needs in order to continue; nothing: any.
  static std::optional<Rank> awaited(const Request& request);
  // Of a receive without a message: what waits with another tag instead, to be put behind the ranks
  // that it needs. "": nothing does.
  std::string others_for(const Request& request) const;

 private:
  // A header of this rank, with the payload that follows it.
  struct Outgoing {
    TagHeader header;
    weir_transport_op_t header_op{};
    weir_transport_op_t data_op{};
    bool header_done = false;
    bool data_done = false;
    bool has_failed = false;
    const void* data = nullptr;
    Rank peer = 0;
    Request* request = nullptr;  // complete when this has been sent
  };

  // A message without a receive.
  struct Arrival {
    uint64_t number = 0;  // in the order of arrival, over all senders
    Rank source = 0;
    int32_t tag = 0;
    uint64_t bytes = 0;
    uint32_t ticket = 0;                    // of an announced one
    bool is_announced = false;              // else it is here, or arriving
    bool is_arriving = false;               // its bytes are
    std::unique_ptr<unsigned char[]> data;  // of one that is here or arriving
    Request* taken_by = nullptr;            // by a receive, while it is arriving
    Request* own_send = nullptr;            // of a long message of this rank to itself
  };
  using Arrivals = std::list<Arrival>;

  // A receive without a message.
  struct Posted {
    uint64_t number = 0;  // in the order of the calls
    Request* request = nullptr;
  };

  enum class Receiving : uint8_t { kNothing, kHeader, kPayload };

  struct Peer {
    bool is_heard = false;  // its headers are received
    bool has_left = false;
    Receiving receiving = Receiving::kNothing;
    TagHeader header;
    weir_transport_op_t op{};
    Request* receiver = nullptr;  // of the payload that is being received, or
    Arrival* arrival = nullptr;   // the message without a receive that it belongs to
    Arrivals arrivals;            // in the order in which they were sent
    std::deque<Posted> posted;    // receives from this rank alone
    uint64_t sent_bytes = 0;      // held_bytes of all short messages sent to it
    uint64_t sent_received = 0;   // of them, what it has received
    uint64_t held = 0;            // of those from it, what waits here
    uint64_t received = 0;        // and what has been received
    uint64_t received_told = 0;   // of that, what it was told
  };

  // The functions below return false when the communicator must fail.
  bool start_send(Request& request, ServiceFailure* failure);
  bool start_recv(Request& request, ServiceFailure* failure);
  bool send_to_self(Request& request, ServiceFailure* failure);
  bool post(Outgoing* out, ServiceFailure* failure);
  bool poll_outgoing(ServiceFailure* failure);
  bool poll_peer(Rank rank, ServiceFailure* failure);
  bool begin(Rank rank, ServiceFailure* failure);   // a header has come
  bool finish(Rank rank, ServiceFailure* failure);  // and what follows it
  bool begin_short(Rank rank, ServiceFailure* failure);
  bool begin_ready(Rank rank, ServiceFailure* failure);
  bool begin_clear(Rank rank, ServiceFailure* failure);
  bool begin_data(Rank rank, ServiceFailure* failure);
  bool receive_payload(Rank rank, void* data, ServiceFailure* failure);
  bool take(Arrivals::iterator arrival, Request& request, ServiceFailure* failure);
  bool take_short(Rank rank, uint64_t bytes, ServiceFailure* failure);  // it has been received
  bool clear(Rank rank, uint32_t ticket, Request& request, ServiceFailure* failure);
  bool check_room(const Request& request, Rank source, int32_t tag, uint64_t bytes,
                  ServiceFailure* failure);
  bool refuse(Rank rank, const std::string& text, ServiceFailure* failure);
  bool broken(Rank rank, weir_result_t result, Request* request, ServiceFailure* failure);

  void hear(Rank rank);
  Outgoing* take_outgoing(Rank peer, TagKind kind);
  uint32_t take_ticket(Request& request);
  // The request, if it has that ticket, is of that kind and with that rank. Gives the ticket back.
  Request* end_ticket(uint32_t ticket, RequestKind kind, Rank rank);
  // The first receive for a message; nullptr: none is posted.
  Request* take_posted(Rank source, int32_t tag);
  // The first message for a receive.
  std::optional<Arrivals::iterator> find_arrival(const Request& request);
  Arrival& add_arrival(Rank source, int32_t tag, uint64_t bytes);
  Request* request_that_needs(Rank rank) const;
  void settle(Request& request, const Status& status);
  void settle_recv(Request& request, Rank source, int32_t tag, uint64_t bytes);

  engine::Context& context_;
  const uint32_t lane_;
  const Complete complete_;
  std::vector<Peer> peers_;
  std::vector<Rank> heard_;
  std::deque<Posted> posted_to_any_;  // receives from any rank
  uint64_t posted_count_ = 0;
  uint64_t arrival_count_ = 0;
  bool ended_ = false;
  bool moved_ = false;               // in the present poll
  std::vector<Request*> requests_;   // under way
  std::vector<Request*> by_ticket_;  // nullptr: the ticket is free
  std::vector<uint32_t> free_tickets_;
  std::vector<std::unique_ptr<Outgoing>> pool_;
  std::vector<Outgoing*> free_outgoing_;
  std::vector<Outgoing*> outgoing_;
};

}  // namespace weir::comm
