// SPDX-License-Identifier: Apache-2.0
#include "core/comm/health/culprits.h"

#include <algorithm>
#include <set>

namespace weir::comm {

bool Culprits::find(const Late& late, uint64_t now_ns, std::vector<Rank>* culprits) const {
  culprits->clear();
  const uint64_t beat_ns = reports_.show_interval_ns();
  if (beat_ns == 0) return true;

  // The ranks that this rank waits for, those that they wait for, and so on.
  std::set<Rank> chain(late.awaited.begin(), late.awaited.end());
  std::vector<Rank> theirs;
  for (std::vector<Rank> left = late.awaited; !left.empty();) {
    const Rank p = left.back();
    left.pop_back();
    // A rank in the chain may wait for another of this rank's operations.
    if (p == state_.rank()) {
      theirs = late.awaited_by_all;
    } else {
      reports_.collect_awaited_by(p, &theirs);
    }
    for (const Rank next : theirs) {
      if (chain.insert(next).second) left.push_back(next);
    }
  }
  chain.erase(state_.rank());
  if (reports_.are_mapped()) {
    // In shared memory every check of a waiting rank is visible: the only rank without any is to
    // blame.
    std::vector<Rank> unheard;
    for (const Rank p : chain) {
      if (reports_.heard_ns(p) < late.time.began_ns()) unheard.push_back(p);
    }
    if (unheard.size() == 1) {
      *culprits = unheard;
      return true;
    }
  }
  const auto silent_ns = [&](Rank p) { return late.time.silent_ns(reports_.heard_ns(p), now_ns); };
  const uint64_t while_ns = std::max(late.timeout_ns / 4, 5 * beat_ns / 2);
  std::set<Rank> quiet;     // not heard of for a while: a stalled machine may be why
  uint32_t long_quiet = 0;  // for nearly all the time
  bool all_unreached = true;
  for (const Rank p : chain) {
    if (silent_ns(p) < while_ns) continue;
    quiet.insert(p);
    if (silent_ns(p) >= std::max(late.timeout_ns / 4 * 3, 3 * beat_ns)) ++long_quiet;
    all_unreached = all_unreached && is_unreached(p, late.time, now_ns, while_ns);
  }
  // A rank that has been silent all the time is to blame, and so are those behind a cut link.
  // Otherwise more is known a little later.
  const bool clear =
      !quiet.empty() && long_quiet == quiet.size() && (quiet.size() == 1 || all_unreached);
  // All of them live: a rank that waits for no other holds up the others.
  std::vector<Rank> slow;
  for (const Rank p : chain) {
    if (!quiet.empty()) break;
    reports_.collect_awaited_by(p, &theirs);
    if (std::all_of(theirs.begin(), theirs.end(), [p](Rank next) { return next == p; })) {
      slow.push_back(p);
    }
  }
  const bool is_circle = late.ends_in_circle && quiet.empty() && slow.empty();
  if (!clear && !is_circle &&
      now_ns < late.deadline_ns() + late.timeout_ns / 2 + late.time.stalled_ns()) {
    return false;
  }
  if (quiet.empty()) {
    *culprits = slow;
    return true;
  }
  // A rank that cannot be reached is lost to this operation, too, whichever rank waits for it.
  for (Rank p = 0; p < state_.rank_count(); ++p) {
    if (p != state_.rank() && is_unreached(p, late.time, now_ns, while_ns)) quiet.insert(p);
  }
  culprits->assign(quiet.begin(), quiet.end());
  return true;
}

bool Culprits::is_unreached(Rank peer, const WaitTime& time, uint64_t now_ns,
                            uint64_t while_ns) const {
  const uint64_t since_ns = reports_.unreached_ns(peer);
  return since_ns != 0 && now_ns >= since_ns + time.stalled_ns() + while_ns;
}

}  // namespace weir::comm
