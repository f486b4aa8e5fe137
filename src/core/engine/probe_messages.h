// SPDX-License-Identifier: Apache-2.0
// ProbeMessages: the messages of the start-up probe between two ranks, one at a time or several on
// lanes side by side. This object holds the posted operations and withdraws them (quiesce) if it is
// destroyed before they complete; a communicator whose probe fails no longer carries messages. One
// thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>

#include "core/base/status.h"
#include "core/engine/context.h"

namespace weir::engine {

// A reason to end a wait of the probe other than its deadline. Called now and then; ok: go on
// waiting.
using ProbeWatch = std::function<Status()>;

// Ends a wait of the probe: at the deadline, when the awaited peer dies, or on an error of `watch`.
class ProbePatience {
 public:
  ProbePatience(const Context& context, Rank peer, uint64_t deadline_ns, ProbeWatch watch);
  // Ok: go on waiting.
  Status look();

 private:
  const Context& context_;
  const Rank peer_;
  const uint64_t deadline_ns_;
  const ProbeWatch watch_;
  const uint64_t began_ns_;
  uint64_t next_look_ns_ = 0;
};

class ProbeMessages {
 public:
  ProbeMessages(Context& context, Rank peer, ProbePatience& patience)
      : context_(context), peer_(peer), patience_(patience) {}
  ~ProbeMessages();
  ProbeMessages(const ProbeMessages&) = delete;
  ProbeMessages& operator=(const ProbeMessages&) = delete;

  // At most kSmallBytes bytes, of which a copy is posted. Each returns when it is complete, or with
  // kTimeout, with kPeerLost when the peer has died, or with the transport's error.
  static constexpr uint64_t kSmallBytes = 16;
  Status send(const void* data, uint64_t bytes);
  Status recv(void* data, uint64_t bytes);
  // Moves `bytes` bytes in slices over several lanes. `naps`: it sleeps while there is nothing to
  // do. `data`: the sender's bytes, or where the receiver's go; without it, memory of this object.
  Status move(unsigned char* data, uint64_t bytes, bool sends, bool naps);
  Status move(uint64_t bytes, bool sends, bool naps);

 private:
  static constexpr uint32_t kInFlight = 4;  // lanes, used as by a LaneRun
  struct FreeDeleter {
    void operator()(unsigned char* memory) const { std::free(memory); }
  };
  struct Slot {
    weir_transport_op_t op{};
    bool posted = false;  // not complete
  };

  Status post(Slot* slot, bool sends, uint32_t lane, unsigned char* data, uint64_t bytes);
  Status wait(Slot* slot, bool naps);

  Context& context_;
  const Rank peer_;
  ProbePatience& patience_;
  std::array<Slot, kInFlight> slots_;
  Slot small_slot_;
  std::array<unsigned char, kSmallBytes> small_{};
  std::unique_ptr<unsigned char, FreeDeleter> buffer_;  // of whole pages, as a program's may be
  uint64_t buffer_bytes_ = 0;
};

}  // namespace weir::engine
