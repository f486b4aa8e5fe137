// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/collective_watch.h"

#include <fmt/format.h>

#include <chrono>
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

}  // namespace

void CollectiveWatch::note_begun() {
  if (in_graph()) {
    if (!std::exchange(is_captured_, true)) record_capture(bytes_);
    return;
  }
  if (number_ != 0) return;
  const uint64_t number = memory().next_call();
  memory().flags().note_call(memory().rank(), number, words_.what, words_.count,
                             words_.fingerprint);
  if (record() != nullptr) record()->begun(number, words_);
  number_ = number;
}

void CollectiveWatch::note_ended() {
  if (record() != nullptr && number_ != 0) record()->ended(number_);
}

void CollectiveWatch::record_wait(uint64_t since_ns) const {
  if (number_ == 0) return;
  std::vector<Rank> awaited = late_ranks();
  // A schedule's flags do not tell which ranks its messages come from.
  if (awaited.empty() && way_.schedule == nullptr) {
    awaited = memory().silent_ranks(words_.fingerprint);
  }
  record()->waits(number_, words_, way_, since_ns, awaited);
}

void CollectiveWatch::release() {
  for (int i = 0; i < kReleasesMax && running() && !lost(); ++i) {
    memory().release(words_.fingerprint);
    std::this_thread::sleep_for(kReleasePause);
  }
}

// Ranks whose call of this number is another one.
bool CollectiveWatch::finds_fault() {
  if (number_ == 0) return false;
  std::map<std::string, std::vector<Rank>> calls;
  const StreamFlags& flags = memory().flags();
  bool any = false;
  std::vector<Rank> elsewhere;  // ranks whose buffers lie at other places
  for (Rank rank = 0; rank < memory().rank_count(); ++rank) {
    uint64_t what = 0;
    uint64_t count = 0;
    uint32_t fingerprint = 0;
    if (!flags.read_call(rank, number_, &what, &count, &fingerprint)) continue;
    const bool differs = what != words_.what || count != words_.count;
    any = any || differs;
    if (!differs && fingerprint != words_.fingerprint) elsewhere.push_back(rank);
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
  std::string text = "the ranks made different calls:";
  for (const auto& [what, ranks] : calls) {
    text += fmt::format(" {} called {};", describe_ranks(ranks), what);
  }
  fail(Code::kMismatch,
       text +
           " every rank must call the same collectives in the same order, with the same count, "
           "type, operation and root");
  return true;
}

std::string CollectiveWatch::late_text() const {
  const std::vector<Rank> late = late_ranks();
  return late.empty() ? "" : fmt::format("; {} made no such call", describe_ranks(late));
}

std::vector<Rank> CollectiveWatch::late_ranks() const {
  if (number_ == 0) return {};
  std::vector<Rank> late;
  for (Rank rank = 0; rank < memory().rank_count(); ++rank) {
    uint64_t what = 0;
    uint64_t count = 0;
    uint32_t fingerprint = 0;
    if (!memory().flags().read_call(rank, number_, &what, &count, &fingerprint)) {
      late.push_back(rank);
    }
  }
  return late;
}

}  // namespace weir::comm
