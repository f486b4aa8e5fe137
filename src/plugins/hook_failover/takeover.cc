// SPDX-License-Identifier: Apache-2.0
// Everything except moving messages: frames, signs of life, and the change from one transport to
// the next.
#include <stddef.h>

#include <algorithm>

#include "plugins/hook_failover/instance.h"

namespace weir::plugins::hook_failover {
namespace {

constexpr int kFramesPerPoll = 16;
// The least rate that is assumed of a transport while it carries one long message, behind which an
// answer may wait.
constexpr uint64_t kSlowBytesPerSecond = 16u << 20;

std::string text_of(uint64_t number) { return std::to_string(number); }

// Other errors concern the message, and would be the same over any transport.
bool is_of_transport(weir_result_t result) {
  switch (result) {
    case WEIR_ERROR_MISMATCH:
    case WEIR_ERROR_INVALID_ARGUMENT:
    case WEIR_ERROR_INVALID_USAGE:
    case WEIR_ERROR_UNSUPPORTED:
      return false;
    default:
      return true;
  }
}

}  // namespace

void Instance::tend(uint64_t now_ns) {
  tended_ns_ = now_ns;
  for (Member& member : members_) {
    if (member.instance != nullptr) (void)member.functions->progress(member.instance);
  }
  for (Pair& pair : pairs_) {
    if (pair.rank == rank_ || pair.state == Pair::State::kLost) continue;
    if (!pair.is_used(lane_count_)) hear_call(pair);
    // A question or answer would make connections for which there is no other use.
    if (!is_tended(pair)) continue;
    call(pair);
    // Standby transports last: a peer that answers there was asked over the other one before.
    for (uint32_t level = 0; level <= last(); ++level) {
      if (level >= first_level(pair)) poll_link(pair, level);
    }
    look_after(pair, now_ns);
    for (uint32_t level = pair.level; level <= last(); ++level) push_link(pair, level);
  }
}

// The peer may have no messages for this rank at present.
void Instance::call(Pair& pair) {
  const bool seeks = pair.state == Pair::State::kSuspect;
  if (!seeks && pair.state != Pair::State::kJoining) return;
  const uint32_t level = pair.level + (seeks ? 1 : 0);
  if (pair.told_level >= level || !meeting_.is_there()) return;
  pair.told_level = level;
  const char word[] = {message::kOwnKind, static_cast<char>(level)};
  meeting_.say(pair.rank, {word, sizeof word});
}

void Instance::hear_call(Pair& pair) {
  std::string word;
  while (meeting_.is_there() && meeting_.hear(pair.rank, &word)) {
    if (word.size() != 2 || word[0] != message::kOwnKind) continue;
    const auto level = static_cast<unsigned char>(word[1]);
    if (level <= last()) pair.called_level = std::max<uint32_t>(pair.called_level, level);
  }
}

void Instance::poll_link(Pair& pair, uint32_t level) {
  Member& member = members_[level];
  Link& link = pair.links[level];
  for (int i = 0; i < kFramesPerPoll && !link.broken; ++i) {
    weir_result_t result;
    if (link.armed) {
      result = member.functions->test(member.instance, &link.in_op);
    } else {
      link.in_op = {};
      result = member.functions->recv(member.instance, pair.rank, lane_count_, link.in, kFrameBytes,
                                      &link.in_op);
    }
    link.armed = result == WEIR_IN_PROGRESS;
    if (link.armed) return;
    if (result != WEIR_OK) return break_link(pair, level, result);
    Frame frame;
    if (!decode(link.in, &frame) || frame.rank != pair.rank || frame.lane_count != lane_count_ ||
        frame.level > last()) {
      member.text = "the data that rank " + text_of(pair.rank) + " sent over " + name(level) +
                    " is not a frame of failover";
      return break_link(pair, level, WEIR_ERROR_INTERNAL);
    }
    take_frame(pair, level, frame);
  }
}

void Instance::push_link(Pair& pair, uint32_t level) {
  Member& member = members_[level];
  Link& link = pair.links[level];
  if (link.broken || !(link.sending || link.wanted)) return;
  weir_result_t result = WEIR_OK;
  if (link.sending) {
    result = member.functions->test(member.instance, &link.out_op);
    link.sending = result == WEIR_IN_PROGRESS;
  }
  if (result == WEIR_OK && link.wanted) {
    link.wanted = false;
    Frame frame;
    frame.lane_count = lane_count_;
    frame.level = pair.level;
    frame.ping = link.ping;
    frame.pong = link.pong;
    frame.rank = rank_;
    for (uint32_t i = 0; i < lane_count_; ++i) frame.received[i] = pair.recvs[i].received();
    encode(frame, link.out);
    link.out_op = {};
    result = member.functions->send(member.instance, pair.rank, lane_count_, link.out, kFrameBytes,
                                    &link.out_op);
    // A transport may hold short messages back until it is asked for them.
    if (result == WEIR_IN_PROGRESS) result = member.functions->test(member.instance, &link.out_op);
    link.sending = result == WEIR_IN_PROGRESS;
  }
  if (result != WEIR_OK && result != WEIR_IN_PROGRESS) break_link(pair, level, result);
}

// Messages may still arrive over this transport: a peer that leaves ends its lanes one after the
// other.
void Instance::break_link(Pair& pair, uint32_t level, weir_result_t result) {
  Link& link = pair.links[level];
  link.broken = true;
  link.result = result;
  link.armed = link.sending = false;
  link.why = members_[level].text;
}

void Instance::ask(Pair& pair, uint32_t level) {
  Link& link = pair.links[level];
  ++link.ping;
  link.answered = false;
  link.wanted = true;
}

void Instance::take_frame(Pair& pair, uint32_t level, const Frame& frame) {
  Link& link = pair.links[level];
  if (frame.pong == link.ping) link.answered = true;
  if (frame.ping != link.pong) {
    link.pong = frame.ping;
    link.wanted = true;
  }
  if (frame.level > pair.level) {
    rise(frame.level, pair, "that rank has left " + std::string(name(frame.level - 1)));
  }
  if (pair.state == Pair::State::kJoining && frame.level == pair.level) {
    resume(pair, frame);
    return;
  }
  for (uint32_t lane = 0; lane < lane_count_ && pair.state != Pair::State::kLost; ++lane) {
    if (!pair.sends[lane].acknowledge(frame.received[lane])) {
      lose(
          pair, WEIR_ERROR_INTERNAL,
          "rank " + text_of(pair.rank) + " says that it has received more messages than were sent");
    }
  }
}

void Instance::resume(Pair& pair, const Frame& frame) {
  for (uint32_t lane = 0; lane < lane_count_; ++lane) {
    if (pair.sends[lane].resume(frame.received[lane])) continue;
    lose(pair, WEIR_ERROR_INTERNAL,
         "rank " + text_of(pair.rank) + " says that it has received " +
             text_of(frame.received[lane]) + " messages on lane " + text_of(lane) +
             ", a number from which rank " + text_of(rank_) + " cannot continue");
    return;
  }
  pair.state = Pair::State::kGood;
  pair.why.clear();
  if (leaving_) ask(pair, pair.level);
  hurry_ = true;
}

bool Instance::is_waiting(const Pair& pair) const {
  if (pair.state == Pair::State::kJoining) return true;
  for (uint32_t lane = 0; lane < lane_count_; ++lane) {
    if (pair.sends[lane].busy() || pair.recvs[lane].busy()) return true;
    if (leaving_ && !pair.sends[lane].has_word_of_all()) return true;
  }
  return false;
}

void Instance::look_after(Pair& pair, uint64_t now_ns) {
  if (pair.state == Pair::State::kLost) return;
  if (pair.state != Pair::State::kSuspect) {
    const Link& link = pair.links[pair.level];
    bool needs_link = pair.state == Pair::State::kJoining || !link.answered;
    for (uint32_t lane = 0; lane < lane_count_; ++lane) {
      needs_link = needs_link || pair.sends[lane].waits_for_word() ||
                   (leaving_ && !pair.sends[lane].has_word_of_all());
    }
    if (needs_link && link.broken) suspect(pair, link.why);
  }
  if (pair.state == Pair::State::kSuspect) return seek(pair, now_ns);
  if (pair.state != Pair::State::kLost && pair.level < last()) look_for_standstill(pair, now_ns);
}

// A transport stands still when nothing has come or gone over it for a while, and the peer, asked
// over all transports, answers over another one, twice, but not over this one.
void Instance::look_for_standstill(Pair& pair, uint64_t now_ns) {
  uint64_t moves = 0;
  uint64_t bytes = 0;
  for (uint32_t lane = 0; lane < lane_count_; ++lane) {
    const SendStream& out = pair.sends[lane];
    moves += out.settled() + out.acknowledged() + pair.recvs[lane].settled();
    bytes += out.bytes_under_way() + pair.recvs[lane].bytes_under_way();
  }
  if (moves != pair.moves || pair.quiet_ns == 0 || !is_waiting(pair)) {
    pair.moves = moves;
    pair.quiet_ns = now_ns;
    pair.probe = Pair::Probe::kNone;
    return;
  }
  const auto answered_beside = [&] {
    bool any = false;
    for (uint32_t level = pair.level + 1; level <= last(); ++level) {
      any = any || (pair.links[level].answered && !pair.links[level].broken);
    }
    return any;
  };
  switch (pair.probe) {
    case Pair::Probe::kNone:
      if (now_ns - pair.quiet_ns < still_ns_ / 4) return;
      for (uint32_t level = pair.level; level <= last(); ++level) ask(pair, level);
      pair.probe = Pair::Probe::kFirst;
      pair.answered_beside = false;
      return;
    case Pair::Probe::kFirst:
    case Pair::Probe::kSecond:
      if (pair.links[pair.level].answered) {
        pair.quiet_ns = now_ns;
        pair.probe = Pair::Probe::kNone;
        return;
      }
      if (!answered_beside()) return;
      if (pair.probe == Pair::Probe::kSecond) {
        return suspect(pair,
                       "it makes no progress, although rank " + text_of(pair.rank) + " is alive");
      }
      // Counted from the first answer on, so that time in which the peer made no call does not
      // count.
      if (!pair.answered_beside) {
        pair.answered_beside = true;
        pair.probe_ns = now_ns;
      }
      if (now_ns - pair.probe_ns <
          still_ns_ / 4 * 3 + bytes * 1'000'000'000 / kSlowBytesPerSecond) {
        return;
      }
      for (uint32_t level = pair.level + 1; level <= last(); ++level) ask(pair, level);
      pair.probe = Pair::Probe::kSecond;
      return;
  }
}

void Instance::transport_failed(Pair& pair, Stream* stream, weir_result_t result) {
  const std::string text = members_[pair.level].text;
  if (is_of_transport(result) && pair.level != last()) return suspect(pair, text);
  pair.why = text;
  stream->fail(result);
}

void Instance::suspect(Pair& pair, const std::string& why) {
  if (pair.level == last()) return lose(pair, pair.links[last()].result, why);
  pair.state = Pair::State::kSuspect;
  pair.why = why;
  pair.probe_ns = 0;
  for (uint32_t level = pair.level + 1; level <= last(); ++level) ask(pair, level);
  hurry_ = true;
}

// Chooses the first transport over which the peer shows that it lives; a later one only after a
// while.
void Instance::seek(Pair& pair, uint64_t now_ns) {
  bool earlier = false;
  for (uint32_t level = pair.level + 1; level <= last(); ++level) {
    Link& link = pair.links[level];
    Member& member = members_[level];
    if (!link.broken && member.functions->peer_alive(member.instance, pair.rank) != WEIR_OK) {
      break_link(pair, level, WEIR_ERROR_PEER_LOST);
    }
    if (link.broken) continue;
    if (link.answered) {
      if (pair.probe_ns == 0) pair.probe_ns = now_ns;
      if (!earlier || now_ns - pair.probe_ns > still_ns_) {
        const std::string why = pair.why;
        return rise(level, pair, why);
      }
    }
    earlier = true;
  }
  if (earlier) return;
  std::string why = pair.why;
  for (uint32_t level = pair.level + 1; level <= last(); ++level) {
    why += "; " + pair.links[level].why;
  }
  lose(pair, pair.links[last()].result, why);
}

void Instance::lose(Pair& pair, weir_result_t result, const std::string& why) {
  pair.state = Pair::State::kLost;
  pair.result = result;
  pair.why =
      "failover: rank " + text_of(pair.rank) + " cannot be reached over any transport: " + why;
  // What has arrived is not lost.
  for (uint32_t lane = 0; lane < lane_count_; ++lane) {
    if (pair.recvs[lane].result() != WEIR_OK) continue;
    pair.recvs[lane].drain(route(pair, lane));
    pair.recvs[lane].release();
  }
  for (uint32_t lane = 0; lane < lane_count_; ++lane) {
    if (pair.sends[lane].result() == WEIR_OK) {
      pair.sends[lane].conclude(route(pair, lane));
      pair.sends[lane].fail(result);
    }
    if (pair.recvs[lane].result() == WEIR_OK) pair.recvs[lane].fail(result);
  }
}

void Instance::rise(uint32_t level, Pair& pair, const std::string& why) {
  const uint32_t before = pair.level;
  move(level, pair, why);
  for (uint32_t l = before; l < level; ++l) leave_member(l, pair, level);
  note_carriers();
  hurry_ = true;
}

void Instance::move(uint32_t level, Pair& pair, const std::string& why) {
  if (pair.state != Pair::State::kLost) {
    // What has arrived counts; what arrives from now on is sent again.
    for (uint32_t lane = 0; lane < lane_count_; ++lane) {
      if (pair.recvs[lane].result() == WEIR_OK) pair.recvs[lane].drain(route(pair, lane));
      pair.recvs[lane].restart();
      pair.sends[lane].restart();
    }
    log(1, "failover: rank " + text_of(rank_) + " continues with rank " + text_of(pair.rank) +
               " over " + name(level) + " instead of " + name(pair.level) + ": " + why);
    pair.state = Pair::State::kJoining;
    pair.probe = Pair::Probe::kNone;
    pair.quiet_ns = 0;
    pair.links[level].wanted = true;
  }
  for (uint32_t l = pair.level; l < level; ++l) pair.links[l].broken = true;
  pair.level = level;
}

// Makes a transport give back the posted operations of a pair that has moved to `level`: for this
// pair only, if the transport can do that, else by its close.
void Instance::leave_member(uint32_t left, const Pair& pair, uint32_t level) {
  Member& member = members_[left];
  if (member.instance == nullptr) return;
  constexpr size_t kEnd = offsetof(weir_transport_functions_t, peer_leave) + sizeof(void*);
  const bool may_leave =
      member.functions->struct_bytes >= kEnd && member.functions->peer_leave != nullptr;
  // It need not stay open if it carries no other pair.
  const bool carries_others = std::any_of(pairs_.begin(), pairs_.end(), [&](const Pair& other) {
    return other.rank != rank_ && other.rank != pair.rank && other.state != Pair::State::kLost &&
           (other.level == left || (other.level < left && !other.links[left].broken));
  });
  if (may_leave && carries_others &&
      member.functions->peer_leave(member.instance, pair.rank) == WEIR_OK) {
    return;
  }
  for (Pair& other : pairs_) {
    if (other.rank == rank_ || other.rank == pair.rank) continue;
    if (other.level == left) {
      move(level, other,
           "rank " + text_of(rank_) + " cannot leave " + name(left) + " for rank " +
               text_of(pair.rank) + " only" + (may_leave ? " (" + member.text + ")" : ""));
    }
    Link& link = other.links[left];
    if (link.broken) continue;
    link.broken = true;
    link.armed = link.sending = false;
    link.why = std::string("rank ") + text_of(rank_) + " has left " + name(left);
  }
  member.functions->close(member.instance);
  member.instance = nullptr;
}

void Instance::note_carriers() {
  carriers_ = 0;
  for (const Pair& pair : pairs_) {
    if (pair.rank != rank_ || rank_count_ == 1) carriers_ |= 1u << pair.level;
  }
}

}  // namespace weir::plugins::hook_failover
