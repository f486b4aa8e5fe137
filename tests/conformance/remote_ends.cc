// SPDX-License-Identifier: Apache-2.0
// Properties of one-sided operations when one side ends: it closes its end with operations under
// way, leaves, or dies.
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "conformance/harness.h"
#include "conformance/window.h"

namespace weir::conformance {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

void close_in_flight(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    join_for(r, WEIR_CAP_PUT);
    Window window(r, 4 * kMiB);
    std::vector<unsigned char> data(4 * kMiB);
    std::vector<weir_transport_op_t> ops(8);
    for (weir_transport_op_t& op : ops) {
      (void)r.f().put(r.instance(), window.remotes[1 - r.rank()], 0, data.data(), data.size(), &op);
    }
    const uint64_t start = monotonic_ns();
    r.close();
    r.require(monotonic_ns() - start < 5'000'000'000, "close took five seconds");
    r.barrier();
  });
}

void close_remote_in_flight(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    join_for(r, WEIR_CAP_PUT);
    constexpr uint64_t kBytes = 2 * kMiB;
    Window window(r, kBytes);
    const uint32_t peer = 1 - r.rank();
    std::vector<unsigned char> data(kBytes);
    fill(data.data(), kBytes, r.rank());
    weir_transport_op_t op{};
    const weir_result_t posted =
        r.f().put(r.instance(), window.remotes[peer], 0, data.data(), kBytes, &op);
    r.f().remote_close(r.instance(), window.remotes[peer]);
    r.wait(&op, posted, "a put whose remote memory was closed");
    meet(r, 1);
    require_bytes(r, window.bytes(), kBytes, peer, "its bytes did not arrive");
    meet(r, 2);
  });
}

// Puts until one fails.
void put_until_lost(Rank& r, Window& window, uint32_t peer, std::vector<unsigned char>* data) {
  const uint64_t end = monotonic_ns() + kWindowPatienceNs;
  for (;;) {
    weir_transport_op_t op{};
    const weir_result_t result = r.wait_result(
        &op, r.f().put(r.instance(), window.remotes[peer], 0, data->data(), data->size(), &op));
    r.require(monotonic_ns() < end, "puts to one that has ended go on and on");
    if (result == WEIR_OK) continue;
    r.require_error(result, {WEIR_ERROR_PEER_LOST}, {std::to_string(peer)});
    break;
  }
  weir_transport_op_t op{};
  r.require_error(r.wait_result(&op, r.f().put(r.instance(), window.remotes[peer], 0, data->data(),
                                               data->size(), &op)),
                  {WEIR_ERROR_PEER_LOST}, {std::to_string(peer)});
}

void put_between(Rank& r, Window& window, uint32_t from, uint32_t to, uint32_t done_word) {
  if (r.rank() == from) {
    unsigned char value = 0x77;
    weir_transport_op_t op{};
    r.wait(&op, r.f().put(r.instance(), window.remotes[to], 5, &value, 1, &op),
           "a put between survivors");
    r.publish(done_word, 1);
  } else {
    r.await(done_word);
    r.require(window.bytes()[5] == 0x77, "a put between survivors did not arrive");
  }
}

void peer_dies(const Variant& variant) {
  run_ranks(variant, 3,
            [](Rank& r) {
              join_for(r, WEIR_CAP_PUT);
              Window window(r, 8 * kMiB);
              std::vector<unsigned char> data(8 * kMiB, 1);
              meet(r, 1);
              if (r.rank() == 1) {
                // In the middle of the others' puts.
                wait_until(r, "the first put", [&] {
                  return static_cast<volatile unsigned char*>(window.bytes())[0] == 1;
                });
                kill(getpid(), SIGKILL);
              }
              put_until_lost(r, window, 1, &data);
              put_between(r, window, 0, 2, 2);
              r.publish(10 + r.rank(), 1);
              wait_until(r, "the other survivor", [&] { return r.read(10) + r.read(12) == 2; });
            },
            {{1}});
}

// Gets until one fails.
void get_until_lost(Rank& r, Window& window, uint32_t peer, std::vector<unsigned char>* data) {
  const uint64_t end = monotonic_ns() + kWindowPatienceNs;
  for (;;) {
    weir_transport_op_t op{};
    const weir_result_t result = r.wait_result(
        &op, r.f().get(r.instance(), window.remotes[peer], 0, data->data(), data->size(), &op));
    r.require(monotonic_ns() < end, "gets from one that has ended go on and on");
    if (result != WEIR_OK) {
      r.require_error(result, {WEIR_ERROR_PEER_LOST}, {std::to_string(peer)});
      return;
    }
    r.publish(20 + r.rank(), 1);
  }
}

void peer_dies_amid_gets(const Variant& variant) {
  run_ranks(
      variant, 3,
      [](Rank& r) {
        join_for(r, WEIR_CAP_GET);
        Window window(r, 8 * kMiB);
        fill(window.bytes(), window.size(), r.rank());
        std::vector<unsigned char> data(8 * kMiB);
        meet(r, 1);
        if (r.rank() == 1) {
          wait_until(r, "a get of each other rank", [&] { return r.read(20) + r.read(22) == 2; });
          kill(getpid(), SIGKILL);
        }
        get_until_lost(r, window, 1, &data);
        const uint32_t other = 2 - r.rank();
        weir_transport_op_t op{};
        r.wait(&op,
               r.f().get(r.instance(), window.remotes[other], 0, data.data(), data.size(), &op),
               "a get between survivors");
        require_bytes(r, data.data(), data.size(), other,
                      "a get between survivors brought something else");
        r.publish(10 + r.rank(), 1);
        wait_until(r, "the other survivor", [&] { return r.read(10) + r.read(12) == 2; });
      },
      {{1}});
}

void peer_leaves(const Variant& variant) {
  run_ranks(variant, 3, [](Rank& r) {
    join_for(r, WEIR_CAP_PUT);
    Window window(r, 2 * kMiB);
    std::vector<unsigned char> data(2 * kMiB, 1);
    meet(r, 1);
    if (r.rank() == 1) {
      r.close();
    } else {
      put_until_lost(r, window, 1, &data);
      put_between(r, window, 0, 2, 2);
    }
    r.publish(10 + r.rank(), 1);
    const auto all = [&] { return r.read(10) + r.read(11) + r.read(12) == 3; };
    if (r.rank() == 1) {
      while (!all()) usleep(1000);
    } else {
      wait_until(r, "the other survivor", all);
    }
  });
}

void signals_outlive_their_sender(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    join_for(r, WEIR_CAP_SIGNAL | WEIR_CAP_PUT);
    constexpr uint64_t kCount = 50;
    Window window(r, 8 + kCount * 4000);
    if (r.rank() == 0) {
      std::vector<unsigned char> data(4000, 9);
      for (uint64_t i = 0; i < kCount; ++i) {
        weir_transport_op_t op{};
        r.wait(&op,
               r.f().put_signal(r.instance(), window.remotes[1], 8 + i * data.size(), data.data(),
                                data.size(), window.remotes[1], 0, 1, &op),
               "put_signal");
      }
      r.close();
    } else {
      wait_until(r, "the last signal of one that has left",
                 [&] { return window.signal(0) == kCount; });
      const unsigned char* begin = window.bytes() + 8;
      r.require(std::count(begin, begin + kCount * 4000, 9) == kCount * 4000, "bytes are missing");
    }
    r.barrier();
  });
}

bool in_processes(const Variant& v) { return v.processes; }
bool in_bare_processes(const Variant& v) { return v.processes && v.hook.empty(); }

constexpr uint64_t kPut = WEIR_CAP_SEND_RECV | WEIR_CAP_PUT;

}  // namespace

const std::vector<Property>& remote_end_properties() {
  static const std::vector<Property> properties = {
      {"SignalsOutliveARankThatLeaves", kPut | WEIR_CAP_SIGNAL, 2, signals_outlive_their_sender},
      {"CloseEndsPutsInFlight", kPut, 2, close_in_flight},
      {"RemoteMemoryMayBeClosedUnderItsOperations", kPut, 2, close_remote_in_flight},
      {"PutsToADeadRankFailAndNameIt", kPut | WEIR_CAP_PEER_FAILURE, 3, peer_dies, in_processes},
      {"GetsFromADeadRankFailAndNameIt", WEIR_CAP_SEND_RECV | WEIR_CAP_GET | WEIR_CAP_PEER_FAILURE,
       3, peer_dies_amid_gets, in_bare_processes},
      {"PutsToARankThatLeftFailAndNameIt", kPut, 3, peer_leaves},
  };
  return properties;
}

}  // namespace weir::conformance
