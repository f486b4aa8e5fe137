// SPDX-License-Identifier: Apache-2.0
// The transport `ncclnet`: ranks on one or many hosts, over a third party's network plugin for
// NCCL, in memory of the host. See docs/nccl_net.md.
#include <string>

#include "plugins/common/table.h"
#include "plugins/ncclnet/instance.h"
#include "weir/plugin.h"

namespace weir::plugins::ncclnet {
namespace {

constexpr uint64_t kMessageBytesMax = uint64_t{1} << 46;

}  // namespace

// Loads the plugin without initializing it: some do not work in a process that forks afterwards.
bool Instance::viable(const weir_host_t* host, std::string* text) {
  const Report report = {host};
  const char* wanted = report.setting("WEIR_NCCL_NET_PLUGIN");
  if (wanted == nullptr) {
    *text = "WEIR_NCCL_NET_PLUGIN is not set: no plugin to load";
    return false;
  }
  bool tls = false;
  if (!message::read_tls(report, &tls, text)) return false;
  const LoadedPlugin* const plugin = weir::ncclnet::open_plugin(wanted, 0, text);
  if (plugin != nullptr) *text = plugin->description();
  return plugin != nullptr;
}

weir_result_t Instance::open(const weir_host_t* host, const weir_transport_config_t& config,
                             std::unique_ptr<Instance>* made) {
  auto self = std::make_unique<Instance>();
  weir_result_t result = self->begin(host, kName, config);
  if (result == WEIR_OK) result = self->open_plugin(config.comm_id);
  *made = std::move(self);
  return result;
}

// The end of an operation whose flow has failed. Why the plugin gave up a peer is known only when
// the peer's goodbye or death is noticed, which takes a moment; until then the operation stays in
// progress.
weir_result_t Instance::fail_operation(Flow* flow, Op* op) {
  if (is_unexplained(flow)) {
    move();
    if (is_unexplained(flow)) {
      op->state = kOpFailed + static_cast<uint64_t>(flow->failure().result);
      op->flow = reinterpret_cast<uint64_t>(flow);
      return WEIR_IN_PROGRESS;
    }
  }
  return tell(flow);
}

weir_result_t Instance::check_message(uint32_t peer, uint32_t lane, uint64_t bytes) const {
  const weir_result_t checked = check_lane(peer, lane, kLaneCount);
  if (checked != WEIR_OK) return checked;
  if (bytes > kMessageBytesMax) return too_long(bytes);
  if (peer != rank) return WEIR_OK;
  return report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                     "peer " + text_of(peer) + " is this rank, which does not send to itself");
}

weir_result_t Instance::post(Flow* flow, void* data, uint64_t bytes, Op* op) {
  const weir_result_t result = flow->post(data, bytes, op);
  if (result == WEIR_OK || result == WEIR_IN_PROGRESS) [[likely]] {
    if (!flow->idle()) make_active(flow);
    return result;
  }
  return fail_operation(flow, op);
}

weir_result_t Instance::send(uint32_t peer, uint32_t lane, const void* data, uint64_t bytes,
                             Op* op) {
  const weir_result_t checked = check_message(peer, lane, bytes);
  if (checked != WEIR_OK) [[unlikely]]
    return checked;
  return post(&sends[peer * kLaneCount + lane], const_cast<void*>(data), bytes, op);
}

weir_result_t Instance::recv(uint32_t peer, uint32_t lane, void* data, uint64_t bytes, Op* op) {
  const weir_result_t checked = check_message(peer, lane, bytes);
  if (checked != WEIR_OK) [[unlikely]]
    return checked;
  return post(&recvs[peer * kLaneCount + lane], data, bytes, op);
}

weir_result_t Instance::test(Op* op) {
  if (op->state == 0) [[unlikely]]
    return never_posted();
  if (op->state < kOpDone) {
    auto* flow = reinterpret_cast<Flow*>(op->flow);
    if (!flow->drive()) move();
  }
  if (op->state == kOpDone) [[likely]]
    return WEIR_OK;
  if (op->state < kOpFailed) return WEIR_IN_PROGRESS;
  return fail_operation(reinterpret_cast<Flow*>(op->flow), op);
}

weir_result_t Instance::progress() {
  if (joined) move();
  return WEIR_OK;
}

weir_result_t Instance::peer_alive(uint32_t peer) {
  const weir_result_t checked = check_peer("peer_alive", peer, true);
  if (checked != WEIR_OK) return checked;
  look_at(peer);
  if (troubled_count != 0) move();
  return peers[peer].state == Peer::State::kLost ? is_dead(peer) : WEIR_OK;
}

namespace {

constexpr weir_transport_functions_t kFunctions = common::table_of<Instance>(
    "ranks on one or many hosts, over a network plugin made for NCCL",
    {.bits = WEIR_CAP_SEND_RECV | WEIR_CAP_PEER_FAILURE | WEIR_CAP_QUIESCE,
     .memory_kinds = WEIR_MEMORY_HOST,
     .lane_count = kLaneCount,
     .message_bytes_max = kMessageBytesMax,
     .rank_count_max = Instance::kRankCountMax,
     .credit = Flow::kSlotCount});

}  // namespace
}  // namespace weir::plugins::ncclnet

extern "C" __attribute__((visibility("default"))) const weir_transport_functions_t*
weir_transport_plugin(void);
extern "C" const weir_transport_functions_t* weir_transport_plugin(void) {
  return &weir::plugins::ncclnet::kFunctions;
}
