// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/bootstrap_node.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/rank_list.h"
#include "net/little_endian.h"

namespace weir::comm {
namespace {

constexpr uint64_t kMarginNsMax = 50'000'000;
constexpr uint64_t kGraceNsMin = 50'000'000;
constexpr uint64_t kGraceNsMax = 1'000'000'000;
// Messages of records are closed at this size.
constexpr size_t kBatchBytes = 64 << 10;
constexpr size_t kPatienceBytes = 8;
constexpr size_t kCodeBytes = 4;
static_assert(kPatienceBytes + kRecordHeaderBytes + kBlobBytesMax <= control::kStartBytesMax);

template <typename Integer>
std::string bytes_of(Integer value) {
  std::string bytes(sizeof value, '\0');
  net::put(reinterpret_cast<unsigned char*>(bytes.data()), value);
  return bytes;
}

template <typename Integer>
Integer integer_at(std::string_view bytes, size_t at = 0) {
  return net::get<Integer>(reinterpret_cast<const unsigned char*>(bytes.data()) + at);
}

uint64_t early(uint64_t deadline_ns, uint64_t now_ns) {
  if (deadline_ns <= now_ns) return deadline_ns;
  return deadline_ns - std::min((deadline_ns - now_ns) / 8, kMarginNsMax);
}

uint64_t deadline_of(uint64_t patience_us, uint64_t now_ns) {
  if (patience_us > (UINT64_MAX - now_ns) / 1000) return UINT64_MAX;
  return now_ns + patience_us * 1000;
}

}  // namespace

// ---- What messages hold

void append_record(Rank rank, std::string_view blob, std::string* records) {
  *records += bytes_of(rank) + bytes_of(static_cast<uint32_t>(blob.size()));
  *records += blob;
}

bool take_record(std::string_view* records, Rank* rank, std::string_view* blob) {
  if (records->size() < kRecordHeaderBytes) return false;
  *rank = integer_at<Rank>(*records);
  const size_t bytes = integer_at<uint32_t>(*records, 4);
  if (bytes > kBlobBytesMax || bytes > records->size() - kRecordHeaderBytes) return false;
  *blob = records->substr(kRecordHeaderBytes, bytes);
  records->remove_prefix(kRecordHeaderBytes + bytes);
  return true;
}

std::string pack_failure(const Status& status) {
  return bytes_of(static_cast<uint32_t>(status.code())) +
         status.text().substr(0, kFailureTextBytesMax);
}

Status unpack_failure(std::string_view payload) {
  const uint32_t number = payload.size() < kCodeBytes ? 0 : integer_at<uint32_t>(payload);
  const bool is_error = number > static_cast<uint32_t>(Code::kInProgress) &&
                        number <= static_cast<uint32_t>(Code::kInternal);
  std::string text(payload.substr(std::min(payload.size(), kCodeBytes), kFailureTextBytesMax));
  // UTF-8 passes; control characters, which could redraw a terminal, do not.
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  if (text.empty()) text = "another rank reported a failure without its reason";
  return Status(is_error ? static_cast<Code>(number) : Code::kInternal, std::move(text));
}

std::string pack_address(const ChildAddress& address) {
  return bytes_of(address.place.port) + pack(address.place);
}

bool unpack_address(std::string_view payload, ChildAddress* address) {
  if (payload.size() < sizeof address->place.port) return false;
  if (!unpack(payload.substr(sizeof address->place.port), &address->place)) return false;
  address->place.port = integer_at<uint16_t>(payload);
  return true;
}

std::string describe_process(int64_t process) {
  if (process == kElsewhere) return "a process on another host";
  return process > 0 ? fmt::format("process {}", process) : "a process in another PID namespace";
}

uint64_t with_grace(uint64_t deadline_ns, uint64_t now_ns) {
  const uint64_t time_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
  const uint64_t grace_ns = std::clamp(time_ns / 4, kGraceNsMin, kGraceNsMax);
  return deadline_ns > UINT64_MAX - grace_ns ? UINT64_MAX : deadline_ns + grace_ns;
}

uint64_t patience_until(uint64_t deadline_ns, uint64_t now_ns) {
  return deadline_ns > now_ns ? (deadline_ns - now_ns) / 1000 : 0;
}

// ---- Joining

Node::Node(Rank self, Rank rank_count, uint64_t now_ns, uint64_t deadline_ns, uint64_t began_ns)
    : self_(self),
      rank_count_(rank_count),
      began_ns_(began_ns == 0 ? now_ns : began_ns),
      start_ns_(now_ns),
      deadline_ns_(deadline_ns),
      expiry_ns_(with_grace(deadline_ns, now_ns)) {}

void Node::be_root() {
  is_root_ = true;
  blobs_.resize(rank_count_);
  given_.assign(rank_count_, false);
  given_[self_] = true;
  blob_count_ = 1;
  expiry_ns_ = early(deadline_ns_, start_ns_);
  if (blob_count_ == rank_count_) complete();
}

void Node::set_parent(Rank rank, int64_t process) { parent_ = Peer{kUp, rank, process}; }

void Node::add_child(Link link, const JoinedRank& joined, uint64_t now_ns) {
  if (!status_.ok()) return;
  const std::string who =
      fmt::format("rank {} ({})", joined.rank, describe_process(joined.process));
  children_.push_back(Peer{link, joined.rank, joined.process});
  if (joined.rank_count != rank_count_) {
    fail(
        Status(Code::kRefused, fmt::format("{} was started with rank_count {}, rank {} with "
                                           "rank_count {}; all ranks must pass the same rank_count",
                                           who, joined.rank_count, self_, rank_count_)));
    return;
  }
  if (joined.rank >= rank_count_) {
    fail(Status(Code::kRefused, fmt::format("{} is not below rank_count {}", who, rank_count_)));
    return;
  }
  heed(deadline_of(joined.patience_us, now_ns), now_ns);
  std::string record;
  append_record(joined.rank, bytes_of(joined.process), &record);
  give(record, link);
}

std::optional<ChildAddress> Node::redirect() {
  for (size_t i = 0; i < children_.size(); ++i) {
    const Peer& child = children_[next_redirect_++ % children_.size()];
    if (child.address) return child.address;
  }
  return std::nullopt;
}

void Node::tell_address(const ChildAddress& address) {
  sends_.push_back({kUp, Message::kAddress, 0, pack_address(address)});
}

// Checks a rank that joins, at the root.
bool Node::judge(Rank rank, std::string_view blob) {
  if (rank >= rank_count_ || blob.size() != sizeof(int64_t)) return false;
  if (!given_[rank]) return true;
  const auto process_of = [](std::string_view bytes) {
    return describe_process(static_cast<int64_t>(integer_at<uint64_t>(bytes)));
  };
  fail(Status(
      Code::kRefused,
      fmt::format(
          "two ranks joined as rank {} of {}: {} and {}; give each rank a number of its own", rank,
          rank_count_,
          rank == self_ ? "the process that listens for the other ranks" : process_of(blobs_[rank]),
          process_of(blob))));
  return false;
}

// The earliest deadline of the ranks that have come decides for all, so that all get the same
// result.
void Node::heed(uint64_t deadline_ns, uint64_t now_ns) {
  // Differences this small are due to clocks and scheduling.
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
  busy_ = true;
  blobs_.assign(is_root_ ? rank_count_ : 0, {});
  given_.assign(blobs_.size(), false);
  blob_count_ = 0;
  std::string record;
  append_record(self_, blob, &record);
  give(record, kUp);
  std::deque<Early> events;
  events.swap(early_);
  for (const Early& event : events) {
    if (!status_.ok()) return;
    handle(event, now_ns);
  }
}

// `from`: a child, or kUp for this rank's own records.
void Node::give(std::string_view records, Link from) {
  while (!records.empty() && status_.ok()) {
    Rank rank = 0;
    std::string_view blob;
    const std::string_view before = records;
    bool good = take_record(&records, &rank, &blob) && rank < rank_count_;
    if (good && is_root_) good = round_ == 0 ? judge(rank, blob) : !given_[rank];
    if (!good) {
      const Peer* const peer = find(from);
      fail(Status(Code::kInternal,
                  fmt::format("{} sent damaged records before {}",
                              peer != nullptr ? describe(*peer) : "this rank", occasion())));
    } else if (is_root_) {
      given_[rank] = true;
      blobs_[rank] = blob;
      ++blob_count_;
    } else {
      const std::string_view record = before.substr(0, before.size() - records.size());
      if (up_.empty() || up_.back().size() + record.size() > kBatchBytes) up_.emplace_back();
      up_.back() += record;
    }
  }
  if (is_root_ && blob_count_ == rank_count_ && busy_) complete();
}

// The root has the last record.
void Node::complete() {
  busy_ = false;
  if (round_ == 0) {
    blobs_.clear();
    return send_down({});
  }
  if (children_.empty()) return;
  std::string records;
  for (Rank rank = 0; rank < rank_count_; ++rank) {
    if (!records.empty() &&
        records.size() + kRecordHeaderBytes + blobs_[rank].size() > kBatchBytes) {
      send_down(std::exchange(records, {}));
    }
    append_record(rank, blobs_[rank], &records);
  }
  send_down(records);
}

void Node::take(const Early& event) {
  if (round_ == 0) {
    if (!event.payload.empty()) return out_of_turn(kUp, "records");
    busy_ = false;
    return send_down({});
  }
  blobs_.resize(rank_count_);
  for (std::string_view records = event.payload; !records.empty();) {
    Rank rank = 0;
    std::string_view blob;
    if (!take_record(&records, &rank, &blob) || rank != blob_count_ || blob_count_ == rank_count_) {
      return out_of_turn(kUp, "records");
    }
    blobs_[rank] = blob;
    ++blob_count_;
  }
  send_down(event.payload);
  busy_ = blob_count_ < rank_count_;
}

// ---- Events

const Node::Peer* Node::find(Link link) const {
  if (link == kUp) return parent_ ? &*parent_ : nullptr;
  const auto it = std::find_if(children_.begin(), children_.end(),
                               [link](const Peer& peer) { return peer.link == link; });
  return it == children_.end() ? nullptr : &*it;
}

std::string Node::occasion() const {
  return round_ == 0 ? "all ranks had joined" : fmt::format("all_gather {} was complete", round_);
}

std::string Node::describe(const Peer& peer) const {
  return fmt::format("rank {} of {} ({})", peer.rank, rank_count_, describe_process(peer.process));
}

std::string Node::silence_of_parent() const {
  if (!parent_) return "";
  return fmt::format("; {}, which should tell this to the others, does not answer: is it stopped?",
                     describe(*parent_));
}

void Node::receive(Link link, const control::Frame& frame, uint64_t now_ns) {
  if (!status_.ok() || find(link) == nullptr) return;
  if (frame.kind != control::Frame::Kind::kStart) return receive_malformed(link);
  Early event{link, false, static_cast<Message>(frame.detail), frame.version,
              std::string(frame.payload)};
  if (event.message == Message::kAddress && link != kUp) {
    // It may arrive after the last rank has joined elsewhere.
    const auto child = std::find_if(children_.begin(), children_.end(),
                                    [link](const Peer& peer) { return peer.link == link; });
    ChildAddress address{child->rank};
    if (!unpack_address(event.payload, &address)) return out_of_turn(link, "address");
    child->address = address;
  } else if (busy_) {
    handle(event, now_ns);
  } else if (early_.size() > size_t{rank_count_} + 2 * kChildrenMax) {
    out_of_turn(link, "more than one round ahead");
  } else {
    early_.push_back(std::move(event));
  }
}

void Node::handle(const Early& event, uint64_t now_ns) {
  if (event.closed) {
    lost_.push_back(event.link);
    return;
  }
  const bool is_up = event.link == kUp;
  if (event.message == Message::kFailure) {
    fail(unpack_failure(event.payload), event.link);
  } else if (event.message == Message::kTake && is_up && event.round == round_) {
    take(event);
  } else if (event.message == Message::kGive && !is_up && event.round == round_ &&
             event.payload.size() >= kPatienceBytes + kRecordHeaderBytes) {
    heed(deadline_of(integer_at<uint64_t>(event.payload), now_ns), now_ns);
    give(std::string_view(event.payload).substr(kPatienceBytes), event.link);
  } else {
    out_of_turn(event.link,
                fmt::format("message {}, round {}, {} bytes", static_cast<int>(event.message),
                            event.round, event.payload.size()));
  }
}

void Node::receive_malformed(Link link) {
  out_of_turn(link, "not a frame of the bootstrap protocol");
}

void Node::receive_damaged(Link link) {
  const Peer* const peer = find(link);
  if (peer == nullptr) return;
  fail(Status(Code::kSystem,
              fmt::format("data that {} sent to rank {} was altered in transit before {}; suspect "
                          "an attacker on the network between the two",
                          describe(*peer), self_, occasion())));
}

void Node::out_of_turn(Link link, const std::string& what) {
  const Peer* const peer = find(link);
  if (peer == nullptr) return;
  fail(Status(Code::kInternal, fmt::format("{} sent an unexpected frame before {} ({})",
                                           describe(*peer), occasion(), what)));
}

void Node::closed(Link link) {
  if (!status_.ok()) return;
  if (busy_) {
    lost_.push_back(link);
  } else {
    early_.push_back({link, true});
  }
}

void Node::end_turn(uint64_t now_ns) {
  // A round that is done stays done: neighbors may have been told of it.
  if (busy_) heed_losses();
  if (!parent_ || !status_.ok()) return;
  const std::string patience = bytes_of(patience_until(deadline_ns_, now_ns));
  for (const std::string& records : std::exchange(up_, {})) {
    send(kUp, Message::kGive, patience + records);
  }
}

void Node::look(Look what) {
  for (const Early& event : early_) {
    const auto is_word = [&](const Early& one) { return one.link == event.link && !one.closed; };
    if (event.link == kUp && what == Look::kChildrensReasons) continue;
    if (!event.closed && event.message == Message::kFailure) {
      fail(unpack_failure(event.payload), event.link);
    } else if (what == Look::kAll && event.closed &&
               std::none_of(early_.begin(), early_.end(), is_word)) {
      lost_.push_back(event.link);
    }
  }
  if (what == Look::kAll) heed_losses();
}

void Node::heed_losses() {
  std::vector<const Peer*> peers;
  for (const Link link : std::exchange(lost_, {})) {
    if (const Peer* const peer = find(link); peer != nullptr) peers.push_back(peer);
  }
  if (peers.empty() || !status_.ok()) return;
  std::sort(peers.begin(), peers.end(),
            [](const Peer* a, const Peer* b) { return a->rank < b->rank; });
  constexpr size_t kProcessesMax = 4;  // that are told
  std::vector<Rank> ranks;
  std::string processes;
  for (const Peer* const peer : peers) {
    ranks.push_back(peer->rank);
    if (peer->link == kUp) has_lost_parent_ = true;
    if (ranks.size() > kProcessesMax) continue;
    processes += (ranks.size() > 1 ? ", " : "") + describe_process(peer->process);
  }
  if (ranks.size() > kProcessesMax) processes += ", …";
  fail(Status(Code::kPeerLost,
              fmt::format("{} of {} ({}) ended, or gave up, before {}", describe_ranks(ranks),
                          rank_count_, processes, occasion())));
}

// The total time and, where this wait did not use it up, what did.
std::string Node::describe_time(uint64_t now_ns) const {
  const double waited_s = static_cast<double>(now_ns - start_ns_) * 1e-9;
  if (others_left_ns_) {
    return fmt::format(
        "in time: another rank has the earliest deadline, of which {:.3g} s were left when it "
        "arrived; rank {} has waited {:.3g} s",
        static_cast<double>(*others_left_ns_) * 1e-9, self_, waited_s);
  }
  const double all_s = static_cast<double>(now_ns - std::min(began_ns_, now_ns)) * 1e-9;
  std::string text = fmt::format("within {:.3g} s", all_s);
  if (waited_s > all_s / 2) return text;
  return text + fmt::format(", of which {:.3g} s had passed when rank {} began to wait",
                            all_s - waited_s, self_);
}

std::vector<Rank> Node::missing() const {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < given_.size(); ++rank) {
    if (!given_[rank]) ranks.push_back(rank);
  }
  return ranks;
}

void Node::expire(uint64_t now_ns, const std::string& remark) {
  if (!status_.ok()) return;
  if (!is_root_) {
    const std::string who = parent_ ? describe(*parent_) : "the root of the tree";
    fail(Status(Code::kTimeout,
                fmt::format("timed out: {} did not answer rank {} before {}; either its process is "
                            "stopped, or it has not called the same function",
                            who, self_, occasion())));
    return;
  }
  const std::vector<Rank> absent = missing();
  const std::string to = round_ == 0 ? "joined" : fmt::format("reached all_gather {}", round_);
  std::string more = round_ == 0 ? remark : "";
  if (round_ == 0 && absent.size() + 1 == rank_count_) {
    more += fmt::format("; if rank {} itself came late, the others had given up before", self_);
  }
  fail(Status(Code::kTimeout,
              fmt::format("timed out: {} of {} {} not {} {}{}", describe_ranks(absent), rank_count_,
                          absent.size() == 1 ? "has" : "have", to, describe_time(now_ns), more)));
}

void Node::expire_delivery(const std::vector<Link>& links) {
  std::vector<Rank> ranks;
  for (const Link link : links) {
    if (const Peer* const peer = find(link)) ranks.push_back(peer->rank);
  }
  std::sort(ranks.begin(), ranks.end());
  fail(Status(Code::kTimeout,
              fmt::format("timed out: {} did not receive the data of the other ranks before {}",
                          describe_ranks(ranks), occasion())));
}

void Node::send(Link link, Message message, std::string payload) {
  sends_.push_back({link, message, round_, std::move(payload)});
}

void Node::send_down(std::string_view records) {
  for (const Peer& child : children_) send(child.link, Message::kTake, std::string(records));
}

void Node::fail(const Status& status, std::optional<Link> told_by) {
  if (!status_.ok()) return;
  status_ = status;
  busy_ = false;
  blobs_.clear();
  if (parent_ && told_by != kUp) send(kUp, Message::kFailure, pack_failure(status));
  for (const Peer& child : children_) {
    if (told_by != child.link) send(child.link, Message::kFailure, pack_failure(status));
  }
}

}  // namespace weir::comm
