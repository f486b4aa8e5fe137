// SPDX-License-Identifier: Apache-2.0
// How the ranks come together: the plugin's handles over the control network, the plugin's
// connections over them, and a greeting through each of them.
#include <sched.h>
#include <string.h>

#include "net/auth.h"
#include "plugins/common/look.h"
#include "plugins/ncclnet/instance.h"

namespace weir::plugins::ncclnet {
namespace {

// A rank's address:
//
//   offset  bytes  field (integers little-endian)
//        0      4  magic "WNCN"
//        4      2  protocol version
//        6      2  lanes
//        8     64  name of the plugin, padded with zeros
//
// What a rank sends to each peer over the control network: kHandlesKind; the handle of the listener
// for that peer on each lane, 128 bytes each.
//
// The greeting of a flow is HMAC-SHA256 with the key of its direction (message/control.h) over
// "ncclnet" and the lane: it proves that both ends of each of the plugin's connections are ranks of
// this communicator.
constexpr unsigned char kMagic[4] = {'W', 'N', 'C', 'N'};
constexpr uint16_t kProtocolVersion = 2;
constexpr size_t kNameBytes = 64;
constexpr size_t kAddressBytes = 8 + kNameBytes;
constexpr char kHandlesKind = message::kOwnKind;
constexpr size_t kHandlesBytes = 1 + size_t{kLaneCount} * weir::ncclnet::kHandleBytes;
constexpr uint64_t kLookNs = 5'000'000;
// How long what a rank did before it left may take to arrive.
constexpr uint64_t kLeftNs = 250'000'000;

net::Mac greeting_of(const net::Mac& key, uint32_t lane) {
  const std::string message = "ncclnet " + text_of(lane);
  return net::hmac_sha256(key.data(), key.size(), message.data(), message.size());
}

}  // namespace

weir_result_t Instance::plugin_failed(weir_result_t code, const char* what,
                                      weir::ncclnet::Result result) {
  const std::string warning = weir::ncclnet::take_warning();
  return report.fail(code, plugin->description() + ": " + what + " gave " +
                               weir::ncclnet::name_of(result) +
                               (warning.empty() ? "" : " (" + warning + ")"));
}

weir_result_t Instance::address(unsigned char* out, size_t* bytes) const {
  if (joined) return report.fail(WEIR_ERROR_INVALID_USAGE, "address after connect");
  memset(out, 0, kAddressBytes);
  memcpy(out, kMagic, sizeof kMagic);
  out[4] = kProtocolVersion;
  out[6] = kLaneCount;
  memcpy(out + 8, plugin->name(), strnlen(plugin->name(), kNameBytes));
  *bytes = kAddressBytes;
  return WEIR_OK;
}

weir_result_t Instance::check_address(uint32_t peer, const unsigned char* address,
                                      size_t bytes) const {
  if (address == nullptr || bytes != kAddressBytes || memcmp(address, kMagic, sizeof kMagic) != 0 ||
      address[4] != kProtocolVersion || address[5] != 0 || address[6] != kLaneCount ||
      address[7] != 0) {
    return report.fail(WEIR_ERROR_MISMATCH,
                       "rank " + text_of(peer) +
                           " runs another version of this transport than rank " + text_of(rank));
  }
  char name[kNameBytes + 1] = "";
  memcpy(name, address + 8, kNameBytes);
  if (strncmp(name, plugin->name(), kNameBytes) != 0) {
    return report.fail(WEIR_ERROR_MISMATCH,
                       "rank " + text_of(peer) + " has loaded the plugin '" + name + "', rank " +
                           text_of(rank) + " '" + plugin->name() +
                           "'; WEIR_NCCL_NET_PLUGIN must name the same plugin on all ranks");
  }
  return WEIR_OK;
}

// A listener for each flow, and its handle to the peer.
weir_result_t Instance::listen() {
  listeners.resize(size_t{rank_count} * kLaneCount);
  for (uint32_t peer = 0; peer < rank_count; ++peer) {
    if (peer == rank) continue;
    std::string word(kHandlesBytes, kHandlesKind);
    for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
      auto* const handle =
          reinterpret_cast<unsigned char*>(word.data()) + 1 + lane * weir::ncclnet::kHandleBytes;
      void*& listener = listeners[peer * kLaneCount + lane];
      const auto result = plugin->listen(context, device, handle, &listener);
      if (result == weir::ncclnet::kSuccess) continue;
      listener = nullptr;
      return plugin_failed(WEIR_ERROR_SYSTEM, "listen", result);
    }
    control.say(peer, word);
  }
  return WEIR_OK;
}

weir_result_t Instance::hear_handles(uint64_t deadline_ns) {
  uint64_t looked_ns = 0;
  for (;;) {
    std::vector<uint32_t> missing;
    for (uint32_t peer = 0; peer < rank_count; ++peer) {
      if (peer == rank || !peers[peer].card.empty()) continue;
      const int life = control.life(peer);
      std::string word;
      const bool heard = control.hear(peer, &word);
      if (heard && word.size() == kHandlesBytes && word[0] == kHandlesKind) {
        peers[peer].card = word;
      } else if (heard || life != WEIR_LIFE_HERE) {
        return report.fail(
            WEIR_ERROR_PEER_LOST,
            "rank " + text_of(peer) + " has died or given up while the ranks were joining");
      } else {
        missing.push_back(peer);
      }
    }
    if (missing.empty()) return WEIR_OK;
    const uint64_t now = monotonic_ns();
    if (now >= deadline_ns) {
      return report.fail(WEIR_ERROR_TIMEOUT,
                         "timed out: " + message::names_of(missing) + " of " + text_of(rank_count) +
                             " did not send the address at which its plugin listens");
    }
    if (now - looked_ns > kLookNs) {
      looked_ns = now;
      const weir_result_t told = common::look(report.host);
      if (told != WEIR_OK) return told;
    }
    usleep(100);
  }
}

weir_result_t Instance::connect(const unsigned char* const* addresses, const size_t* address_bytes,
                                uint64_t deadline_ns) {
  if (joined || !peers.empty()) {
    return report.fail(WEIR_ERROR_INVALID_USAGE, "connect was called twice");
  }
  weir_result_t result = WEIR_OK;
  for (uint32_t peer = 0; peer < rank_count && result == WEIR_OK; ++peer) {
    result = check_address(peer, addresses[peer], address_bytes[peer]);
  }
  if (result != WEIR_OK) return result;
  sends.resize(size_t{rank_count} * kLaneCount);
  recvs.resize(sends.size());
  peers.resize(rank_count);
  slot_memory.reset(new unsigned char[2 * sends.size() * Flow::kSlotCount * Flow::kSlotBytes]);
  result = listen();
  if (result == WEIR_OK) result = hear_handles(deadline_ns);
  if (result == WEIR_OK) result = connect_flows(deadline_ns);
  if (result == WEIR_OK) result = greet(deadline_ns);
  for (void*& listener : listeners) {
    if (listener != nullptr) (void)plugin->close_listen(listener);
    listener = nullptr;
  }
  for (Peer& peer : peers) peer.card.clear();
  joined = result == WEIR_OK;
  return result;
}

// Names the ranks that are missing at the deadline or have died.
weir_result_t Instance::look_while_joining(uint64_t now, uint64_t deadline_ns, const char* what) {
  const weir_result_t heard = common::look(report.host);
  if (heard != WEIR_OK) return heard;
  std::string missing, dead;
  for (uint32_t peer = 0; peer < rank_count; ++peer) {
    if (peer == rank) continue;
    bool complete = true;
    for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
      const size_t i = peer * kLaneCount + lane;
      complete = complete && sends[i].attached() && recvs[i].attached();
    }
    if (complete && what[0] == 'c') continue;
    look_at(peer);
    const Peer& state = peers[peer];
    // A rank that has left may have done its part before.
    const bool gone = state.state == Peer::State::kLost ||
                      (state.state == Peer::State::kLeft && now > state.since_ns + kLeftNs);
    if (gone) {
      dead += (dead.empty() ? "" : ", ") + text_of(peer);
    }
    missing += (missing.empty() ? "" : ", ") + text_of(peer);
  }
  if (!dead.empty()) {
    return report.fail(WEIR_ERROR_PEER_LOST, "rank " + dead + " has died or given up before rank " +
                                                 text_of(rank) + " could " + what + " it through " +
                                                 plugin->description());
  }
  if (now < deadline_ns) return WEIR_OK;
  return report.fail(
      WEIR_ERROR_TIMEOUT,
      "timed out: rank " + text_of(rank) + " could not " + what + " rank " + missing + " through " +
          plugin->description() +
          ", though the control network connects them; is the plugin's network open between them?");
}

weir_result_t Instance::connect_flow(uint32_t index, bool* moved) {
  const uint32_t peer = index / kLaneCount;
  unsigned char* memory =
      slot_memory.get() + size_t{2} * index * Flow::kSlotCount * Flow::kSlotBytes;
  const auto attach = [&](Flow* flow, void* comm, bool sends_there, unsigned char* slots) {
    *moved = true;
    if (flow->attach(plugin, comm, sends_there, properties.message_bytes_max, slots))
      return WEIR_OK;
    return report.fail(WEIR_ERROR_SYSTEM, plugin->description() + ": " + flow->failure().text);
  };
  if (!sends[index].attached()) {
    // The plugin may write into the handle, and wants the same one again.
    auto* handle = reinterpret_cast<unsigned char*>(peers[peer].card.data()) + 1 +
                   index % kLaneCount * weir::ncclnet::kHandleBytes;
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
          return report.fail(WEIR_ERROR_SYSTEM, "the first message of rank " + text_of(peer) +
                                                    ": " + flow.failure().text);
        }
        if (!it.begun) {
          const net::Mac greeting = greeting_of(control.key(rank, peer, "ncclnet"), lane);
          it.begun = flow.begin_greeting(greeting.data(), greeting.size());
          moved = moved || it.begun;
          continue;
        }
        net::Mac got{};
        it.done = flow.finish_greeting(got.data(), got.size());
        moved = moved || it.done;
        if (!it.done || outwards) continue;
        const net::Mac expected = greeting_of(control.key(peer, rank, "ncclnet"), lane);
        if (!net::equal_in_constant_time(got.data(), expected.data(), got.size())) {
          return report.fail(WEIR_ERROR_REFUSED, "the process that connected through " +
                                                     plugin->description() + " as rank " +
                                                     text_of(peer) +
                                                     " did not prove that it is that rank");
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
