// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/stream_watches.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/base/background.h"
#include "core/base/pause.h"
#include "core/comm/stream/leaving.h"

namespace weir::comm {

namespace {

// How long a thread without work waits for more.
constexpr std::chrono::milliseconds kLinger{20};

}  // namespace

void StreamWatches::watch(const cuda::Driver& driver, std::shared_ptr<StreamWatch> it,
                          const std::shared_ptr<GraphWatches>& graph) {
  leave_before_cuda(driver);
  std::lock_guard lock(lock_);
  if (!serving_) {
    run_in_background([self = shared_from_this()] { self->serve(); });
    serving_ = true;
    pinned_reader_begins();
  }
  if (graph == nullptr) {
    calls_[it->order()].push_back(std::move(it));
  } else {
    graph->all_.push_back(std::move(it));
    if (std::find(graphs_.begin(), graphs_.end(), graph) == graphs_.end()) graphs_.push_back(graph);
  }
  changed_.notify_all();
}

void StreamWatches::drop(const std::shared_ptr<StreamWatch>& it,
                         const std::shared_ptr<GraphWatches>& graph) {
  std::lock_guard lock(lock_);
  if (graph == nullptr) {
    std::erase(calls_[it->order()], it);
  } else {
    std::erase(graph->all_, it);
  }
  changed_.notify_all();
}

bool StreamWatches::are_quiet() const {
  const auto is_quiet = [](const auto& calls) {
    return std::all_of(calls.begin(), calls.end(),
                       [](const auto& it) { return it->held() || it->ended(); });
  };
  std::lock_guard lock(lock_);
  return is_quiet(calls_[0]) && is_quiet(calls_[1]);
}

void StreamWatches::lose_all() {
  std::lock_guard lock(lock_);
  for (const auto& calls : calls_) {
    for (const auto& it : calls) it->lose();
  }
  changed_.notify_all();
}

std::vector<std::shared_ptr<StreamWatch>> StreamWatches::take_ended() {
  std::vector<std::shared_ptr<StreamWatch>> taken;
  for (auto& calls : calls_) {
    for (size_t i = 0; i < calls.size();) {
      if (calls[i]->ended() || calls[i]->lost()) {
        taken.push_back(std::move(calls[i]));
        calls.erase(calls.begin() + static_cast<std::ptrdiff_t>(i));
      } else if (calls[i]->is_followed_only()) {
        break;
      } else {
        ++i;
      }
    }
  }
  return taken;
}

std::vector<std::shared_ptr<StreamWatch>> StreamWatches::now() const {
  std::vector<std::shared_ptr<StreamWatch>> all;
  for (const auto& calls : calls_) {
    for (size_t i = 0; i < calls.size(); ++i) {
      if (i == 0 || calls[i]->running()) all.push_back(calls[i]);
      if (calls[i]->is_followed_only()) break;
    }
  }
  for (const auto& graph : graphs_) {
    for (const auto& it : graph->all_) {
      if (it->running() || it->shows_wait()) all.push_back(it);
    }
  }
  return all;
}

std::vector<std::shared_ptr<GraphWatches>> StreamWatches::take_released() {
  const auto first = std::stable_partition(graphs_.begin(), graphs_.end(), [](const auto& it) {
    return !it->released_->load(std::memory_order_acquire);
  });
  std::vector<std::shared_ptr<GraphWatches>> taken(std::make_move_iterator(first),
                                                   std::make_move_iterator(graphs_.end()));
  graphs_.erase(first, graphs_.end());
  return taken;
}

void StreamWatches::serve() noexcept {
  Pause pause;
  std::unique_lock lock(lock_);
  while (!leaving()) {
    // Destroying them may destroy their communicator, which must not happen under the lock.
    std::vector<std::shared_ptr<GraphWatches>> released = take_released();
    std::vector<std::shared_ptr<StreamWatch>> ended = take_ended();
    std::vector<std::shared_ptr<StreamWatch>> watched = now();
    if (!released.empty() || !ended.empty() || !watched.empty()) {
      lock.unlock();
      if (!ended.empty()) pause.reset();
      for (const auto& it : ended) {
        if (it->ended()) it->finish();
      }
      for (const auto& it : watched) it->look();
      for (const auto& graph : released) {
        for (const auto& it : graph->all_) it->end_wait();
      }
      // They keep what it belongs to.
      if (!ended.empty() && on_end_ != nullptr) on_end_();
      released.clear();
      ended.clear();
      watched.clear();
      lock.lock();
    }
    if (!has_work()) {
      changed_.wait_for(lock, kLinger, [&] { return has_work() || leaving(); });
      if (!has_work()) break;
      pause.reset();
      continue;
    }
    pause.look();
    if (const auto nap = pause.nap(); nap.count() == 0) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    } else {
      changed_.wait_for(lock, nap);
    }
  }
  serving_ = false;
  pinned_reader_ends();
}

}  // namespace weir::comm
