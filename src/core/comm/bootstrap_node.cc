// SPDX-License-Identifier: Apache-2.0
#include "core/comm/bootstrap_node.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/comm/bootstrap_socket.h"
#include "core/comm/rank_list.h"

namespace weir::comm {
namespace {

using wire::Kind;

constexpr uint64_t kMarginNsMax = 50'000'000;
constexpr uint64_t kGraceNsMin = 50'000'000;
constexpr uint64_t kGraceNsMax = 1'000'000'000;
// Frames of records are closed at this size.
constexpr size_t kBatchBytes = 64 << 10;
constexpr int64_t kNotHere = INT64_MIN;

uint64_t early(uint64_t deadline_ns, uint64_t now_ns) {
  if (deadline_ns <= now_ns) return deadline_ns;
  return deadline_ns - std::min((deadline_ns - now_ns) / 8, kMarginNsMax);
}

uint64_t patience_us(uint64_t deadline_ns, uint64_t now_ns) {
  return deadline_ns > now_ns ? (deadline_ns - now_ns) / 1000 : 0;
}

uint64_t deadline_of(uint64_t patience_us, uint64_t now_ns) {
  if (patience_us > (UINT64_MAX - now_ns) / 1000) return UINT64_MAX;
  return now_ns + patience_us * 1000;
}

}  // namespace

uint64_t with_grace(uint64_t deadline_ns, uint64_t now_ns) {
  const uint64_t time_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
  const uint64_t grace_ns = std::clamp(time_ns / 4, kGraceNsMin, kGraceNsMax);
  return deadline_ns > UINT64_MAX - grace_ns ? UINT64_MAX : deadline_ns + grace_ns;
}

Node::Node(Rank self, Rank rank_count, uint64_t now_ns, uint64_t deadline_ns, uint64_t began_ns)
    : self_(self),
      rank_count_(rank_count),
      began_ns_(began_ns == 0 ? now_ns : began_ns),
      start_ns_(now_ns),
      deadline_ns_(deadline_ns) {
  expiry_ns_ = with_grace(deadline_ns, now_ns);
}

// ---- Joining

void Node::be_root() {
  is_root_ = true;
  pids_.assign(rank_count_, kNotHere);
  pids_[self_] = 0;
  here_count_ = 1;
  expiry_ns_ = early(deadline_ns_, start_ns_);
  check_joined();
}

void Node::set_parent(Rank rank, int64_t pid) { parent_ = Peer{kUp, rank, pid, std::nullopt}; }

void Node::add_child(Link link, const wire::Claim& claim, int64_t pid, uint64_t now_ns) {
  if (!status_.ok()) return;
  const std::string who = fmt::format("rank {} ({})", claim.rank, describe_process(pid));
  children_.push_back(Peer{link, claim.rank, pid, std::nullopt});
  if (claim.rank_count != rank_count_) {
    fail(Status(Code::kRefused,
                fmt::format("{} was started with rank_count {}, rank {} with rank_count {}; all "
                            "ranks must give the same",
                            who, claim.rank_count, self_, rank_count_)));
    return;
  }
  if (claim.rank >= rank_count_) {
    fail(Status(Code::kRefused, fmt::format("{} is not below rank_count {}", who, rank_count_)));
    return;
  }
  const wire::Member member{claim.rank, claim.rank_count, pid, claim.patience_us};
  if (is_root_) {
    judge(member, now_ns);
    check_joined();
  } else {
    keep_for_parent(member, now_ns);
  }
}

void Node::keep_for_parent(wire::Member member, uint64_t now_ns) {
  member.patience_us = deadline_of(member.patience_us, now_ns);
  members_up_.push_back(member);
}

std::optional<wire::DoorAddress> Node::redirect() {
  for (size_t i = 0; i < children_.size(); ++i) {
    const Peer& child = children_[next_redirect_++ % children_.size()];
    if (child.door) return child.door;
  }
  return std::nullopt;
}

void Node::tell_door(const wire::DoorAddress& address) {
  sends_.push_back({kUp, wire::encode_door(address)});
}

void Node::judge(const wire::Member& member, uint64_t now_ns) {
  if (!status_.ok()) return;
  if (member.rank >= rank_count_ || member.rank_count != rank_count_) {
    fail(Status(Code::kRefused,
                fmt::format("rank {} ({}) was started with rank_count {}, rank {} with rank_count "
                            "{}; all ranks must give the same",
                            member.rank, describe_process(member.pid), member.rank_count, self_,
                            rank_count_)));
    return;
  }
  if (pids_[member.rank] != kNotHere) {
    const std::string first = member.rank == self_ ? "the process that listens for all"
                                                   : describe_process(pids_[member.rank]);
    fail(Status(Code::kRefused,
                fmt::format("two ranks say that they are rank {} of {}: {} and {}; give every rank "
                            "its own number",
                            member.rank, rank_count_, first, describe_process(member.pid))));
    return;
  }
  pids_[member.rank] = member.pid;
  ++here_count_;
  heed(deadline_of(member.patience_us, now_ns), now_ns);
}

void Node::check_joined() {
  if (!is_root_ || !status_.ok() || here_count_ < rank_count_) return;
  for (const Peer& child : children_) sends_.push_back({child.link, wire::encode_ready()});
  state_ = State::kDone;
}

void Node::add_members(std::string_view payload, uint64_t now_ns) {
  for (const wire::Member& member : wire::decode_members(payload)) {
    if (is_root_) {
      judge(member, now_ns);
    } else {
      keep_for_parent(member, now_ns);
    }
  }
  check_joined();
}

// The earliest deadline of those who are here decides for all, so that all hear the same.
void Node::heed(uint64_t deadline_ns, uint64_t now_ns) {
  // Clocks and scheduling alone make some difference.
  constexpr uint64_t kSameNs = 50'000'000;
  if (deadline_ns < deadline_ns_ && deadline_ns_ - deadline_ns > kSameNs) {
    others_left_ns_ = deadline_ns - std::min(deadline_ns, now_ns);
  }
  deadline_ns_ = std::min(deadline_ns_, deadline_ns);
  if (is_root_) expiry_ns_ = std::min(expiry_ns_, early(deadline_ns, now_ns));
}

// ---- Rounds

void Node::start_round(std::string_view blob, uint64_t now_ns, uint64_t deadline_ns) {
  ++round_;
  start_ns_ = now_ns;
  others_left_ns_.reset();
  deadline_ns_ = deadline_ns;
  expiry_ns_ = is_root_ ? early(deadline_ns, now_ns) : with_grace(deadline_ns, now_ns);
  state_ = State::kBusy;
  blobs_.clear();
  if (is_root_) blobs_.resize(rank_count_);
  given_.assign(is_root_ ? rank_count_ : 0, false);
  blob_count_ = 0;
  std::string record;
  wire::append_record(self_, blob, &record);
  give(record, nullptr);
}

void Node::give(std::string_view records, const Peer* from) {
  while (!records.empty()) {
    Rank rank = 0;
    std::string_view blob;
    const std::string_view before = records;
    if (!wire::take_record(&records, &rank, &blob) || rank >= rank_count_ ||
        (is_root_ && given_[rank])) {
      const std::string who = from != nullptr ? describe(*from) : "this rank";
      fail(Status(Code::kInternal,
                  fmt::format("{} sent records that are damaged before {}", who, occasion())));
      return;
    }
    if (is_root_) {
      given_[rank] = true;
      blobs_[rank] = blob;
      ++blob_count_;
    } else {
      records_up_.append(before.substr(0, before.size() - records.size()));
      record_ends_.push_back(records_up_.size());
    }
  }
  if (is_root_ && blob_count_ == rank_count_) send_all_down();
}

void Node::send_all_down() {
  std::string records;
  const auto close_batch = [&] {
    if (records.empty()) return;
    const std::string frame = wire::encode_take(round_, records);
    for (const Peer& child : children_) sends_.push_back({child.link, frame});
    records.clear();
  };
  for (Rank rank = 0; rank < rank_count_ && !children_.empty(); ++rank) {
    if (records.size() + wire::kRecordHeaderBytes + blobs_[rank].size() > kBatchBytes) {
      close_batch();
    }
    wire::append_record(rank, blobs_[rank], &records);
  }
  close_batch();
  state_ = State::kDone;
}

void Node::take(std::string_view records, const wire::Header& header) {
  const std::string_view payload = records;
  blobs_.resize(rank_count_);
  while (!records.empty()) {
    Rank rank = 0;
    std::string_view blob;
    if (!wire::take_record(&records, &rank, &blob) || rank != blob_count_ ||
        blob_count_ == rank_count_) {
      out_of_turn(*parent_, header);
      return;
    }
    blobs_[rank] = blob;
    ++blob_count_;
  }
  for (const Peer& child : children_) {
    sends_.push_back({child.link, wire::encode_take(round_, payload)});
  }
  if (blob_count_ == rank_count_) state_ = State::kDone;
}

std::vector<std::string> Node::take_blobs() { return std::move(blobs_); }

void Node::flush_up(uint64_t now_ns) {
  if (!parent_ || !status_.ok()) return;
  for (wire::Member& member : members_up_) {
    member.patience_us = patience_us(member.patience_us, now_ns);
  }
  for (size_t at = 0; at < members_up_.size();) {
    const size_t count = std::min(members_up_.size() - at, wire::kMembersMax);
    sends_.push_back({kUp, wire::encode_members(&members_up_[at], count)});
    at += count;
  }
  members_up_.clear();
  size_t begin = 0;
  for (size_t i = 0; i < record_ends_.size(); ++i) {
    const bool last = i + 1 == record_ends_.size();
    if (!last && record_ends_[i + 1] - begin <= kBatchBytes) continue;
    const std::string_view batch =
        std::string_view(records_up_).substr(begin, record_ends_[i] - begin);
    sends_.push_back({kUp, wire::encode_give(round_, patience_us(deadline_ns_, now_ns), batch)});
    begin = record_ends_[i];
  }
  records_up_.clear();
  record_ends_.clear();
}

// ---- Events

Node::Peer* Node::find_child(Link link) {
  const auto it = std::find_if(children_.begin(), children_.end(),
                               [link](const Peer& peer) { return peer.link == link; });
  return it == children_.end() ? nullptr : &*it;
}

const Node::Peer* Node::find(Link link) const {
  if (link == kUp) return parent_ ? &*parent_ : nullptr;
  return const_cast<Node*>(this)->find_child(link);
}

std::string Node::occasion() const {
  return round_ == 0 ? "all ranks had joined" : fmt::format("all_gather {} was complete", round_);
}

std::string Node::describe(const Peer& peer) const {
  return fmt::format("rank {} of {} ({})", peer.rank, rank_count_, describe_process(peer.pid));
}

std::vector<Kind> Node::expected(Link link) const {
  if (link == kUp) return {round_ == 0 ? Kind::kReady : Kind::kTake, Kind::kFailure};
  if (round_ == 0) return {Kind::kDoor, Kind::kMembers, Kind::kFailure};
  // A child may tell its door when the last rank has joined elsewhere.
  return {Kind::kGive, Kind::kDoor, Kind::kFailure};
}

void Node::receive(Link link, const wire::Header& header, std::string_view payload,
                   uint64_t now_ns) {
  if (!status_.ok()) return;
  const Peer* peer = find(link);
  WEIR_CHECK(peer != nullptr, "frames come over links that the node knows");
  if (header.kind == Kind::kFailure) {
    fail(wire::decode_failure(payload), link);
    return;
  }
  const std::vector<Kind> kinds = expected(link);
  if (std::find(kinds.begin(), kinds.end(), header.kind) == kinds.end() ||
      (header.kind != Kind::kDoor && header.round != round_)) {
    out_of_turn(*peer, header);
    return;
  }
  switch (header.kind) {
    case Kind::kReady:
      for (const Peer& child : children_) sends_.push_back({child.link, wire::encode_ready()});
      state_ = State::kDone;
      break;
    case Kind::kTake:
      take(payload, header);
      break;
    case Kind::kDoor: {
      wire::DoorAddress door;
      door.rank = peer->rank;
      if (wire::decode_door(payload, &door)) {
        find_child(link)->door = door;
      } else {
        out_of_turn(*peer, header);
      }
      break;
    }
    case Kind::kMembers:
      add_members(payload, now_ns);
      break;
    case Kind::kGive: {
      uint64_t patience = 0;
      const std::string_view records = wire::decode_give(payload, &patience);
      heed(deadline_of(patience, now_ns), now_ns);
      give(records, peer);
      break;
    }
    default:
      out_of_turn(*peer, header);
  }
}

void Node::receive_malformed(Link link, const wire::Header& header) {
  const Peer* peer = find(link);
  if (peer != nullptr && status_.ok()) out_of_turn(*peer, header);
}

void Node::receive_damaged(Link link) {
  const Peer* peer = find(link);
  if (peer == nullptr) return;
  fail(Status(Code::kSystem,
              fmt::format("what {} sent was changed on its way to rank {}, before {}; suspect "
                          "somebody on the network between the two",
                          describe(*peer), self_, occasion())));
}

void Node::out_of_turn(const Peer& peer, const wire::Header& header) {
  fail(Status(Code::kInternal,
              fmt::format("{} sent a frame that is out of turn before {} (kind {}, round {}, {} "
                          "bytes)",
                          describe(peer), occasion(), static_cast<int>(header.kind), header.round,
                          header.payload_bytes)));
}

void Node::closed(Link link) {
  if (status_.ok()) lost_.push_back(link);
}

void Node::end_turn(uint64_t now_ns) {
  // Neighbours may have been told of a round that is done already: it stays so.
  if (busy()) heed_losses();
  flush_up(now_ns);
}

void Node::heed_losses() {
  if (!lost_.empty() && status_.ok()) {
    std::vector<Rank> ranks;
    std::string processes;
    std::sort(lost_.begin(), lost_.end(), [this](Link a, Link b) {
      const Peer* first = find(a);
      const Peer* second = find(b);
      return first != nullptr && second != nullptr && first->rank < second->rank;
    });
    for (const Link link : lost_) {
      const Peer* peer = find(link);
      if (peer == nullptr) continue;
      ranks.push_back(peer->rank);
      if (ranks.size() <= 4) {
        processes += (ranks.size() > 1 ? ", " : "") + describe_process(peer->pid);
      }
    }
    if (ranks.size() > 4) processes += ", …";
    if (!ranks.empty()) {
      fail(Status(Code::kPeerLost,
                  fmt::format("{} of {} ({}) ended, or gave up, before {}", describe_ranks(ranks),
                              rank_count_, processes, occasion())));
    }
  }
  lost_.clear();
}

// The whole time there was, and what used it up where this wait is not what did.
std::string Node::describe_time(uint64_t now_ns) const {
  const double waited_s = static_cast<double>(now_ns - start_ns_) * 1e-9;
  if (others_left_ns_) {
    return fmt::format(
        "in time: another rank, whose timeout is over first, had {:.3g} s of it left when it came, "
        "and "
        "rank {} has waited {:.3g} s",
        static_cast<double>(*others_left_ns_) * 1e-9, self_, waited_s);
  }
  const double all_s = static_cast<double>(now_ns - std::min(began_ns_, now_ns)) * 1e-9;
  const std::string text = fmt::format("within {:.3g} s", all_s);
  if (waited_s > all_s / 2) return text;
  return text + fmt::format(", of which {:.3g} s had passed when rank {} came to this",
                            all_s - waited_s, self_);
}

void Node::expire(uint64_t now_ns, const std::string& remark) {
  if (!status_.ok()) return;
  if (!is_root_) {
    const std::string who = parent_ ? describe(*parent_) : "the root of the tree";
    fail(Status(Code::kTimeout, fmt::format("timed out: {} did not answer rank {} before {}; it is "
                                            "stopped, or has not come to it",
                                            who, self_, occasion())));
    return;
  }
  std::vector<Rank> missing;
  for (Rank rank = 0; rank < rank_count_; ++rank) {
    if (round_ == 0 ? pids_[rank] == kNotHere : !given_[rank]) missing.push_back(rank);
  }
  const char* have = missing.size() == 1 ? "has" : "have";
  if (round_ == 0) {
    fail(Status(Code::kTimeout,
                fmt::format("timed out: {} of {} {} not joined {}{}", describe_ranks(missing),
                            rank_count_, have, describe_time(now_ns), remark)));
  } else {
    fail(Status(Code::kTimeout, fmt::format("timed out: {} of {} {} not come to all_gather {} {}",
                                            describe_ranks(missing), rank_count_, have, round_,
                                            describe_time(now_ns))));
  }
}

void Node::expire_delivery(const std::vector<Link>& links) {
  std::vector<Rank> ranks;
  for (const Link link : links) {
    if (const Peer* peer = find(link)) ranks.push_back(peer->rank);
  }
  std::sort(ranks.begin(), ranks.end());
  fail(Status(Code::kTimeout,
              fmt::format("timed out: {} did not take what the others gave before {}",
                          describe_ranks(ranks), occasion())));
}

void Node::fail(const Status& status, std::optional<Link> told_by) {
  if (!status_.ok()) return;
  status_ = status;
  state_ = State::kDone;
  const std::string frame = wire::encode_failure(round_, status);
  if (parent_ && told_by != kUp) sends_.push_back({kUp, frame});
  for (const Peer& child : children_) {
    if (told_by != child.link) sends_.push_back({child.link, frame});
  }
  blobs_.clear();
}

std::vector<Node::Send> Node::take_sends() {
  std::vector<Send> sends;
  sends.swap(sends_);
  return sends;
}

}  // namespace weir::comm
