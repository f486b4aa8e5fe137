// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/joiner.h"

#include <algorithm>
#include <utility>

namespace weir::plugins::tcp {

Joiner::Joiner(const Identity& identity, std::unique_ptr<Acceptor> acceptor)
    : identity_(identity), acceptor_(std::move(acceptor)) {}

Joiner::~Joiner() {
  for (Attempt& attempt : attempts_) attempt.stream.close();
}

int Joiner::begin(const Wanted& wanted, const Way& way, uint64_t now_ns) {
  int error_number = 0;
  std::optional<tcp::Attempt> begun =
      begin_attempt(identity_, way, wanted.peer, wanted.lane, &error_number);
  if (!begun) return error_number;
  begun->handshake.set_rail(wanted.rail, wanted.rail_count, wanted.returns);
  Owner* owner = owner_of(begun->handshake);
  attempts_.push_back({std::move(*begun), now_ns + wanted.patience_ns, owner});
  return 0;
}

void Joiner::step(uint64_t now_ns) {
  entries_.clear();
  for (const Attempt& attempt : attempts_) {
    entries_.push_back({attempt.stream.fd(), attempt.events(), 0});
  }
  const size_t attempt_count = attempts_.size();
  acceptor_->append_entries(now_ns, &entries_);
  if (entries_.empty() || poll(entries_.data(), entries_.size(), 0) < 0) return;
  // From the end, since one that has ended is taken out by moving the last into its place; those that are
  // begun meanwhile wait for the next step.
  for (size_t i = attempt_count; i-- > 0;) {
    if (entries_[i].revents == 0 && now_ns < attempts_[i].expiry_ns &&
        attempts_[i].owner->goes_on(attempts_[i].handshake)) {
      continue;
    }
    if (serve(&attempts_[i], now_ns)) continue;
    if (i + 1 != attempts_.size()) attempts_[i] = std::move(attempts_.back());
    attempts_.pop_back();
  }
  acceptor_->serve(entries_.data() + attempt_count, now_ns, this);
}

// False: the attempt has ended, in whatever way.
bool Joiner::serve(Attempt* attempt, uint64_t now_ns) {
  Owner* owner = attempt->owner;
  int error_number = 0;
  Step step = Step::kEnded;
  if (now_ns < attempt->expiry_ns && owner->goes_on(attempt->handshake)) {
    step = attempt->move(&error_number);
    if (attempt->handshake.state() == Handshake::State::kChallenged) {
      attempt->handshake.prove();
      attempt->expiry_ns = UINT64_MAX;
      step = attempt->move(&error_number);
    }
  }
  if (step == Step::kGoesOn) return true;
  Stream stream = attempt->stream;
  const Handshake handshake = attempt->handshake;
  if (step == Step::kProven) {
    attempt->stream = Stream();
    owner->join(handshake, stream, now_ns);
  } else {
    stream.close();
    owner->fail(handshake, error_number, now_ns);
  }
  return false;
}

bool Joiner::may_come(const Handshake& shown) {
  Owner* owner = owner_of(shown);
  return owner != nullptr && owner->may_come(shown);
}

void Joiner::join(const Handshake& shown, Stream stream, uint64_t now_ns) {
  owner_of(shown)->join(shown, stream, now_ns);
}

}  // namespace weir::plugins::tcp
