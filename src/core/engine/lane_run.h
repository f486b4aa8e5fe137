// SPDX-License-Identifier: Apache-2.0
// LaneRun: executes a LanePlan over the transport's send and recv. Lanes advance independently;
// later operations do not wait for a posted send until one needs its memory, so that a program also
// ends where the transport keeps every message until its receiver takes it. Consecutive receives of
// a lane are posted together and may complete in any order. Restarted for each operation: a warm
// call allocates nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "core/engine/lane_plan.h"
#include "core/engine/run.h"

namespace weir::engine {

class LaneRun final : public Run {
 public:
  // Begins the next operation of the context; `plan` and `call` must live until the run is done.
  void start(const LanePlan& plan, const Call& call, uint32_t call_fingerprint, Context& context);
  Advance advance(Context& context) override;
  void collect_awaited(const Context& context, std::vector<Rank>* ranks) const override;
  RunPosition position() const override;

  // Precedes the first message between two ranks in an operation where no memory is shared, and
  // names the call to which the message belongs.
  struct Header {
    uint64_t flag = 0;  // call_flag
    uint64_t what = 0;
    uint64_t count = 0;
  };
  // Of the latest operation; all zero when there was none.
  const Header& header() const { return own_header_; }
  // After kMismatch without a text: the rank that made another call, and that call.
  Rank other_rank() const { return other_rank_; }
  const Header& other_header() const { return other_header_; }

 private:
  static constexpr uint32_t kSendsAtFirst = 8;
  static constexpr size_t kReceivesUnderWayMax = 32;  // of a lane

  struct Send {
    Rank peer = 0;
    const unsigned char* data = nullptr;
    uint64_t bytes = 0;
    weir_transport_op_t op{};
  };
  // The receive of next_op, or of an operation right after it.
  struct Receive {
    Rank peer = 0;
    unsigned char* data = nullptr;
    uint64_t bytes = 0;
    bool posted = false;
    bool complete = false;
    bool aside = false;    // received data goes into the detour buffer first
    bool arrived = false;  // and has arrived there
    weir_transport_op_t op{};
    Header header{};
  };
  // One lane of one slice in flight.
  struct Lane {
    uint32_t program_lane = 0;
    uint32_t transport_lane = 0;
    uint64_t slice = 0;
    uint32_t next_op = 0;
    // The receives of next_op and the operations after it, in order; the first `receives_under_way`
    // are in use. Only the first may need the detour buffer.
    std::vector<std::unique_ptr<Receive>> receives;
    size_t receives_under_way = 0;
    std::vector<unsigned char> detour;
    // The first `sends_under_way` of them are posted, and the transport refers to them: their
    // addresses do not change. There are never more than the program of one slice has.
    std::vector<std::unique_ptr<Send>> sends;
    size_t sends_under_way = 0;
    // By peer: the sequence number of the latest operation whose header was sent or received.
    std::vector<uint64_t> greeted_to, greeted_from;
  };

  enum class Outcome : uint8_t { kMoved, kBlocked, kFinished, kFailed };
  Outcome step(Context& context, Lane& lane);
  Outcome post_send(Context& context, Lane& lane, Rank peer, const void* data, uint64_t bytes);
  // The bytes that the operation moves in the lane's slice, or folds from each operand; nullopt: it
  // is skipped in this slice.
  std::optional<uint64_t> bytes_of(const Lane& lane, const LaneOp& op) const;
  void copy(const LaneOp& op, unsigned char* dst, const unsigned char* src, uint64_t bytes);
  void fold_tree(const Lane& lane, const LaneOp& op, unsigned char* dst, uint64_t bytes);
  // Advances the receive at next_op and those right after it. kMoved when one of them advanced.
  Outcome run_receives(Context& context, Lane& lane);
  void begin_receives(Context& context, Lane& lane);
  // kMoved when it advanced; `complete` says whether it is done.
  Outcome advance_receive(Context& context, Lane& lane, Receive& receive);
  // kMoved when complete.
  Outcome run_recv(Context& context, Lane& lane, Receive& receive, void* data, uint64_t bytes);
  Outcome run_recv_behind_sends(Context& context, Lane& lane, Receive& receive);
  // False after a failure, and while a send of the lane that reads [data, data + bytes), or any
  // send when `data` is nullptr, is not complete.
  bool settle_sends(Context& context, Lane& lane, const unsigned char* data, uint64_t bytes);
  // False after a failure, and while a send of any lane that reads [data, data + bytes) is not
  // complete: a lane may write what another one sends once that has signalled it.
  bool may_write(Context& context, Lane& lane, const unsigned char* data, uint64_t bytes);
  void transport_failed(Context& context, weir_result_t result, Rank peer, const char* what);
  bool check_peer_call(Context& context, Rank peer);
  unsigned char* address(const Lane& lane, const LanePlace& place) const;
  void finish();

  // To the lines of the processor, like the slots of a transport.
  static constexpr std::align_val_t kArenaAlignment{64};
  struct ArenaDelete {
    void operator()(unsigned char* memory) const { ::operator delete(memory, kArenaAlignment); }
  };

  const LanePlan* plan_ = nullptr;
  const Call* call_ = nullptr;
  uint32_t mark_ = 0;
  uint64_t sequence_ = 0;
  uint64_t start_ = 0;
  Header own_header_{};
  Rank other_rank_ = 0;
  Header other_header_{};
  const unsigned char* input_ = nullptr;
  unsigned char* output_ = nullptr;
  std::vector<Lane> lanes_;
  std::vector<uint64_t> signals_;  // [slice in flight][index], counted over the slices run there
  std::vector<const void*> sources_;
  std::vector<TreeOperand> tree_operands_;
  std::unique_ptr<unsigned char, ArenaDelete> arena_;
  uint64_t arena_bytes_ = 0;
};

}  // namespace weir::engine
