// SPDX-License-Identifier: Apache-2.0
// ProbeMessages: the messages of the start-up probe between two ranks, one at a time or several on
// lanes side by side. What is posted lies in this object, which takes it back (quiesce) should the
// object end before its operations do; a communicator whose probe fails carries no messages any
// more. One thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/status.h"
#include "core/engine/context.h"

namespace weir::engine {

// What may end a wait of the probe beside its deadline. Asked now and then; ok: go on waiting.
using ProbeWatch = std::function<Status()>;

// What ends a wait of the probe: the deadline, the death of who is waited for, or what `watch`
// finds.
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

  // At most kSmallBytes bytes, of which a copy is posted. Each returns when it is complete, with
  // kTimeout, or with what the transport says; of the peer that has died, kPeerLost.
  static constexpr uint64_t kSmallBytes = 16;
  Status send(const void* data, uint64_t bytes);
  Status recv(void* data, uint64_t bytes);
  // `bytes` bytes in slices over several lanes. `naps`: it sleeps while there is nothing to do.
  Status move(uint64_t bytes, bool sends, bool naps);

 private:
  static constexpr uint32_t kInFlight = 4;  // lanes, as a LaneRun uses them
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
  std::vector<unsigned char> buffer_;
};

}  // namespace weir::engine
