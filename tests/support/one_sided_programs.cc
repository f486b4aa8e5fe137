// SPDX-License-Identifier: Apache-2.0
#include "support/one_sided_programs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <utility>

namespace weir::test {
namespace {

#define OK(call) ASSERT_EQ((call), WEIR_OK) << weir_last_error(nullptr)

using Random = std::mt19937_64;

uint64_t below(Random& random, uint64_t limit) { return random() % limit; }

size_t words_bytes(int n) { return 8 * (2 + static_cast<size_t>(n)); }

uint64_t word_of(const std::vector<unsigned char>& memory, size_t offset) {
  uint64_t word = 0;
  std::memcpy(&word, memory.data() + offset, 8);
  return word;
}
void set_word(std::vector<unsigned char>& memory, size_t offset, uint64_t word) {
  std::memcpy(memory.data() + offset, &word, 8);
}

unsigned char byte_at(uint64_t value, size_t i) {
  return static_cast<unsigned char>(value * 31 + i * 7 + (i >> 8));
}

}  // namespace

OneSidedProgram make_one_sided_program(uint64_t seed) {
  Random random(seed);
  OneSidedProgram p;
  p.rank_count = 2 + static_cast<int>(below(random, 3));
  const auto n = static_cast<size_t>(p.rank_count);
  const size_t window_count = 1 + below(random, 3);
  for (size_t w = 0; w < window_count; ++w) {
    p.symmetric.push_back(below(random, 2) == 0);
    std::vector<size_t> sizes;
    for (size_t r = 0; r < n; ++r) {
      const size_t room = below(random, 4) == 0 ? 400'000 : 3000;
      const bool none = below(random, 6) == 0;
      sizes.push_back(none ? 0 : words_bytes(p.rank_count) + 8 * n + below(random, room));
    }
    p.sizes.push_back(sizes);
  }
  std::vector<std::vector<std::vector<unsigned char>>> memory(window_count);
  for (size_t w = 0; w < window_count; ++w) {
    for (size_t r = 0; r < n; ++r) memory[w].emplace_back(p.sizes[w][r], 0);
  }
  const size_t round_count = 2 + below(random, 4);
  for (size_t round = 0; round < round_count; ++round) {
    std::vector<std::vector<OneSidedStep>> programs(n);
    for (size_t origin = 0; origin < n; ++origin) {
      // Of each target: ranges touched since the last fence, by window.
      std::map<size_t, std::vector<std::pair<size_t, std::pair<size_t, size_t>>>> touched;
      const size_t steps = below(random, 40);
      for (size_t i = 0; i < steps; ++i) {
        OneSidedStep step{};
        step.kind = static_cast<OneSidedStep::Kind>(below(random, 7));
        step.window = static_cast<int>(below(random, window_count));
        step.target = static_cast<int>(below(random, n));
        const auto w = static_cast<size_t>(step.window);
        const auto t = static_cast<size_t>(step.target);
        std::vector<unsigned char>& at = memory[w][t];
        if (at.empty()) continue;
        const size_t stripe = (at.size() - words_bytes(p.rank_count)) / n;
        const size_t begin = words_bytes(p.rank_count) + origin * stripe;
        const size_t first = below(random, stripe);
        step.offset = begin + first;
        step.bytes = below(random, 3) == 0 ? below(random, stripe - first + 1)
                                           : std::min<size_t>(stripe - first, below(random, 300));
        step.value = random() | 1;
        step.has_request = below(random, 2) == 0;
        if (step.kind == OneSidedStep::Kind::kAdd || step.kind == OneSidedStep::Kind::kSignal) {
          step.offset = step.kind == OneSidedStep::Kind::kAdd ? 0 : 8;
          step.bytes = 8;
          step.value %= 1000;
        } else if (step.kind == OneSidedStep::Kind::kSwap) {
          step.offset = 16 + origin * 8;
          step.bytes = 8;
        }
        const bool has_range =
            step.kind == OneSidedStep::Kind::kPut || step.kind == OneSidedStep::Kind::kGet ||
            step.kind == OneSidedStep::Kind::kPutSignal || step.kind == OneSidedStep::Kind::kSwap;
        if (has_range) {
          for (const auto& [window, range] : touched[t]) {
            step.fenced = step.fenced || (window == w && step.offset < range.second &&
                                          range.first < step.offset + step.bytes);
          }
        }
        step.fenced = step.fenced || below(random, 20) == 0;
        if (step.fenced) touched[t].clear();
        if (has_range) touched[t].push_back({w, {step.offset, step.offset + step.bytes}});
        switch (step.kind) {
          case OneSidedStep::Kind::kPut:
          case OneSidedStep::Kind::kPutSignal:
            for (size_t k = 0; k < step.bytes; ++k) at[step.offset + k] = byte_at(step.value, k);
            if (step.kind == OneSidedStep::Kind::kPutSignal) set_word(at, 8, word_of(at, 8) + 1);
            break;
          case OneSidedStep::Kind::kGet:
            step.found.assign(at.begin() + static_cast<std::ptrdiff_t>(step.offset),
                              at.begin() + static_cast<std::ptrdiff_t>(step.offset + step.bytes));
            break;
          case OneSidedStep::Kind::kSignal:
          case OneSidedStep::Kind::kAdd:
            set_word(at, step.offset, word_of(at, step.offset) + step.value);
            break;
          case OneSidedStep::Kind::kSwap:
            step.old = word_of(at, step.offset);
            step.expected = below(random, 3) == 0 ? step.old + 1 : step.old;
            if (step.expected == step.old) set_word(at, step.offset, step.value);
            break;
          case OneSidedStep::Kind::kFlush:
            touched[t].clear();
            break;
        }
        programs[origin].push_back(std::move(step));
      }
    }
    p.rounds.push_back(std::move(programs));
    p.memory.push_back(memory);
  }
  return p;
}

namespace {

// What a step needs until it is complete.
struct Running {
  const OneSidedStep* step;
  std::vector<unsigned char> buffer;
  uint64_t old = 0;
  weir_request_t request = nullptr;

  void check() const {
    if (step->kind == OneSidedStep::Kind::kGet) {
      ASSERT_EQ(buffer, step->found) << "get of " << step->bytes;
    }
    if (step->kind == OneSidedStep::Kind::kSwap) {
      ASSERT_EQ(old, step->old);
    }
  }
};

void run_step(weir_comm_t comm, const std::vector<weir_window_t>& windows, const OneSidedStep& step,
              std::deque<Running>& running) {
  Running& it = running.emplace_back();
  it.step = &step;
  it.buffer.resize(step.bytes);
  for (size_t k = 0; k < step.bytes; ++k) it.buffer[k] = byte_at(step.value, k);
  weir_request_t* request = step.has_request ? &it.request : nullptr;
  weir_window_t window = windows[static_cast<size_t>(step.window)];
  if (step.fenced) {
    OK(weir_fence(comm, step.target));
  }
  switch (step.kind) {
    case OneSidedStep::Kind::kPut:
      OK(weir_put(window, step.target, step.offset, it.buffer.data(), step.bytes, request));
      break;
    case OneSidedStep::Kind::kPutSignal:
      OK(weir_put_signal(window, step.target, step.offset, it.buffer.data(), step.bytes, window, 8,
                         1, request));
      break;
    case OneSidedStep::Kind::kGet:
      OK(weir_get(window, step.target, step.offset, it.buffer.data(), step.bytes, request));
      break;
    case OneSidedStep::Kind::kSignal:
      OK(weir_signal(window, step.target, 8, step.value, request));
      break;
    case OneSidedStep::Kind::kAdd:
      OK(weir_fetch_add(window, step.target, 0, step.value, &it.old, request));
      break;
    case OneSidedStep::Kind::kSwap:
      OK(weir_compare_swap(window, step.target, step.offset, step.expected, step.value, &it.old,
                           request));
      break;
    case OneSidedStep::Kind::kFlush:
      OK(weir_flush(comm, step.target, request));
      // Only a flush that is complete orders what follows.
      if (it.request != nullptr) {
        OK(weir_wait(&it.request));
      }
      break;
  }
}

}  // namespace

void run_one_sided_program(const OneSidedProgram& p, int rank, weir_comm_t comm) {
  const auto r = static_cast<size_t>(rank);
  std::vector<unsigned char*> memory;
  std::vector<void*> allocated;
  std::vector<std::vector<uint64_t>> own(p.sizes.size());
  std::vector<weir_window_t> windows;
  for (size_t w = 0; w < p.sizes.size(); ++w) {
    void* at = nullptr;
    const size_t bytes = p.sizes[w][r];
    if (p.symmetric[w]) {
      const size_t most = *std::max_element(p.sizes[w].begin(), p.sizes[w].end());
      OK(weir_mem_alloc(comm, std::max<size_t>(most, 1), &at));
      allocated.push_back(at);
    } else {
      own[w].assign(bytes / 8 + 1, 0);
      at = own[w].data();
    }
    memory.push_back(static_cast<unsigned char*>(at));
    weir_window_t window = nullptr;
    OK(weir_window_create(comm, bytes == 0 ? nullptr : at, bytes, &window));
    windows.push_back(window);
  }
  for (size_t round = 0; round < p.rounds.size(); ++round) {
    std::deque<Running> running;
    for (const OneSidedStep& step : p.rounds[round][r]) {
      ASSERT_NO_FATAL_FAILURE(run_step(comm, windows, step, running));
    }
    for (Running& it : running) {
      if (it.request != nullptr) {
        OK(weir_wait(&it.request));
      }
      ASSERT_NO_FATAL_FAILURE(it.check()) << "round " << round;
    }
    // All signals of the round, before the others say that they are done.
    for (size_t w = 0; w < windows.size(); ++w) {
      if (p.sizes[w][r] == 0) continue;
      OK(weir_wait_signal(windows[w], 8, word_of(p.memory[round][w][r], 8), nullptr));
    }
    OK(weir_flush(comm, WEIR_ALL_RANKS, nullptr));
    OK(weir_barrier(comm, nullptr));
    for (size_t w = 0; w < windows.size(); ++w) {
      const std::vector<unsigned char>& expected = p.memory[round][w][r];
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(memory[w][i], expected[i])
            << "round " << round << ", window " << w << ", byte " << i << " of " << expected.size();
      }
    }
    OK(weir_barrier(comm, nullptr));
  }
  for (weir_window_t window : windows) OK(weir_window_destroy(window));
  for (void* at : allocated) OK(weir_mem_free(comm, at));
}

}  // namespace weir::test
