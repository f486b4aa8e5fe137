// SPDX-License-Identifier: Apache-2.0
#include "core/comm/messages/one_sided_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "core/base/clock.h"

namespace weir::comm {

namespace {

constexpr uint32_t kLane = 0;
constexpr uint32_t kRepliesMax = 64;
// Cells of one peer that are done in one poll, so that the others have their turn.
constexpr int kCellsPerPoll = 32;
// A network that takes longer for an operation than this, and a nanosecond for each byte, needs the
// target's processor for it.
constexpr uint64_t kSlowNs = 10'000;
// Between two messages that keep a target awake. Its threads poll for longer than this.
constexpr uint64_t kWakeIntervalNs = 150'000;

CellKind cell_kind(OneSidedKind kind) {
  switch (kind) {
    case OneSidedKind::kPut:
      return CellKind::kPut;
    case OneSidedKind::kGet:
      return CellKind::kGet;
    case OneSidedKind::kPutSignal:
      return CellKind::kPutSignal;
    case OneSidedKind::kFetchAdd:
      return CellKind::kFetchAdd;
    case OneSidedKind::kCompareSwap:
      return CellKind::kCompareSwap;
    case OneSidedKind::kFlush:
      return CellKind::kFlush;
    case OneSidedKind::kRetire:
      return CellKind::kRetire;
    case OneSidedKind::kSignal:
    case OneSidedKind::kWaitSignal:  // sends nothing
      break;
  }
  return CellKind::kSignal;
}

bool has_reply(OneSidedKind kind) {
  return kind == OneSidedKind::kGet || kind == OneSidedKind::kFetchAdd ||
         kind == OneSidedKind::kCompareSwap || kind == OneSidedKind::kFlush ||
         kind == OneSidedKind::kRetire;
}

bool is_in_flight(weir_result_t result) { return result == WEIR_OK || result == WEIR_IN_PROGRESS; }

}  // namespace

OneSidedService::OneSidedService(engine::Context& context, Complete complete)
    : context_(context), complete_(std::move(complete)), peers_(context.rank_count) {}

void OneSidedService::add_window(const OneSidedWindow* window) {
  windows_[window->number] = window;
  latest_window_ = std::max(latest_window_, window->number);
}

void OneSidedService::serve(const OneSidedWindow& window) {
  window.is_served = true;
  served_.fetch_add(1, std::memory_order_relaxed);
}

// ---- The end of a window ------------------------------------------------------------------------

void OneSidedService::remove_window(const OneSidedWindow* window) {
  end_part(window);
  windows_.erase(window->number);
  if (!std::exchange(window->is_served, false)) return;
  served_.fetch_sub(1, std::memory_order_relaxed);
  ++ended_windows_;
}

void OneSidedService::keep(std::unique_ptr<OneSidedWindow> window) {
  end_part(window.get());
  kept_.push_back(std::move(window));
  poll_kept();
}

void OneSidedService::end_part(const OneSidedWindow* window) {
  if (std::exchange(window->has_ended, true)) return;
  ended_bytes_max_ = std::max(ended_bytes_max_, window->own_bytes);
  const weir_transport_functions_t& transport = *context_.transport;
  for (const OneSidedWindow::Part& part : window->parts) {
    if (part.remote != nullptr && !ended_) transport.remote_close(context_.instance, part.remote);
    part.remote = nullptr;
  }
  const std::vector<Request*> waits = waits_;
  for (Request* request : waits) {
    if (request->one_sided->window != window) continue;
    settle(*request,
           Status(Code::kInvalidUsage,
                  "the window was destroyed while weir_wait_signal waited for a signal in it"));
  }
}

bool OneSidedService::is_unused(const OneSidedWindow* window) const {
  return std::none_of(requests_.begin(), requests_.end(), [&](const Request* request) {
    const OneSidedCall& call = *request->one_sided;
    return call.kind != OneSidedKind::kRetire && call.kind != OneSidedKind::kWaitSignal &&
           (call.window == window || call.signal_window == window);
  });
}

bool OneSidedService::is_untouched(const OneSidedWindow* window) const {
  for (const Outgoing* out : outgoing_) {
    if (out->window == window->number && !peers_[out->peer].left) return false;
  }
  return std::none_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
    return peer.receiving == Receiving::kPayload && !peer.left &&
           peer.cell.kind != CellKind::kReply && peer.cell.window == window->number;
  });
}

bool OneSidedService::poll_retiring(Failure* failure) {
  for (size_t i = 0; i < retiring_.size();) {
    Request& request = *retiring_[i];
    OneSidedCall& call = *request.one_sided;
    if (!call.has_asked && is_unused(call.window)) {
      call.has_asked = moved_ = true;
      for (Rank rank = 0; rank < context_.rank_count; ++rank) {
        const Peer& peer = peers_[rank];
        if (rank == context_.rank || peer.left || peer.is_excused) continue;
        ++call.awaited;
        if (!send({&request, peer.started}, rank, failure)) return false;
      }
    }
    if (!call.has_asked || call.awaited > 0 || !is_untouched(call.window)) {
      ++i;
      continue;
    }
    moved_ = true;
    settle(request, Status());  // takes it out of the list
  }
  return true;
}

void OneSidedService::poll_kept() {
  for (size_t i = 0; i < kept_.size();) {
    const OneSidedWindow* window = kept_[i].get();
    bool is_over = is_untouched(window);
    for (Rank rank = 0; rank < context_.rank_count && is_over; ++rank) {
      const Peer& peer = peers_[rank];
      is_over = rank == context_.rank || peer.left || peer.is_excused ||
                window->parts[rank].is_retired.load(std::memory_order_relaxed);
    }
    if (!is_over) {
      ++i;
      continue;
    }
    remove_window(window);
    kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void OneSidedService::excuse(Rank rank) {
  peers_[rank].is_excused = true;
  for (uint32_t number = 0; number < tickets_.size(); ++number) {
    const Ticket ticket = tickets_[number];
    if (ticket.request == nullptr || ticket.peer != rank) continue;
    if (ticket.request->one_sided->kind != OneSidedKind::kRetire) continue;
    release_ticket(number);
    --ticket.request->one_sided->awaited;
  }
}

// ---- This rank's operations ---------------------------------------------------------------------

bool OneSidedService::start(Request& request, Failure* failure) {
  OneSidedCall& call = *request.one_sided;
  call.index = static_cast<uint32_t>(requests_.size());
  requests_.push_back(&request);
  if (call.kind == OneSidedKind::kWaitSignal) {
    waits_.push_back(&request);
    poll_waits();
    return true;
  }
  if (call.kind == OneSidedKind::kRetire) {
    retiring_.push_back(&request);
    return poll_retiring(failure);
  }
  if (call.kind != OneSidedKind::kFlush) return start_at(request, request.peer, failure);
  // Kept above zero until all have been asked, or the first reply would complete the request.
  call.awaited = 1;
  for (Rank target = 0; target < context_.rank_count; ++target) {
    if (target == context_.rank || (!call.all_ranks && target != request.peer)) continue;
    Peer& peer = peers_[target];
    if (peer.network_count > 0) {
      ++call.awaited;
      network_flushes_.push_back({&request, target, ++peer.epoch, peer.network_count});
    }
    if (peer.started == peer.flushed) continue;
    ++call.awaited;
    if (!start_at(request, target, failure)) return false;
  }
  if (--call.awaited == 0) settle(request, Status());
  return true;
}

bool OneSidedService::start_at(Request& request, Rank target, Failure* failure) {
  Peer& peer = peers_[target];
  OneSidedCall& call = *request.one_sided;
  // Nobody receives its answers any more.
  if (peer.left) return broken(target, WEIR_ERROR_PEER_LOST, &request, failure);
  call.by_network = goes_by_network(call, target);
  if (call.kind != OneSidedKind::kFlush) {
    call.after_network = std::exchange(peer.network_fenced, false);
    if (call.by_network) {
      ++peer.network_count;
      call.epoch = peer.epoch;
    } else {
      ++peer.started;
      call.fenced = std::exchange(peer.fenced, false);
    }
  }
  peer.held.push_back({&request, peer.started});
  return send_held(target, failure);
}

bool OneSidedService::may_begin(const OneSidedCall& call, const Peer& peer) {
  if (call.after_network && peer.network_posted > 0) return false;
  return call.by_network || !has_reply(call.kind) || peer.replies_awaited < kRepliesMax;
}

bool OneSidedService::send_held(Rank rank, Failure* failure) {
  Peer& peer = peers_[rank];
  while (!peer.held.empty() && may_begin(*peer.held.front().request->one_sided, peer)) {
    const Held next = peer.held.front();
    peer.held.pop_front();
    const OneSidedCall& call = *next.request->one_sided;
    if (const Status status = refused_by(call, rank); !status.ok()) {
      if (call.by_network) {
        network_done(*next.request, status);
      } else {
        settle(*next.request, status);
      }
      continue;
    }
    const bool sent =
        call.by_network ? post_to_network(*next.request, rank, failure) : send(next, rank, failure);
    if (!sent) return false;
  }
  return true;
}

// ---- By the network -----------------------------------------------------------------------------

bool OneSidedService::goes_by_network(const OneSidedCall& call, Rank target) const {
  if (call.kind != OneSidedKind::kPut && call.kind != OneSidedKind::kGet) return false;
  const Peer& peer = peers_[target];
  // An operation that a fence has ordered after messages must be a message, too.
  return call.bytes > 0 && !call.window->parts[target].key.empty() && peer.flushed >= peer.ordered;
}

bool OneSidedService::post_to_network(Request& request, Rank target, Failure* failure) {
  const weir_transport_functions_t& transport = *context_.transport;
  OneSidedCall& call = *request.one_sided;
  const OneSidedWindow::Part& part = call.window->parts[target];
  weir_result_t result = WEIR_OK;
  if (part.remote == nullptr) {
    result = transport.remote_open(context_.instance, target, part.key.data(), part.key.size(),
                                   &part.remote);
    if (result != WEIR_OK) return broken(target, result, &request, failure);
  }
  request.op = {};
  call.posted_ns = now_ns();
  result = call.kind == OneSidedKind::kPut
               ? transport.put(context_.instance, part.remote, call.offset, call.source, call.bytes,
                               &request.op)
               : transport.get(context_.instance, part.remote, call.offset, call.destination,
                               call.bytes, &request.op);
  if (result != WEIR_OK && result != WEIR_IN_PROGRESS) {
    return broken(target, result, &request, failure);
  }
  if (result == WEIR_OK) {
    network_done(request, Status());
  } else {
    ++part.posted;
    ++peers_[target].network_posted;
    network_.push_back(&request);
  }
  return true;
}

bool OneSidedService::wake_if_slow(const Request& request, uint64_t now_ns, Failure* failure) {
  const OneSidedCall& call = *request.one_sided;
  Peer& peer = peers_[request.peer];
  if (now_ns < call.posted_ns + kSlowNs + call.bytes || now_ns < peer.woken_ns + kWakeIntervalNs ||
      peer.left) {
    return true;
  }
  peer.woken_ns = now_ns;
  return post(take_outgoing(request.peer, CellKind::kWake), failure);
}

bool OneSidedService::poll_network(Failure* failure) {
  if (network_.empty()) return true;
  const uint64_t now = now_ns();
  for (size_t i = 0; i < network_.size();) {
    Request& request = *network_[i];
    const weir_result_t result = context_.transport->test(context_.instance, &request.op);
    if (result == WEIR_IN_PROGRESS) {
      if (!wake_if_slow(request, now, failure)) return false;
      ++i;
      continue;
    }
    if (result != WEIR_OK) return broken(request.peer, result, &request, failure);
    moved_ = true;
    network_[i] = network_.back();
    network_.pop_back();
    const Rank target = request.peer;
    --peers_[target].network_posted;
    --request.one_sided->window->parts[target].posted;
    network_done(request, Status());
    if (!send_held(target, failure)) return false;
  }
  return true;
}

void OneSidedService::network_done(Request& request, const Status& status) {
  const Rank target = request.peer;
  Peer& peer = peers_[target];
  --peer.network_count;
  const uint64_t epoch = request.one_sided->epoch;
  settle(request, status);
  for (size_t i = 0; i < network_flushes_.size();) {
    NetworkFlush& flush = network_flushes_[i];
    if (flush.peer != target || epoch >= flush.epoch || --flush.left > 0) {
      ++i;
      continue;
    }
    Request& flushed = *flush.request;
    network_flushes_.erase(network_flushes_.begin() + static_cast<std::ptrdiff_t>(i));
    if (--flushed.one_sided->awaited == 0) settle(flushed, Status());
  }
}

// ---- By messages --------------------------------------------------------------------------------

void OneSidedService::fence(Rank target) {
  Peer& peer = peers_[target];
  if (peer.network_count > 0) peer.network_fenced = true;
  if (peer.started == peer.flushed) return;
  peer.fenced = true;
  change_order(peer, peer.flushed, peer.started);
}

void OneSidedService::change_order(Peer& peer, uint64_t flushed, uint64_t ordered) {
  peer.flushed = flushed;
  peer.ordered = ordered;
  peer.is_ordered.store(flushed < ordered, std::memory_order_release);
}

OneSidedService::Outgoing* OneSidedService::take_outgoing(Rank peer, CellKind kind) {
  if (free_outgoing_.empty()) {
    pool_.push_back(std::make_unique<Outgoing>());
    free_outgoing_.reserve(pool_.size());
    outgoing_.reserve(pool_.size());
    free_outgoing_.push_back(pool_.back().get());
  }
  Outgoing* out = free_outgoing_.back();
  free_outgoing_.pop_back();
  out->cell = make_cell(kind);
  out->cell_op = {};
  out->data_op = {};
  out->cell_done = out->data_done = false;
  out->data = nullptr;
  out->peer = peer;
  out->request = nullptr;
  out->reads_window = false;
  out->window = 0;
  return out;
}

uint32_t OneSidedService::take_ticket(const Held& asked, Rank peer) {
  if (free_tickets_.empty()) {
    tickets_.emplace_back();
    free_tickets_.reserve(tickets_.size());
    free_tickets_.push_back(static_cast<uint32_t>(tickets_.size() - 1));
  }
  const uint32_t ticket = free_tickets_.back();
  free_tickets_.pop_back();
  tickets_[ticket] = {asked.request, peer, asked.started};
  ++peers_[peer].replies_awaited;
  return ticket;
}

void OneSidedService::release_ticket(uint32_t number) {
  --peers_[tickets_[number].peer].replies_awaited;
  tickets_[number] = Ticket{};
  free_tickets_.push_back(number);
}

bool OneSidedService::send(const Held& next, Rank target, Failure* failure) {
  const OneSidedCall& call = *next.request->one_sided;
  Outgoing* out = take_outgoing(target, cell_kind(call.kind));
  Cell& cell = out->cell;
  cell.fenced = call.fenced ? 1 : 0;
  cell.window = call.window != nullptr ? call.window->number : 0;
  cell.offset = call.offset;
  cell.bytes = call.bytes;
  cell.signal_window = call.signal_window != nullptr ? call.signal_window->number : 0;
  cell.signal_offset = call.signal_offset;
  cell.value = call.value;
  cell.expected = call.expected;
  if (has_payload(cell)) {
    out->data = call.source;
  } else if (call.source != nullptr && call.bytes > 0) {
    std::memcpy(cell.data, call.source, call.bytes);
  }
  if (call.kind == OneSidedKind::kRetire) out->window = cell.window;
  if (has_reply(call.kind)) {
    cell.ticket = take_ticket(next, target);
  } else {
    out->request = next.request;
  }
  return post(out, failure);
}

bool OneSidedService::post(Outgoing* out, Failure* failure) {
  const weir_transport_functions_t& transport = *context_.transport;
  weir_result_t result = transport.send(context_.instance, out->peer, kLane, &out->cell,
                                        sizeof out->cell, &out->cell_op);
  out->cell_done = result == WEIR_OK;
  if (out->data == nullptr) {
    out->data_done = true;
  } else if (is_in_flight(result)) {
    result = transport.send(context_.instance, out->peer, kLane, out->data, out->cell.bytes,
                            &out->data_op);
    out->data_done = result == WEIR_OK;
  }
  Request* request = out->request;
  if (!is_in_flight(result)) {
    // Posted data stays where it is until the transport has released it.
    outgoing_.push_back(out);
    return broken(out->peer, result, request, failure);
  }
  if (out->cell_done && out->data_done) {
    free_outgoing_.push_back(out);
    if (request != nullptr) settle(*request, Status());
    return true;
  }
  if (out->reads_window) ++peers_[out->peer].window_replies;
  outgoing_.push_back(out);
  return true;
}

void OneSidedService::poll_waits() {
  for (size_t i = 0; i < waits_.size();) {
    Request& request = *waits_[i];
    const OneSidedCall& call = *request.one_sided;
    if (!has_reached(load_word(call.window->own + call.offset), call.value)) {
      ++i;
      continue;
    }
    moved_ = true;
    settle(request, Status());  // takes it out of the list
  }
}

void OneSidedService::settle(Request& request, const Status& status) {
  OneSidedCall& call = *request.one_sided;
  requests_.back()->one_sided->index = call.index;
  requests_[call.index] = requests_.back();
  requests_.pop_back();
  if (call.kind == OneSidedKind::kWaitSignal) {
    waits_.erase(std::find(waits_.begin(), waits_.end(), &request));
  } else if (call.kind == OneSidedKind::kRetire) {
    retiring_.erase(std::find(retiring_.begin(), retiring_.end(), &request));
  }
  complete_(request, status);
}

// ---- What moves ---------------------------------------------------------------------------------

bool OneSidedService::poll(Failure* failure) {
  moved_ = false;
  if (ended_) return false;
  if (served() != 0 || requests_.size() > waits_.size()) {
    context_.transport->progress(context_.instance);
    if (!poll_outgoing(failure) || !poll_network(failure)) return true;
    for (Rank rank = 0; rank < context_.rank_count; ++rank) {
      if (rank != context_.rank && !poll_peer(rank, failure)) return true;
    }
    if (!retiring_.empty() && !poll_retiring(failure)) return true;
    if (!kept_.empty()) poll_kept();
  }
  if (!waits_.empty()) poll_waits();
  return moved_;
}

bool OneSidedService::poll_outgoing(Failure* failure) {
  const weir_transport_functions_t& transport = *context_.transport;
  for (size_t i = 0; i < outgoing_.size();) {
    Outgoing* out = outgoing_[i];
    if (peers_[out->peer].left) {
      ++i;
      continue;
    }
    weir_result_t result = WEIR_OK;
    if (!out->cell_done) {
      result = transport.test(context_.instance, &out->cell_op);
      out->cell_done = result == WEIR_OK;
    }
    if (is_in_flight(result) && !out->data_done) {
      result = transport.test(context_.instance, &out->data_op);
      out->data_done = result == WEIR_OK;
    }
    if (!is_in_flight(result)) {
      if (!broken(out->peer, result, out->request, failure)) return false;
      continue;
    }
    if (!out->cell_done || !out->data_done) {
      ++i;
      continue;
    }
    moved_ = true;
    if (out->reads_window) --peers_[out->peer].window_replies;
    outgoing_[i] = outgoing_.back();
    outgoing_.pop_back();
    free_outgoing_.push_back(out);
    if (out->request != nullptr) settle(*out->request, Status());
  }
  return true;
}

bool OneSidedService::poll_peer(Rank rank, Failure* failure) {
  Peer& peer = peers_[rank];
  const weir_transport_functions_t& transport = *context_.transport;
  for (int cells = 0; cells < kCellsPerPoll && !peer.left; ++cells) {
    weir_result_t result = WEIR_OK;
    switch (peer.receiving) {
      case Receiving::kNothing:
        peer.op = {};
        result =
            transport.recv(context_.instance, rank, kLane, &peer.cell, sizeof peer.cell, &peer.op);
        if (is_in_flight(result)) peer.receiving = Receiving::kCell;
        break;
      case Receiving::kCell:
      case Receiving::kPayload:
        result = transport.test(context_.instance, &peer.op);
        break;
      case Receiving::kHeld:
        if (!may_do(peer.cell, rank)) return true;
        break;
    }
    if (result == WEIR_IN_PROGRESS) return true;
    if (result != WEIR_OK) return broken(rank, result, nullptr, failure);
    moved_ = true;
    const bool whole = peer.receiving == Receiving::kPayload;
    if (!(whole ? finish(rank, failure) : begin(rank, failure))) return false;
  }
  return true;
}

bool OneSidedService::receive_payload(Rank rank, void* data, Failure* failure) {
  Peer& peer = peers_[rank];
  peer.op = {};
  peer.receiving = Receiving::kPayload;
  const weir_result_t result =
      context_.transport->recv(context_.instance, rank, kLane, data, peer.cell.bytes, &peer.op);
  if (result == WEIR_OK) return finish(rank, failure);
  return result == WEIR_IN_PROGRESS || broken(rank, result, nullptr, failure);
}

unsigned char* OneSidedService::place(uint32_t window, uint64_t offset, uint64_t bytes) {
  const auto found = windows_.find(window);
  if (found != windows_.end() && !found->second->has_ended) {
    const OneSidedWindow& it = *found->second;
    return lies_within(offset, bytes, it.own_bytes) ? it.own + offset : nullptr;
  }
  // From a rank that was not told of the end, as it has left or all map the window.
  if (window == 0 || window > latest_window_ || !lies_within(offset, bytes, ended_bytes_max_)) {
    return nullptr;
  }
  return waste();
}

unsigned char* OneSidedService::waste() {
  if (waste_.empty() || waste_bytes_ < ended_bytes_max_) {
    auto* made = new (std::nothrow) uint64_t[ended_bytes_max_ / sizeof(uint64_t) + 1];
    if (made == nullptr) return nullptr;
    waste_.emplace_back(made);
    waste_bytes_ = ended_bytes_max_;
  }
  return reinterpret_cast<unsigned char*>(waste_.back().get());
}

unsigned char* OneSidedService::word(uint32_t window, uint64_t offset) {
  unsigned char* address = place(window, offset, sizeof(uint64_t));
  return reinterpret_cast<uintptr_t>(address) % sizeof(uint64_t) == 0 ? address : nullptr;
}

bool OneSidedService::begin(Rank rank, Failure* failure) {
  Peer& peer = peers_[rank];
  const Cell& cell = peer.cell;
  if (const std::string text = wrong_with(cell); !text.empty()) return refuse(rank, text, failure);
  if (cell.kind == CellKind::kReply) return begin_reply(rank, failure);
  if (cell.kind == CellKind::kRetire) {
    const auto found = windows_.find(cell.window);
    if (found != windows_.end()) found->second->parts[rank].is_retired.store(true);
  }
  if (!may_do(cell, rank)) {
    peer.receiving = Receiving::kHeld;
    return true;
  }
  peer.receiving = Receiving::kNothing;
  switch (cell.kind) {
    case CellKind::kWake:
      return true;  // that it came is all
    case CellKind::kPut:
    case CellKind::kPutSignal: {
      unsigned char* target = place(cell.window, cell.offset, cell.bytes);
      if (target == nullptr && cell.bytes > 0) {
        return refuse(rank, "a put outside its window", failure);
      }
      if (has_payload(cell)) return receive_payload(rank, target, failure);
      if (cell.bytes > 0) std::memcpy(target, cell.data, cell.bytes);
      return finish(rank, failure);
    }
    case CellKind::kSignal:
      return finish(rank, failure);
    case CellKind::kGet: {
      const unsigned char* source = place(cell.window, cell.offset, cell.bytes);
      if (source == nullptr && cell.bytes > 0) {
        return refuse(rank, "a get outside its window", failure);
      }
      return reply(rank, 0, source, failure);
    }
    case CellKind::kFetchAdd:
    case CellKind::kCompareSwap: {
      unsigned char* at = word(cell.window, cell.offset);
      if (at == nullptr) return refuse(rank, "an atomic operation outside its window", failure);
      const uint64_t old = cell.kind == CellKind::kFetchAdd
                               ? add_to_word(at, cell.value)
                               : swap_word(at, cell.expected, cell.value);
      return reply(rank, old, nullptr, failure);
    }
    case CellKind::kRetire:
    case CellKind::kFlush:
    case CellKind::kReply:
      break;
  }
  return reply(rank, 0, nullptr, failure);
}

bool OneSidedService::may_do(const Cell& cell, Rank rank) const {
  // A reply that leaves from the window must not carry what comes behind a fence.
  if (cell.fenced != 0 && peers_[rank].window_replies > 0) return false;
  if (cell.kind != CellKind::kRetire) return true;
  const auto found = windows_.find(cell.window);
  return found == windows_.end() || found->second->parts[rank].posted == 0;
}

bool OneSidedService::finish(Rank rank, Failure* failure) {
  Peer& peer = peers_[rank];
  const Cell& cell = peer.cell;
  peer.receiving = Receiving::kNothing;
  if (cell.kind == CellKind::kReply) {
    const Ticket ticket = tickets_[cell.ticket];
    release_ticket(cell.ticket);
    OneSidedCall& call = *ticket.request->one_sided;
    if (call.kind == OneSidedKind::kRetire) {
      change_order(peer, std::max(peer.flushed, ticket.started), peer.ordered);
      --call.awaited;  // poll_retiring looks for the rest
    } else if (call.kind == OneSidedKind::kFlush) {
      change_order(peer, std::max(peer.flushed, ticket.started), peer.ordered);
      if (--call.awaited == 0) settle(*ticket.request, Status());
    } else {
      if (call.old != nullptr) *call.old = cell.value;
      settle(*ticket.request, Status());
    }
    return send_held(rank, failure);
  }
  if (cell.kind == CellKind::kPut) return true;
  unsigned char* at = word(cell.signal_window, cell.signal_offset);
  if (at == nullptr) return refuse(rank, "a signal outside its window", failure);
  add_to_word(at, cell.value);
  return true;
}

bool OneSidedService::begin_reply(Rank rank, Failure* failure) {
  const Cell& cell = peers_[rank].cell;
  // The rank answered and left, and the news that it left came first.
  const bool is_late = peers_[rank].is_excused && cell.bytes == 0;
  if (cell.ticket >= tickets_.size() || tickets_[cell.ticket].request == nullptr ||
      tickets_[cell.ticket].peer != rank) {
    peers_[rank].receiving = Receiving::kNothing;
    return is_late || refuse(rank, "a reply without a request", failure);
  }
  const OneSidedCall& call = *tickets_[cell.ticket].request->one_sided;
  const uint64_t expected = call.kind == OneSidedKind::kGet ? call.bytes : 0;
  if (cell.bytes != expected) return refuse(rank, "a reply of a wrong length", failure);
  if (has_payload(cell)) return receive_payload(rank, call.destination, failure);
  if (cell.bytes > 0) std::memcpy(call.destination, cell.data, cell.bytes);
  return finish(rank, failure);
}

bool OneSidedService::reply(Rank rank, uint64_t old, const unsigned char* data, Failure* failure) {
  const Cell& asked = peers_[rank].cell;
  Outgoing* out = take_outgoing(rank, CellKind::kReply);
  out->window = asked.window;
  out->cell.ticket = asked.ticket;
  out->cell.value = old;
  out->cell.bytes = data != nullptr ? asked.bytes : 0;
  if (has_payload(out->cell)) {
    out->data = data;
    out->reads_window = true;
  } else if (out->cell.bytes > 0) {
    std::memcpy(out->cell.data, data, out->cell.bytes);
  }
  return post(out, failure);
}

// ---- Trouble ------------------------------------------------------------------------------------

bool OneSidedService::refuse(Rank rank, const std::string& text, Failure* failure) {
  failure->result = WEIR_ERROR_REFUSED;
  failure->peer = rank;
  failure->text = fmt::format("rank {} sent an invalid one-sided operation: {}", rank, text);
  return false;
}

Request* OneSidedService::request_that_needs(Rank rank) const {
  for (const Ticket& ticket : tickets_) {
    if (ticket.request != nullptr && ticket.peer == rank) return ticket.request;
  }
  for (const Outgoing* out : outgoing_) {
    if (out->peer == rank && out->request != nullptr) return out->request;
  }
  for (Request* request : network_) {
    if (request->peer == rank) return request;
  }
  const Peer& peer = peers_[rank];
  return peer.held.empty() ? nullptr : peer.held.front().request;
}

// A rank that leaves ends the operations that peers have posted for it. Only operations that still
// need it fail.
bool OneSidedService::broken(Rank rank, weir_result_t result, Request* request, Failure* failure) {
  peers_[rank].left = true;
  excuse(rank);
  if (request == nullptr) request = request_that_needs(rank);
  if (request == nullptr && result == WEIR_ERROR_PEER_LOST) return true;
  failure->result = result;
  failure->peer = rank;
  failure->request = request;
  return false;
}

void OneSidedService::collect_awaited(const Request& request, std::vector<Rank>* ranks) const {
  const OneSidedCall& call = *request.one_sided;
  if (call.kind != OneSidedKind::kFlush && call.kind != OneSidedKind::kRetire) {
    ranks->push_back(request.peer);
    return;
  }
  if (call.kind == OneSidedKind::kRetire) {
    for (Rank rank = 0; rank < context_.rank_count; ++rank) {
      const Peer& peer = peers_[rank];
      if (peer.receiving == Receiving::kPayload && peer.cell.kind != CellKind::kReply &&
          peer.cell.window == call.window->number) {
        ranks->push_back(rank);
      }
    }
  }
  for (const Ticket& ticket : tickets_) {
    if (ticket.request == &request) ranks->push_back(ticket.peer);
  }
  for (Rank rank = 0; rank < context_.rank_count; ++rank) {
    const auto& held = peers_[rank].held;
    if (std::any_of(held.begin(), held.end(),
                    [&](const Held& one) { return one.request == &request; })) {
      ranks->push_back(rank);
    }
  }
  for (const NetworkFlush& flush : network_flushes_) {
    if (flush.request == &request) ranks->push_back(flush.peer);
  }
}

void OneSidedService::fail_all(const Status& status) {
  ended_ = true;
  for (Peer& peer : peers_) peer.held.clear();
  network_.clear();
  network_flushes_.clear();
  while (!requests_.empty()) settle(*requests_.back(), status);
}

}  // namespace weir::comm
