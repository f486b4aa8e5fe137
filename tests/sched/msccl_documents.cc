// SPDX-License-Identifier: Apache-2.0
#include "sched/msccl_documents.h"

#include <fmt/format.h>

#include <string>
#include <vector>

namespace weir::algo {
namespace {

// Writes one document.
class Writer {
 public:
  Writer(const char* coll, Rank n, bool in_place)
      : text_(fmt::format("<algo name=\"test\" proto=\"Simple\" nchannels=\"1\" "
                          "nchunksperloop=\"{}\" ngpus=\"{}\" coll=\"{}\" inplace=\"{}\">\n",
                          n, n, coll, in_place ? 1 : 0)) {}

  void gpu(Rank id, uint32_t i, uint32_t o, uint32_t s) {
    end_gpu();
    text_ += fmt::format("  <gpu id=\"{}\" i_chunks=\"{}\" o_chunks=\"{}\" s_chunks=\"{}\">\n", id,
                         i, o, s);
    in_gpu_ = true;
    block_ = 0;
  }
  void copy(uint32_t i, uint32_t o) {
    text_ += fmt::format("    <copy i_off=\"{}\" o_off=\"{}\"/>\n", i, o);
  }
  void block(int64_t send, int64_t recv, int64_t channel = 0) {
    end_block();
    text_ += fmt::format("    <tb id=\"{}\" send=\"{}\" recv=\"{}\" chan=\"{}\">\n", block_++, send,
                         recv, channel);
    in_block_ = true;
    step_ = 0;
  }
  void step(const char* type, char src, uint32_t src_offset, char dst, uint32_t dst_offset,
            uint32_t count = 1, int64_t block = -1, int64_t step = -1) {
    text_ += fmt::format(
        "      <step s=\"{}\" type=\"{}\" srcbuf=\"{}\" srcoff=\"{}\" dstbuf=\"{}\" dstoff=\"{}\" "
        "cnt=\"{}\" depid=\"{}\" deps=\"{}\" hasdep=\"0\"/>\n",
        step_++, type, src, src_offset, dst, dst_offset, count, block, step);
  }
  void nop(int64_t block, int64_t step) {
    text_ += fmt::format(
        "      <step s=\"{}\" type=\"nop\" srcbuf=\"i\" srcoff=\"-1\" dstbuf=\"o\" dstoff=\"-1\" "
        "cnt=\"0\" depid=\"{}\" deps=\"{}\" hasdep=\"0\"/>\n",
        step_++, block, step);
  }
  std::string take() {
    end_gpu();
    return text_ + "</algo>\n";
  }

 private:
  void end_block() {
    if (in_block_) text_ += "    </tb>\n";
    in_block_ = false;
  }
  void end_gpu() {
    end_block();
    if (in_gpu_) text_ += "  </gpu>\n";
    in_gpu_ = false;
  }

  std::string text_;
  bool in_gpu_ = false, in_block_ = false;
  uint32_t block_ = 0, step_ = 0;
};

}  // namespace

std::string msccl_ring_all_reduce(Rank n, uint32_t channels, bool in_place) {
  Writer w("allreduce", n, in_place);
  const char result = in_place ? 'i' : 'o';
  for (Rank r = 0; r < n; ++r) {
    w.gpu(r, n * channels, in_place ? 0 : n * channels, 0);
    for (uint32_t c = 0; c < channels; ++c) {
      w.block((r + 1) % n, (r + n - 1) % n, c);
      const auto chunk = [&](uint32_t step) { return c * n + (r + 2 * n - step) % n; };
      w.step("s", 'i', chunk(0), 'i', chunk(0));
      for (uint32_t k = 1; k + 1 < n; ++k) w.step("rrs", 'i', chunk(k), 'i', chunk(k));
      w.step("rrcs", 'i', chunk(n - 1), result, chunk(n - 1));
      for (uint32_t k = n; k < 2 * n - 2; ++k) w.step("rcs", 'i', chunk(k), result, chunk(k));
      w.step("r", 'i', chunk(2 * n - 2), result, chunk(2 * n - 2));
    }
  }
  return w.take();
}

std::string msccl_pairs_all_reduce(Rank n) {
  Writer w("allreduce", n, true);
  for (Rank r = 0; r < n; ++r) {
    w.gpu(r, n, 0, n);
    const auto index_of = [r](Rank peer) { return peer < r ? peer : peer - 1; };
    for (Rank p = 0; p < n; ++p) {
      if (p == r) continue;
      w.block(p, p);
      w.step("s", 'i', p, 's', r);
      w.step("r", 'i', r, 's', p);
      // The fold is in the block after those of all peers: its step of the last peer.
      w.step("s", 'i', r, 'i', r, 1, n - 1, n - 2);
      w.step("r", 'i', p, 'i', p);
    }
    w.block(-1, -1, -1);
    for (Rank p = 0; p < n; ++p) {
      if (p != r) w.step("re", 's', p, 'i', r, 1, index_of(p), 1);
    }
  }
  return w.take();
}

std::string msccl_doubling_all_reduce(Rank n) {
  Writer w("allreduce", n, false);
  for (Rank r = 0; r < n; ++r) {
    w.gpu(r, 1, 1, 1);
    uint32_t round = 0;
    for (Rank distance = 1; distance < n; distance *= 2, ++round) {
      w.block(r ^ distance, r ^ distance);
      if (round == 0) {
        w.step("s", 'i', 0, 'o', 0);
        w.step("rrc", 'i', 0, 'o', 0);
      } else {
        w.nop(round - 1, 1);
        w.step("s", 'o', 0, 's', 0, 1, round - 1, round == 1 ? 1 : 3);
        w.step("r", 'o', 0, 's', 0);
        w.step("re", 's', 0, 'o', 0);
      }
    }
  }
  return w.take();
}

std::string msccl_ring_all_gather(Rank n, bool in_place) {
  Writer w("allgather", n, in_place);
  for (Rank r = 0; r < n; ++r) {
    w.gpu(r, 2, 2 * n, 0);
    for (uint32_t k = 0; k < 2; ++k) w.copy(k, 2 * r + k);
    const auto chunk = [&](uint32_t step) { return 2 * ((r + n - step) % n); };
    w.block((r + 1) % n, -1);
    w.step("s", 'o', chunk(0), 'o', chunk(0), 2);
    for (uint32_t k = 1; k + 1 < n; ++k) {
      w.step("s", 'o', chunk(k), 'o', chunk(k), 2, 1, k - 1);
    }
    w.block(-1, (r + n - 1) % n);
    for (uint32_t k = 1; k < n; ++k) w.step("r", 'o', chunk(k), 'o', chunk(k), 2);
  }
  return w.take();
}

std::string msccl_ring_reduce_scatter(Rank n, bool in_place) {
  Writer w("reduce_scatter", n, in_place);
  for (Rank r = 0; r < n; ++r) {
    w.gpu(r, n, in_place ? 0 : 1, 0);
    w.block((r + 1) % n, (r + n - 1) % n);
    const auto chunk = [&](uint32_t step) { return (r + 2 * n - step - 1) % n; };
    w.step("s", 'i', chunk(0), 'i', chunk(0));
    for (uint32_t k = 1; k + 1 < n; ++k) w.step("rrs", 'i', chunk(k), 'i', chunk(k));
    if (in_place) {
      w.step("rrc", 'i', r, 'i', r);
    } else {
      w.step("rrc", 'i', r, 'o', 0);
    }
  }
  return w.take();
}

std::string msccl_eager_all_to_all(Rank n, uint32_t chunks) {
  Writer w("alltoall", n, false);
  for (Rank r = 0; r < n; ++r) {
    w.gpu(r, n * chunks, n * chunks, 0);
    for (Rank p = 0; p < n; ++p) {
      if (p == r) continue;
      w.block(p, p);
      for (uint32_t k = 0; k < chunks; ++k) {
        w.step("s", 'i', p * chunks + k, 'o', r * chunks + k);
      }
      for (uint32_t k = 0; k < chunks; ++k) {
        w.step("r", 'i', r * chunks + k, 'o', p * chunks + k);
      }
    }
    w.block(-1, -1, -1);
    w.step("cpy", 'i', r * chunks, 'o', r * chunks, chunks);
  }
  return w.take();
}

std::string msccl_pairs_all_to_all(Rank n, uint32_t chunks, bool in_place) {
  Writer w("alltoall", n, in_place);
  for (Rank r = 0; r < n; ++r) {
    w.gpu(r, n * chunks, n * chunks, 0);
    for (Rank p = 0; p < n; ++p) {
      if (p == r) continue;
      w.block(p, p);
      w.step("s", 'i', p * chunks, 'o', r * chunks, chunks);
      w.step("r", 'i', r * chunks, 'o', p * chunks, chunks);
    }
    w.block(-1, -1, -1);
    if (!in_place) w.step("cpy", 'i', r * chunks, 'o', r * chunks, chunks);
  }
  return w.take();
}

}  // namespace weir::algo
