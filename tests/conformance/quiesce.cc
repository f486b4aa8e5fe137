// SPDX-License-Identifier: Apache-2.0
// Properties of quiesce: afterwards the memory of posted operations may be gone, while the instance
// lives on and the peers still send.
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "conformance/harness.h"

namespace weir::conformance {
namespace {

constexpr uint64_t kLargeBytes = 8u << 20;

// Messages of one direction that no peer answers in full, in memory of their own that can go.
class Posted {
 public:
  Posted(Rank& r, uint32_t peer, bool sends) : sizes_{0, 8, 1024, 100'000, kLargeBytes} {
    for (uint64_t& bytes : sizes_) bytes = std::min(bytes, r.f().caps.message_bytes_max);
    for (size_t i = 0; i < sizes_.size(); ++i) {
      void* memory = mmap(nullptr, kLargeBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
      r.require(memory != MAP_FAILED, "mmap");
      memory_[i] = memory;
      const auto lane = static_cast<uint32_t>(i) % r.f().caps.lane_count;
      results_[i] = sends ? r.f().send(r.instance(), peer, lane, memory, sizes_[i], &ops_[i])
                          : r.f().recv(r.instance(), peer, lane, memory, sizes_[i], &ops_[i]);
      r.require(results_[i] <= WEIR_IN_PROGRESS, "an operation was not taken: " + r.error_text());
    }
  }
  ~Posted() { unmap(); }
  Posted(const Posted&) = delete;
  Posted& operator=(const Posted&) = delete;

  void unmap() {
    for (void*& memory : memory_) {
      if (memory != nullptr) munmap(memory, kLargeBytes);
      memory = nullptr;
    }
    // The words of the operations are the caller's, too.
    for (weir_transport_op_t& op : ops_) memset(&op, 0x5a, sizeof op);
  }
  bool untouched() const {
    weir_transport_op_t expected;
    memset(&expected, 0x5a, sizeof expected);
    return std::all_of(std::begin(ops_), std::end(ops_), [&](const weir_transport_op_t& op) {
      return memcmp(&op, &expected, sizeof op) == 0;
    });
  }

 private:
  std::array<uint64_t, 5> sizes_;
  void* memory_[5] = {};
  weir_transport_op_t ops_[5] = {};
  weir_result_t results_[5] = {};
};

void memory_may_go(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    r.join();
    const uint32_t peer = 1 - r.rank();
    Posted receives(r, peer, false);
    if (r.rank() == 0) {
      // The other one sends while nobody looks here.
      r.barrier();
      r.barrier();
      r.f().quiesce(r.instance());
      receives.unmap();
      r.f().quiesce(r.instance());
      r.require_ok(r.f().peer_alive(r.instance(), 1), "peer_alive after quiesce");
      r.barrier();
      r.barrier();
    } else {
      r.barrier();
      Posted sends(r, peer, true);
      for (int i = 0; i < 1000; ++i) (void)r.f().progress(r.instance());
      r.barrier();
      for (int i = 0; i < 1000; ++i) (void)r.f().progress(r.instance());
      r.barrier();
      // The other one no longer takes part; what it was sent still lies here.
      for (int i = 0; i < 1000; ++i) (void)r.f().progress(r.instance());
      r.f().quiesce(r.instance());
      sends.unmap();
      receives.unmap();
      r.barrier();
      r.require(sends.untouched(), "the words of a send were touched after quiesce");
    }
    r.close();
    r.require(receives.untouched(), "the words of a receive were touched after quiesce");
    r.barrier();
  });
}

bool can_leave_peers(const Variant& variant) {
  constexpr size_t kEnd = offsetof(weir_transport_functions_t, peer_leave) + sizeof(void*);
  const bool has_it =
      variant.functions->struct_bytes >= kEnd && variant.functions->peer_leave != nullptr;
  // The others around a transport say that they cannot.
  return has_it && (variant.hook.empty() || variant.hook == "fault");
}

// Ranks 0 and 1 give each other up, the one before anything has come for its receives, the other
// one with messages under way; rank 2 notices nothing.
void one_peer_may_be_left(const Variant& variant) {
  run_ranks(variant, 3, [](Rank& r) {
    r.join();
    std::vector<unsigned char> large(300'000);
    const auto exchange_with = [&](uint32_t peer) {
      for (const uint64_t bytes : {uint64_t{8}, uint64_t{5000}, uint64_t{300'000}}) {
        const auto own = static_cast<unsigned char>(bytes + r.rank());
        memset(large.data(), own, bytes);
        weir_transport_op_t receive = {}, send = {};
        std::vector<unsigned char> got(bytes);
        const weir_result_t received =
            r.f().recv(r.instance(), peer, 0, got.data(), bytes, &receive);
        const weir_result_t sent = r.f().send(r.instance(), peer, 0, large.data(), bytes, &send);
        r.wait(&receive, received, "a receive from a rank that stays");
        r.wait(&send, sent, "a send to a rank that stays");
        const auto expected = static_cast<unsigned char>(bytes + peer);
        r.require(std::all_of(got.begin(), got.end(),
                              [&](unsigned char byte) { return byte == expected; }),
                  "a message of a rank that stays is not what was sent");
      }
    };
    if (r.rank() == 0) {
      Posted receives(r, 1, false);
      r.require_ok(r.f().peer_leave(r.instance(), 1), "peer_leave of a rank that sent nothing");
      receives.unmap();
      r.require_ok(r.f().peer_leave(r.instance(), 1), "peer_leave again");
      r.barrier();
      exchange_with(2);
      r.barrier();
      for (int i = 0; i < 1000; ++i) (void)r.f().progress(r.instance());
      uint64_t word = 0;
      weir_transport_op_t op = {};
      const weir_result_t sent = r.f().send(r.instance(), 1, 0, &word, 8, &op);
      r.require_error(r.wait_result(&op, sent), {WEIR_ERROR_PEER_LOST});
      op = {};
      const weir_result_t received = r.f().recv(r.instance(), 1, 0, &word, 8, &op);
      r.require_error(r.wait_result(&op, received), {WEIR_ERROR_PEER_LOST});
      r.require(receives.untouched(), "the words of a receive were touched after peer_leave");
      r.require_error(r.f().peer_leave(r.instance(), 0), {WEIR_ERROR_INVALID_ARGUMENT});
      r.require_error(r.f().peer_leave(r.instance(), 3), {WEIR_ERROR_INVALID_ARGUMENT});
    } else if (r.rank() == 1) {
      r.barrier();
      std::vector<unsigned char> memory(kLargeBytes);
      weir_transport_op_t ops[3] = {};
      for (uint32_t i = 0; i < 3; ++i) {
        // Rank 0 may have closed the connection.
        const uint64_t bytes = i == 0 ? 8 : i == 1 ? 1024 : kLargeBytes;
        const weir_result_t sent =
            r.f().send(r.instance(), 0, i % r.f().caps.lane_count, memory.data(), bytes, &ops[i]);
        r.require(sent <= WEIR_IN_PROGRESS || sent == WEIR_ERROR_PEER_LOST,
                  "a send to a rank that has left this one: " + r.error_text());
      }
      for (int i = 0; i < 1000; ++i) (void)r.f().progress(r.instance());
      const weir_result_t left = r.f().peer_leave(r.instance(), 0);
      if (left != WEIR_OK) {
        r.require_error(left, {WEIR_ERROR_UNSUPPORTED, WEIR_ERROR_SYSTEM});
      } else {
        memset(ops, 0x5a, sizeof ops);
        memory = {};
      }
      exchange_with(2);
      r.barrier();
      const auto* words = reinterpret_cast<const unsigned char*>(ops);
      r.require(left != WEIR_OK || std::all_of(words, words + sizeof ops,
                                               [](unsigned char byte) { return byte == 0x5a; }),
                "the words of a send were touched after peer_leave");
      r.close();
      return r.barrier();
    } else {
      r.barrier();
      exchange_with(0);
      exchange_with(1);
      r.barrier();
    }
    r.close();
    r.barrier();
  });
}

}  // namespace

const std::vector<Property>& quiesce_properties() {
  static const std::vector<Property> properties = {
      {"AfterQuiesceTheMemoryOfOperationsMayGo", WEIR_CAP_QUIESCE | WEIR_CAP_SEND_RECV, 2,
       memory_may_go},
      {"OnePeerMayBeLeftAndTheOthersStay", WEIR_CAP_SEND_RECV, 3, one_peer_may_be_left,
       can_leave_peers},
  };
  return properties;
}

}  // namespace weir::conformance
