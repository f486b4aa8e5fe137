// SPDX-License-Identifier: Apache-2.0
// Guest: the bootstrap of every rank but 0. It knocks, proves itself, and from then on gives its
// blob to rank 0 and takes those of all. One thread at a time per object.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/comm/bootstrap.h"
#include "core/comm/bootstrap_channel.h"

namespace weir::comm {

class Guest final : public Bootstrap {
 public:
  // Knocks once. Null when nobody listens, or who listens hung up before it proved itself: knock
  // again later. Otherwise rank 0 has let us in, and await_ready comes next.
  static Result<std::unique_ptr<Guest>> knock(const Secret& secret, Rank rank, Rank rank_count,
                                              uint64_t deadline_ns);
  // The same over the network, at each address of `place`. Null also when who listens there is
  // somebody else: several secrets may share a port. `look` counts the calls: it chooses the port,
  // and later looks wait longer for an answer.
  static Result<std::unique_ptr<Guest>> knock_at(const Place& place, uint32_t look,
                                                 const Secret& secret, Rank rank, Rank rank_count,
                                                 uint64_t deadline_ns);
  // Blocks until all ranks are in.
  Status await_ready(uint64_t deadline_ns);

  Result<std::vector<std::string>> all_gather(std::string_view blob, uint64_t deadline_ns) override;

 private:
  Guest(Rank rank, Rank rank_count, Channel channel, int64_t host_pid)
      : rank_(rank), rank_count_(rank_count), channel_(std::move(channel)), host_pid_(host_pid) {}

  static Result<std::unique_ptr<Guest>> enter(Channel channel, int64_t host_pid,
                                              const Secret& secret, Rank rank, Rank rank_count,
                                              uint64_t deadline_ns);

  // Each ends in a frame of one of the expected kinds, or in an error. kFailure is always expected
  // and becomes the error.
  Status await_frame(wire::Kind expected, uint64_t deadline_ns);
  Status leave(const Status& status);
  std::string occasion() const;

  Rank rank_;
  Rank rank_count_;
  Channel channel_;
  int64_t host_pid_;
  uint32_t round_ = 0;
  Status broken_;
};

}  // namespace weir::comm
