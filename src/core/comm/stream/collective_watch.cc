// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/collective_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <thread>
#include <utility>

#include "core/base/rank_list.h"
#include "core/engine/call.h"

namespace weir::comm {

namespace {

// In one look at a stream that is released.
constexpr int kReleasesMax = 200;
constexpr std::chrono::microseconds kReleasePause{20};

// Both sorted.
std::vector<Rank> common(const std::vector<Rank>& ranks, const std::vector<Rank>& others) {
  std::vector<Rank> both;
  std::set_intersection(ranks.begin(), ranks.end(), others.begin(), others.end(),
                        std::back_inserter(both));
  return both;
}

}  // namespace

void CollectiveWatch::note_begun() {
  if (in_graph()) {
    if (std::exchange(is_captured_, true)) return;
    memory().flags().captured(memory().rank()).fetch_add(1);
    record_capture(bytes_);
    return;
  }
  if (number_ != 0) return;
  const uint64_t number = memory().next_call();
  if (has_root_) memory().next_rooted_call();
  memory().flags().note_call(memory().rank(), number, words_.what, words_.count,
                             words_.fingerprint);
  if (record() != nullptr) record()->begun(number, words_);
  number_ = number;
}

void CollectiveWatch::note_ended() {
  note_running();
  if (number_ == 0) return;
  memory().flags().passed(memory().rank()).store(number_);
  if (record() != nullptr) record()->ended(number_);
}

void CollectiveWatch::note_running() {
  if (number_ != 0) memory().flags().reached(memory().rank()).store(number_);
}

void CollectiveWatch::record_wait(uint64_t since_ns) const {
  if (number_ != 0) record()->waits(number_, words_, way_, since_ns, late_ranks());
}

void CollectiveWatch::release() {
  for (int i = 0; i < kReleasesMax && running() && !lost(); ++i) {
    memory().release(words_.fingerprint);
    std::this_thread::sleep_for(kReleasePause);
  }
}

bool CollectiveWatch::is_numbered() const {
  const StreamFlags& flags = memory().flags();
  for (Rank rank = 0; rank < memory().rank_count(); ++rank) {
    if (flags.captured(rank).load() != flags.captured(memory().rank()).load()) return false;
  }
  return number_ != 0;
}

// Earlier calls, too: one that differed may have ended on some ranks.
bool CollectiveWatch::finds_fault() {
  if (!is_numbered()) return false;
  const uint64_t latest = number_;
  const uint64_t first =
      latest > StreamFlags::kRecords ? latest - StreamFlags::kRecords + 1 : uint64_t{1};
  for (uint64_t number = first; number <= latest; ++number) {
    if (finds_fault_in(number)) return true;
  }
  return false;
}

// Ranks whose call of a number is another one.
bool CollectiveWatch::finds_fault_in(uint64_t number) {
  CallWords mine = words_;
  if (number != number_ && !memory().flags().read_call(memory().rank(), number, &mine.what,
                                                       &mine.count, &mine.fingerprint)) {
    return false;
  }
  std::map<std::string, std::vector<Rank>> calls;
  const StreamFlags& flags = memory().flags();
  bool any = false;
  std::vector<Rank> elsewhere;  // ranks whose buffers lie at other places
  for (Rank rank = 0; rank < memory().rank_count(); ++rank) {
    uint64_t what = 0;
    uint64_t count = 0;
    uint32_t fingerprint = 0;
    if (!flags.read_call(rank, number, &what, &count, &fingerprint)) continue;
    const bool differs = what != mine.what || count != mine.count;
    any = any || differs;
    if (!differs && fingerprint != mine.fingerprint) elsewhere.push_back(rank);
    calls[engine::describe(what, count)].push_back(rank);
  }
  if (!any && !elsewhere.empty()) {
    fail(Code::kMismatch,
         fmt::format("the buffers of {} lie at other places of windows than those of this rank, or "
                     "in none: buffers in a symmetric window must lie at the same offset on every "
                     "rank",
                     describe_ranks(elsewhere)));
    return true;
  }
  if (!any) return false;
  const std::string which =
      number == number_ ? "" : fmt::format(" as collective {} (this one is {})", number, number_);
  std::string text = fmt::format("the ranks made different calls{}:", which);
  for (const auto& [what, ranks] : calls) {
    text += fmt::format(" {} called {};", describe_ranks(ranks), what);
  }
  fail(Code::kMismatch,
       text +
           " every rank must call the same collectives in the same order, with the same count, "
           "type, operation and root");
  return true;
}

std::vector<Rank> CollectiveWatch::awaited() const {
  std::vector<Rank> writers = memory().awaited_among(writers_);
  if (is_numbered()) {
    std::erase_if(writers,
                  [&](Rank rank) { return memory().flags().passed(rank).load() >= number_; });
  }
  const std::vector<Rank> readers = memory().slow_readers();
  std::vector<Rank> all;
  std::set_union(writers.begin(), writers.end(), readers.begin(), readers.end(),
                 std::back_inserter(all));
  return all;
}

std::string CollectiveWatch::late_text(const std::vector<Rank>& culprits) const {
  if (!is_numbered()) return late_text_of_graph(culprits);
  const std::vector<Rank> absent = common(absent_ranks(), culprits);
  if (!absent.empty()) {
    return fmt::format("; {} made no such call on memory of a device{}", describe_ranks(absent),
                       owner().collective_hint(absent));
  }
  const std::vector<Rank> late = common(late_ranks(), culprits);
  if (!late.empty()) {
    return fmt::format("; {} {} not come to it in {}", describe_ranks(late),
                       late.size() == 1 ? "has" : "have",
                       late.size() == 1 ? "its stream" : "their streams");
  }
  if (culprits.empty()) return "";
  return fmt::format("; it waits for {}, which began it and {} not finished it",
                     describe_ranks(culprits), culprits.size() == 1 ? "has" : "have");
}

// Nothing tells what other ranks have launched but the flags.
std::string CollectiveWatch::late_text_of_graph(const std::vector<Rank>& culprits) const {
  const std::vector<Rank> others = memory().others_among(writers_, words_.fingerprint);
  if (!others.empty()) {
    return fmt::format(
        "; {} {} come to another call instead: ranks must launch their graphs, and "
        "make their calls, in the same order",
        describe_ranks(others), others.size() == 1 ? "has" : "have");
  }
  const std::vector<Rank> silent = memory().silent_among(writers_);
  std::vector<Rank> readers = memory().slow_readers();
  if (!culprits.empty()) {
    const bool are_writers = common(memory().awaited_among(writers_), culprits) == culprits;
    if (are_writers || common(readers, culprits) != culprits) {
      return fmt::format("; it waits for {}, which {} not come to it, or {} stopped in it",
                         describe_ranks(culprits), culprits.size() == 1 ? "has" : "have",
                         culprits.size() == 1 ? "has" : "have");
    }
    readers = culprits;
  } else if (!silent.empty()) {
    return fmt::format("; it waits for {}", describe_ranks(silent));
  }
  return readers.empty() ? ""
                         : fmt::format("; it waits until {} {} what this rank has sent",
                                       describe_ranks(readers),
                                       readers.size() == 1 ? "has taken" : "have taken");
}

std::vector<Rank> CollectiveWatch::late_ranks() const {
  if (!is_numbered()) return {};
  std::vector<Rank> late = absent_ranks();
  if (!late.empty()) return late;
  for (Rank rank = 0; rank < memory().rank_count(); ++rank) {
    if (memory().flags().reached(rank).load() < number_) late.push_back(rank);
  }
  return late;
}

std::vector<Rank> CollectiveWatch::absent_ranks() const {
  std::vector<Rank> absent;
  for (Rank rank = 0; rank < memory().rank_count(); ++rank) {
    if (!memory().flags().has_called(rank, number_)) absent.push_back(rank);
  }
  return absent;
}

}  // namespace weir::comm
