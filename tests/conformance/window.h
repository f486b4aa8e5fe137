// SPDX-License-Identifier: Apache-2.0
// What the properties of one-sided operations stand on: a Window is registered memory of each rank,
// open to every other; waits in which the ranks serve each other's operations; bytes that can be
// told apart. In one thread like the rank.
#pragma once

#include <sched.h>
#include <string.h>

#include <string>
#include <vector>

#include "conformance/harness.h"

namespace weir::conformance {

inline constexpr uint64_t kWindowPatienceNs = 30'000'000'000;

using Key = std::vector<unsigned char>;

inline unsigned char byte_of(uint64_t stream, uint64_t index) {
  const uint64_t mixed = (stream * 0x9e3779b97f4a7c15u + index) * 0xff51afd7ed558ccdu;
  return static_cast<unsigned char>(mixed >> 56);
}

inline void fill(unsigned char* at, uint64_t bytes, uint64_t stream, uint64_t first = 0) {
  for (uint64_t i = 0; i < bytes; ++i) at[i] = byte_of(stream, first + i);
}

inline void require_bytes(Rank& r, const unsigned char* at, uint64_t bytes, uint64_t stream,
                          const char* what, uint64_t first = 0) {
  for (uint64_t i = 0; i < bytes; ++i) {
    if (at[i] != byte_of(stream, first + i)) {
      r.require(false, what + (": byte " + std::to_string(i)) + " of " + std::to_string(bytes));
    }
  }
}

// Waits for `done` while this rank and, in their waits, the others make progress.
template <typename Done>
void wait_until(Rank& r, const char* what, const Done& done) {
  const uint64_t end = monotonic_ns() + kWindowPatienceNs;
  for (uint32_t spins = 1; !done(); ++spins) {
    r.progress();
    if (spins % 64 == 0) sched_yield();
    if (spins % 1024 == 0) {
      r.require(monotonic_ns() < end, std::string(what) + " did not come");
      r.check_others();
    }
  }
}

// A barrier whose ranks serve each other's operations. `step` grows from 1; words 40 to 55 are its.
inline void meet(Rank& r, uint64_t step) {
  r.publish(40 + r.rank(), step);
  wait_until(r, "another rank", [&] {
    for (uint32_t i = 0; i < r.count(); ++i) {
      if (r.read(40 + i) < step) return false;
    }
    return true;
  });
}

// Joins, or skips the property where the network that was found cannot do it.
inline void join_for(Rank& r, uint64_t caps) {
  r.join();
  char reason[200] = "?";
  const uint64_t have = r.f().remote_caps(r.instance(), reason, sizeof reason);
  r.require((have & ~r.f().caps.bits) == 0, "more is there than was declared");
  if ((have & caps) == caps) return;
  r.require(reason[0] != 0 && reason[0] != '?', "something is missing without a reason");
  r.barrier();
  r.skip(reason);
}

// Memory of words, registered, of every rank open to every other.
struct Window {
  Window(Rank& rank, uint64_t byte_count) : r(rank), words(byte_count / 8 + 1) {
    r.require_ok(r.f().memory_register(r.instance(), words.data(), words.size() * 8, &memory),
                 "memory_register");
    unsigned char own[WEIR_TRANSPORT_KEY_BYTES_MAX + 8] = {};
    size_t own_bytes = 0;
    r.require_ok(r.f().memory_key(r.instance(), memory, own, &own_bytes), "memory_key");
    r.require(own_bytes > 0 && own_bytes <= WEIR_TRANSPORT_KEY_BYTES_MAX, "the key is too long");
    keys.resize(r.count());
    remotes.resize(r.count());
    keys[r.rank()].assign(own, own + own_bytes);
    memcpy(own + WEIR_TRANSPORT_KEY_BYTES_MAX, &own_bytes, 8);
    for (uint32_t peer = 0; peer < r.count(); ++peer) {
      if (peer == r.rank()) continue;
      weir_transport_op_t send_op{}, recv_op{};
      unsigned char theirs[sizeof own];
      const weir_result_t sent = r.f().send(r.instance(), peer, 0, own, sizeof own, &send_op);
      const weir_result_t came = r.f().recv(r.instance(), peer, 0, theirs, sizeof own, &recv_op);
      r.wait(&recv_op, came, "a key");
      r.wait(&send_op, sent, "a key");
      size_t their_bytes = 0;
      memcpy(&their_bytes, theirs + WEIR_TRANSPORT_KEY_BYTES_MAX, 8);
      r.require(their_bytes <= WEIR_TRANSPORT_KEY_BYTES_MAX, "a key was damaged");
      keys[peer].assign(theirs, theirs + their_bytes);
    }
    for (uint32_t peer = 0; peer < r.count(); ++peer) {
      if (peer == r.rank() && !r.variant().can(WEIR_CAP_SELF)) continue;
      r.require_ok(open(peer, keys[peer], &remotes[peer]), "remote_open");
    }
  }

  weir_result_t open(uint32_t peer, const Key& key, weir_transport_remote_t** remote) {
    Key room = key;  // a key of no bytes lies somewhere, too
    room.push_back(0);
    return r.f().remote_open(r.instance(), peer, room.data(), key.size(), remote);
  }
  unsigned char* bytes() { return reinterpret_cast<unsigned char*>(words.data()); }
  uint64_t size() const { return words.size() * 8; }
  uint64_t signal(uint64_t offset_bytes) {
    uint64_t value = 0;
    r.require_ok(r.f().signal_read(r.instance(), memory, offset_bytes, &value), "signal_read");
    return value;
  }

  Rank& r;
  std::vector<uint64_t> words;
  weir_transport_memory_t* memory = nullptr;
  std::vector<Key> keys;
  std::vector<weir_transport_remote_t*> remotes;
};

}  // namespace weir::conformance
