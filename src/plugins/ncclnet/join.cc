// SPDX-License-Identifier: Apache-2.0
// How the ranks come together: the mesh, the plugin's connections over the handles that it carried, and a greeting
// through each of them.
#include <sched.h>
#include <string.h>

#include <algorithm>

#include "plugins/ncclnet/instance.h"

namespace weir::plugins::ncclnet {
namespace {

// What a rank tells the others through the mesh, its card:
//
//   offset  bytes  field (integers little-endian)
//        0      4  magic "WNCN"
//        4      2  protocol version
//        6      2  lanes
//        8     64  name of the plugin, padded with zeros
//       72   128n  handles of the listeners for rank 0 lane 0, rank 0 lane 1, …, rank 1 lane 0, …; zeros for
//                  the rank itself
//
// The greeting of a flow is HMAC-SHA256 with the mesh's key of the sender for this peer over "ncclnet" and the
// lane: both ends of each of the plugin's connections are those that the mesh has proven.
constexpr unsigned char kMagic[4] = {'W', 'N', 'C', 'N'};
constexpr uint16_t kProtocolVersion = 1;
constexpr size_t kNameBytes = 64;
constexpr size_t kCardHeaderBytes = 8 + kNameBytes;
constexpr uint64_t kLookNs = 5'000'000;
static_assert(kCardHeaderBytes + size_t{kRankCountMax} * kLaneCount * weir::ncclnet::kHandleBytes <=
              net::mesh::kCardBytesMax);

std::string text_of(uint64_t number) { return std::to_string(number); }

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

net::Mac greeting_of(const net::Mac& key, uint32_t lane) {
  const std::string message = "ncclnet " + text_of(lane);
  return net::hmac_sha256(key.data(), key.size(), message.data(), message.size());
}

}  // namespace

weir_result_t Instance::plugin_failed(weir_result_t code, const char* what,
                                      weir::ncclnet::Result result) {
  const std::string warning = weir::ncclnet::take_warning();
  return report.fail(code, "ncclnet: " + plugin->description() + ": " + what + " gave " +
                               weir::ncclnet::name_of(result) +
                               (warning.empty() ? "" : " (" + warning + ")"));
}

weir_result_t Instance::listen(net::mesh::Bytes* card) {
  listeners.resize(size_t{rank_count} * kLaneCount);
  card->assign(kCardHeaderBytes + listeners.size() * weir::ncclnet::kHandleBytes, 0);
  memcpy(card->data(), kMagic, sizeof kMagic);
  (*card)[4] = kProtocolVersion;
  (*card)[6] = kLaneCount;
  memcpy(card->data() + 8, plugin->name(), strnlen(plugin->name(), kNameBytes));
  for (size_t i = 0; i < listeners.size(); ++i) {
    if (i / kLaneCount == rank) continue;
    unsigned char* handle = card->data() + kCardHeaderBytes + i * weir::ncclnet::kHandleBytes;
    const auto result = plugin->listen(context, device, handle, &listeners[i]);
    if (result != weir::ncclnet::kSuccess) {
      listeners[i] = nullptr;
      return plugin_failed(WEIR_ERROR_SYSTEM, "listen", result);
    }
  }
  return WEIR_OK;
}

weir_result_t Instance::check_card(uint32_t peer, const net::mesh::Bytes& card) {
  const size_t bytes = kCardHeaderBytes + listeners.size() * weir::ncclnet::kHandleBytes;
  if (card.size() != bytes || memcmp(card.data(), kMagic, sizeof kMagic) != 0 ||
      card[4] != kProtocolVersion || card[5] != 0 || card[6] != kLaneCount || card[7] != 0) {
    return report.fail(WEIR_ERROR_MISMATCH,
                       "ncclnet: rank " + text_of(peer) +
                           " runs another version of this transport than rank " + text_of(rank));
  }
  char name[kNameBytes + 1] = "";
  memcpy(name, card.data() + 8, kNameBytes);
  if (strncmp(name, plugin->name(), kNameBytes) != 0) {
    return report.fail(WEIR_ERROR_MISMATCH,
                       "ncclnet: rank " + text_of(peer) + " has loaded the plugin '" + name +
                           "', rank " + text_of(rank) + " '" + plugin->name() +
                           "'; WEIR_NCCL_NET_PLUGIN must mean the same on all ranks");
  }
  return WEIR_OK;
}

weir_result_t Instance::connect(const unsigned char* const* addresses, const size_t* address_bytes,
                                uint64_t deadline_ns) {
  sends.resize(size_t{rank_count} * kLaneCount);
  recvs.resize(sends.size());
  peers.resize(rank_count);
  slot_memory.reset(new unsigned char[2 * sends.size() * Flow::kSlotCount * Flow::kSlotBytes]);
  net::mesh::Bytes card;
  weir_result_t result = listen(&card);
  if (result != WEIR_OK) return result;
  const auto outcome = mesh->join(addresses, address_bytes, card, deadline_ns);
  if (heard != WEIR_OK) return heard;
  if (outcome != net::ControlMesh::Outcome::kOk) {
    return report.fail(code_of(outcome), "ncclnet: " + mesh->text());
  }
  for (uint32_t peer = 0; peer < rank_count && result == WEIR_OK; ++peer) {
    if (peer != rank) result = check_card(peer, mesh->card(peer));
  }
  if (result == WEIR_OK) result = connect_flows(deadline_ns);
  if (result == WEIR_OK) result = greet(deadline_ns);
  for (void*& listener : listeners) {
    if (listener != nullptr) (void)plugin->close_listen(listener);
    listener = nullptr;
  }
  joined = result == WEIR_OK;
  return result;
}

// Who is missing at the deadline, or has died.
weir_result_t Instance::look_while_joining(uint64_t now, uint64_t deadline_ns, const char* what) {
  std::string missing, dead;
  for (uint32_t peer = 0; peer < rank_count; ++peer) {
    if (peer == rank) continue;
    bool complete = true;
    for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
      const size_t i = peer * kLaneCount + lane;
      complete = complete && sends[i].attached() && recvs[i].attached();
    }
    if (complete && what[0] == 'c') continue;
    if (mesh->look(peer) == net::ControlMesh::Life::kLost) {
      dead += (dead.empty() ? "" : ", ") + text_of(peer);
    }
    missing += (missing.empty() ? "" : ", ") + text_of(peer);
  }
  if (!dead.empty()) {
    return report.fail(WEIR_ERROR_PEER_LOST, "ncclnet: rank " + dead +
                                                 " has died or given up while rank " +
                                                 text_of(rank) + " was to " + what +
                                                 " it through " + plugin->description());
  }
  if (now < deadline_ns) return WEIR_OK;
  return report.fail(WEIR_ERROR_TIMEOUT,
                     "ncclnet: timed out: rank " + text_of(rank) + " could not " + what + " rank " +
                         missing + " through " + plugin->description() +
                         ", though the mesh stands; is the plugin's network open between them?");
}

weir_result_t Instance::connect_flow(uint32_t index, bool* moved) {
  const uint32_t peer = index / kLaneCount;
  unsigned char* memory =
      slot_memory.get() + size_t{2} * index * Flow::kSlotCount * Flow::kSlotBytes;
  const auto attach = [&](Flow* flow, void* comm, bool sends_there, unsigned char* slots) {
    *moved = true;
    if (flow->attach(plugin, comm, sends_there, properties.message_bytes_max, slots))
      return WEIR_OK;
    return report.fail(WEIR_ERROR_SYSTEM,
                       "ncclnet: " + plugin->description() + ": " + flow->failure().text);
  };
  if (!sends[index].attached()) {
    // The plugin may write into the handle, and wants the same one again.
    auto* handle = const_cast<unsigned char*>(mesh->card(peer).data()) + kCardHeaderBytes +
                   (rank * kLaneCount + index % kLaneCount) * weir::ncclnet::kHandleBytes;
    void* comm = nullptr;
    const auto result = plugin->connect(context, device, handle, &comm);
    if (result != weir::ncclnet::kSuccess)
      return plugin_failed(WEIR_ERROR_SYSTEM, "connect", result);
    if (comm != nullptr) {
      const weir_result_t attached = attach(&sends[index], comm, true, memory);
      if (attached != WEIR_OK) return attached;
    }
  }
  if (!recvs[index].attached()) {
    void* comm = nullptr;
    const auto result = plugin->accept(listeners[index], &comm);
    if (result != weir::ncclnet::kSuccess)
      return plugin_failed(WEIR_ERROR_SYSTEM, "accept", result);
    if (comm != nullptr) {
      return attach(&recvs[index], comm, false, memory + Flow::kSlotCount * Flow::kSlotBytes);
    }
  }
  return WEIR_OK;
}

weir_result_t Instance::connect_flows(uint64_t deadline_ns) {
  uint64_t looked_ns = 0;
  for (;;) {
    bool all = true, moved = false;
    for (uint32_t i = 0; i < sends.size(); ++i) {
      if (i / kLaneCount == rank || (sends[i].attached() && recvs[i].attached())) continue;
      const weir_result_t result = connect_flow(i, &moved);
      if (result != WEIR_OK) {
        // A death is the better reason.
        const weir_result_t dead = look_while_joining(0, deadline_ns, "connect to");
        return dead != WEIR_OK ? dead : result;
      }
      all = all && sends[i].attached() && recvs[i].attached();
    }
    if (all) return WEIR_OK;
    const uint64_t now = monotonic_ns();
    if (now - looked_ns > kLookNs) {
      looked_ns = now;
      const weir_result_t result = look_while_joining(now, deadline_ns, "connect to");
      if (result != WEIR_OK) return result;
    }
    if (!moved) usleep(50);
  }
}

weir_result_t Instance::greet(uint64_t deadline_ns) {
  struct Greeting {
    bool begun = false, done = false;
  };
  std::vector<Greeting> outs(sends.size()), ins(recvs.size());
  uint64_t looked_ns = monotonic_ns();
  for (;;) {
    bool all = true, moved = false;
    for (uint32_t i = 0; i < sends.size(); ++i) {
      const uint32_t peer = i / kLaneCount, lane = i % kLaneCount;
      if (peer == rank) continue;
      for (const bool outwards : {true, false}) {
        Greeting& it = outwards ? outs[i] : ins[i];
        Flow& flow = outwards ? sends[i] : recvs[i];
        if (it.done) continue;
        all = false;
        if (flow.failure().result != WEIR_OK) {
          const weir_result_t dead = look_while_joining(0, deadline_ns, "greet");
          if (dead != WEIR_OK) return dead;
          return report.fail(WEIR_ERROR_SYSTEM, "ncclnet: the greeting of rank " + text_of(peer) +
                                                    ": " + flow.failure().text);
        }
        if (!it.begun) {
          const net::Mac greeting = greeting_of(mesh->outbound_key(peer), lane);
          it.begun = flow.begin_greeting(greeting.data(), greeting.size());
          moved = moved || it.begun;
          continue;
        }
        net::Mac got{};
        it.done = flow.finish_greeting(got.data(), got.size());
        moved = moved || it.done;
        if (!it.done || outwards) continue;
        const net::Mac expected = greeting_of(mesh->inbound_key(peer), lane);
        if (!net::equal_in_constant_time(got.data(), expected.data(), got.size())) {
          return report.fail(WEIR_ERROR_REFUSED, "ncclnet: who came through " +
                                                     plugin->description() + " in place of rank " +
                                                     text_of(peer) + " is not that rank");
        }
      }
    }
    if (all) return WEIR_OK;
    const uint64_t now = monotonic_ns();
    if (now - looked_ns > kLookNs) {
      looked_ns = now;
      const weir_result_t result = look_while_joining(now, deadline_ns, "greet");
      if (result != WEIR_OK) return result;
    }
    if (!moved) sched_yield();
  }
}

}  // namespace weir::plugins::ncclnet
