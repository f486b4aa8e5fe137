// SPDX-License-Identifier: Apache-2.0
// A transport in memory between ranks that are threads of a test: with a latency and a rate, and
// ends that are slow, fail, fall silent or die at a step that the test chooses. An instance is an
// End.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "weir/plugin.h"

namespace weir::test {

inline constexpr uint32_t kRanksMax = 8;

// What one end does when it posts its `step`-th operation, counted from 0.
enum class Fault { kNone, kSlow, kError, kSilent, kDies };

struct Wire {
  std::mutex lock;
  uint64_t latency_ns = 0;
  double ns_per_byte = 0;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> free_ns;  // by (sender, receiver)
  struct Message {
    std::vector<unsigned char> bytes;
    uint64_t arrives_ns;
  };
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, std::deque<Message>>
      queues;  // by (sender, receiver, lane)
  std::atomic<bool> dead[kRanksMax] = {};
};

struct End {
  Wire* wire = nullptr;
  uint32_t rank = 0;
  Fault fault = Fault::kNone;
  uint64_t step = 0;
  uint64_t post_count = 0;
  uint64_t largest_bytes = 0;
  bool silent = false;
  bool quiet = false;
  struct Posted {
    uint32_t peer;
    uint32_t lane;
    void* data;
    uint64_t bytes;
  };
  std::map<const weir_transport_op_t*, Posted> posted;

  bool holds_something() const { return !posted.empty() && !quiet; }
};

namespace scripted {

inline End* from(weir_transport_t* instance) { return reinterpret_cast<End*>(instance); }

// WEIR_OK: the operation goes on.
inline weir_result_t begin(End* end, uint64_t bytes) {
  EXPECT_FALSE(end->quiet) << "an operation after quiesce";
  end->largest_bytes = std::max(end->largest_bytes, bytes);
  if (end->post_count++ != end->step) return WEIR_OK;
  switch (end->fault) {
    case Fault::kNone:
      break;
    case Fault::kSlow:
      usleep(60'000);
      break;
    case Fault::kError:
      return WEIR_ERROR_SYSTEM;
    case Fault::kSilent:
      end->silent = true;
      break;
    case Fault::kDies:
      end->silent = true;
      end->wire->dead[end->rank] = true;
      break;
  }
  return WEIR_OK;
}

inline bool take(End* end, uint32_t peer, uint32_t lane, void* data, uint64_t bytes) {
  const std::lock_guard guard(end->wire->lock);
  auto& queue = end->wire->queues[{peer, end->rank, lane}];
  if (end->silent || queue.empty() || queue.front().arrives_ns > now_ns()) return false;
  EXPECT_EQ(queue.front().bytes.size(), bytes);
  std::copy(queue.front().bytes.begin(), queue.front().bytes.end(),
            static_cast<unsigned char*>(data));
  queue.pop_front();
  return true;
}

inline weir_result_t send(weir_transport_t* instance, uint32_t peer, uint32_t lane,
                          const void* data, uint64_t bytes, weir_transport_op_t* op) {
  End* end = from(instance);
  const weir_result_t begun = begin(end, bytes);
  if (begun != WEIR_OK) return begun;
  if (end->silent) {
    end->posted[op] = {peer, lane, nullptr, bytes};
    return WEIR_IN_PROGRESS;
  }
  Wire& wire = *end->wire;
  const std::lock_guard guard(wire.lock);
  const auto* first = static_cast<const unsigned char*>(data);
  uint64_t& free_ns = wire.free_ns[{end->rank, peer}];
  free_ns = std::max(free_ns, now_ns()) +
            static_cast<uint64_t>(wire.ns_per_byte * static_cast<double>(bytes));
  wire.queues[{end->rank, peer, lane}].push_back(
      {{first, first + bytes}, free_ns + wire.latency_ns});
  return WEIR_OK;
}

inline weir_result_t recv(weir_transport_t* instance, uint32_t peer, uint32_t lane, void* data,
                          uint64_t bytes, weir_transport_op_t* op) {
  End* end = from(instance);
  const weir_result_t begun = begin(end, bytes);
  if (begun != WEIR_OK) return begun;
  if (take(end, peer, lane, data, bytes)) return WEIR_OK;
  end->posted[op] = {peer, lane, data, bytes};
  return WEIR_IN_PROGRESS;
}

inline weir_result_t test(weir_transport_t* instance, weir_transport_op_t* op) {
  End* end = from(instance);
  const auto found = end->posted.find(op);
  EXPECT_NE(found, end->posted.end());
  const End::Posted& posted = found->second;
  if (posted.data == nullptr || !take(end, posted.peer, posted.lane, posted.data, posted.bytes)) {
    return WEIR_IN_PROGRESS;
  }
  end->posted.erase(found);
  return WEIR_OK;
}

inline weir_result_t progress(weir_transport_t*) { return WEIR_OK; }
inline weir_result_t peer_alive(weir_transport_t* instance, uint32_t peer) {
  return from(instance)->wire->dead[peer] ? WEIR_ERROR_PEER_LOST : WEIR_OK;
}
inline void quiesce(weir_transport_t* instance) { from(instance)->quiet = true; }

}  // namespace scripted

inline const weir_transport_functions_t& scripted_transport() {
  static const weir_transport_functions_t functions = [] {
    weir_transport_functions_t f{};
    f.abi_version = WEIR_PLUGIN_ABI_VERSION;
    f.struct_bytes = sizeof f;
    f.name = "double";
    f.caps.bits = WEIR_CAP_SEND_RECV | WEIR_CAP_PEER_FAILURE | WEIR_CAP_QUIESCE;
    f.caps.lane_count = 16;
    f.caps.credit = 4;
    f.send = scripted::send;
    f.recv = scripted::recv;
    f.test = scripted::test;
    f.progress = scripted::progress;
    f.peer_alive = scripted::peer_alive;
    f.quiesce = scripted::quiesce;
    return f;
  }();
  return functions;
}

}  // namespace weir::test
