// SPDX-License-Identifier: Apache-2.0
#include "core/comm/collective/call_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/engine/slicing.h"

namespace weir::comm {

namespace {

struct Extents {
  uint64_t input_bytes;
  uint64_t output_bytes;
};

// Of the buffers of `rank`. With blocks of different lengths, where those of a receive buffer lie
// is the rank's own matter.
Extents extents(const engine::Call& call, Rank rank, Rank rank_count) {
  const uint64_t one = call.count * element_bytes(call.type);
  if (call.block_counts != nullptr) {
    const uint64_t block = call.block_counts[rank] * element_bytes(call.type);
    return call.collective == Collective::kAllGather ? Extents{block, 0} : Extents{one, block};
  }
  switch (call.collective) {
    case Collective::kReduceScatter:
      return {one * rank_count, one};
    case Collective::kAllGather:
      return {one, one * rank_count};
    case Collective::kAllToAll:
      return {one * rank_count, one * rank_count};
    default:
      return {one, one};
  }
}

}  // namespace

bool CallAgreement::all_described(Request& request, uint64_t input_word, uint64_t output_word) {
  const uint64_t next = context_.sequence + 1;
  const uint32_t fingerprint = engine::fingerprint(request.call, context_.rank_count);
  if (!request.described) {
    context_.describe_next_call(request.call, fingerprint, input_word, output_word);
    context_.wake_sleepers();
    request.described = true;
  }
  const uint32_t mark = context_.call_mark(fingerprint);
  for (Rank p = 0; p < context_.rank_count; ++p) {
    const engine::DescriptorLine& line =
        context_.control(p).descriptor[next % engine::kDescriptorCount];
    if (line.sequence.load(std::memory_order_acquire) != next) return false;
    // Another call: check_slowly tells.
    if (line.mark.load(std::memory_order_relaxed) != mark) return false;
  }
  return true;
}

uint64_t CallAgreement::word_of_blocks(const engine::Call& call) const {
  if (windows_.need() == Windows::Need::kNothing) return 0;
  size_t end = 0;
  size_t next = 0;
  for (Rank p = 0; p < context_.rank_count; ++p) {
    if (call.block_displacements != nullptr) next = call.block_displacements[p];
    next += call.block_counts[p];
    if (call.block_counts[p] > 0) end = std::max(end, next);
  }
  return windows_.word_of(call.input, end * element_bytes(call.type), windows_.only_arenas());
}

void CallAgreement::publish_lengths(const engine::Call& call, uint64_t word) {
  engine::Control& own = context_.control(context_.rank);
  auto& offsets = own.block_offsets[uneven_count_ % 2];
  size_t next = 0;
  for (Rank p = 0; word != 0 && p < context_.rank_count; ++p) {
    const size_t offset = call.block_displacements != nullptr ? call.block_displacements[p] : next;
    offsets[p].store(offset, std::memory_order_relaxed);
    next += call.block_counts[p];
  }
  auto& row = own.block_words[uneven_count_ % 2];
  for (Rank p = 0; p < context_.rank_count; ++p) {
    row[p].store(engine::block_word(context_.sequence + 1, call.block_counts[p]),
                 std::memory_order_release);
  }
}

bool CallAgreement::find_blocks(const engine::Call& call, const engine::Planner& planner,
                                Status* failure) {
  const Rank n = context_.rank_count;
  const uint64_t element = element_bytes(call.type);
  if (windows_.need() == Windows::Need::kNothing || !planner.uses_windows(call.collective) ||
      call.block_count_max * element * n < engine::kWindowBytesMin) {
    return false;
  }
  const auto word_of = [&](Rank p) {
    const uint64_t next = context_.sequence + 1;
    return context_.control(p).descriptor[next % engine::kDescriptorCount].output_window.load(
        std::memory_order_relaxed);
  };
  const uint64_t first = word_of(0);
  bool reaches_all = true;
  for (Rank p = 0; p < n; ++p) {
    if (word_of(p) == 0) return false;
    reaches_all = reaches_all && windows_.at_peer(word_of(p), first, p, 0) != nullptr;
  }
  if (!reaches_all && !windows_.only_arenas()) return false;
  inputs_.assign(n, nullptr);
  outputs_.assign(n, nullptr);
  for (Rank p = 0; p < n; ++p) {
    const size_t count = call.recv_counts[p];
    if (p == context_.rank || count == 0) continue;
    const size_t offset = context_.control(p).block_offsets[uneven_count_ % 2][context_.rank].load(
        std::memory_order_relaxed);
    unsigned char* const input =
        offset > PTRDIFF_MAX / element - count
            ? nullptr
            : windows_.at_peer(word_of(p), first, p, (offset + count) * element);
    if (input == nullptr) {
      *failure = engine::unknown_memory(p);
      return false;
    }
    inputs_[p] = input + offset * element;
  }
  return true;
}

bool CallAgreement::lengths_match(const engine::Call& call, Status* failure) const {
  const uint64_t next = context_.sequence + 1;
  for (Rank p = 0; p < context_.rank_count; ++p) {
    const uint64_t word = context_.control(p).block_words[uneven_count_ % 2][context_.rank].load(
        std::memory_order_acquire);
    if (word == engine::block_word(next, call.recv_counts[p])) continue;
    // Published later than the word, and with more bits of the sequence.
    const engine::DescriptorLine& line =
        context_.control(p).descriptor[next % engine::kDescriptorCount];
    if (word >> 48 != (next & 0xffff) || line.sequence.load(std::memory_order_acquire) != next) {
      return false;
    }
    *failure = Status(
        Code::kMismatch,
        fmt::format("rank {} sends {} elements to rank {}, which expects {}; send_counts[{}] of "
                    "rank {} must be recv_counts[{}] of rank {}",
                    p, word & 0xffff'ffff'ffffu, context_.rank, call.recv_counts[p], context_.rank,
                    p, p, context_.rank));
    return false;
  }
  return true;
}

void CallAgreement::publish_blocks(const engine::Call& call, const engine::Plan& plan) {
  line_run_.publish_ahead(*plan.mapped, call, plan.fingerprint, context_);
  const uint64_t word = word_of_blocks(call);
  publish_lengths(call, word);
  // Long blocks of another rank, if any, are longer than all that fit into lines.
  context_.describe_next_call(
      call, plan.fingerprint,
      engine::line_payload_bytes(context_.rank_count) / element_bytes(call.type), word);
  context_.wake_sleepers();
}

bool CallAgreement::blocks_arrived() {
  if (line_run_.unpublished(context_)) return false;
  ++uneven_count_;
  return true;
}

bool CallAgreement::on_lengths(Request& request, engine::Planner& planner, bool* in_windows,
                               Status* failure) {
  engine::Call& call = request.call;
  if (!context_.mapped() || context_.rank_count == 1) return true;
  const Rank n = context_.rank_count;
  const size_t own = std::max(*std::max_element(call.block_counts, call.block_counts + n),
                              *std::max_element(call.recv_counts, call.recv_counts + n));
  // A rank with short blocks assumes that all have short ones: if so, all blocks have been
  // published once all ranks have described the call.
  const size_t short_max = engine::line_payload_bytes(n) / element_bytes(call.type);
  if (!request.described && own <= short_max) {
    call.block_count_max = short_max;
    const auto plan = planner.plan_for(call, false);
    if (plan.ok() && plan.value()->protocol == engine::Protocol::kLine) {
      publish_blocks(call, *plan.value());
      request.described = request.ahead = true;
    }
  }
  const uint64_t word = request.described ? 0 : word_of_blocks(call);
  if (!request.described) publish_lengths(call, word);
  const uint64_t next = context_.sequence + 1;
  if (request.ahead) {
    if (blocks_arrived()) {
      call.block_count_max = short_max;
      return true;
    }
    // A rank that has described the call and published no such block has others.
    const std::optional<Rank> missing = line_run_.unpublished(context_);
    if (!missing) return false;  // it has just arrived
    if (context_.control(*missing).descriptor[next % engine::kDescriptorCount].sequence.load(
            std::memory_order_acquire) != next) {
      return false;
    }
  }
  if (!all_described(request, own, word)) return false;
  call.block_count_max = 0;
  const size_t longest_max = PTRDIFF_MAX / element_bytes(call.type) / n;  // that any rank can have
  for (Rank p = 0; p < n; ++p) {
    const engine::DescriptorLine& line =
        context_.control(p).descriptor[next % engine::kDescriptorCount];
    const size_t longest = line.input_window.load(std::memory_order_relaxed);
    call.block_count_max = std::max(call.block_count_max, std::min(longest, longest_max));
  }
  // Slots of one size for all short blocks, so that one plan serves them.
  if (call.block_count_max <= short_max) call.block_count_max = short_max;
  if (!lengths_match(call, failure)) return false;
  *in_windows = find_blocks(call, planner, failure);
  if (!failure->ok()) return false;
  ++uneven_count_;
  return true;
}

bool CallAgreement::may_use_windows(const engine::Call& call,
                                    const engine::Planner& planner) const {
  const Rank n = context_.rank_count;
  if (!context_.mapped() || n == 1 || call.leaf_count > 0 ||
      !planner.uses_windows(call.collective)) {
    return false;
  }
  const uint64_t one = call.count * element_bytes(call.type);
  uint64_t bytes = one;
  if (call.block_counts == nullptr) {
    const Extents both = extents(call, 0, n);
    bytes = std::max(both.input_bytes, both.output_bytes);
  }
  return bytes >=
         (is_rooted(call.collective) ? engine::kRootedWindowBytesMin : engine::kWindowBytesMin);
}

uint64_t CallAgreement::tell(const engine::Call& call) {
  told_ = &call;
  const bool rooted = is_rooted(call.collective) && context_.rank != call.root;
  const bool sends = !rooted || (call.collective != Collective::kBroadcast &&
                                 call.collective != Collective::kScatter);
  // Peers must see the factor's products, and not the blocks that in place overwrites.
  const bool stages = call.scaled || (call.collective == Collective::kAllToAll && call.in_place);
  if (!sends || stages) return 0;
  return windows_.word_of(call.input,
                          extents(call, context_.rank, context_.rank_count).input_bytes);
}

unsigned char* CallAgreement::find(Rank peer, uint64_t word) {
  return windows_.at_peer(word, word, peer, extents(*told_, peer, context_.rank_count).input_bytes);
}

bool CallAgreement::on_windows(Request& request, const engine::Planner& planner, bool* in_windows) {
  const engine::Call& call = request.call;
  *in_windows = false;
  if (windows_.only_arenas() || call.scaled || call.block_counts != nullptr ||
      !may_use_windows(call, planner)) {
    return true;
  }
  const Extents bytes = extents(call, context_.rank, context_.rank_count);

  // A buffer that this rank does not use counts as lying where its other one does.
  const bool other = is_rooted(call.collective) && context_.rank != call.root;
  const void* input = other && call.collective == Collective::kBroadcast ? call.output : call.input;
  const void* output = other && call.collective == Collective::kReduce ? call.input : call.output;
  if (!all_described(request, windows_.word_of(input, bytes.input_bytes, false),
                     windows_.word_of(output, bytes.output_bytes, false))) {
    return false;
  }
  bool all = true;
  inputs_.resize(context_.rank_count);
  outputs_.resize(context_.rank_count);
  uint64_t first_input = 0, first_output = 0;  // the words of rank 0
  for (Rank p = 0; p < context_.rank_count; ++p) {
    const engine::DescriptorLine& line =
        context_.control(p).descriptor[(context_.sequence + 1) % engine::kDescriptorCount];
    const uint64_t input_word = line.input_window.load(std::memory_order_relaxed);
    const uint64_t output_word = line.output_window.load(std::memory_order_relaxed);
    if (p == 0) first_input = input_word, first_output = output_word;
    inputs_[p] = windows_.at_peer(input_word, first_input, p, bytes.input_bytes);
    outputs_[p] = windows_.at_peer(output_word, first_output, p, bytes.output_bytes);
    all = all && inputs_[p] != nullptr && outputs_[p] != nullptr;
  }
  *in_windows = all;
  return true;
}

}  // namespace weir::comm
