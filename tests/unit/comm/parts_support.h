// SPDX-License-Identifier: Apache-2.0
// The state of a communicator without one: the ranks share memory of the test, so that it can write
// what a peer would write; and operations that say what the test wants.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/comm/requests/operation_status.h"
#include "core/comm/state/comm_state.h"
#include "core/engine/control.h"

namespace weir::comm {

constexpr uint64_t kTestStagingBytes = 65536;

// Memory that ranks share, and a transport that can do nothing.
class MappedRanks {
 public:
  explicit MappedRanks(Rank rank_count)
      : rank_count_(rank_count),
        memory_(static_cast<unsigned char*>(std::aligned_alloc(4096, rank_count * kStride)),
                std::free) {
    std::memset(memory_.get(), 0, rank_count * kStride);
    transport_.struct_bytes = sizeof transport_;
    transport_.name = "double";
    transport_.caps.lane_count = 8;
  }
  // With rank 0 of them.
  MappedRanks(Rank rank_count, CommState* state) : MappedRanks(rank_count) { join(0, state); }

  // Fills in `state` as that of `rank`.
  void join(Rank rank, CommState* state) const {
    state->name = "test";
    state->timeout_ms = 1000;
    engine::Context& context = state->context;
    context.rank = rank;
    context.rank_count = rank_count_;
    context.transport = &transport_;
    context.peers.resize(rank_count_);
    context.segment_base = memory_.get();
    context.segment_stride_bytes = kStride;
    context.staging_bytes = kTestStagingBytes;
  }

 private:
  static constexpr size_t kStride = engine::kStagingOffset + kTestStagingBytes;
  static_assert(kStride % 4096 == 0);

  Rank rank_count_;
  std::unique_ptr<unsigned char, void (*)(void*)> memory_;
  weir_transport_functions_t transport_{};
};

class FakeOperations final : public OperationStatus {
 public:
  bool any() const override { return first != nullptr || !awaited.empty(); }
  void collect_awaited(const Request&, std::vector<Rank>* ranks) const override {
    *ranks = awaited;
  }
  void collect_awaited_by_all(std::vector<Rank>* ranks) const override { *ranks = awaited; }
  const Request* first_collective() const override { return first; }
  bool is_with_device(const Request&) const override { return false; }
  bool waits_for_stream(const Request&) const override { return false; }
  uint64_t finished_sequence() const override { return 0; }
  const engine::LaneRun::Header& own_header() const override { return header; }
  const engine::LaneRun::Header& other_header() const override { return header; }
  Rank other_rank() const override { return 0; }
  Wait describe_wait(const Request&) const override { return {}; }
  void fail_all(const Status& status) override { failures.push_back(status); }

  std::vector<Rank> awaited;
  const Request* first = nullptr;
  engine::LaneRun::Header header;
  std::vector<Status> failures;
};

}  // namespace weir::comm
