// SPDX-License-Identifier: Apache-2.0
// Properties of quiesce: afterwards the memory of posted operations may be gone, while the instance
// lives on and the peers still send.
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>

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

void notices_go_on(const Variant& variant) {
  run_ranks(variant, 3, [](Rank& r) {
    r.join();
    r.f().quiesce(r.instance());
    const auto own = static_cast<unsigned char>(r.rank() + 1);
    r.require_ok(r.f().notice_show(r.instance(), &own, 1), "notice_show after quiesce");
    const uint64_t end = monotonic_ns() + 30'000'000'000;
    for (uint32_t peer = 0; peer < r.count(); ++peer) {
      unsigned char notice[WEIR_TRANSPORT_NOTICE_BYTES_MAX];
      for (size_t bytes = 0; bytes != 1 || notice[0] != peer + 1;) {
        r.require(r.f().notice_read(r.instance(), peer, notice, &bytes) <= WEIR_IN_PROGRESS,
                  "notice_read after quiesce: " + r.error_text());
        r.require(monotonic_ns() < end, "a notice did not arrive");
        usleep(20);
      }
    }
    r.barrier();
  });
}

}  // namespace

const std::vector<Property>& quiesce_properties() {
  static const std::vector<Property> properties = {
      {"AfterQuiesceTheMemoryOfOperationsMayGo", WEIR_CAP_QUIESCE | WEIR_CAP_SEND_RECV, 2,
       memory_may_go},
      {"AfterQuiesceNoticesGoOn", WEIR_CAP_QUIESCE | WEIR_CAP_NOTICE, 3, notices_go_on},
  };
  return properties;
}

}  // namespace weir::conformance
