// SPDX-License-Identifier: Apache-2.0
#include "core/comm/messages/tag_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace weir::comm {

namespace {

// Headers of one peer that are received in one poll, so that the others have their turn.
constexpr int kHeadersPerPoll = 32;

bool is_in_flight(weir_result_t result) { return result == WEIR_OK || result == WEIR_IN_PROGRESS; }

bool fits(int32_t wanted, int32_t tag) { return wanted == WEIR_ANY_TAG || wanted == tag; }

std::string tag_text(int32_t tag) {
  return tag == WEIR_ANY_TAG ? std::string("any tag") : fmt::format("tag {}", tag);
}

}  // namespace

TagService::TagService(engine::Context& context, uint32_t lane, Complete complete)
    : context_(context), lane_(lane), complete_(std::move(complete)), peers_(context.rank_count) {}

std::optional<Rank> TagService::awaited(const Request& request) {
  if (request.tag.is_from_any) return std::nullopt;
  return request.peer;
}

std::string TagService::others_for(const Request& request) const {
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    if (!request.tag.is_from_any && rank != request.peer) continue;
    const Arrivals& arrivals = peers_[rank].arrivals;
    const auto found = std::find_if(arrivals.begin(), arrivals.end(), [&](const Arrival& one) {
      return one.taken_by == nullptr && !fits(request.tag.tag, one.tag);
    });
    if (found == arrivals.end()) continue;
    return fmt::format("; a message of rank {} with tag {} waits for a receive", rank, found->tag);
  }
  return "";
}

// ---- The start ----------------------------------------------------------------------------------

Status TagService::start(Request& request, ServiceFailure* failure) {
  const bool sends = request.kind == RequestKind::kTagSend;
  if (sends && request.peer == context_.rank && request.tag.is_blocking &&
      request.bytes > kTagShortBytesMax) {
    const std::deque<Posted>& posted = peers_[context_.rank].posted;
    const auto takes = [&](const Posted& one) {
      return fits(one.request->tag.tag, request.tag.tag);
    };
    if (std::none_of(posted.begin(), posted.end(), takes) &&
        std::none_of(posted_to_any_.begin(), posted_to_any_.end(), takes)) {
      return Status(Code::kInvalidUsage,
                    fmt::format("a blocking message of {} bytes to oneself never ends before its "
                                "receive is posted; post that first, or use a request",
                                request.bytes));
    }
  }
  request.started = true;
  request.tag.index = static_cast<uint32_t>(requests_.size());
  requests_.push_back(&request);
  (void)(sends ? start_send(request, failure) : start_recv(request, failure));
  return Status();
}

bool TagService::start_send(Request& request, ServiceFailure* failure) {
  const Rank rank = request.peer;
  if (rank == context_.rank) return send_to_self(request, failure);
  Peer& peer = peers_[rank];
  // Nobody receives from it any more.
  if (peer.has_left) return broken(rank, WEIR_ERROR_PEER_LOST, &request, failure);
  hear(rank);
  const uint64_t held = held_bytes(request.bytes);
  const bool is_short = request.bytes <= kTagShortBytesMax &&
                        peer.sent_bytes - peer.sent_received + held <= kHeldBytesMax;
  Outgoing* out = take_outgoing(rank, is_short ? TagKind::kShort : TagKind::kReady);
  TagHeader& header = out->header;
  header.tag = request.tag.tag;
  header.bytes = request.bytes;
  if (is_short) {
    peer.sent_bytes += held;
    if (has_payload(header)) {
      out->data = request.call.input;
    } else if (request.bytes > 0) {
      std::memcpy(header.data, request.call.input, request.bytes);
    }
    out->request = &request;
  } else {
    header.ticket = take_ticket(request);
  }
  return post(out, failure);
}

bool TagService::send_to_self(Request& request, ServiceFailure* failure) {
  const Rank self = context_.rank;
  if (Request* receiver = take_posted(self, request.tag.tag)) {
    if (!check_room(*receiver, self, request.tag.tag, request.bytes, failure)) return false;
    if (request.bytes > 0) {
      std::memcpy(receiver->call.output, request.call.input, request.bytes);
    }
    settle_recv(*receiver, self, request.tag.tag, request.bytes);
    settle(request, Status());
    return true;
  }
  Arrival& arrival = add_arrival(self, request.tag.tag, request.bytes);
  if (request.bytes > kTagShortBytesMax) {
    arrival.own_send = &request;
    return true;
  }
  arrival.data = std::make_unique<unsigned char[]>(request.bytes);
  if (request.bytes > 0) std::memcpy(arrival.data.get(), request.call.input, request.bytes);
  settle(request, Status());
  return true;
}

bool TagService::start_recv(Request& request, ServiceFailure* failure) {
  const bool from_any = request.tag.is_from_any;
  if (from_any) {
    for (Rank rank = 0; rank < context_.rank_count; ++rank) hear(rank);
  } else {
    hear(request.peer);
  }
  if (const auto found = find_arrival(request)) return take(*found, request, failure);
  const Posted posted{++posted_count_, &request};
  if (from_any) {
    posted_to_any_.push_back(posted);
    return true;
  }
  peers_[request.peer].posted.push_back(posted);
  return !peers_[request.peer].has_left ||
         broken(request.peer, WEIR_ERROR_PEER_LOST, &request, failure);
}

void TagService::hear(Rank rank) {
  if (rank == context_.rank || peers_[rank].is_heard) return;
  peers_[rank].is_heard = true;
  heard_.push_back(rank);
}

// ---- Matching -----------------------------------------------------------------------------------

Request* TagService::take_posted(Rank source, int32_t tag) {
  const auto find = [tag](std::deque<Posted>& posted) {
    return std::find_if(posted.begin(), posted.end(),
                        [tag](const Posted& one) { return fits(one.request->tag.tag, tag); });
  };
  std::deque<Posted>& from_source = peers_[source].posted;
  const auto one = find(from_source);
  const auto other = find(posted_to_any_);
  const bool has_one = one != from_source.end();
  const bool has_other = other != posted_to_any_.end();
  if (!has_one && !has_other) return nullptr;
  const bool takes_one = has_one && (!has_other || one->number < other->number);
  Request* request = (takes_one ? one : other)->request;
  if (takes_one) {
    from_source.erase(one);
  } else {
    posted_to_any_.erase(other);
  }
  return request;
}

std::optional<TagService::Arrivals::iterator> TagService::find_arrival(const Request& request) {
  const auto find = [&](Rank source) {
    Arrivals& arrivals = peers_[source].arrivals;
    return std::find_if(arrivals.begin(), arrivals.end(), [&](const Arrival& one) {
      return one.taken_by == nullptr && fits(request.tag.tag, one.tag);
    });
  };
  std::optional<Arrivals::iterator> first;
  const auto look = [&](Rank source) {
    const auto found = find(source);
    if (found == peers_[source].arrivals.end()) return;
    if (!first || found->number < (*first)->number) first = found;
  };
  if (!request.tag.is_from_any) {
    look(request.peer);
    return first;
  }
  look(context_.rank);
  for (const Rank rank : heard_) look(rank);
  return first;
}

TagService::Arrival& TagService::add_arrival(Rank source, int32_t tag, uint64_t bytes) {
  Arrival& arrival = peers_[source].arrivals.emplace_back();
  arrival.number = ++arrival_count_;
  arrival.source = source;
  arrival.tag = tag;
  arrival.bytes = bytes;
  return arrival;
}

bool TagService::take(Arrivals::iterator arrival, Request& request, ServiceFailure* failure) {
  const Rank source = arrival->source;
  const uint64_t bytes = arrival->bytes;
  const int32_t tag = arrival->tag;
  if (!check_room(request, source, tag, bytes, failure)) return false;
  if (arrival->is_arriving) {
    arrival->taken_by = &request;
    request.peer = source;
    request.tag.is_from_any = false;
    return !peers_[source].has_left || broken(source, WEIR_ERROR_PEER_LOST, &request, failure);
  }
  Arrival taken = std::move(*arrival);
  peers_[source].arrivals.erase(arrival);
  if (taken.is_announced) {
    request.tag.tag = tag;
    return clear(source, taken.ticket, request, failure);
  }
  if (bytes > 0) {
    const void* data = taken.own_send != nullptr ? taken.own_send->call.input : taken.data.get();
    std::memcpy(request.call.output, data, bytes);
  }
  settle_recv(request, source, tag, bytes);
  if (taken.own_send != nullptr) settle(*taken.own_send, Status());
  return source == context_.rank || take_short(source, bytes, failure);
}

bool TagService::take_short(Rank rank, uint64_t bytes, ServiceFailure* failure) {
  Peer& peer = peers_[rank];
  peer.held -= held_bytes(bytes);
  peer.received += held_bytes(bytes);
  // Mostly told along with headers of messages in the other direction.
  if (peer.received - peer.received_told < kHeldBytesMax / 2 || peer.has_left) return true;
  return post(take_outgoing(rank, TagKind::kReceived), failure);
}

bool TagService::check_room(const Request& request, Rank source, int32_t tag, uint64_t bytes,
                            ServiceFailure* failure) {
  if (bytes <= request.bytes) return true;
  failure->result = WEIR_ERROR_MISMATCH;
  failure->peer = source;
  failure->request = const_cast<Request*>(&request);
  failure->text = fmt::format(
      "rank {} sent {} bytes with tag {}, and the buffer of the receive that they fit ({}) has {}",
      source, bytes, tag, tag_text(request.tag.tag), request.bytes);
  return false;
}

// ---- Tickets ------------------------------------------------------------------------------------

uint32_t TagService::take_ticket(Request& request) {
  if (free_tickets_.empty()) {
    by_ticket_.push_back(nullptr);
    free_tickets_.reserve(by_ticket_.size());
    free_tickets_.push_back(static_cast<uint32_t>(by_ticket_.size() - 1));
  }
  const uint32_t ticket = free_tickets_.back();
  free_tickets_.pop_back();
  by_ticket_[ticket] = &request;
  return ticket;
}

Request* TagService::end_ticket(uint32_t ticket, RequestKind kind, Rank rank) {
  Request* request = ticket < by_ticket_.size() ? by_ticket_[ticket] : nullptr;
  if (request == nullptr || request->kind != kind || request->peer != rank) return nullptr;
  by_ticket_[ticket] = nullptr;
  free_tickets_.push_back(ticket);
  return request;
}

bool TagService::clear(Rank rank, uint32_t ticket, Request& request, ServiceFailure* failure) {
  request.peer = rank;
  request.tag.is_from_any = false;
  if (peers_[rank].has_left) return broken(rank, WEIR_ERROR_PEER_LOST, &request, failure);
  Outgoing* out = take_outgoing(rank, TagKind::kClear);
  out->header.ticket = ticket;
  out->header.receive_ticket = take_ticket(request);
  return post(out, failure);
}

// ---- Headers of this rank -----------------------------------------------------------------------

TagService::Outgoing* TagService::take_outgoing(Rank peer, TagKind kind) {
  if (free_outgoing_.empty()) {
    pool_.push_back(std::make_unique<Outgoing>());
    free_outgoing_.reserve(pool_.size());
    outgoing_.reserve(pool_.size());
    free_outgoing_.push_back(pool_.back().get());
  }
  Outgoing* out = free_outgoing_.back();
  free_outgoing_.pop_back();
  out->header = make_tag_header(kind);
  out->header_op = {};
  out->data_op = {};
  out->header_done = out->data_done = out->has_failed = false;
  out->data = nullptr;
  out->peer = peer;
  out->request = nullptr;
  return out;
}

bool TagService::post(Outgoing* out, ServiceFailure* failure) {
  const weir_transport_functions_t& transport = *context_.transport;
  Peer& peer = peers_[out->peer];
  out->header.received_bytes = peer.received_told = peer.received;
  weir_result_t result = transport.send(context_.instance, out->peer, lane_, &out->header,
                                        sizeof out->header, &out->header_op);
  out->header_done = result == WEIR_OK;
  if (out->data == nullptr) {
    out->data_done = true;
  } else if (is_in_flight(result)) {
    result = transport.send(context_.instance, out->peer, lane_, out->data, out->header.bytes,
                            &out->data_op);
    out->data_done = result == WEIR_OK;
  }
  Request* request = out->request;
  if (!is_in_flight(result)) {
    // Posted data stays where it is until the transport has released it.
    out->has_failed = true;
    outgoing_.push_back(out);
    return broken(out->peer, result, request, failure);
  }
  if (!out->header_done || !out->data_done) {
    outgoing_.push_back(out);
    return true;
  }
  free_outgoing_.push_back(out);
  if (request != nullptr) settle(*request, Status());
  return true;
}

// ---- What moves ---------------------------------------------------------------------------------

bool TagService::poll(ServiceFailure* failure) {
  moved_ = false;
  if (ended_ || (requests_.empty() && outgoing_.empty())) return false;
  if (heard_.empty()) return false;
  context_.transport->progress(context_.instance);
  if (!poll_outgoing(failure)) return true;
  for (const Rank rank : heard_) {
    if (!poll_peer(rank, failure)) return true;
  }
  return moved_;
}

bool TagService::poll_outgoing(ServiceFailure* failure) {
  const weir_transport_functions_t& transport = *context_.transport;
  for (size_t i = 0; i < outgoing_.size();) {
    Outgoing* out = outgoing_[i];
    if (out->has_failed) {
      ++i;
      continue;
    }
    weir_result_t result = WEIR_OK;
    if (!out->header_done) {
      result = transport.test(context_.instance, &out->header_op);
      out->header_done = result == WEIR_OK;
    }
    if (is_in_flight(result) && !out->data_done) {
      result = transport.test(context_.instance, &out->data_op);
      out->data_done = result == WEIR_OK;
    }
    if (!is_in_flight(result)) {
      out->has_failed = true;
      if (!broken(out->peer, result, out->request, failure)) return false;
      continue;
    }
    if (!out->header_done || !out->data_done) {
      ++i;
      continue;
    }
    moved_ = true;
    outgoing_[i] = outgoing_.back();
    outgoing_.pop_back();
    free_outgoing_.push_back(out);
    if (out->request != nullptr) settle(*out->request, Status());
  }
  return true;
}

bool TagService::poll_peer(Rank rank, ServiceFailure* failure) {
  Peer& peer = peers_[rank];
  const weir_transport_functions_t& transport = *context_.transport;
  for (int headers = 0; headers < kHeadersPerPoll && !peer.has_left; ++headers) {
    weir_result_t result = WEIR_OK;
    if (peer.receiving == Receiving::kNothing) {
      peer.op = {};
      result = transport.recv(context_.instance, rank, lane_, &peer.header, sizeof peer.header,
                              &peer.op);
      if (is_in_flight(result)) peer.receiving = Receiving::kHeader;
    } else {
      result = transport.test(context_.instance, &peer.op);
    }
    if (result == WEIR_IN_PROGRESS) return true;
    if (result != WEIR_OK) return broken(rank, result, nullptr, failure);
    moved_ = true;
    const bool whole = peer.receiving == Receiving::kPayload;
    if (!(whole ? finish(rank, failure) : begin(rank, failure))) return false;
  }
  return true;
}

bool TagService::receive_payload(Rank rank, void* data, ServiceFailure* failure) {
  Peer& peer = peers_[rank];
  peer.op = {};
  peer.receiving = Receiving::kPayload;
  const weir_result_t result =
      context_.transport->recv(context_.instance, rank, lane_, data, peer.header.bytes, &peer.op);
  if (result == WEIR_OK) return finish(rank, failure);
  return result == WEIR_IN_PROGRESS || broken(rank, result, nullptr, failure);
}

bool TagService::begin(Rank rank, ServiceFailure* failure) {
  Peer& peer = peers_[rank];
  const TagHeader& header = peer.header;
  peer.receiving = Receiving::kNothing;
  if (const std::string text = wrong_with(header); !text.empty()) {
    return refuse(rank, text, failure);
  }
  if (header.received_bytes < peer.sent_received || header.received_bytes > peer.sent_bytes) {
    return refuse(rank, "it has received other bytes than were sent", failure);
  }
  peer.sent_received = header.received_bytes;
  switch (header.kind) {
    case TagKind::kShort:
      return begin_short(rank, failure);
    case TagKind::kReady:
      return begin_ready(rank, failure);
    case TagKind::kClear:
      return begin_clear(rank, failure);
    case TagKind::kData:
      return begin_data(rank, failure);
    case TagKind::kReceived:
      break;
  }
  return true;
}

bool TagService::begin_short(Rank rank, ServiceFailure* failure) {
  Peer& peer = peers_[rank];
  const TagHeader& header = peer.header;
  peer.held += held_bytes(header.bytes);
  if (peer.held > kHeldBytesMax) {
    return refuse(
        rank, fmt::format("more than {} bytes of short messages without a receive", kHeldBytesMax),
        failure);
  }
  peer.receiver = take_posted(rank, header.tag);
  peer.arrival = nullptr;
  void* place = nullptr;
  if (peer.receiver != nullptr) {
    if (!check_room(*peer.receiver, rank, header.tag, header.bytes, failure)) return false;
    peer.receiver->peer = rank;
    peer.receiver->tag.is_from_any = false;
    place = peer.receiver->call.output;
  } else {
    peer.arrival = &add_arrival(rank, header.tag, header.bytes);
    peer.arrival->data = std::make_unique<unsigned char[]>(header.bytes);
    place = peer.arrival->data.get();
  }
  if (has_payload(header)) {
    if (peer.arrival != nullptr) peer.arrival->is_arriving = true;
    return receive_payload(rank, place, failure);
  }
  if (header.bytes > 0) std::memcpy(place, header.data, header.bytes);
  return finish(rank, failure);
}

bool TagService::begin_ready(Rank rank, ServiceFailure* failure) {
  const TagHeader& header = peers_[rank].header;
  Request* receiver = take_posted(rank, header.tag);
  if (receiver == nullptr) {
    Arrival& arrival = add_arrival(rank, header.tag, header.bytes);
    arrival.is_announced = true;
    arrival.ticket = header.ticket;
    return true;
  }
  if (!check_room(*receiver, rank, header.tag, header.bytes, failure)) return false;
  receiver->tag.tag = header.tag;
  return clear(rank, header.ticket, *receiver, failure);
}

bool TagService::begin_clear(Rank rank, ServiceFailure* failure) {
  const TagHeader& header = peers_[rank].header;
  Request* request = end_ticket(header.ticket, RequestKind::kTagSend, rank);
  if (request == nullptr) return refuse(rank, "an answer without a message", failure);
  Outgoing* out = take_outgoing(rank, TagKind::kData);
  out->header.tag = request->tag.tag;
  out->header.receive_ticket = header.receive_ticket;
  out->header.bytes = request->bytes;
  if (has_payload(out->header)) out->data = request->call.input;
  out->request = request;
  return post(out, failure);
}

bool TagService::begin_data(Rank rank, ServiceFailure* failure) {
  Peer& peer = peers_[rank];
  const TagHeader& header = peer.header;
  Request* request = end_ticket(header.receive_ticket, RequestKind::kTagRecv, rank);
  if (request == nullptr) return refuse(rank, "a message without a receive", failure);
  if (header.tag != request->tag.tag || header.bytes > request->bytes) {
    return refuse(rank, "a message of another tag or length than announced", failure);
  }
  peer.receiver = request;
  peer.arrival = nullptr;
  return has_payload(header) ? receive_payload(rank, request->call.output, failure)
                             : finish(rank, failure);
}

bool TagService::finish(Rank rank, ServiceFailure* failure) {
  Peer& peer = peers_[rank];
  const TagHeader& header = peer.header;
  peer.receiving = Receiving::kNothing;
  const bool is_short = header.kind == TagKind::kShort;
  if (peer.arrival != nullptr) {
    Arrival& arrival = *std::exchange(peer.arrival, nullptr);
    arrival.is_arriving = false;
    Request* request = std::exchange(arrival.taken_by, nullptr);
    if (request == nullptr) return true;
    const auto it = std::find_if(peer.arrivals.begin(), peer.arrivals.end(),
                                 [&](const Arrival& one) { return &one == &arrival; });
    return take(it, *request, failure);
  }
  settle_recv(*std::exchange(peer.receiver, nullptr), rank, header.tag, header.bytes);
  return !is_short || take_short(rank, header.bytes, failure);
}

// ---- The end ------------------------------------------------------------------------------------

void TagService::settle(Request& request, const Status& status) {
  requests_.back()->tag.index = request.tag.index;
  requests_[request.tag.index] = requests_.back();
  requests_.pop_back();
  complete_(request, status);
}

void TagService::settle_recv(Request& request, Rank source, int32_t tag, uint64_t bytes) {
  if (weir_tag_info_t* info = request.tag.info) {
    *info = {static_cast<int>(source), tag, bytes};
  }
  settle(request, Status());
}

bool TagService::refuse(Rank rank, const std::string& text, ServiceFailure* failure) {
  failure->result = WEIR_ERROR_REFUSED;
  failure->peer = rank;
  failure->text = fmt::format("rank {} sent an invalid message with a tag: {}", rank, text);
  return false;
}

// What is on its way to the rank may have been received before the rank left: the transport tells.
// A receive from any rank needs the last one that could still send to it.
Request* TagService::request_that_needs(Rank rank) const {
  const Peer& peer = peers_[rank];
  if (peer.receiver != nullptr) return peer.receiver;
  if (peer.arrival != nullptr && peer.arrival->taken_by != nullptr) return peer.arrival->taken_by;
  if (!peer.posted.empty()) return peer.posted.front().request;
  for (Request* request : by_ticket_) {
    if (request != nullptr && request->peer == rank) return request;
  }
  if (posted_to_any_.empty()) return nullptr;
  const bool is_last =
      std::all_of(heard_.begin(), heard_.end(), [&](Rank other) { return peers_[other].has_left; });
  return is_last ? posted_to_any_.front().request : nullptr;
}

// A rank that leaves ends the operations that peers have posted for it. Only operations that still
// need it fail.
bool TagService::broken(Rank rank, weir_result_t result, Request* request,
                        ServiceFailure* failure) {
  peers_[rank].has_left = true;
  if (request == nullptr) request = request_that_needs(rank);
  if (request == nullptr && result == WEIR_ERROR_PEER_LOST) return true;
  failure->result = result;
  failure->peer = rank;
  failure->request = request;
  return false;
}

bool TagService::has_unsent() const {
  return std::any_of(outgoing_.begin(), outgoing_.end(), [&](const Outgoing* out) {
    return !out->has_failed && !peers_[out->peer].has_left;
  });
}

void TagService::fail_all(const Status& status) {
  ended_ = true;
  for (Peer& peer : peers_) {
    peer.posted.clear();
    peer.arrivals.clear();
  }
  posted_to_any_.clear();
  while (!requests_.empty()) settle(*requests_.back(), status);
}

}  // namespace weir::comm
