// SPDX-License-Identifier: Apache-2.0
#include "core/comm/bootstrap_host.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/clock.h"
#include "core/comm/rank_list.h"

namespace weir::comm {
namespace {

using wire::Kind;

constexpr uint64_t kMarginNsMax = 50'000'000;
// How long a failure may take to reach the members that do not read just now.
constexpr uint64_t kFarewellNs = 100'000'000;

// Rank 0 gives up a little before the deadline, so that the others hear why before theirs.
uint64_t early(uint64_t deadline_ns, uint64_t now) {
  if (deadline_ns <= now) return deadline_ns;
  return deadline_ns - std::min((deadline_ns - now) / 8, kMarginNsMax);
}

}  // namespace

Result<std::unique_ptr<Bootstrap>> Host::join(std::unique_ptr<Door> door, Rank rank_count,
                                              uint64_t deadline_ns) {
  std::unique_ptr<Host> host(new Host(rank_count));
  host->start_clock(deadline_ns);
  host->members_[0].done = true;
  WEIR_RETURN_IF_ERROR(host->await_members(door.get()));
  for (Rank rank = 1; rank < rank_count; ++rank) {
    host->members_[rank].channel.send(wire::encode_ready());
  }
  WEIR_RETURN_IF_ERROR(host->deliver());
  return std::unique_ptr<Bootstrap>(std::move(host));
}

void Host::start_clock(uint64_t deadline_ns) {
  start_ns_ = now_ns();
  deadline_ns_ = early(deadline_ns, start_ns_);
}

void Host::heed_patience(uint64_t patience_us) {
  const uint64_t now = now_ns();
  if (patience_us > (UINT64_MAX - now) / 1000) return;
  deadline_ns_ = std::min(deadline_ns_, early(now + patience_us * 1000, now));
}

std::string Host::occasion() const {
  return round_ == 0 ? "all ranks had joined" : fmt::format("all_gather {} was complete", round_);
}

std::vector<Rank> Host::missing() const {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < members_.size(); ++rank) {
    if (!members_[rank].done) ranks.push_back(rank);
  }
  return ranks;
}

Status Host::await_members(Door* door) {
  Rank here_count = 1;
  std::vector<pollfd> entries;
  while (here_count < members_.size()) {
    if (now_ns() >= deadline_ns_) return time_out(door->turned_away());
    entries.clear();
    door->append_poll_entries(&entries);
    const size_t first_member = entries.size();
    append_poll_entries(&entries);
    const Status waited = wait_for_events(&entries, std::min(deadline_ns_, door->next_expiry_ns()));
    if (!waited.ok()) return fail(waited);
    const Status served = door->serve(entries.data(), &arrivals_);
    if (!served.ok()) return fail(served);
    WEIR_RETURN_IF_ERROR(read_members(entries.data() + first_member));
    for (Arrival& arrival : arrivals_) {
      WEIR_RETURN_IF_ERROR(admit(&arrival));
      ++here_count;
    }
    arrivals_.clear();
  }
  return Status();
}

Status Host::admit(Arrival* arrival) {
  const wire::Claim& claim = arrival->claim;
  const std::string who = fmt::format("rank {} ({})", claim.rank, describe_process(arrival->pid));
  if (claim.rank_count != members_.size()) {
    return fail(Status(Code::kRefused,
                       fmt::format("{} was started with rank_count {}, rank 0 with rank_count {}; "
                                   "all ranks must give the same",
                                   who, claim.rank_count, members_.size())));
  }
  if (claim.rank >= members_.size()) {
    return fail(
        Status(Code::kRefused, fmt::format("{} is not below rank_count {}", who, members_.size())));
  }
  Member& member = members_[claim.rank];
  if (member.done) {
    const std::string first =
        claim.rank == 0 ? "the process that listens for all" : describe_process(member.pid);
    return fail(
        Status(Code::kRefused,
               fmt::format("two ranks say that they are rank {} of {}: {} and {}; give every "
                           "rank its own number",
                           claim.rank, members_.size(), first, describe_process(arrival->pid))));
  }
  member.channel = std::move(arrival->channel);
  member.pid = arrival->pid;
  member.done = true;
  heed_patience(claim.patience_us);
  // What does not fit into the socket now goes out with the first frame that follows.
  if (!member.channel.flush()) return lose({claim.rank});
  return Status();
}

// Only members that are here: poll refuses more entries than files may be open, unused ones
// included.
void Host::append_poll_entries(std::vector<pollfd>* entries) const {
  for (const Member& member : members_) {
    if (member.channel.is_open()) entries->push_back({member.channel.fd(), POLLIN, 0});
  }
}

Status Host::read_members(const pollfd* first) {
  std::vector<Rank> lost;
  for (Rank rank = 1; rank < members_.size(); ++rank) {
    if (!members_[rank].channel.is_open() || (first++)->revents == 0) continue;
    bool is_lost = false;
    WEIR_RETURN_IF_ERROR(read_member(rank, &is_lost));
    if (is_lost) lost.push_back(rank);
  }
  return lost.empty() ? Status() : lose(lost);
}

Status Host::read_member(Rank rank, bool* lost) {
  Member& member = members_[rank];
  const wire::Header& header = member.channel.header();
  for (;;) {
    switch (member.done ? member.channel.read({Kind::kFailure})
                        : member.channel.read({Kind::kFailure, Kind::kGive})) {
      case Channel::Read::kNothing:
        return Status();
      case Channel::Read::kClosed:
        *lost = true;
        return Status();
      case Channel::Read::kFrame:
        if (header.kind == Kind::kFailure) {
          return fail(wire::decode_failure(member.channel.payload()));
        }
        if (header.round == round_) {
          uint64_t patience_us = 0;
          member.blob = wire::decode_give(member.channel.payload(), &patience_us);
          member.done = true;
          heed_patience(patience_us);
          continue;  // it may have given up since
        }
        [[fallthrough]];
      case Channel::Read::kOtherVersion:
      case Channel::Read::kMalformed:
        return fail(
            Status(Code::kInternal,
                   fmt::format("rank {} ({}) sent a frame that is out of turn before {} (kind {}, "
                               "round {}, {} bytes)",
                               rank, describe_process(member.pid), occasion(),
                               static_cast<int>(header.kind), header.round, header.payload_bytes)));
    }
  }
}

Result<std::vector<std::string>> Host::all_gather(std::string_view blob, uint64_t deadline_ns) {
  if (!broken_.ok()) return broken_;
  if (blob.size() > kBlobBytesMax) {
    return invalid_argument(fmt::format("all_gather: a blob of {} bytes is above the limit of {}",
                                        blob.size(), kBlobBytesMax));
  }
  ++round_;
  start_clock(deadline_ns);
  WEIR_RETURN_IF_ERROR(gather(blob));
  std::vector<std::string> blobs;
  blobs.reserve(members_.size());
  for (Rank rank = 0; rank < members_.size(); ++rank) {
    wire::append_take(round_, rank, members_[rank].blob, &result_);
    blobs.push_back(std::move(members_[rank].blob));
    members_[rank].blob.clear();
  }
  for (Rank rank = 1; rank < members_.size(); ++rank) members_[rank].channel.send_view(result_);
  WEIR_RETURN_IF_ERROR(deliver());
  result_ = std::string();
  return blobs;
}

Status Host::gather(std::string_view blob) {
  for (Member& member : members_) member.done = false;
  members_[0].blob = blob;
  members_[0].done = true;
  std::vector<pollfd> entries;
  for (;;) {
    const bool complete =
        std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.done; });
    if (complete) return Status();
    if (now_ns() >= deadline_ns_) return time_out("");
    entries.clear();
    append_poll_entries(&entries);
    const Status waited = wait_for_events(&entries, deadline_ns_);
    if (!waited.ok()) return fail(waited);
    WEIR_RETURN_IF_ERROR(read_members(entries.data()));
  }
}

// A member that has taken everything may leave; that it has is noticed in the next round, if any.
Status Host::deliver() {
  std::vector<Rank> lost;
  std::vector<Rank> busy;
  for (Rank rank = 1; rank < members_.size(); ++rank) busy.push_back(rank);
  std::vector<pollfd> entries;
  for (;;) {
    std::erase_if(busy, [&](Rank rank) {
      Channel& channel = members_[rank].channel;
      if (!channel.flush()) {
        lost.push_back(rank);
        return true;
      }
      return !channel.sending();
    });
    if (busy.empty()) break;
    if (now_ns() >= deadline_ns_) {
      return fail(Status(Code::kTimeout, fmt::format("timed out: {} did not take what the others "
                                                     "gave before {}",
                                                     describe_ranks(busy), occasion())));
    }
    entries.clear();
    for (const Rank rank : busy) entries.push_back({members_[rank].channel.fd(), POLLOUT, 0});
    const Status waited = wait_for_events(&entries, deadline_ns_);
    if (!waited.ok()) return fail(waited);
  }
  // They may have left word why.
  for (const Rank rank : lost) {
    bool is_lost = false;
    WEIR_RETURN_IF_ERROR(read_member(rank, &is_lost));
  }
  std::sort(lost.begin(), lost.end());
  return lost.empty() ? Status() : lose(lost);
}

Status Host::lose(const std::vector<Rank>& lost) {
  std::string processes;
  for (size_t i = 0; i < lost.size() && i < 4; ++i) {
    processes += (i > 0 ? ", " : "") + describe_process(members_[lost[i]].pid);
  }
  if (lost.size() > 4) processes += ", …";
  return fail(Status(Code::kPeerLost,
                     fmt::format("{} of {} ({}) ended, or gave up, before {}", describe_ranks(lost),
                                 members_.size(), processes, occasion())));
}

Status Host::time_out(const std::string& turned_away) {
  const double seconds = static_cast<double>(now_ns() - start_ns_) * 1e-9;
  const std::vector<Rank> ranks = missing();
  const char* have = ranks.size() == 1 ? "has" : "have";
  if (round_ == 0) {
    return fail(
        Status(Code::kTimeout,
               fmt::format("timed out: {} of {} {} not joined within {:.3g} s; start them on "
                           "this machine, as the same user, with the same id{}",
                           describe_ranks(ranks), members_.size(), have, seconds, turned_away)));
  }
  return fail(Status(Code::kTimeout,
                     fmt::format("timed out: {} of {} {} not come to all_gather {} within {:.3g} s",
                                 describe_ranks(ranks), members_.size(), have, round_, seconds)));
}

Status Host::fail(const Status& status) {
  broken_ = status;
  std::vector<Channel*> open;
  for (Member& member : members_) {
    if (member.channel.is_open()) open.push_back(&member.channel);
  }
  for (Arrival& arrival : arrivals_) {
    if (arrival.channel.is_open()) open.push_back(&arrival.channel);
  }
  for (Channel* channel : open) channel->send(wire::encode_failure(round_, status));
  const uint64_t until_ns = now_ns() + kFarewellNs;
  std::vector<pollfd> entries;
  for (;;) {
    std::erase_if(open, [](Channel* channel) { return !channel->flush() || !channel->sending(); });
    if (open.empty() || now_ns() >= until_ns) break;
    entries.clear();
    for (const Channel* channel : open) entries.push_back({channel->fd(), POLLOUT, 0});
    if (!wait_for_events(&entries, until_ns).ok()) break;
  }
  for (Member& member : members_) member.channel.close();
  arrivals_.clear();
  result_ = std::string();
  return status;
}

}  // namespace weir::comm
