// SPDX-License-Identifier: Apache-2.0
#include "simnet/operation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/base/types.h"
#include "simnet/elements.h"

namespace weir::simnet {

namespace {

constexpr size_t kFenceBytes = 64;
constexpr unsigned char kFence = 0xc3;
constexpr unsigned char kUntouched = 0x5a;

bool reduces(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter ||
         kind == Kind::kReduceScatterV;
}
bool is_float8(int type) { return type == WEIR_FLOAT8_E4M3 || type == WEIR_FLOAT8_E5M2; }

}  // namespace

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {
      "all_reduce", "reduce",       "broadcast",  "reduce_scatter", "reduce_scatter_v",
      "all_gather", "all_gather_v", "all_to_all", "all_to_all_v",   "gather",
      "scatter",    "barrier",      "messages"};
  return kNames[static_cast<size_t>(kind)];
}

std::string Operation::describe() const {
  std::string text =
      fmt::format("{}(type {}, op {}, count {}, root {}{}{}", name_of(kind), type, fold, count,
                  root, in_place ? ", in place" : "", nonblocking ? ", nonblocking" : "");
  if (!counts.empty()) text += fmt::format(", counts {}", fmt::join(counts, " "));
  for (const Message& m : messages) text += fmt::format(", {} to {}: {}", m.from, m.to, m.count);
  return text + ")";
}

Operation draw_operation(Random& random, const OperationLimits& limits) {
  Operation op;
  const uint32_t n = limits.rank_count;
  op.kind = static_cast<Kind>(random.below(kKindCount));
  op.type = static_cast<int>(random.below(kDataTypeCount));
  op.fold = static_cast<int>(random.below(5));
  // A mean of whole numbers is one only where the sum has room.
  if (op.fold == WEIR_AVG && is_float8(op.type)) op.fold = WEIR_SUM;
  op.root = static_cast<uint32_t>(random.below(n));
  op.count = random.one_in(12) ? 0 : random.of_any_size(limits.elements_max);
  op.in_place = random.one_in(3);
  op.nonblocking = random.one_in(2);
  op.salt = random.next();
  const auto draw_counts = [&](size_t entries) {
    for (size_t i = 0; i < entries; ++i) {
      op.counts.push_back(random.one_in(4) ? 0 : random.of_any_size(limits.elements_max / n + 1));
    }
  };
  switch (op.kind) {
    case Kind::kReduceScatterV:
      draw_counts(n);
      break;
    case Kind::kAllGatherV: {
      draw_counts(n);
      op.in_place = false;
      if (random.one_in(2)) break;
      std::vector<uint32_t> order(n);
      std::iota(order.begin(), order.end(), 0u);
      for (uint32_t i = n; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
      op.displacements.resize(n);
      size_t at = 0;
      for (const uint32_t p : order) {
        at += random.below(4);
        op.displacements[p] = at;
        at += op.counts[p];
      }
      break;
    }
    case Kind::kAllToAllV:
      draw_counts(size_t{n} * n);
      break;
    case Kind::kMessages:
      for (uint64_t i = random.between(1, 2 * n); i > 0; --i) {
        op.messages.push_back({static_cast<uint32_t>(random.below(n)),
                               static_cast<uint32_t>(random.below(n)),
                               random.of_any_size(limits.elements_max)});
      }
      break;
    default:
      break;
  }
  return op;
}

void Buffers::Region::make(size_t wanted_bytes, size_t offset) {
  bytes = wanted_bytes;
  begin = kFenceBytes + offset;
  memory.assign(begin + bytes + kFenceBytes, kFence);
  std::fill_n(memory.begin() + static_cast<std::ptrdiff_t>(begin), bytes, kUntouched);
  expected = memory;
}

size_t Buffers::element() const { return element_bytes(static_cast<DataType>(op_.type)); }

uint32_t Buffers::value(uint32_t rank, size_t index) const {
  const auto bits = static_cast<uint32_t>(mix(op_.salt, rank, index) >> 40);
  const bool narrow = is_float8(op_.type);
  switch (op_.fold) {
    case WEIR_PROD:  // at most 64
      return rank < 6 ? 1 + bits % 2 : 1;
    case WEIR_AVG:  // the sum is a multiple of the number of ranks, at most 81
      return n_ * (bits % 2);
    case WEIR_SUM:  // at most 8 where 9 is no number, else 27
      return narrow ? (rank < 8 ? bits % 2 : 0) : bits % 4;
    default:
      return bits % 8;
  }
}

uint32_t Buffers::reduced(size_t index) const {
  uint32_t result = value(0, index);
  for (uint32_t p = 1; p < n_; ++p) {
    const uint32_t next = value(p, index);
    switch (op_.fold) {
      case WEIR_PROD:
        result *= next;
        break;
      case WEIR_MAX:
        result = std::max(result, next);
        break;
      case WEIR_MIN:
        result = std::min(result, next);
        break;
      default:
        result += next;
    }
  }
  return op_.fold == WEIR_AVG ? result / n_ : result;
}

void Buffers::fill(unsigned char* out, uint32_t rank, size_t index, size_t count) const {
  if (reduces(op_.kind)) {
    for (size_t i = 0; i < count; ++i) {
      put_element(op_.type, value(rank, index + i), out + i * element());
    }
    return;
  }
  // Whatever bits there are must arrive.
  for (size_t at = 0; at < count * element(); ++at) {
    const size_t byte = index * element() + at;
    out[at] = static_cast<unsigned char>(mix(op_.salt, rank, byte / 8) >> (byte % 8 * 8));
  }
}

void Buffers::put_input(Region& region, size_t at, uint32_t rank, size_t index, size_t count) {
  fill(region.data() + at * element(), rank, index, count);
  expect_input(region, at, rank, index, count);
}

void Buffers::expect_input(Region& region, size_t at, uint32_t rank, size_t index, size_t count) {
  fill(region.wanted() + at * element(), rank, index, count);
}

void Buffers::expect_reduced(Region& region, size_t at, size_t index, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    put_element(op_.type, reduced(index + i), region.wanted() + (at + i) * element());
  }
}

Buffers::Buffers(const Operation& operation, uint32_t rank, uint32_t rank_count, Random& random)
    : op_(operation), rank_(rank), n_(rank_count) {
  if (op_.kind == Kind::kMessages) {
    make_messages(random);
  } else {
    make_collective(random);
  }
}

void Buffers::make_messages(Random& random) {
  for (uint32_t i = 0; i < op_.messages.size(); ++i) {
    const Message& m = op_.messages[i];
    if (m.from == rank_) order_.push_back(2 * i);
    if (m.to == rank_) order_.push_back(2 * i + 1);
  }
  // Any order in which messages of one pair and direction keep theirs.
  for (size_t turn = 0; turn < 2 * order_.size(); ++turn) {
    const size_t at = random.below(order_.size());
    if (at + 1 >= order_.size()) continue;
    const Message& a = op_.messages[order_[at] / 2];
    const Message& b = op_.messages[order_[at + 1] / 2];
    const bool same = order_[at] % 2 == order_[at + 1] % 2 && a.from == b.from && a.to == b.to;
    if (!same) std::swap(order_[at], order_[at + 1]);
  }
  messages_.resize(order_.size());
  for (size_t k = 0; k < order_.size(); ++k) {
    const Message& m = op_.messages[order_[k] / 2];
    messages_[k].make(m.count * element(), random.below(4) * element());
    const size_t index = size_t{order_[k] / 2} << 20;
    if (order_[k] % 2 == 0) {
      put_input(messages_[k], 0, m.from, index, m.count);
    } else {
      expect_input(messages_[k], 0, m.from, index, m.count);
    }
  }
}

void Buffers::make_collective(Random& random) {
  const size_t count = op_.count;
  const size_t r = rank_;
  const size_t n = n_;
  const bool at_root = rank_ == op_.root;
  const bool in_place = op_.in_place;
  const size_t offset = random.below(4) * element();
  const auto make = [&](size_t send_count, size_t recv_count) {
    send_.make(send_count * element(), offset);
    recv_.make(recv_count * element(), offset);
  };
  const auto sum = [&](size_t begin, size_t end, size_t step = 1) {
    size_t total = 0;
    for (size_t i = begin; i < end; i += step) total += op_.counts[i];
    return total;
  };
  switch (op_.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce: {
      const bool receives = op_.kind == Kind::kAllReduce || at_root;
      make(in_place && receives ? 0 : count, receives ? count : 0);
      put_input(in_place && receives ? recv_ : send_, 0, rank_, 0, count);
      if (receives) expect_reduced(recv_, 0, 0, count);
      break;
    }
    case Kind::kBroadcast:
      make(at_root && !in_place ? count : 0, count);
      if (at_root) put_input(in_place ? recv_ : send_, 0, rank_, 0, count);
      expect_input(recv_, 0, op_.root, 0, count);
      break;
    case Kind::kReduceScatter:
      make(in_place ? 0 : count * n, in_place ? count * n : count);
      put_input(in_place ? recv_ : send_, 0, rank_, 0, count * n);
      expect_reduced(recv_, in_place ? count * r : 0, count * r, count);
      break;
    case Kind::kReduceScatterV: {
      const size_t all = sum(0, n);
      const size_t before = sum(0, r);
      make(in_place ? 0 : all, in_place ? all : op_.counts[r]);
      put_input(in_place ? recv_ : send_, 0, rank_, 0, all);
      expect_reduced(recv_, in_place ? before : 0, before, op_.counts[r]);
      break;
    }
    case Kind::kAllGather:
      make(in_place ? 0 : count, count * n);
      put_input(in_place ? recv_ : send_, in_place ? count * r : 0, rank_, 0, count);
      for (uint32_t p = 0; p < n; ++p) expect_input(recv_, count * p, p, 0, count);
      break;
    case Kind::kAllGatherV: {
      size_t end = 0;
      std::vector<size_t> at(n);
      for (size_t p = 0; p < n; ++p) {
        at[p] = op_.displacements.empty() ? sum(0, p) : op_.displacements[p];
        end = std::max(end, at[p] + op_.counts[p]);
      }
      make(op_.counts[r], end + 3);
      put_input(send_, 0, rank_, 0, op_.counts[r]);
      for (uint32_t p = 0; p < n; ++p) expect_input(recv_, at[p], p, 0, op_.counts[p]);
      break;
    }
    case Kind::kAllToAll:
      make(in_place ? 0 : count * n, count * n);
      put_input(in_place ? recv_ : send_, 0, rank_, 0, count * n);
      for (uint32_t p = 0; p < n; ++p) expect_input(recv_, count * p, p, count * r, count);
      break;
    case Kind::kAllToAllV: {
      // counts[a * n + b]: from a to b.
      send_counts_.resize(n);
      recv_counts_.resize(n);
      for (size_t p = 0; p < n; ++p) {
        send_counts_[p] = op_.counts[r * n + p];
        recv_counts_[p] = op_.counts[p * n + r];
      }
      make(sum(r * n, r * n + n), sum(r, n * n, n));
      size_t at = 0;
      for (size_t p = 0; p < n; ++p) {
        put_input(send_, at, rank_, p << 20, send_counts_[p]);
        at += send_counts_[p];
      }
      at = 0;
      for (uint32_t p = 0; p < n; ++p) {
        expect_input(recv_, at, p, r << 20, recv_counts_[p]);
        at += recv_counts_[p];
      }
      break;
    }
    case Kind::kGather:
      make(in_place && at_root ? 0 : count, at_root ? count * n : 0);
      put_input(in_place && at_root ? recv_ : send_, in_place && at_root ? count * r : 0, rank_, 0,
                count);
      for (uint32_t p = 0; p < n && at_root; ++p) expect_input(recv_, count * p, p, 0, count);
      break;
    case Kind::kScatter:
      make(at_root ? count * n : 0, in_place && at_root ? 0 : count);
      if (at_root) put_input(send_, 0, rank_, 0, count * n);
      if (!(in_place && at_root)) expect_input(recv_, 0, op_.root, count * r, count);
      break;
    default:
      make(0, 0);
  }
}

weir_result_t Buffers::call_messages(weir_comm_t comm, std::vector<weir_request_t>* requests) {
  const auto type = static_cast<weir_datatype_t>(op_.type);
  weir_result_t first = WEIR_OK;
  if (requests == nullptr) first = weir_group_start();
  for (size_t k = 0; k < order_.size() && first == WEIR_OK; ++k) {
    const Message& m = op_.messages[order_[k] / 2];
    weir_request_t request = nullptr;
    weir_request_t* out = requests == nullptr ? nullptr : &request;
    first =
        order_[k] % 2 == 0
            ? weir_send(comm, messages_[k].data(), m.count, type, static_cast<int>(m.to), out)
            : weir_recv(comm, messages_[k].data(), m.count, type, static_cast<int>(m.from), out);
    if (request != nullptr) requests->push_back(request);
  }
  if (requests != nullptr) return first;
  const weir_result_t ended = weir_group_end();
  return first == WEIR_OK ? ended : first;
}

weir_result_t Buffers::call(weir_comm_t comm, std::vector<weir_request_t>* requests) {
  if (op_.kind == Kind::kMessages) return call_messages(comm, requests);
  const auto type = static_cast<weir_datatype_t>(op_.type);
  const int root = static_cast<int>(op_.root);
  const bool at_root = rank_ == op_.root;
  const size_t count = op_.count;
  const size_t r = rank_;
  weir_request_t request = nullptr;
  weir_request_t* out = requests == nullptr ? nullptr : &request;
  unsigned char* send = send_.data();
  unsigned char* recv = recv_.data();
  weir_result_t result = WEIR_OK;
  switch (op_.kind) {
    case Kind::kAllReduce:
      result = weir_all_reduce(comm, op_.in_place ? recv : send, recv, count, type, op_.fold, out);
      break;
    case Kind::kReduce:
      result = weir_reduce(comm, op_.in_place && at_root ? recv : send, at_root ? recv : nullptr,
                           count, type, op_.fold, root, out);
      break;
    case Kind::kBroadcast:
      result = weir_broadcast(comm,
                              !at_root       ? nullptr
                              : op_.in_place ? recv
                                             : send,
                              recv, count, type, root, out);
      break;
    case Kind::kReduceScatter:
      result = weir_reduce_scatter(comm, op_.in_place ? recv : send,
                                   op_.in_place ? recv + count * r * element() : recv, count, type,
                                   op_.fold, out);
      break;
    case Kind::kReduceScatterV: {
      size_t before = 0;
      for (size_t p = 0; p < r; ++p) before += op_.counts[p];
      result = weir_reduce_scatter_v(comm, op_.in_place ? recv : send,
                                     op_.in_place ? recv + before * element() : recv,
                                     op_.counts.data(), type, op_.fold, out);
      break;
    }
    case Kind::kAllGather:
      result = weir_all_gather(comm, op_.in_place ? recv + count * r * element() : send, recv,
                               count, type, out);
      break;
    case Kind::kAllGatherV:
      result = weir_all_gather_v(comm, send, recv, op_.counts.data(),
                                 op_.displacements.empty() ? nullptr : op_.displacements.data(),
                                 type, out);
      break;
    case Kind::kAllToAll:
      result = weir_all_to_all(comm, op_.in_place ? recv : send, recv, count, type, out);
      break;
    case Kind::kAllToAllV:
      result = weir_all_to_all_v(comm, send, send_counts_.data(), nullptr, recv,
                                 recv_counts_.data(), nullptr, type, out);
      break;
    case Kind::kGather:
      result = weir_gather(comm, op_.in_place && at_root ? recv + count * r * element() : send,
                           at_root ? recv : nullptr, count, type, root, out);
      break;
    case Kind::kScatter:
      result = weir_scatter(comm, at_root ? send : nullptr,
                            op_.in_place && at_root ? send + count * r * element() : recv, count,
                            type, root, out);
      break;
    default:
      result = weir_barrier(comm, out);
  }
  if (request != nullptr) requests->push_back(request);
  return result;
}

std::string Buffers::check(bool complete) const {
  const auto look = [&](const Region& region, const char* what) -> std::string {
    for (size_t i = 0; i < region.memory.size(); ++i) {
      const bool inside = i >= region.begin && i < region.begin + region.bytes;
      if (region.memory[i] == region.expected[i] || (inside && !complete)) continue;
      const auto at = static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(region.begin);
      return fmt::format("rank {}: byte {} of the {} buffer of {} bytes is {:#04x}, not {:#04x}{}",
                         rank_, at, what, region.bytes, region.memory[i], region.expected[i],
                         inside ? "" : ", and that lies outside of it");
    }
    return "";
  };
  std::string wrong = look(send_, "send");
  if (wrong.empty()) wrong = look(recv_, "receive");
  for (size_t k = 0; k < messages_.size() && wrong.empty(); ++k) {
    wrong = look(messages_[k], order_[k] % 2 == 0 ? "message's send" : "message's receive");
  }
  return wrong;
}

}  // namespace weir::simnet
