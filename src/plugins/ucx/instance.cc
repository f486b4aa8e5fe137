// SPDX-License-Identifier: Apache-2.0
#include "plugins/ucx/instance.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#include <algorithm>

namespace weir::plugins::ucx {
namespace {

// What a rank tells the others through the mesh, its card:
//
//   offset  bytes  field (integers little-endian)
//        0      4  magic "WUCX"
//        4      2  protocol version
//        6      2  zero
//        8      4  version of UCX: major << 16 | minor << 8 | release
//       12     16  longest segment of its UCX's tcp, as text, filled up with zeros
//       28      n  address of its worker
//
// Its farewell: for each lane 8 bytes, the number of messages to that peer that were sent; then 8
// bytes, the number of signals.
constexpr unsigned char kMagic[4] = {'W', 'U', 'C', 'X'};
constexpr uint16_t kProtocolVersion = 4;
constexpr size_t kSegmentBytes = 16;
constexpr size_t kCardHeaderBytes = 12 + kSegmentBytes;
constexpr size_t kFarewellBytes = 8 * kLaneCount + 8;
static_assert(kFarewellBytes <= net::mesh::kFarewellBytesMax);

// The message with which two endpoints meet.
constexpr unsigned char kHello[8] = {'w', 'e', 'i', 'r', ' ', 'u', 'c', 'x'};

// How long a broken endpoint may wait for a goodbye or a death to explain it, and how long a peer that
// has left may still be sent to.
constexpr uint64_t kUnexplainedNs = 250'000'000;
constexpr uint64_t kFarewellNs = 1'000'000'000;
// Of close: what UCX has taken should still leave.
constexpr uint64_t kFlushNs = 300'000'000;
constexpr uint64_t kCloseNs = 300'000'000;
constexpr uint64_t kLookNs = 5'000'000;
constexpr int kDrainCountMax = 10'000;
constexpr int kDrainIdleCount = 16;

template <typename Integer>
void store(unsigned char* out, Integer value) {
  for (size_t i = 0; i < sizeof value; ++i) {
    out[i] = static_cast<unsigned char>(static_cast<uint64_t>(value) >> (8 * i));
  }
}

template <typename Integer>
Integer load(const unsigned char* in) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(Integer); ++i) value |= static_cast<uint64_t>(in[i]) << (8 * i);
  return static_cast<Integer>(value);
}

std::string text_of(uint64_t number) { return std::to_string(number); }

net::mesh::Bytes make_card(const std::vector<unsigned char>& address, const std::string& segment) {
  net::mesh::Bytes card(kCardHeaderBytes);
  memcpy(card.data(), kMagic, sizeof kMagic);
  store(card.data() + 4, kProtocolVersion);
  store(card.data() + 8, library_version_number());
  memcpy(card.data() + 12, segment.data(), std::min(segment.size(), kSegmentBytes));
  card.insert(card.end(), address.begin(), address.end());
  return card;
}

bool is_card(const net::mesh::Bytes& card) {
  return card.size() > kCardHeaderBytes && memcmp(card.data(), kMagic, sizeof kMagic) == 0 &&
         load<uint16_t>(card.data() + 4) == kProtocolVersion;
}

// Of a card: "" where UCX has no tcp.
std::string segment_of(const net::mesh::Bytes& card) {
  const auto* text = reinterpret_cast<const char*>(card.data()) + 12;
  return std::string(text, strnlen(text, kSegmentBytes));
}

uint32_t token_of(const net::Mac& key) {
  const net::Mac mac = net::hmac_sha256(key.data(), key.size(), "tag", 3);
  return load<uint32_t>(mac.data()) & 0xffffffu;
}

weir_result_t code_of(net::ControlMesh::Outcome outcome) {
  switch (outcome) {
    case net::ControlMesh::Outcome::kOk:
      return WEIR_OK;
    case net::ControlMesh::Outcome::kTimeout:
      return WEIR_ERROR_TIMEOUT;
    case net::ControlMesh::Outcome::kRefused:
      return WEIR_ERROR_REFUSED;
    case net::ControlMesh::Outcome::kUnsupported:
      return WEIR_ERROR_UNSUPPORTED;
    case net::ControlMesh::Outcome::kBadAddress:
      return WEIR_ERROR_INVALID_ARGUMENT;
    case net::ControlMesh::Outcome::kSystem:
      break;
  }
  return WEIR_ERROR_SYSTEM;
}

}  // namespace

uint64_t monotonic_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

weir_result_t Instance::connect(const unsigned char* const* addresses, const size_t* address_bytes,
                                uint64_t deadline_ns) {
  std::vector<unsigned char> address;
  const std::string reason = network.read_address(&address);
  if (!reason.empty()) return report.fail(WEIR_ERROR_SYSTEM, "ucx: " + reason);
  if (address.size() + kCardHeaderBytes > net::mesh::kCardBytesMax) {
    return report.fail(WEIR_ERROR_UNSUPPORTED,
                       "ucx: the address of this rank's worker has " + text_of(address.size()) +
                           " bytes, which is too long; use fewer devices with UCX_NET_DEVICES");
  }
  const auto outcome =
      mesh->join(addresses, address_bytes, make_card(address, network.tcp_segment()), deadline_ns);
  if (heard != WEIR_OK) return heard;
  if (outcome != net::ControlMesh::Outcome::kOk) {
    return report.fail(code_of(outcome), "ucx: " + mesh->text());
  }
  const weir_result_t made = make_endpoints();
  if (made != WEIR_OK) return made;
  const std::string problem = one_sided.attach(this, key_proof);
  if (!problem.empty()) return report.fail(WEIR_ERROR_SYSTEM, "ucx: " + problem);
  const weir_result_t greeted = greet(deadline_ns);
  if (greeted != WEIR_OK) return greeted;
  for (uint32_t peer = 0; peer < rank; ++peer) {
    report.log(Report::kDebug, "ucx: rank " + text_of(rank) + " holds a control connection to " +
                                   mesh->route(peer));
  }
  joined = true;
  return WEIR_OK;
}

weir_result_t Instance::make_endpoints() {
  peers.resize(rank_count);
  sends.resize(size_t{rank_count} * kLaneCount);
  recvs.resize(sends.size());
  net::Mac own_key;
  if (!net::fill_random(own_key.data(), own_key.size())) {
    return report.fail(WEIR_ERROR_SYSTEM, "ucx: getrandom failed");
  }
  std::vector<unsigned char> own_address;
  const std::string reason = network.read_address(&own_address);
  if (!reason.empty()) return report.fail(WEIR_ERROR_SYSTEM, "ucx: " + reason);
  const Listening listening(&network.heard());
  for (uint32_t i = 0; i < rank_count; ++i) {
    Peer& peer = peers[i];
    peer.self = this;
    peer.rank = i;
    const unsigned char* address = own_address.data();
    uint32_t version = library_version_number();
    if (i != rank) {
      const net::mesh::Bytes& card = mesh->card(i);
      if (!is_card(card)) {
        return report.fail(WEIR_ERROR_REFUSED, "ucx: what rank " + text_of(i) +
                                                   " told of itself is no address of this version");
      }
      address = card.data() + kCardHeaderBytes;
      version = load<uint32_t>(card.data() + 8);
    }
    ucp_ep_params_t params = {};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(address);
    // UCX's shared memory knows no peer failures, and is not taken where they are asked for. On one
    // host the control connection tells them as soon as the kernel does.
    // Of a rank to itself they are asked for where only a network can carry them: without, UCX opens a lane on
    // each of its interfaces, all of which it then asks in every call.
    peer.reports_errors =
        i == rank ? !network.has_loopback() : !(mesh->shares_host(i) && network.shares_memory());
    const std::string segment = peer.reports_errors && i != rank ? segment_of(mesh->card(i)) : "";
    const std::string own_segment = network.tcp_segment().substr(0, kSegmentBytes);
    if (!segment.empty() && !own_segment.empty() && segment != own_segment) {
      return report.fail(WEIR_ERROR_UNSUPPORTED, "ucx: UCX_TCP_RX_SEG_SIZE is " + own_segment +
                                                     " at rank " + text_of(rank) + " and " +
                                                     segment + " at rank " + text_of(i) +
                                                     "; set it to the same on all ranks");
    }
    params.err_mode = peer.reports_errors ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
    params.err_handler.cb = on_endpoint_error;
    params.err_handler.arg = &peer;
    const ucs_status_t status = ucp_ep_create(network.worker(), &params, &peer.endpoint);
    if (status != UCS_OK) {
      peer.endpoint = nullptr;
      return report.fail(
          WEIR_ERROR_UNSUPPORTED,
          "ucx: rank " + text_of(rank) + " cannot reach rank " + text_of(i) + ": " +
              ucs_status_string(status) + network.heard().take() + "; rank " + text_of(i) +
              " has UCX " + version_text(version) + ", rank " + text_of(rank) + " has " +
              library_version() +
              "; UCX_TLS must name a transport between them that reports errors, as tcp does");
    }
    const uint32_t out = token_of(i == rank ? own_key : mesh->outbound_key(i));
    const uint32_t in = token_of(i == rank ? own_key : mesh->inbound_key(i));
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
  // Until UCX has done with them the greetings stay where they are: whoever gives up ends the network.
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
    const uint32_t out = token_of(mesh->outbound_key(i));
    const uint32_t in = token_of(mesh->inbound_key(i));
    it.in.attach(network.worker(), nullptr, tag_base(in, i, kHelloLane));
    it.out.attach(network.worker(), peers[i].endpoint, tag_base(out, rank, kHelloLane));
    (void)it.in.recv(it.hello, sizeof it.hello, &it.recv);
    (void)it.out.send(kHello, sizeof kHello, &it.send);
  }
  uint64_t looked_ns = 0;
  for (;;) {
    bool all = true;
    for (uint32_t i = 0; i < rank_count && all; ++i) all = i == rank || greetings[i].left() == 0;
    if (all) break;
    const unsigned moved = ucp_worker_progress(network.worker());
    const uint64_t now = monotonic_ns();
    if (now >= deadline_ns) result = WEIR_ERROR_TIMEOUT;
    if (now - looked_ns > kLookNs) {
      looked_ns = now;
      for (uint32_t i = 0; i < rank_count; ++i) {
        if (i != rank && greetings[i].left() != 0 &&
            mesh->look(i) == net::ControlMesh::Life::kLost) {
          result = WEIR_ERROR_PEER_LOST;
        }
      }
    }
    for (uint32_t i = 0; i < rank_count; ++i) {
      const Greeting& it = greetings[i];
      if (it.in.failure().result != WEIR_OK || it.out.failure().result != WEIR_OK) {
        result = WEIR_ERROR_PEER_LOST;
      }
    }
    if (result != WEIR_OK) return greeting_failed(greeted(), result);
    if (moved == 0) sched_yield();
  }
  for (uint32_t i = 0; i < rank_count; ++i) {
    if (i != rank && memcmp(greetings[i].hello, kHello, sizeof kHello) != 0) {
      return report.fail(WEIR_ERROR_INTERNAL,
                         "ucx: the greeting of rank " + text_of(i) + " was damaged on its way");
    }
  }
  ender.armed = false;
  return WEIR_OK;
}

weir_result_t Instance::greeting_failed(const std::vector<bool>& greeted, weir_result_t result) {
  std::string ranks;
  uint32_t count = 0;
  for (uint32_t i = 0; i < rank_count; ++i) {
    if (greeted[i] || ++count > 16) continue;
    ranks += (count > 1 ? ", " : "") + text_of(i);
    if (mesh->look(i) == net::ControlMesh::Life::kLost) ranks += " (dead)";
    if (peers[i].status != UCS_OK) {
      ranks += std::string(" (") + ucs_status_string(peers[i].status) + ")";
    }
  }
  const std::string what = result == WEIR_ERROR_TIMEOUT ? "timed out: " : "";
  return report.fail(result, "ucx: " + what + (count == 1 ? "rank " : "ranks ") + ranks + " of " +
                                 text_of(rank_count) + (count == 1 ? " does" : " do") +
                                 " not answer rank " + text_of(rank) +
                                 " through UCX, though it holds the secret" +
                                 network.heard().take() +
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
  if (other == rank || peer.state == Peer::State::kLost) return;
  switch (mesh->look(other)) {
    case net::ControlMesh::Life::kHere:
      return;
    case net::ControlMesh::Life::kLost:
      return lose(&peer);
    case net::ControlMesh::Life::kLeft:
      if (peer.state != Peer::State::kLeft) hear_goodbye(&peer);
  }
}

// Broken endpoints are explained, and flows of who has left are ended, as soon as it can be said.
void Instance::tend() {
  const Listening listening(&network.heard());
  const uint64_t now = monotonic_ns();
  for (Peer& peer : peers) {
    if (peer.ended) continue;
    if (peer.state == Peer::State::kBroken) {
      look_at(peer.rank);
      // Its process lives, for its control connection does; it may have failed and ended its endpoints.
      if (peer.state == Peer::State::kBroken && now - peer.since_ns > kUnexplainedNs) {
        end_flows(&peer);
        continue;
      }
    }
    if (peer.state != Peer::State::kLeft) continue;
    // What it sent last stays with UCX until a receive asks for it, however late.
    if (!awaits(peer)) peer.since_ns = now;
    // The end of its endpoint may be heard before the last that it sent on another connection.
    const uint64_t patience_ns = peer.status != UCS_OK ? kUnexplainedNs : kFarewellNs;
    if (has_all(peer) || now - peer.since_ns > patience_ns) end_flows(&peer);
  }
}

void Instance::lose(Peer* peer) {
  if (peer->state == Peer::State::kHere) ++troubled_count;
  peer->state = Peer::State::kLost;
  if (!peer->ended) end_flows(peer);
}

// The endpoint stays: the peer may still send on its own, and UCX 1.13 aborts where it has to answer on one that it
// has made anew for that when the worker ends.
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
  bool has_let_go = one_sided.idle();
  each_flow([&](const Flow& flow) { has_let_go = has_let_go && flow.has_let_go(); });
  return has_let_go;
}

void Instance::hear_goodbye(Peer* peer) {
  if (peer->state == Peer::State::kHere) ++troubled_count;
  peer->state = Peer::State::kLeft;
  peer->since_ns = monotonic_ns();
  const net::mesh::Bytes& farewell = mesh->farewell(peer->rank);
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    const bool told = farewell.size() == kFarewellBytes;
    recvs[peer->rank * kLaneCount + lane].end_at(told ? load<uint64_t>(farewell.data() + 8 * lane)
                                                      : 0);
  }
}

bool Instance::has_signals(const Peer& peer) const {
  const net::mesh::Bytes& farewell = mesh->farewell(peer.rank);
  return farewell.size() != kFarewellBytes ||
         one_sided.received_from(peer.rank) >= load<uint64_t>(farewell.data() + 8 * kLaneCount);
}

bool Instance::has_all(const Peer& peer) const {
  if (!has_signals(peer)) return false;
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    if (!recvs[peer.rank * kLaneCount + lane].at_end()) return false;
  }
  return true;
}

bool Instance::awaits(const Peer& peer) const {
  if (!has_signals(peer) || one_sided.awaits(peer.rank)) return true;
  for (const auto* flows : {&sends, &recvs}) {
    for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
      if (!(*flows)[peer.rank * kLaneCount + lane].idle()) return true;
    }
  }
  return false;
}

// What has come is still delivered.
void Instance::drain() {
  for (int i = 0, idle = 0; i < kDrainCountMax && idle < kDrainIdleCount; ++i) {
    idle = ucp_worker_progress(network.worker()) == 0 ? idle + 1 : 0;
  }
}

void Instance::end_flows(Peer* peer) {
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
  one_sided.abandon(peer->rank);
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
                       "ucx: rank " + text_of(other) + " sent a message of " +
                           text_of(failure.sent_bytes) + " bytes where rank " + text_of(rank) +
                           " expected " + text_of(failure.expected_bytes) + " (lane " + lane + ")");
  }
  if (failure.result != WEIR_ERROR_PEER_LOST) {
    return report.fail(failure.result, std::string("ucx: ") + ucs_status_string(failure.status) +
                                           network.heard().take());
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
      "ucx: rank " + text_of(other) + how +
          (is_send(flow) ? ", while rank " + text_of(rank) + " sent to it"
                         : ", while rank " + text_of(rank) + " waited for a message") +
          " (lane " + lane + ")");
}

net::mesh::Bytes Instance::farewell_to(uint32_t other) const {
  net::mesh::Bytes farewell(kFarewellBytes);
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    store(farewell.data() + 8 * lane, sends[other * kLaneCount + lane].completed());
  }
  store(farewell.data() + 8 * kLaneCount, one_sided.sent_to(other));
  return farewell;
}

// What complete sends have left with UCX leaves for the peers, if that can be within the time.
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

// Endpoints and worker, and with them all that UCX knows of the callers' memory.
void Instance::end_network() {
  for (auto* flows : {&sends, &recvs}) {
    for (Flow& flow : *flows) flow.close();
  }
  // A copy out of the peer's memory that has begun must end: UCX aborts where an endpoint goes with one. With puts under
  // way it must not go on: the memory that they go to may be gone, and UCX aborts over what that ends.
  if (one_sided.idle()) drain();
  one_sided.close();
  for (Peer& peer : peers) close_endpoint(&peer);
  // UCX insists on it where errors are reported: an endpoint has given up its requests before the
  // worker ends.
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
  if (network.worker() == nullptr) return;
  const Listening listening(&network.heard());
  for (Peer& peer : peers) peer.ended = true;
  troubled_count = 0;
  end_network();
}

Instance::~Instance() {
  if (owner != getpid()) {
    // UCX does not work in a forked child, and what it holds is the parent's to end.
    network.abandon();
    return;
  }
  const bool quiet = network.worker() == nullptr;
  const Listening listening(&network.heard());
  const auto is_idle = [](const Flow& flow) { return flow.idle(); };
  const bool idle = !quiet && std::all_of(sends.begin(), sends.end(), is_idle) &&
                    std::all_of(recvs.begin(), recvs.end(), is_idle) && one_sided.idle();
  if (joined && idle) {
    for (uint32_t i = 0; i < rank_count; ++i) look_at(i);
    flush(monotonic_ns() + kFlushNs);
  }
  for (uint32_t i = 0; joined && i < rank_count; ++i) {
    if (i != rank) mesh->leave(i, farewell_to(i));
  }
  if (quiet) return;
  for (Peer& peer : peers) peer.ended = peer.ended || !idle;
  end_network();  // before the memory that UCX may still look at goes
}

}  // namespace weir::plugins::ucx
