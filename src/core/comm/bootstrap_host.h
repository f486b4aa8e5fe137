// SPDX-License-Identifier: Apache-2.0
// Host: the bootstrap of rank 0. It gathers from all ranks and tells all; when it fails, it tells
// those who are there why, so that every rank returns the same text. One thread at a time per
// object.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/comm/bootstrap.h"
#include "core/comm/bootstrap_door.h"

namespace weir::comm {

class Host final : public Bootstrap {
 public:
  // Blocks until all ranks are in, or fails for all that are.
  static Result<std::unique_ptr<Bootstrap>> join(std::unique_ptr<Door> door, Rank rank_count,
                                                 uint64_t deadline_ns);

  Result<std::vector<std::string>> all_gather(std::string_view blob, uint64_t deadline_ns) override;

 private:
  struct Member {
    Channel channel;
    int64_t pid = 0;
    bool done = false;  // has joined, has given its blob
    std::string blob;
  };

  explicit Host(Rank rank_count) : members_(rank_count) {}

  // Each of these fails for all: on error the members have been told and `broken_` is set.
  Status await_members(Door* door);
  Status admit(Arrival* arrival);
  Status gather(std::string_view blob);
  Status deliver();
  // `first`: the entries that append_poll_entries gave.
  Status read_members(const pollfd* first);
  Status read_member(Rank rank, bool* lost);
  Status lose(const std::vector<Rank>& lost);
  Status time_out(const std::string& turned_away);
  Status fail(const Status& status);

  std::string occasion() const;  // "the communicator was formed", "all_gather 3 was complete"
  std::vector<Rank> missing() const;
  void append_poll_entries(std::vector<pollfd>* entries) const;
  // The earliest deadline of those who are here decides for all, so that all hear the same.
  void start_clock(uint64_t deadline_ns);
  void heed_patience(uint64_t patience_us);

  std::vector<Arrival> arrivals_;  // proven, but not yet members
  std::vector<Member> members_;    // by rank; [0] is this one and has no channel
  uint32_t round_ = 0;
  uint64_t start_ns_ = 0;
  uint64_t deadline_ns_ = 0;
  std::string result_;  // the frames of all ranks, which the channels have views of
  Status broken_;
};

}  // namespace weir::comm
