// SPDX-License-Identifier: Apache-2.0
#include "nccl/host/gate.h"

#include <utility>

namespace weir::nccl {

namespace {

constexpr int kEnd = 0;  // the words of the ranks follow

size_t words_bytes(int rank_count) {
  return (size_t{1} + static_cast<size_t>(rank_count)) * sizeof(GateWord);
}

}  // namespace

std::shared_ptr<Gate> Gate::make(const char* function, int rank_count) {
  std::shared_ptr<Allocation> words;
  if (!Allocation::make(function, words_bytes(rank_count), &words).ok()) return nullptr;
  return std::shared_ptr<Gate>(new Gate(std::move(words)));
}

Gate::~Gate() { close(); }

void Gate::close() {
  if (!words_->maker().is_this()) return;  // a child of fork() shares the words
  word(kEnd)->value.store(1, std::memory_order_seq_cst);
}

bool Gate::has_inside(int rank) const {
  return word(1 + rank)->value.load(std::memory_order_seq_cst) != 0;
}

std::unique_ptr<PeerGate> PeerGate::open(const Share& share, int rank, int rank_count) {
  auto words = Mapping::open(share, words_bytes(rank_count));
  if (words == nullptr) return nullptr;
  return std::unique_ptr<PeerGate>(new PeerGate(std::move(words), rank));
}

PeerGate::PeerGate(std::unique_ptr<Mapping> words, int rank)
    : words_(std::move(words)),
      end_(reinterpret_cast<GateWord*>(words_->range()) + kEnd),
      inside_(end_ + 1 + rank) {}

bool PeerGate::enter() {
  inside_->value.fetch_add(1, std::memory_order_seq_cst);
  if (end_->value.load(std::memory_order_seq_cst) == 0) return true;
  leave();
  return false;
}

void PeerGate::leave() { inside_->value.fetch_sub(1, std::memory_order_release); }

}  // namespace weir::nccl
