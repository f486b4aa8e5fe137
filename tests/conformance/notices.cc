// SPDX-License-Identifier: Apache-2.0
// Properties of notices: what a rank shows reaches every other rank, past messages, in order, and
// outlives it.
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "conformance/harness.h"

namespace weir::conformance {
namespace {

constexpr uint64_t kPatienceNs = 30'000'000'000;

// A notice of `bytes` bytes that tells who shows it for the how-many-th time.
std::vector<unsigned char> make(uint32_t rank, uint64_t number, size_t bytes) {
  std::vector<unsigned char> notice(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    notice[i] = static_cast<unsigned char>(i < 8 ? number >> (8 * i) : number + rank * 31 + i);
  }
  return notice;
}

void show(Rank& r, const std::vector<unsigned char>& notice) {
  r.require_ok(r.f().notice_show(r.instance(), notice.data(), notice.size()), "notice_show");
}

std::vector<unsigned char> read(Rank& r, uint32_t peer) {
  unsigned char notice[WEIR_TRANSPORT_NOTICE_BYTES_MAX];
  size_t bytes = ~size_t{0};
  const weir_result_t result = r.f().notice_read(r.instance(), peer, notice, &bytes);
  // It may be that our own notice has not come to the peer yet.
  if (result != WEIR_IN_PROGRESS) r.require_ok(result, "notice_read");
  r.require(bytes <= sizeof notice, "a notice of " + std::to_string(bytes) + " bytes");
  return {notice, notice + bytes};
}

// Until `peer` shows `expected`; what it shows meanwhile is one of its notices, never an older one.
void await_notice(Rank& r, uint32_t peer, const std::vector<unsigned char>& expected) {
  uint64_t latest = 0;
  for (const uint64_t end = monotonic_ns() + kPatienceNs;;) {
    const std::vector<unsigned char> seen = read(r, peer);
    if (seen == expected) return;
    if (seen.size() >= 8) {
      uint64_t number = 0;
      memcpy(&number, seen.data(), 8);
      r.require(number >= latest, "an older notice came back");
      latest = number;
      r.require(seen == make(peer, number, seen.size()), "a notice arrived changed");
    }
    r.require(monotonic_ns() < end, "a notice did not arrive");
    usleep(20);
  }
}

// Until the transport no longer says that our notice is on its way to `peer`.
void await_arrival(Rank& r, uint32_t peer) {
  unsigned char notice[WEIR_TRANSPORT_NOTICE_BYTES_MAX];
  size_t bytes = 0;
  const uint64_t end = monotonic_ns() + kPatienceNs;
  while (r.f().notice_read(r.instance(), peer, notice, &bytes) == WEIR_IN_PROGRESS) {
    r.require(monotonic_ns() < end, "a notice stays on its way");
    usleep(20);
  }
}

void every_peer_reads(const Variant& variant) {
  run_ranks(variant, 3, [](Rank& r) {
    r.join();
    for (uint32_t peer = 0; peer < r.count(); ++peer) {
      r.require(read(r, peer).empty(), "there is a notice before any was shown");
    }
    r.barrier();
    uint64_t number = 0;
    for (const size_t bytes : {size_t{8}, size_t{1024}, size_t{9}, size_t{0}, size_t{63}}) {
      show(r, make(r.rank(), ++number, bytes));
      for (uint32_t peer = 0; peer < r.count(); ++peer) {
        await_notice(r, peer, make(peer, number, bytes));
        await_arrival(r, peer);
      }
      r.barrier();
    }
  });
}

void never_waits(const Variant& variant) {
  run_ranks(variant, 3, [](Rank& r) {
    constexpr uint64_t kShown = 30'000;  // of a kilobyte: more than any connection holds
    r.join();
    if (r.rank() == 0) {
      for (uint64_t number = 1; number <= kShown; ++number) {
        show(r, make(0, number, WEIR_TRANSPORT_NOTICE_BYTES_MAX));
      }
      r.publish(0, 1);
      // What did not leave leaves in later calls.
      while (r.read(1) + r.read(2) < 2) {
        (void)read(r, 1);
        usleep(50);
      }
    } else {
      if (r.rank() == 2) r.await(0);  // looks only when all has been said
      await_notice(r, 0, make(0, kShown, WEIR_TRANSPORT_NOTICE_BYTES_MAX));
      r.publish(r.rank(), 1);
    }
    r.barrier();
  });
}

void past_full_lanes(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    r.join();
    const uint32_t peer = 1 - r.rank();
    const uint32_t lanes = r.f().caps.lane_count;
    std::vector<unsigned char> data(
        std::min<uint64_t>(uint64_t{8} << 20, r.f().caps.message_bytes_max));
    std::vector<weir_transport_op_t> ops(lanes);
    for (uint32_t lane = 0; lane < lanes; ++lane) {
      (void)r.f().send(r.instance(), peer, lane, data.data(), data.size(), &ops[lane]);
    }
    show(r, make(r.rank(), 1, 100));
    await_notice(r, peer, make(peer, 1, 100));
    r.barrier();
  });
}

void outlives_its_rank(const Variant& variant) {
  run_ranks(variant, 3, [](Rank& r) {
    r.join();
    if (r.rank() == 1) {
      show(r, make(1, 5, 200));
      show(r, make(1, 6, 300));
      r.close();
      r.publish(0, 1);
    } else {
      while (r.read(0) == 0) usleep(100);
      await_notice(r, 1, make(1, 6, 300));
      usleep(10'000);
      r.require(read(r, 1) == make(1, 6, 300), "the notice went with its rank");
      show(r, make(r.rank(), 1, 50));  // to one that has left
      await_notice(r, 2 - r.rank(), make(2 - r.rank(), 1, 50));
    }
    r.barrier();
  });
}

void outlives_a_killed_rank(const Variant& variant) {
  run_ranks(variant, 3,
            [](Rank& r) {
              r.join();
              r.barrier();  // who dies while others still join fails their join
              if (r.rank() == 1) {
                show(r, make(1, 5, 200));
                r.publish(0, 1);
                kill(getpid(), SIGKILL);
              }
              while (r.read(0) == 0) usleep(100);
              await_notice(r, 1, make(1, 5, 200));
              show(r, make(r.rank(), 1, 50));
              await_notice(r, 2 - r.rank(), make(2 - r.rank(), 1, 50));
              r.publish(1 + r.rank(), 1);
              while (r.read(1) + r.read(3) < 2) {
                (void)read(r, 0);
                usleep(100);
              }
            },
            {{1}});
}

void bad_notices(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    r.join();
    const auto bad = {WEIR_ERROR_INVALID_ARGUMENT, WEIR_ERROR_INVALID_USAGE};
    unsigned char notice[WEIR_TRANSPORT_NOTICE_BYTES_MAX + 1] = {};
    size_t bytes = 0;
    r.require_error(r.f().notice_show(r.instance(), notice, sizeof notice), bad);
    r.require_error(r.f().notice_read(r.instance(), r.count(), notice, &bytes), bad);
    r.barrier();
  });
}

bool in_processes(const Variant& v) { return v.processes; }

}  // namespace

const std::vector<Property>& notice_properties() {
  static const std::vector<Property> properties = {
      {"ANoticeReachesEveryPeer", WEIR_CAP_NOTICE, 3, every_peer_reads},
      {"ShowingNeverWaitsAndTheLastNoticeArrives", WEIR_CAP_NOTICE, 3, never_waits},
      {"NoticesGoPastFullLanes", WEIR_CAP_NOTICE | WEIR_CAP_SEND_RECV, 2, past_full_lanes},
      {"TheLastNoticeOutlivesItsRank", WEIR_CAP_NOTICE, 3, outlives_its_rank},
      {"TheLastNoticeOutlivesAKilledRank", WEIR_CAP_NOTICE, 3, outlives_a_killed_rank,
       in_processes},
      {"BadNoticesAreErrorsWithAText", WEIR_CAP_NOTICE, 2, bad_notices},
  };
  return properties;
}

}  // namespace weir::conformance
