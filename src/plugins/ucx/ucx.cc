// SPDX-License-Identifier: Apache-2.0
// The transport `ucx`: ranks on one or many hosts, over whatever UCX finds between them. See
// docs/transports.md.
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <string>

#include "plugins/common/config.h"
#include "plugins/common/table.h"
#include "plugins/ucx/instance.h"
#include "weir/plugin.h"

namespace weir::plugins::ucx {
namespace {

constexpr uint64_t kMessageBytesMax = uint64_t{1} << 46;
constexpr uint32_t kCredit = 8;               // network.h makes room for it
constexpr uint64_t kDescriptorsBesides = 64;  // of UCX and of the control network, at least

}  // namespace

bool Instance::viable(const weir_host_t* host, std::string* text) {
  bool tls = false;
  if (!message::read_tls(Report{host}, &tls, text)) return false;
  Network network;
  const std::string problem = network.open(1);
  *text = "UCX " + library_version();
  if (!problem.empty()) {
    *text += " does not work here: " + problem;
  } else if (tls) {
    *text += "; control connections inside TLS 1.3";
  }
  return problem.empty();
}

// UCX's tcp has a socket for each peer.
weir_result_t Instance::check_descriptors() const {
  const uint64_t needed = rank_count - 1 + kDescriptorsBesides;
  rlimit limit = {};
  if (network.shares_memory() || getrlimit(RLIMIT_NOFILE, &limit) != 0 ||
      limit.rlim_cur >= needed) {
    return WEIR_OK;
  }
  return report.fail(WEIR_ERROR_SYSTEM,
                     text_of(rank_count) + " ranks need " + text_of(needed) +
                         " file descriptors in each process, and the limit of this process is " +
                         text_of(limit.rlim_cur) + "; raise `ulimit -n`");
}

weir_result_t Instance::open(const weir_host_t* host, const weir_transport_config_t& config,
                             std::unique_ptr<Instance>* made) {
  auto self = std::make_unique<Instance>();
  weir_result_t result = self->begin(host, kName, config);
  if (result != WEIR_OK) return result;
  const std::string reason = self->network.open(config.rank_count, common::names_in(config.domain));
  if (!reason.empty()) return self->report.fail(WEIR_ERROR_UNSUPPORTED, reason);
  if (!self->network.devices().empty()) {
    self->report.log(Report::kInformation, "ucx: rank " + text_of(config.rank) +
                                               " uses UCX_NET_DEVICES=" + self->network.devices());
  }
  result = self->check_descriptors();
  self->key_proof = remote::proof_key(config.secret, config.secret_bytes, kName, config.comm_id);
  *made = std::move(self);
  return result;
}

// The end of an operation whose flow has failed. Why UCX gave up a peer is known only when the
// peer's goodbye or death is noticed, which takes a moment; until then the operation stays in
// progress.
weir_result_t Instance::fail_operation(Flow* flow, Op* op) {
  if (flow->failure().result == WEIR_ERROR_PEER_LOST && is_unexplained(flow)) {
    move();
    if (is_unexplained(flow)) {
      op->state = kOpFailed + WEIR_ERROR_PEER_LOST;
      op->flow = reinterpret_cast<uint64_t>(flow);
      return WEIR_IN_PROGRESS;
    }
  }
  return tell(flow);
}

inline weir_result_t Instance::post(Flow* flow, bool sending, void* data, uint64_t bytes,
                                    ucs_memory_type_t memory, Op* op) {
  if (bytes > kMessageBytesMax) [[unlikely]]
    return too_long(bytes);
  const Inside inside(*this);
  const weir_result_t result =
      sending ? flow->send(data, bytes, op, memory) : flow->recv(data, bytes, op, memory);
  if (result == WEIR_OK || result == WEIR_IN_PROGRESS) [[likely]]
    return result;
  return fail_operation(flow, op);
}

inline weir_result_t Instance::send(uint32_t peer, uint32_t lane, const void* data, uint64_t bytes,
                                    Op* op) {
  const weir_result_t checked = check_lane(peer, lane, kLaneCount);
  if (checked != WEIR_OK) [[unlikely]]
    return checked;
  return post(&sends[peer * kLaneCount + lane], true, const_cast<void*>(data), bytes,
              UCS_MEMORY_TYPE_UNKNOWN, op);
}

inline weir_result_t Instance::recv(uint32_t peer, uint32_t lane, void* data, uint64_t bytes,
                                    Op* op) {
  const weir_result_t checked = check_lane(peer, lane, kLaneCount);
  if (checked != WEIR_OK) [[unlikely]]
    return checked;
  return post(&recvs[peer * kLaneCount + lane], false, data, bytes, UCS_MEMORY_TYPE_UNKNOWN, op);
}

// Why UCX moves no memory of devices here; "": it does.
std::string Instance::device_gap() const {
  if (network.takes_cuda()) return "";
  const char* transports = getenv("UCX_TLS");
  const bool all = transports == nullptr || strcmp(transports, "all") == 0;
  return "UCX " + library_version() +
         " cannot use CUDA memory here: it was built without CUDA, or finds no device" +
         (all ? "" : ", or UCX_TLS=" + std::string(transports) + " leaves it out");
}

// UCX finds the device by the address.
weir_result_t Instance::device_message(bool sending, uint32_t peer, uint32_t lane, void* data,
                                       uint64_t bytes, int, Op* op) {
  const std::string gap = device_gap();
  if (!gap.empty()) return report.fail(WEIR_ERROR_UNSUPPORTED, gap);
  const weir_result_t checked = check_lane(peer, lane, kLaneCount);
  if (checked != WEIR_OK) return checked;
  Flow* const flow = &(sending ? sends : recvs)[peer * kLaneCount + lane];
  return post(flow, sending, data, bytes, UCS_MEMORY_TYPE_CUDA, op);
}

// The end of a one-sided operation that has failed; it stays in progress until the reason is known.
weir_result_t Instance::fail_remote_operation(const RemoteOp& op) {
  const weir_result_t result = one_sided_.outcome(op);
  if (result != WEIR_IN_PROGRESS) return result;
  const Inside inside(*this);
  move();
  return one_sided_.outcome(op);
}

inline weir_result_t Instance::test(Op* op) {
  const auto is_open = [&] { return op->state != kOpDone && op->state <= kOpFailed; };
  if (op->state == 0) [[unlikely]]
    return never_posted();
  if (is_open()) {
    const Inside inside(*this);
    move();
    if (is_open()) return WEIR_IN_PROGRESS;
  }
  if (op->state == kOpDone) return WEIR_OK;
  if (op->state >= kRemoteFailed) {
    return fail_remote_operation(*reinterpret_cast<const RemoteOp*>(op));
  }
  return fail_operation(reinterpret_cast<Flow*>(op->flow), op);
}

inline weir_result_t Instance::progress() {
  if (!joined) return WEIR_OK;
  const Inside inside(*this);
  move();
  return WEIR_OK;
}

weir_result_t Instance::peer_alive(uint32_t peer) {
  const weir_result_t checked = check_peer("peer_alive", peer, true);
  if (checked != WEIR_OK) return checked;
  const Inside inside(*this);
  look_at(peer);
  if (troubled_count != 0 && network.worker() != nullptr) move();
  return peers[peer].state == Peer::State::kLost ? is_dead(peer) : WEIR_OK;
}

std::string Instance::describe(uint32_t peer) const {
  if (!joined || peer >= rank_count || peer == rank) return "";
  const std::string way = control.describe(peer);
  return "rank " + text_of(peer) + " as UCX chose" +
         (way.empty() ? "" : "; control connection: " + way);
}

weir_result_t Instance::peer_leave(uint32_t peer) {
  const weir_result_t checked = check_peer("peer_leave", peer, false);
  if (checked != WEIR_OK || leave(peer)) return checked;
  return report.fail(WEIR_ERROR_UNSUPPORTED,
                     "UCX still uses buffers of messages with rank " + text_of(peer) +
                         ", and releases them only when its worker is destroyed");
}

namespace {

// device_viable tells whether it is more than memory of the host.
constexpr weir_transport_functions_t kFunctions = common::table_of<Instance>(
    "ranks on one or many hosts, over UCX: InfiniBand, RoCE, shared memory or TCP",
    {.bits = WEIR_CAP_SEND_RECV | WEIR_CAP_PEER_FAILURE | WEIR_CAP_SELF | WEIR_CAP_QUIESCE |
             WEIR_CAP_DEVICE_MEMORY | WEIR_CAP_PUT | WEIR_CAP_GET | WEIR_CAP_SIGNAL,
     .memory_kinds = WEIR_MEMORY_HOST | WEIR_MEMORY_CUDA,
     .lane_count = kLaneCount,
     .message_bytes_max = kMessageBytesMax,
     .rank_count_max = Instance::kRankCountMax,
     .credit = kCredit});

}  // namespace
}  // namespace weir::plugins::ucx

extern "C" __attribute__((visibility("default"))) const weir_transport_functions_t*
weir_transport_plugin(void);
extern "C" const weir_transport_functions_t* weir_transport_plugin(void) {
  weir::plugins::ucx::be_quiet();
  return &weir::plugins::ucx::kFunctions;
}
