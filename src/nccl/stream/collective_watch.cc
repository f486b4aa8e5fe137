// SPDX-License-Identifier: Apache-2.0
#include "nccl/stream/collective_watch.h"

#include <fmt/format.h>

#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "core/base/rank_list.h"
#include "core/engine/call.h"

namespace weir::nccl {

namespace {

// In one look at a stream that is released.
constexpr int kReleasesMax = 200;
constexpr std::chrono::microseconds kReleasePause{20};

}  // namespace

CollectiveWatch::CollectiveWatch(const Operation& operation, std::shared_ptr<StreamMemory> memory,
                                 Words words, uint32_t number, bool in_graph)
    : StreamWatch(operation, std::move(memory), std::move(words), number, in_graph),
      words_(words_of(operation)) {}

void CollectiveWatch::note_begun() {
  if (call_ != 0) return;
  const uint64_t number = memory_->next_call();
  memory_->flags().note_call(memory_->rank(), number, words_.what, words_.count,
                             words_.fingerprint);
  if (record_ != nullptr) record_->begun(number, words_);
  call_ = number;
}

void CollectiveWatch::note_ended() {
  if (record_ != nullptr && call_ != 0) record_->ended(call_);
}

void CollectiveWatch::record_wait(uint64_t since_ns) const {
  if (call_ == 0) return;
  std::vector<Rank> awaited = late_ranks();
  if (awaited.empty()) awaited = memory_->silent_ranks(words_.fingerprint);
  record_->waits(call_, words_, since_ns, awaited);
}

void CollectiveWatch::release() {
  for (int i = 0; i < kReleasesMax && running() && !lost(); ++i) {
    memory_->release(words_.fingerprint);
    std::this_thread::sleep_for(kReleasePause);
  }
}

// Ranks whose call of this number is another one.
bool CollectiveWatch::finds_fault() {
  if (call_ == 0) return false;
  std::map<std::string, std::vector<Rank>> calls;
  const comm::StreamFlags& flags = memory_->flags();
  bool any = false;
  for (Rank rank = 0; rank < memory_->rank_count(); ++rank) {
    uint64_t what = 0;
    uint64_t count = 0;
    if (!flags.read_call(rank, call_, &what, &count)) continue;
    any = any || what != words_.what || count != words_.count;
    calls[engine::describe(what, count)].push_back(rank);
  }
  if (!any) return false;
  std::string text = "the ranks made different calls:";
  for (const auto& [what, ranks] : calls) {
    text += fmt::format(" {} called {};", describe_ranks(ranks), what);
  }
  fail(ncclInvalidUsage,
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
  if (call_ == 0) return {};
  std::vector<Rank> late;
  for (Rank rank = 0; rank < memory_->rank_count(); ++rank) {
    uint64_t what = 0;
    uint64_t count = 0;
    if (!memory_->flags().read_call(rank, call_, &what, &count)) late.push_back(rank);
  }
  return late;
}

}  // namespace weir::nccl
