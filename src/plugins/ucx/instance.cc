// SPDX-License-Identifier: Apache-2.0
#include "plugins/ucx/instance.h"

#include <sched.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "net/little_endian.h"
#include "plugins/common/look.h"
#include "plugins/ucx/socket_watch.h"

namespace weir::plugins::ucx {
namespace {

// A rank's card, by which the others reach it:
//
//   offset  bytes  field (integers little-endian)
//        0      4  magic "WUCX"
//        4      2  protocol version
//        6      2  1: the address of its worker follows; 0: it is too long for this place
//        8      4  version of UCX: major << 16 | minor << 8 | release
//       12     16  longest segment of its UCX's tcp, as text, filled up with zeros
//       28      n  address of its worker
//
// The card is the rank's address, without that of its worker where it has more than
// kAddressBytesMax bytes. If one is too long, the ranks gather all of them over the control
// network.
//
// A rank's farewell, to a peer with which it has exchanged something: kFarewellKind; for each lane
// 8 bytes, the number of messages to that peer that were sent; 8 bytes, the number of signals.
constexpr unsigned char kMagic[4] = {'W', 'U', 'C', 'X'};
constexpr uint16_t kProtocolVersion = 5;
constexpr size_t kSegmentBytes = 16;
constexpr size_t kCardHeaderBytes = 12 + kSegmentBytes;
constexpr size_t kAddressBytesMax = 96;  // leaves room for those of other transports (failover)
constexpr char kFarewellKind = message::kOwnKind;
constexpr size_t kFarewellBytes = 1 + 8 * kLaneCount + 8;

// The message with which two endpoints meet.
constexpr unsigned char kHello[8] = {'w', 'e', 'i', 'r', ' ', 'u', 'c', 'x'};

// How long a broken endpoint may wait for a goodbye or a death to explain it, and how long a peer
// that has left may still be sent to.
constexpr uint64_t kUnexplainedNs = 250'000'000;
constexpr uint64_t kFarewellNs = 1'000'000'000;
// The time limit of close: what UCX has taken should still leave.
constexpr uint64_t kFlushNs = 300'000'000;
constexpr uint64_t kCloseNs = 300'000'000;
// How long a rank that fails still takes what its peers send (take_last_messages).
constexpr uint64_t kLastMessagesNs = 30'000'000;
constexpr uint64_t kLookNs = 5'000'000;
constexpr int kDrainCountMax = 10'000;
constexpr int kDrainIdleCount = 16;

const unsigned char* bytes_of(const std::string& text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

bool is_card(const std::string& card) {
  return card.size() >= kCardHeaderBytes && memcmp(card.data(), kMagic, sizeof kMagic) == 0 &&
         net::get<uint16_t>(bytes_of(card) + 4) == kProtocolVersion;
}

// Whether a card has the worker's address.
bool has_worker(const std::string& card) {
  return net::get<uint16_t>(bytes_of(card) + 6) == 1 && card.size() > kCardHeaderBytes;
}

// Of a card: "" where UCX has no tcp.
std::string segment_of(const std::string& card) {
  return std::string(card.data() + 12, strnlen(card.data() + 12, kSegmentBytes));
}

uint32_t token_of(const net::Mac& key) {
  const net::Mac mac = net::hmac_sha256(key.data(), key.size(), "tag", 3);
  return net::get<uint32_t>(mac.data()) & 0xffffffu;
}

}  // namespace

std::string Instance::card() const {
  std::vector<unsigned char> worker;
  const std::string reason = network.read_address(&worker);
  if (!reason.empty()) {
    report.fail(WEIR_ERROR_SYSTEM, reason);
    return "";
  }
  std::string card(kCardHeaderBytes, 0);
  auto* const out = reinterpret_cast<unsigned char*>(card.data());
  memcpy(out, kMagic, sizeof kMagic);
  net::put(out + 4, kProtocolVersion);
  net::put(out + 6, uint16_t{1});
  net::put(out + 8, library_version_number());
  const std::string& segment = network.tcp_segment();
  memcpy(out + 12, segment.data(), std::min(segment.size(), kSegmentBytes));
  return card.append(reinterpret_cast<const char*>(worker.data()), worker.size());
}

weir_result_t Instance::address(unsigned char* out, size_t* bytes) const {
  if (joined) return report.fail(WEIR_ERROR_INVALID_USAGE, "address after connect");
  std::string own = card();
  if (own.empty()) return WEIR_ERROR_SYSTEM;
  if (own.size() > kAddressBytesMax) {
    own.resize(kCardHeaderBytes);
    own[6] = 0;
  }
  memcpy(out, own.data(), own.size());
  *bytes = own.size();
  return WEIR_OK;
}

weir_result_t Instance::gather_cards(const unsigned char* const* addresses,
                                     const size_t* address_bytes, uint64_t deadline_ns,
                                     std::vector<std::string>* cards) {
  cards->resize(rank_count);
  const auto check = [&](uint32_t peer) {
    if (is_card((*cards)[peer])) return WEIR_OK;
    return report.fail(WEIR_ERROR_REFUSED,
                       "the UCX address that rank " + text_of(peer) +
                           " sent cannot be read; do all ranks run the same version of Weir?");
  };
  bool all = true;
  for (uint32_t i = 0; i < rank_count; ++i) {
    (*cards)[i].assign(reinterpret_cast<const char*>(addresses[i]),
                       addresses[i] == nullptr ? 0 : address_bytes[i]);
    const weir_result_t checked = check(i);
    if (checked != WEIR_OK) return checked;
    all = all && has_worker((*cards)[i]);
  }
  met = true;
  if (all) return WEIR_OK;
  const std::string own = card();
  if (own.empty()) return WEIR_ERROR_SYSTEM;
  if (own.size() > message::kCardBytesMax) {
    return report.fail(WEIR_ERROR_UNSUPPORTED,
                       "the address of this rank's worker has " + text_of(own.size()) +
                           " bytes, which is too long; use fewer devices with UCX_NET_DEVICES");
  }
  const message::Control::Outcome gathered = control.gather(own, deadline_ns, cards);
  if (gathered.result != WEIR_OK && gathered.ranks.empty()) return gathered.result;
  const std::string who = message::names_of(gathered.ranks);
  switch (gathered.result) {
    case WEIR_OK:
      break;
    case WEIR_ERROR_TIMEOUT:
      return report.fail(WEIR_ERROR_TIMEOUT, "timed out: " + who + " of " + text_of(rank_count) +
                                                 " did not send its UCX address");
    case WEIR_ERROR_PEER_LOST:
      return report.fail(WEIR_ERROR_PEER_LOST,
                         who + " ended, or gave up, while the ranks were joining");
    case WEIR_ERROR_REFUSED:
      return report.fail(WEIR_ERROR_REFUSED,
                         "the UCX address that " + who +
                             " sent cannot be read; do all ranks run the same version of Weir?");
    default:
      return gathered.result;
  }
  for (uint32_t i = 0; i < rank_count; ++i) {
    if (!has_worker((*cards)[i])) (*cards)[i].clear();
    const weir_result_t checked = check(i);
    if (checked != WEIR_OK) return checked;
  }
  return WEIR_OK;
}

weir_result_t Instance::connect(const unsigned char* const* addresses, const size_t* address_bytes,
                                uint64_t deadline_ns) {
  if (joined || !peers.empty()) {
    return report.fail(WEIR_ERROR_INVALID_USAGE, "connect was called twice");
  }
  std::vector<std::string> cards;
  weir_result_t result = gather_cards(addresses, address_bytes, deadline_ns, &cards);
  if (result == WEIR_OK) result = make_endpoints(cards);
  if (result != WEIR_OK) return result;
  const std::string problem = one_sided_.attach(this, key_proof);
  if (!problem.empty()) return report.fail(WEIR_ERROR_SYSTEM, problem);
  result = greet(deadline_ns);
  joined = result == WEIR_OK;
  return result;
}

weir_result_t Instance::make_endpoints(const std::vector<std::string>& cards) {
  peers.resize(rank_count);
  sends.resize(size_t{rank_count} * kLaneCount);
  recvs.resize(sends.size());
  net::Mac own_key;
  if (!net::fill_random(own_key.data(), own_key.size())) {
    return report.fail(WEIR_ERROR_SYSTEM, "getrandom failed");
  }
  const Listening listening(&network.heard());
  for (uint32_t i = 0; i < rank_count; ++i) {
    Peer& peer = peers[i];
    peer.self = this;
    peer.rank = i;
    const std::string& card = cards[i];
    const auto version = net::get<uint32_t>(bytes_of(card) + 8);
    ucp_ep_params_t params = {};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(card.data() + kCardHeaderBytes);
    // UCX's shared memory does not detect peer failures, and is not chosen where error reports are
    // requested. On one host the control network reports failures as soon as the kernel does. For a
    // rank's endpoint to itself, error reports are requested where only a network can carry the
    // messages: otherwise UCX opens a lane on each of its interfaces, and polls all of them in
    // every call.
    peer.reports_errors =
        i == rank ? !network.has_loopback() : !(control.shares_host(i) && network.shares_memory());
    const std::string segment = peer.reports_errors && i != rank ? segment_of(card) : "";
    const std::string own_segment = network.tcp_segment().substr(0, kSegmentBytes);
    if (!segment.empty() && !own_segment.empty() && segment != own_segment) {
      std::string text = "UCX_TCP_RX_SEG_SIZE is ";
      text.append(own_segment).append(" at rank ").append(text_of(rank)).append(" and ");
      text.append(segment).append(" at rank ").append(text_of(i));
      text.append("; set it to the same on all ranks");
      return report.fail(WEIR_ERROR_UNSUPPORTED, text);
    }
    params.err_mode = peer.reports_errors ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
    params.err_handler.cb = on_endpoint_error;
    params.err_handler.arg = &peer;
    const ucs_status_t status = ucp_ep_create(network.worker(), &params, &peer.endpoint);
    if (status != UCS_OK) {
      peer.endpoint = nullptr;
      return report.fail(
          WEIR_ERROR_UNSUPPORTED,
          "rank " + text_of(rank) + " cannot reach rank " + text_of(i) + ": " +
              ucs_status_string(status) + network.heard().take() + "; rank " + text_of(i) +
              " has UCX " + version_text(version) + ", rank " + text_of(rank) + " has " +
              library_version() +
              "; UCX_TLS must name a transport between them that reports errors, as tcp does");
    }
    const uint32_t out = token_of(i == rank ? own_key : control.key(rank, i, "ucx"));
    const uint32_t in = token_of(i == rank ? own_key : control.key(i, rank, "ucx"));
    for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
      const size_t index = size_t{i} * kLaneCount + lane;
      sends[index].attach(network.worker(), peer.endpoint, tag_base(out, rank, lane));
      recvs[index].attach(network.worker(), nullptr, tag_base(in, i, lane));
    }
  }
  return WEIR_OK;
}

// Every endpoint is used once each way, so that connect has reached every peer when it returns and
// the first message of the caller pays for no set-up.
weir_result_t Instance::greet(uint64_t deadline_ns) {
  struct Greeting {
    unsigned char hello[sizeof kHello] = {};
    Op send{};
    Op recv{};
    Flow out, in;
    uint64_t left() const {
      return (send.state == kOpDone ? 0u : 1u) + (recv.state == kOpDone ? 0u : 1u);
    }
  };
  std::vector<Greeting> greetings(rank_count);
  const Listening listening(&network.heard());
  weir_result_t result = WEIR_OK;
  const auto greeted = [&] {
    std::vector<bool> list(rank_count);
    for (uint32_t i = 0; i < rank_count; ++i) list[i] = i == rank || greetings[i].left() == 0;
    return list;
  };
  // The greetings stay where they are until UCX has finished with them: a call that gives up ends
  // the network.
  struct Ender {
    Instance* self;
    bool armed = true;
    ~Ender() {
      if (!armed) return;
      self->network.close();
      for (Peer& peer : self->peers) peer.endpoint = nullptr;
    }
  } ender{this};
  for (uint32_t i = 0; i < rank_count; ++i) {
    if (i == rank) continue;
    Greeting& it = greetings[i];
    const uint32_t out = token_of(control.key(rank, i, "ucx"));
    const uint32_t in = token_of(control.key(i, rank, "ucx"));
    it.in.attach(network.worker(), nullptr, tag_base(in, i, kHelloLane));
    it.out.attach(network.worker(), peers[i].endpoint, tag_base(out, rank, kHelloLane));
    (void)it.in.recv(it.hello, sizeof it.hello, &it.recv);
    (void)it.out.send(kHello, sizeof kHello, &it.send);
  }
  uint64_t looked_ns = 0, broken_ns = 0;
  for (;;) {
    bool all = true;
    for (uint32_t i = 0; i < rank_count && all; ++i) all = i == rank || greetings[i].left() == 0;
    if (all) break;
    const unsigned moved = ucp_worker_progress(network.worker());
    const uint64_t now = monotonic_ns();
    if (now >= deadline_ns) result = WEIR_ERROR_TIMEOUT;
    if (now - looked_ns > kLookNs) {
      looked_ns = now;
      const weir_result_t heard = common::look(report.host);
      if (heard != WEIR_OK) return heard;
      for (uint32_t i = 0; i < rank_count; ++i) {
        if (i == rank || greetings[i].left() == 0) continue;
        look_at(i);
        // A peer that has left may have greeted before.
        const Peer& peer = peers[i];
        const bool gone =
            peer.state == Peer::State::kLost ||
            (peer.state == Peer::State::kLeft && now > peer.since_ns + kUnexplainedNs);
        if (gone) result = WEIR_ERROR_PEER_LOST;
      }
    }
    for (uint32_t i = 0; i < rank_count && broken_ns == 0; ++i) {
      const Greeting& it = greetings[i];
      if (it.in.failure().result != WEIR_OK || it.out.failure().result != WEIR_OK) broken_ns = now;
    }
    // A death or the words of a peer that gives up explain it, and are on their way.
    if (broken_ns != 0 && now > broken_ns + kUnexplainedNs) result = WEIR_ERROR_PEER_LOST;
    if (result != WEIR_OK) return greeting_failed(greeted(), result);
    if (moved == 0) sched_yield();
  }
  for (uint32_t i = 0; i < rank_count; ++i) {
    if (i != rank && memcmp(greetings[i].hello, kHello, sizeof kHello) != 0) {
      return report.fail(WEIR_ERROR_INTERNAL,
                         "the first message of rank " + text_of(i) + " was damaged in transit");
    }
  }
  ender.armed = false;
  return WEIR_OK;
}

weir_result_t Instance::greeting_failed(const std::vector<bool>& greeted, weir_result_t result) {
  std::string ranks, dead;
  uint32_t count = 0;
  for (uint32_t i = 0; i < rank_count; ++i) {
    // Whose last words have been read since has greeted, too.
    if (i != rank && control.life(i) == WEIR_LIFE_LOST && dead.empty()) dead = text_of(i);
    if (greeted[i] || ++count > 16) continue;
    ranks += (count > 1 ? ", " : "") + text_of(i);
    if (peers[i].state == Peer::State::kLeft) ranks += " (gone)";
    if (peers[i].status != UCS_OK) {
      ranks += std::string(" (") + ucs_status_string(peers[i].status) + ")";
    }
  }
  // The others did not answer because of that.
  if (!dead.empty()) {
    return report.fail(WEIR_ERROR_PEER_LOST, "rank " + dead + " of " + text_of(rank_count) +
                                                 " died while rank " + text_of(rank) +
                                                 " made its connections through UCX");
  }
  const std::string what = result == WEIR_ERROR_TIMEOUT ? "timed out: " : "";
  return report.fail(
      result, what + (count == 1 ? "rank " : "ranks ") + ranks + " of " + text_of(rank_count) +
                  (count == 1 ? " does" : " do") + " not answer rank " + text_of(rank) +
                  " through UCX, though it holds the secret" + network.heard().take() +
                  "; is the network that UCX_NET_DEVICES and UCX_TLS allow open "
                  "between them?");
}

void Instance::on_endpoint_error(void* argument, ucp_ep_h, ucs_status_t status) {
  auto* peer = static_cast<Peer*>(argument);
  if (peer->status == UCS_OK) peer->status = status;
  if (peer->state != Peer::State::kHere) return;
  peer->state = Peer::State::kBroken;
  peer->since_ns = monotonic_ns();
  ++peer->self->troubled_count;
}

void Instance::look_at_next() {
  next_look = (next_look + 1) % rank_count;
  if (next_look != rank) look_at(next_look);
}

void Instance::look_at(uint32_t other) {
  Peer& peer = peers[other];
  if (other == rank || peer.state == Peer::State::kLost || peer.told) return;
  // Asked before words are read: those read after an end are all that there will be.
  const int life = control.life(other);
  std::string word;
  while (!peer.told && control.hear(other, &word)) hear_word(&peer, word);
  if (peer.told) return;
  if (life == WEIR_LIFE_LEFT) return note_leaving(&peer);
  if (life == WEIR_LIFE_LOST && peer.state != Peer::State::kLeft) lose(&peer);
}

void Instance::note_leaving(Peer* peer) {
  if (peer->state == Peer::State::kLeft) return;
  if (peer->state == Peer::State::kHere) ++troubled_count;
  peer->state = Peer::State::kLeft;
  peer->since_ns = monotonic_ns();
}

// A peer that gives up has sent nothing.
void Instance::hear_word(Peer* peer, const std::string& word) {
  const bool is_farewell = word.size() == kFarewellBytes && word[0] == kFarewellKind;
  if (!is_farewell && (word.size() != 1 || word[0] != message::kGiveUpKind)) return;
  note_leaving(peer);
  peer->told = true;
  const unsigned char* const counts = bytes_of(word) + 1;
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    recvs[peer->rank * kLaneCount + lane].end_at(is_farewell ? net::get<uint64_t>(counts + 8 * lane)
                                                             : 0);
  }
  if (is_farewell) peer->signal_count = net::get<uint64_t>(counts + 8 * kLaneCount);
}

// Explains broken endpoints, and ends the flows of peers that have left, as soon as the reason is
// known.
void Instance::tend() {
  const Listening listening(&network.heard());
  const uint64_t now = monotonic_ns();
  for (Peer& peer : peers) {
    if (peer.ended) continue;
    if (peer.state == Peer::State::kBroken) {
      look_at(peer.rank);
      // Its process lives, as far as the control network knows; it may have failed and ended its
      // endpoints.
      if (peer.state == Peer::State::kBroken && now > peer.since_ns + kUnexplainedNs) {
        end_flows(&peer);
        continue;
      }
    }
    if (peer.state != Peer::State::kLeft) continue;
    if (!peer.told) look_at(peer.rank);
    // The last messages that it sent stay with UCX until they are received, however late.
    if (peer.told && !awaits(peer)) peer.since_ns = now;
    // The end of its endpoint may be noticed before the last data that it sent on another
    // connection.
    const uint64_t patience_ns = peer.status != UCS_OK ? kUnexplainedNs : kFarewellNs;
    if (has_all(peer) || now > peer.since_ns + patience_ns) end_flows(&peer);
  }
}

void Instance::lose(Peer* peer) {
  if (peer->state == Peer::State::kHere) ++troubled_count;
  peer->state = Peer::State::kLost;
  if (!peer->ended) end_flows(peer);
}

// The endpoint stays: the peer may still send on its own endpoint, and UCX 1.13 aborts if, when the
// worker ends, it has to answer on an endpoint that it has made anew for that.
bool Instance::leave(uint32_t other) {
  if (network.worker() == nullptr) return true;
  const Listening listening(&network.heard());
  const auto each_flow = [&](auto what) {
    for (auto* flows : {&sends, &recvs}) {
      for (uint32_t lane = 0; lane < kLaneCount; ++lane) what((*flows)[other * kLaneCount + lane]);
    }
  };
  each_flow([](Flow& flow) { flow.fail(WEIR_ERROR_PEER_LOST); });
  drain();
  each_flow([](Flow& flow) { flow.abandon(); });
  bool has_let_go = one_sided_.idle();
  each_flow([&](const Flow& flow) { has_let_go = has_let_go && flow.has_let_go(); });
  return has_let_go;
}

bool Instance::has_signals(const Peer& peer) const {
  return one_sided_.received_from(peer.rank) >= peer.signal_count;
}

bool Instance::has_all(const Peer& peer) const {
  if (!peer.told || !has_signals(peer)) return false;
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    if (!recvs[peer.rank * kLaneCount + lane].at_end()) return false;
  }
  return true;
}

bool Instance::awaits(const Peer& peer) const {
  if (!has_signals(peer) || one_sided_.awaits(peer.rank)) return true;
  for (const auto* flows : {&sends, &recvs}) {
    for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
      if (!(*flows)[peer.rank * kLaneCount + lane].idle()) return true;
    }
  }
  return false;
}

// Data that have arrived are still delivered.
void Instance::drain() {
  for (int i = 0, idle = 0; i < kDrainCountMax && idle < kDrainIdleCount; ++i) {
    idle = ucp_worker_progress(network.worker()) == 0 ? idle + 1 : 0;
  }
}

// UCX 1.13.1 ends a process that has sent a part of a message over tcp when the receiver closes the
// connection: it completes that message twice (`Assertion comp->count > 0`). So a rank that fails,
// or leaves while its memory is open to puts, reads for a moment what its peers send. They learn of
// it meanwhile, and send nothing more.
void Instance::take_last_messages() {
  const auto may_send = [&](const Peer& peer) {
    return peer.rank != rank && peer.reports_errors && peer.state == Peer::State::kHere;
  };
  if (!network.is_tcp_only() || !one_sided_.idle()) return;
  const uint64_t end = monotonic_ns() + kLastMessagesNs;
  while (monotonic_ns() < end && std::any_of(peers.begin(), peers.end(), may_send)) {
    if (ucp_worker_progress(network.worker()) != 0) continue;
    usleep(50);
    look_at_next();
  }
}

void Instance::end_flows(Peer* peer) {
  const SocketWatch watch(network.epolls());
  peer->ended = true;
  --troubled_count;
  drain();
  for (const bool last : {false, true}) {
    for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
      for (auto* flows : {&sends, &recvs}) {
        Flow& flow = (*flows)[peer->rank * kLaneCount + lane];
        if (last) {
          flow.abandon();
        } else {
          flow.fail(WEIR_ERROR_PEER_LOST, peer->status);
        }
      }
    }
    if (last) break;
    close_endpoint(peer);
    drain();
  }
  one_sided_.abandon(peer->rank);
}

// UCX gives back what it still works on for the peer, at once where the endpoint reports errors.
// Where it does not, the endpoint of a dead peer stays until the worker ends.
void Instance::close_endpoint(Peer* peer) {
  const ucp_ep_h endpoint = peer->endpoint;
  peer->endpoint = nullptr;
  if (endpoint == nullptr || (!peer->reports_errors && peer->ended)) return;
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = peer->reports_errors ? UCP_EP_CLOSE_FLAG_FORCE : 0;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
}

weir_result_t Instance::tell(Flow* flow) {
  const size_t index = index_of(flow);
  const auto other = static_cast<uint32_t>(index / kLaneCount);
  const std::string lane = text_of(index % kLaneCount);
  const Failure& failure = flow->failure();
  flow->reported = true;
  if (failure.result == WEIR_ERROR_MISMATCH) {
    return report.fail(failure.result,
                       "rank " + text_of(other) + " sent a message of " +
                           text_of(failure.sent_bytes) + " bytes where rank " + text_of(rank) +
                           " expected " + text_of(failure.expected_bytes) + " (lane " + lane + ")");
  }
  if (failure.result != WEIR_ERROR_PEER_LOST) {
    return report.fail(failure.result,
                       std::string(ucs_status_string(failure.status)) + network.heard().take());
  }
  look_at(other);
  const Peer& peer = peers[other];
  const std::string why =
      peer.status == UCS_OK && failure.status == UCS_OK
          ? ""
          : std::string(" (UCX: ") +
                ucs_status_string(peer.status != UCS_OK ? peer.status : failure.status) + ")";
  const std::string how =
      peer.state == Peer::State::kLeft ? " has closed the communicator" : " was lost" + why;
  return report.fail(
      failure.result,
      "rank " + text_of(other) + how +
          (is_send(flow) ? ", while rank " + text_of(rank) + " sent to it"
                         : ", while rank " + text_of(rank) + " waited for a message") +
          " (lane " + lane + ")");
}

bool Instance::has_exchanged_with(uint32_t other) const {
  // Peers may have put to its memory.
  if (one_sided_.has_memory_open()) return true;
  if (one_sided_.sent_to(other) != 0 || one_sided_.received_from(other) != 0) return true;
  for (const auto* flows : {&sends, &recvs}) {
    for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
      const Flow& flow = (*flows)[other * kLaneCount + lane];
      if (flow.completed() != 0 || !flow.idle()) return true;
    }
  }
  return false;
}

std::string Instance::farewell_to(uint32_t other) const {
  std::string farewell(kFarewellBytes, kFarewellKind);
  auto* const counts = reinterpret_cast<unsigned char*>(farewell.data()) + 1;
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    net::put(counts + 8 * lane, sends[other * kLaneCount + lane].completed());
  }
  net::put(counts + 8 * kLaneCount, one_sided_.sent_to(other));
  return farewell;
}

// Other peers learn from the control network that this rank has left.
void Instance::say_farewells() const {
  std::vector<uint32_t> told;
  for (uint32_t i = 0; i < rank_count; ++i) {
    if (i == rank || !has_exchanged_with(i)) continue;
    control.say(i, farewell_to(i));
    told.push_back(i);
  }
  const uint64_t deadline_ns = monotonic_ns() + kFlushNs;
  for (const uint32_t peer : told) control.flush(peer, deadline_ns);
}

// Sends the peers what complete sends have left with UCX, if the time allows.
void Instance::flush(uint64_t deadline_ns) {
  std::vector<void*> requests;
  for (Peer& peer : peers) {
    if (peer.endpoint == nullptr || peer.state != Peer::State::kHere) continue;
    ucp_request_param_t param = {};
    const ucs_status_ptr_t request = ucp_ep_flush_nbx(peer.endpoint, &param);
    if (UCS_PTR_IS_PTR(request)) requests.push_back(request);
  }
  while (!requests.empty() && monotonic_ns() < deadline_ns) {
    if (ucp_worker_progress(network.worker()) == 0) sched_yield();
    std::erase_if(requests, [](void* request) {
      if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
      ucp_request_free(request);
      return true;
    });
  }
  for (void* request : requests) ucp_request_free(request);
}

// Ends endpoints and worker, and with them all that UCX knows of the callers' memory.
void Instance::end_network() {
  const SocketWatch watch(network.epolls());
  for (auto* flows : {&sends, &recvs}) {
    for (Flow& flow : *flows) flow.close();
  }
  // A copy out of the peer's memory that has begun must end: UCX aborts if an endpoint is closed
  // during one. With puts in flight it must not go on: the memory that they go to may be gone, and
  // UCX aborts because of that.
  if (one_sided_.idle()) drain();
  one_sided_.close();
  for (Peer& peer : peers) close_endpoint(&peer);
  // UCX requires this where errors are reported: an endpoint must have given up its requests before
  // the worker ends.
  const uint64_t end = monotonic_ns() + kCloseNs;
  for (void* request : closing_) {
    while (ucp_request_check_status(request) == UCS_INPROGRESS && monotonic_ns() < end) {
      ucp_worker_progress(network.worker());
    }
    ucp_request_free(request);
  }
  closing_.clear();
  network.close();
}

void Instance::quiesce() {
  if (!joined || network.worker() == nullptr) return;
  const Listening listening(&network.heard());
  take_last_messages();
  for (Peer& peer : peers) peer.ended = true;
  troubled_count = 0;
  end_network();
}

Instance::~Instance() {
  if (owner != getpid()) {
    // UCX does not work in a forked child, and only the parent may end what it holds.
    network.abandon();
    return;
  }
  const bool quiet = network.worker() == nullptr;
  const Listening listening(&network.heard());
  const auto is_idle = [](const Flow& flow) { return flow.idle(); };
  const bool idle = !quiet && std::all_of(sends.begin(), sends.end(), is_idle) &&
                    std::all_of(recvs.begin(), recvs.end(), is_idle) && one_sided_.idle();
  if (joined && idle) {
    for (uint32_t i = 0; i < rank_count; ++i) look_at(i);
    flush(monotonic_ns() + kFlushNs);
  }
  if (joined) {
    say_farewells();
  } else if (met) {
    control.give_up(!peers.empty());
  }
  if (quiet) return;
  if (joined && idle && one_sided_.has_memory_open()) take_last_messages();
  for (Peer& peer : peers) peer.ended = peer.ended || !idle;
  end_network();  // before the memory that UCX may still access is freed
}

}  // namespace weir::plugins::ucx
