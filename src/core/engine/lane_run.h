// SPDX-License-Identifier: Apache-2.0
// LaneRun: executes a LanePlan over the transport's send and recv. Lanes advance independently; a
// send is posted and overtaken until an operation needs its memory, so that a program ends also
// where the transport keeps every message until its receiver takes it. Restarted for each operation:
// a warm call allocates nothing.
#pragma once

#include <cstdint>
#include <memory>
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

  // What precedes the first message between two ranks in an operation where no memory is shared:
  // says which call it belongs to.
  struct Header {
    uint64_t flag = 0;  // call_flag
    uint64_t what = 0;
    uint64_t count = 0;
  };
  // Of the latest operation; all zero when there was none.
  const Header& header() const { return own_header_; }
  // After kMismatch without a text: the rank that called otherwise, and what.
  Rank other_rank() const { return other_rank_; }
  const Header& other_header() const { return other_header_; }

 private:
  static constexpr uint32_t kSendsAtFirst = 8;

  struct Send {
    Rank peer = 0;
    const unsigned char* data = nullptr;
    uint64_t bytes = 0;
    weir_transport_op_t op{};
  };
  // One lane of one slice in flight.
  struct Lane {
    uint32_t program_lane = 0;
    uint32_t transport_lane = 0;
    uint64_t slice = 0;
    uint32_t next_op = 0;
    bool receiving = false;
    bool aside = false;    // what is received goes into the detour first
    bool arrived = false;  // and is there
    std::vector<unsigned char> detour;
    weir_transport_op_t recv_op{};
    Header received{};
    // A transport holds on to those that are under way: they stay where they are. The first
    // `sends_under_way` of them are. There are never more than one slice's program has.
    std::vector<std::unique_ptr<Send>> sends;
    size_t sends_under_way = 0;
    std::vector<uint8_t> greeted_to, greeted_from;  // by peer; headers only
  };

  enum class Outcome : uint8_t { kMoved, kBlocked, kFinished, kFailed };
  Outcome step(Context& context, Lane& lane);
  Outcome post_send(Context& context, Lane& lane, Rank peer, const void* data, uint64_t bytes);
  // kMoved when complete.
  Outcome run_recv(Context& context, Lane& lane, Rank peer, void* data, uint64_t bytes);
  Outcome run_recv_behind_sends(Context& context, Lane& lane, Rank peer, unsigned char* data,
                                uint64_t bytes);
  // False while some of the lane's sends that read [data, data + bytes), all of them when `data` is
  // nullptr, have not left; and after a failure.
  bool settle_sends(Context& context, Lane& lane, const unsigned char* data, uint64_t bytes);
  void transport_failed(Context& context, weir_result_t result, Rank peer, const char* what);
  bool check_peer_call(Context& context, Rank peer);
  unsigned char* address(const Lane& lane, const LanePlace& place) const;
  void finish();

  const LanePlan* plan_ = nullptr;
  const Call* call_ = nullptr;
  uint32_t fingerprint_ = 0;
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
  std::unique_ptr<unsigned char[]> arena_;
  uint64_t arena_bytes_ = 0;
};

}  // namespace weir::engine
