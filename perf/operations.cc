// SPDX-License-Identifier: Apache-2.0
#include "perf/operations.h"

#include <algorithm>
#include <cstring>

namespace weir::perf {
namespace {

size_t index(int rank) { return static_cast<size_t>(rank); }

// ---- Sizes and places ------------------------------------------------------------------------

// Every rank's send and receive buffers hold the whole vector.
Geometry whole_vectors(size_t count_total, size_t element_bytes, const Where& /*where*/) {
  Geometry g;
  g.send_count = count_total;
  g.recv_count = count_total;
  g.in_place_count = count_total;
  g.table_count = count_total;
  g.table_bytes = count_total * element_bytes;
  return g;
}

// In place: what is received lies after what is sent, in the same buffer.
Geometry apart_in_place(Geometry g) {
  g.in_place_recv_offset = g.send_count;
  g.in_place_count = g.send_count + g.recv_count;
  return g;
}

Geometry send_recv_geometry(size_t count_total, size_t element_bytes, const Where& where) {
  return apart_in_place(whole_vectors(count_total, element_bytes, where));
}

Geometry broadcast_geometry(size_t count_total, size_t element_bytes, const Where& where) {
  Geometry g = whole_vectors(count_total, element_bytes, where);
  if (where.rank != where.root) g.send_count = 0;
  return g;
}

Geometry reduce_geometry(size_t count_total, size_t element_bytes, const Where& where) {
  Geometry g = whole_vectors(count_total, element_bytes, where);
  if (where.rank != where.root) g.recv_count = 0;
  return g;
}

// Both buffers hold a block per rank; the similar operations reduce one of them to one block.
Geometry blocks(size_t count_total, size_t element_bytes, const Where& where) {
  const size_t count = count_total / index(where.rank_count);
  Geometry g;
  g.send_count = g.recv_count = g.in_place_count = count * index(where.rank_count);
  g.table_count = count;
  g.table_bytes = g.send_count * element_bytes;
  return g;
}

Geometry all_gather_geometry(size_t count_total, size_t element_bytes, const Where& where) {
  Geometry g = blocks(count_total, element_bytes, where);
  g.send_count = g.table_count;
  g.in_place_send_offset = g.table_count * index(where.rank);
  return g;
}

Geometry reduce_scatter_geometry(size_t count_total, size_t element_bytes, const Where& where) {
  Geometry g = blocks(count_total, element_bytes, where);
  g.recv_count = g.table_count;
  g.in_place_recv_offset = g.table_count * index(where.rank);
  return g;
}

Geometry gather_geometry(size_t count_total, size_t element_bytes, const Where& where) {
  Geometry g = blocks(count_total, element_bytes, where);
  const bool is_root = where.rank == where.root;
  g.send_count = g.table_count;
  if (is_root) {
    g.in_place_send_offset = g.table_count * index(where.root);
  } else {
    g.recv_count = 0;
    g.in_place_count = g.table_count;
  }
  return g;
}

Geometry scatter_geometry(size_t count_total, size_t element_bytes, const Where& where) {
  Geometry g = blocks(count_total, element_bytes, where);
  const bool is_root = where.rank == where.root;
  g.recv_count = g.table_count;
  if (is_root) {
    g.in_place_recv_offset = g.table_count * index(where.root);
  } else {
    g.send_count = 0;
    g.in_place_count = g.table_count;
  }
  return g;
}

// From rank r to rank p go between 0.5 and 1.5 times the mean, more the farther p is after r. Every
// rank sends and receives the same total.
size_t count_between(size_t mean, int from, int to, int rank_count) {
  if (rank_count == 1) return mean;
  const size_t distance = index((to - from + rank_count) % rank_count);
  return mean / 2 + mean * distance / index(rank_count - 1);
}

// The offset of the block for `to` in the send buffer of `from`.
size_t uneven_offset(size_t mean, int from, int to, int rank_count) {
  size_t offset = 0;
  for (int i = 0; i < to; ++i) offset += count_between(mean, from, i, rank_count);
  return offset;
}

Geometry uneven_blocks(size_t count_total, size_t element_bytes, const Where& where) {
  const size_t mean = count_total / index(where.rank_count);
  Geometry g;
  g.send_count = g.recv_count = uneven_offset(mean, where.rank, where.rank_count, where.rank_count);
  g.table_count = mean;
  g.table_bytes = g.send_count * element_bytes;
  return apart_in_place(g);
}

// ---- Expected contents of the receive buffer ------------------------------------------------

using Expected = std::vector<ExpectedBlock>;

Expected reduced(const Geometry& g, const Where& /*where*/) {
  return {{0, g.recv_count, Pattern::kReduced, 0}};
}

Expected reduced_block(const Geometry& g, const Where& where) {
  return {{0, g.recv_count, Pattern::kReduced, g.recv_count * index(where.rank)}};
}

Expected of_root(const Geometry& g, const Where& where) {
  return {{0, g.recv_count, where.root, 0}};
}

Expected block_of_root(const Geometry& g, const Where& where) {
  return {{0, g.recv_count, where.root, g.recv_count * index(where.rank)}};
}

Expected of_previous_rank(const Geometry& g, const Where& where) {
  return {{0, g.recv_count, (where.rank + where.rank_count - 1) % where.rank_count, 0}};
}

// Block i is the only block of rank i.
Expected gathered(const Geometry& g, const Where& where) {
  Expected expected;
  for (int source = 0; source < where.rank_count; ++source) {
    expected.push_back({g.table_count * index(source), g.table_count, source, 0});
  }
  return expected;
}

// Block i is the one for this rank among those of rank i.
Expected transposed(const Geometry& g, const Where& where) {
  Expected expected = gathered(g, where);
  for (ExpectedBlock& block : expected) block.source_index = g.table_count * index(where.rank);
  return expected;
}

Expected transposed_uneven(const Geometry& g, const Where& where) {
  Expected expected;
  size_t first = 0;
  for (int source = 0; source < where.rank_count; ++source) {
    const size_t count = count_between(g.table_count, source, where.rank, where.rank_count);
    expected.push_back(
        {first, count, source, uneven_offset(g.table_count, source, where.rank, where.rank_count)});
    first += count;
  }
  return expected;
}

// ---- Bus bandwidth over algorithm bandwidth ----------------------------------------------------

double all_bytes(int /*rank_count*/) { return 1; }
double all_but_own_block(int rank_count) {
  return static_cast<double>(rank_count - 1) / rank_count;
}
double twice_all_but_own_block(int rank_count) { return 2 * all_but_own_block(rank_count); }

// ---- Calls -----------------------------------------------------------------------------------

weir_result_t start_all_reduce(const Call& c) {
  return weir_all_reduce(c.comm, c.send, c.recv, c.count, c.type, c.op, c.request);
}
// Each rank has one leaf, so one node of the tree over all of them.
weir_result_t start_all_reduce_leaves(const Call& c) {
  if (weir_partial_type(c.type) != c.type) return WEIR_ERROR_UNSUPPORTED;
  return weir_all_reduce_leaves(c.comm, c.send, c.recv, c.count, c.where.rank_count, c.type, c.op,
                                c.request);
}
weir_result_t start_all_gather(const Call& c) {
  return weir_all_gather(c.comm, c.send, c.recv, c.count, c.type, c.request);
}
weir_result_t start_reduce_scatter(const Call& c) {
  return weir_reduce_scatter(c.comm, c.send, c.recv, c.count, c.type, c.op, c.request);
}
weir_result_t start_all_to_all(const Call& c) {
  return weir_all_to_all(c.comm, c.send, c.recv, c.count, c.type, c.request);
}
weir_result_t start_broadcast(const Call& c) {
  return weir_broadcast(c.comm, c.send, c.recv, c.count, c.type, c.where.root, c.request);
}
weir_result_t start_reduce(const Call& c) {
  return weir_reduce(c.comm, c.send, c.recv, c.count, c.type, c.op, c.where.root, c.request);
}
weir_result_t start_gather(const Call& c) {
  return weir_gather(c.comm, c.send, c.recv, c.count, c.type, c.where.root, c.request);
}
weir_result_t start_scatter(const Call& c) {
  return weir_scatter(c.comm, c.send, c.recv, c.count, c.type, c.where.root, c.request);
}

// Every rank sends to the next one and receives from the one before.
template <typename Send, typename Receive>
weir_result_t start_ring(const Call& c, Send send, Receive receive) {
  const int next = (c.where.rank + 1) % c.where.rank_count;
  const int previous = (c.where.rank + c.where.rank_count - 1) % c.where.rank_count;
  weir_result_t result = weir_group_start();
  if (result != WEIR_OK) return result;
  const weir_result_t sent = send(next);
  const weir_result_t received = receive(previous);
  result = weir_group_end();
  if (sent != WEIR_OK) return sent;
  return received != WEIR_OK ? received : result;
}

weir_result_t start_send_recv(const Call& c) {
  return start_ring(
      c, [&](int next) { return weir_send(c.comm, c.send, c.count, c.type, next, c.request); },
      [&](int previous) {
        return weir_recv(c.comm, c.recv, c.count, c.type, previous, c.second_request);
      });
}

weir_result_t start_tag_send_recv(const Call& c) {
  constexpr int kTag = 1;
  return start_ring(
      c,
      [&](int next) {
        return weir_tag_send(c.comm, c.send, c.count, c.type, next, kTag, c.request);
      },
      [&](int previous) {
        return weir_tag_recv(c.comm, c.recv, c.count, c.type, previous, kTag, nullptr,
                             c.second_request);
      });
}

struct Counts {
  size_t mean = 0;
  Where where;
  std::vector<size_t> send;
  std::vector<size_t> recv;
};

// Computed once per size, so that the timed loop neither computes nor allocates.
const Counts& counts_of(size_t mean, const Where& where) {
  thread_local Counts cached;
  if (cached.send.empty() || cached.mean != mean || cached.where.rank != where.rank ||
      cached.where.rank_count != where.rank_count) {
    cached = {mean, where, {}, {}};
    for (int peer = 0; peer < where.rank_count; ++peer) {
      cached.send.push_back(count_between(mean, where.rank, peer, where.rank_count));
      cached.recv.push_back(count_between(mean, peer, where.rank, where.rank_count));
    }
  }
  return cached;
}

weir_result_t start_all_to_all_v(const Call& c) {
  const Counts& counts = counts_of(c.count, c.where);
  return weir_all_to_all_v(c.comm, c.send, counts.send.data(), nullptr, c.recv, counts.recv.data(),
                           nullptr, c.type, c.request);
}

// ---- The table -------------------------------------------------------------------------------

constexpr Operation kOperations[] = {
    {.program = "all_reduce_perf",
     .c_name = "weir_all_reduce",
     .reduces = true,
     .geometry = whole_vectors,
     .expected = reduced,
     .bus_factor = twice_all_but_own_block,
     .start = start_all_reduce},
    {.program = "all_reduce_leaves_perf",
     .c_name = "weir_all_reduce_leaves",
     .reduces = true,
     .geometry = whole_vectors,
     .expected = reduced,
     .bus_factor = twice_all_but_own_block,
     .start = start_all_reduce_leaves},
    {.program = "all_gather_perf",
     .c_name = "weir_all_gather",
     .geometry = all_gather_geometry,
     .expected = gathered,
     .bus_factor = all_but_own_block,
     .start = start_all_gather},
    {.program = "reduce_scatter_perf",
     .c_name = "weir_reduce_scatter",
     .reduces = true,
     .geometry = reduce_scatter_geometry,
     .expected = reduced_block,
     .bus_factor = all_but_own_block,
     .start = start_reduce_scatter},
    {.program = "alltoall_perf",
     .c_name = "weir_all_to_all",
     .geometry = blocks,
     .expected = transposed,
     .bus_factor = all_but_own_block,
     .start = start_all_to_all},
    {.program = "alltoallv_perf",
     .c_name = "weir_all_to_all_v",
     .geometry = uneven_blocks,
     .expected = transposed_uneven,
     .bus_factor = all_but_own_block,
     .start = start_all_to_all_v},
    {.program = "broadcast_perf",
     .c_name = "weir_broadcast",
     .has_root = true,
     .geometry = broadcast_geometry,
     .expected = of_root,
     .bus_factor = all_bytes,
     .start = start_broadcast},
    {.program = "reduce_perf",
     .c_name = "weir_reduce",
     .reduces = true,
     .has_root = true,
     .geometry = reduce_geometry,
     .expected = reduced,
     .bus_factor = all_bytes,
     .start = start_reduce},
    {.program = "gather_perf",
     .c_name = "weir_gather",
     .has_root = true,
     .geometry = gather_geometry,
     .expected = gathered,
     .bus_factor = all_but_own_block,
     .start = start_gather},
    {.program = "scatter_perf",
     .c_name = "weir_scatter",
     .has_root = true,
     .geometry = scatter_geometry,
     .expected = block_of_root,
     .bus_factor = all_but_own_block,
     .start = start_scatter},
    {.program = "sendrecv_perf",
     .c_name = "weir_send and weir_recv",
     .geometry = send_recv_geometry,
     .expected = of_previous_rank,
     .bus_factor = all_bytes,
     .start = start_send_recv},
    {.program = "tag_sendrecv_perf",
     .c_name = "weir_tag_send and weir_tag_recv",
     .geometry = send_recv_geometry,
     .expected = of_previous_rank,
     .bus_factor = all_bytes,
     .start = start_tag_send_recv},
};

}  // namespace

std::span<const Operation> operations() { return kOperations; }

const Operation* find_operation(std::string_view program) {
  const auto found = std::find_if(std::begin(kOperations), std::end(kOperations),
                                  [&](const Operation& one) { return program == one.program; });
  return found != std::end(kOperations) ? &*found : nullptr;
}

}  // namespace weir::perf
