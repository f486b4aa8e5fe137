// SPDX-License-Identifier: Apache-2.0
#include "plugins/shm/segment_setup.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <new>
#include <string>
#include <vector>

#include "plugins/common/look.h"

namespace weir::plugins::shm {
namespace {

constexpr uint64_t kMagic = 0x326d687372696577;  // "weirshm2"
constexpr uint32_t kFailed = 1u << 31;
// Each look goes over all ranks: with many of them the interval grows.
constexpr uint32_t kRanksOfOneLook = 128;

// For a rank that has begun to tell why it gave up.
constexpr uint64_t kVerdictNs = 500'000'000;

enum Stage : uint8_t { kMissing = 0, kCame = 1, kMapped = 2 };

struct SegmentSetup {
  uint64_t magic;
  uint64_t bytes;
  uint32_t rank_count;
  std::atomic<uint32_t> state;
  std::atomic<uint32_t> teller;
  std::atomic<uint32_t> result;
  char text[768];
  std::atomic<uint8_t> stage[1];  // of each rank

  static uint64_t bytes_for(uint32_t rank_count) {
    return round_to_pages(offsetof(SegmentSetup, stage) + rank_count);
  }
};
static_assert(offsetof(SegmentSetup, stage) == 800);
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint8_t>) == 1);

uint64_t monotonic_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

void wake_all(SegmentSetup* setup) {
  syscall(SYS_futex, &setup->state, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void wait_while(SegmentSetup* setup, uint32_t state, uint64_t wait_ns) {
  const timespec time = {static_cast<time_t>(wait_ns / 1'000'000'000),
                         static_cast<long>(wait_ns % 1'000'000'000)};
  syscall(SYS_futex, &setup->state, FUTEX_WAIT, state, &time, nullptr, 0);
}

// "2, 5-7": at most a few hundred characters.
std::string rank_list(const SegmentSetup& setup, uint32_t rank_count, Stage stage, size_t* count) {
  const auto is_there = [&](uint32_t rank) { return setup.stage[rank].load() == stage; };
  std::string text;
  *count = 0;
  for (uint32_t i = 0; i < rank_count; ++i) {
    if (!is_there(i)) continue;
    uint32_t end = i;
    while (end + 1 < rank_count && is_there(end + 1)) ++end;
    *count += end - i + 1;
    if (text.size() <= 300) {
      if (!text.empty()) text += ", ";
      text += std::to_string(i);
      if (end > i) text += (end > i + 1 ? "-" : ", ") + std::to_string(end);
      if (text.size() > 300) text += ", ...";
    }
    i = end;
  }
  return (*count == 1 ? "rank " : "ranks ") + text;
}

// One call of share_memory.
class Call {
 public:
  Call(const Party& party, const unsigned char* key, const Wanted& wanted, uint64_t deadline_ns)
      : party_(party),
        report_(party.report),
        control_(common::control_of(party.report.host)),
        key_(key),
        wanted_(wanted),
        deadline_ns_(deadline_ns),
        setup_bytes_(SegmentSetup::bytes_for(party.rank_count)) {}
  ~Call() {
    if (fd_ >= 0) close(fd_);
    unmap_memory(&pages_);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  weir_result_t run(Mapping* mapping) {
    weir_result_t result = party_.rank == 0 ? make() : fetch();
    if (result == WEIR_OK) result = arrive();
    if (result == WEIR_OK) result = map(mapping);
    if (result == WEIR_OK) result = await_all();
    if (result != WEIR_OK) unmap_memory(mapping);
    return result;
  }
  bool offers() const { return offers_; }

 private:
  // Rank 0: makes the memory or, if that fails, pages that tell the others why.
  weir_result_t make() {
    std::string why;
    const Report telling = report_.also_to(&why);
    const bool huge = wanted_.huge_bytes == wanted_.bytes;
    weir_result_t result = create_memory(telling, wanted_.bytes, setup_bytes_, huge, &fd_);
    const bool made = result == WEIR_OK;
    if (!made && create_memory(telling, 0, setup_bytes_, false, &fd_) != WEIR_OK) return result;
    if (const weir_result_t opened = open_setup(); opened != WEIR_OK) return opened;
    setup_->magic = kMagic;
    setup_->bytes = wanted_.bytes;
    setup_->rank_count = party_.rank_count;
    if (made) return WEIR_OK;
    result = give_up(result, "shm: rank 0 could not make the shared memory: " + why);
    return offer(result);
  }

  // Fetches it from the parent or, if that does not come, from its parent, and so on up to rank 0,
  // so that a rank behind a missing rank is not missing itself.
  weir_result_t fetch() {
    uint32_t from = party_.rank;
    uint64_t now = monotonic_ns();
    weir_result_t result = WEIR_OK;
    do {
      from -= std::bit_floor(from);
      const uint64_t left = deadline_ns_ > now ? deadline_ns_ - now : 0;
      result = control_->fetch(control_->context, from, key_,
                               from == 0 ? deadline_ns_ : now + left / 2, &fd_);
      if (result == WEIR_OK) return open_setup();
      if (const weir_result_t seen = common::look(report_.host); seen != WEIR_OK) return seen;
      now = monotonic_ns();
    } while (from != 0 && (result == WEIR_ERROR_TIMEOUT || result == WEIR_ERROR_PEER_LOST));
    if (result == WEIR_ERROR_TIMEOUT) {
      return report_.fail(result, "shm: rank %u waited for rank %u, which did not share its memory",
                          party_.rank, from);
    }
    if (result == WEIR_ERROR_PEER_LOST) {
      return report_.fail(result,
                          "shm: rank %u ended before rank %u had the memory that all ranks share",
                          from, party_.rank);
    }
    return result;  // the control network has told why
  }

  weir_result_t open_setup() {
    weir_result_t result = check_memory(report_, fd_, &memory_bytes_);
    if (result != WEIR_OK) return result;
    unsigned char* at = nullptr;
    result = map_end(report_, fd_, memory_bytes_, setup_bytes_, &pages_, &at);
    if (result == WEIR_OK) setup_ = reinterpret_cast<SegmentSetup*>(at);
    return result;
  }

  weir_result_t offer(weir_result_t result) {
    if (party_.rank_count == 1) return result;
    const weir_result_t offered = control_->offer(control_->context, key_, fd_);
    offers_ = offered == WEIR_OK;
    return result == WEIR_OK ? offered : result;
  }

  weir_result_t arrive() {
    if (setup_->magic != kMagic || setup_->rank_count != party_.rank_count) {
      return report_.fail(WEIR_ERROR_REFUSED,
                          "shm: the memory that rank %u received is not that of a communicator of "
                          "%u ranks and this version; do all ranks run the same version of Weir?",
                          party_.rank, party_.rank_count);
    }
    setup_->stage[party_.rank].store(kCame);
    const weir_result_t offered = offer(WEIR_OK);
    if (offered != WEIR_OK) {
      return give_up(offered, "shm: rank " + std::to_string(party_.rank) +
                                  " could not offer the shared memory to other ranks; if it is out "
                                  "of file descriptors, raise `ulimit -n`");
    }
    if ((setup_->state.load(std::memory_order_acquire) & kFailed) != 0) return adopt();
    const uint64_t bytes = setup_->bytes;
    if (bytes != wanted_.bytes) {
      // Both are of all ranks together.
      return give_up(WEIR_ERROR_MISMATCH, "shm: rank " + std::to_string(party_.rank) +
                                              " asks for " +
                                              std::to_string(wanted_.bytes / party_.rank_count) +
                                              " bytes of shared memory for each rank, rank 0 for " +
                                              std::to_string(bytes / party_.rank_count) +
                                              ": all ranks must ask for the same");
    }
    if (memory_bytes_ - setup_bytes_ < bytes) {
      return give_up(WEIR_ERROR_REFUSED, "shm: the shared memory has " +
                                             std::to_string(memory_bytes_) +
                                             " bytes, fewer than rank 0 announced");
    }
    return WEIR_OK;
  }

  weir_result_t map(Mapping* mapping) {
    std::string why;
    const weir_result_t result =
        map_memory(report_.also_to(&why), fd_, wanted_.bytes, wanted_.huge_bytes, mapping);
    if (result != WEIR_OK) {
      return give_up(
          result, "shm: rank " + std::to_string(party_.rank) + " could not map the memory: " + why);
    }
    unsigned char* const own = mapping->base + party_.rank * wanted_.part_bytes;
    if (wanted_.numa_node >= 0 &&
        (!has_several_nodes() || prefer_node(own, wanted_.part_bytes, wanted_.numa_node))) {
      mapping->numa_node = wanted_.numa_node;
    }
    if (wanted_.collapses) collapse_memory(own, wanted_.part_bytes);
    setup_->stage[party_.rank].store(kMapped);
    uint32_t state = setup_->state.load(std::memory_order_acquire);
    do {
      if ((state & kFailed) != 0) return adopt();
    } while (!setup_->state.compare_exchange_weak(state, state + 1));
    if (state + 1 == party_.rank_count) wake_all(setup_);
    return WEIR_OK;
  }

  weir_result_t await_all() {
    const uint64_t look_ns =
        common::kLookNs * ((party_.rank_count + kRanksOfOneLook - 1) / kRanksOfOneLook);
    uint64_t look_next_ns = monotonic_ns() + look_ns;
    for (;;) {
      const uint32_t state = setup_->state.load(std::memory_order_acquire);
      if (state == party_.rank_count) return WEIR_OK;
      if ((state & kFailed) != 0) return adopt();
      const uint64_t now = monotonic_ns();
      if (now >= look_next_ns || now >= deadline_ns_) {
        look_next_ns = now + look_ns;
        // A rank that has left in order has seen the end of this first.
        for (uint32_t p = 0; p < party_.rank_count; ++p) {
          if (control_->life(control_->context, p) == WEIR_LIFE_HERE) continue;
          return give_up(WEIR_ERROR_PEER_LOST,
                         "shm: rank " + std::to_string(p) + " ended while the ranks were joining");
        }
        if (const weir_result_t seen = common::look(report_.host); seen != WEIR_OK) return seen;
        if (now >= deadline_ns_) return give_up(WEIR_ERROR_TIMEOUT, who_is_late());
      }
      wait_while(setup_, state, std::min(look_next_ns, deadline_ns_) - now);
    }
  }

  std::string who_is_late() const {
    size_t count = 0;
    const std::string missing = rank_list(*setup_, party_.rank_count, kMissing, &count);
    if (count > 0) {
      return "shm: " + missing + " of " + std::to_string(party_.rank_count) +
             " did not join before the deadline";
    }
    const std::string slow = rank_list(*setup_, party_.rank_count, kCame, &count);
    if (count > 0) {
      return "shm: " + slow + " joined, but did not map the shared memory before the deadline";
    }
    // A rank reports its stage first, and may be stopped before it counts itself.
    const uint32_t state = setup_->state.load(std::memory_order_acquire);
    return "shm: all " + std::to_string(party_.rank_count) +
           " ranks mapped the shared memory, but only " + std::to_string(state & ~kFailed) +
           " confirmed it before the deadline; is a process stopped?";
  }

  // Tells all why they cannot share the memory, unless they share it by now or another rank has
  // given a reason.
  weir_result_t give_up(weir_result_t result, const std::string& text) {
    uint32_t nobody = 0;
    if (!setup_->teller.compare_exchange_strong(nobody, party_.rank + 1)) {
      return await_verdict(result, text);
    }
    setup_->result.store(static_cast<uint32_t>(result));
    snprintf(setup_->text, sizeof setup_->text, "%s", text.c_str());
    uint32_t state = setup_->state.load(std::memory_order_acquire);
    do {
      if (state == party_.rank_count) return WEIR_OK;
    } while (!setup_->state.compare_exchange_weak(state, state | kFailed));
    wake_all(setup_);
    return report_.fail(result, "%s", text.c_str());
  }

  // Another rank is about to tell a reason, unless the last rank comes before it does: all ranks
  // must end alike. `result` and `text`: for when that rank stands still.
  weir_result_t await_verdict(weir_result_t result, const std::string& text) {
    const uint64_t end_ns = monotonic_ns() + kVerdictNs;
    for (;;) {
      const uint32_t state = setup_->state.load(std::memory_order_acquire);
      if ((state & kFailed) != 0) return adopt();
      if (state == party_.rank_count) return WEIR_OK;
      const uint64_t now = monotonic_ns();
      if (now >= end_ns) return report_.fail(result, "%s", text.c_str());
      wait_while(setup_, state, end_ns - now);
    }
  }

  weir_result_t adopt() {
    const uint32_t told = setup_->result.load();
    char text[sizeof setup_->text];
    memcpy(text, setup_->text, sizeof text);
    text[sizeof text - 1] = 0;
    for (char* c = text; *c != 0; ++c) {
      if (static_cast<unsigned char>(*c) < ' ' || *c == 0x7f) *c = '?';
    }
    const bool known = told > WEIR_IN_PROGRESS && told <= WEIR_ERROR_INTERNAL;
    return report_.fail(known ? static_cast<weir_result_t>(told) : WEIR_ERROR_INTERNAL, "%s", text);
  }

  const Party& party_;
  const Report& report_;
  const weir_control_t* const control_;
  const unsigned char* const key_;
  const Wanted wanted_;
  const uint64_t deadline_ns_;
  const uint64_t setup_bytes_;
  uint64_t memory_bytes_ = 0;
  int fd_ = -1;
  Mapping pages_;
  SegmentSetup* setup_ = nullptr;
  bool offers_ = false;
};

}  // namespace

weir_result_t share_memory(Party* party, const unsigned char* key, const Wanted& wanted,
                           uint64_t deadline_ns, Mapping* mapping) {
  const weir_control_t* const control = common::control_of(party->report.host);
  if (control == nullptr && party->rank_count > 1) {
    return party->report.fail(WEIR_ERROR_INVALID_USAGE, "shm: there is no control network");
  }
  if (party->offers) control->withdraw(control->context, party->offered);
  party->offers = false;
  Call call(*party, key, wanted, deadline_ns);
  const weir_result_t result = call.run(mapping);
  if (!call.offers()) return result;
  if (result == WEIR_OK) {
    control->withdraw(control->context, key);
  } else {
    memcpy(party->offered, key, kKeyBytes);
    party->offers = true;
  }
  return result;
}

}  // namespace weir::plugins::shm
