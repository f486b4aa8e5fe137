// SPDX-License-Identifier: Apache-2.0
#include "nccl/courier.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <unordered_set>

#include "core/base/per_process.h"

namespace weir::nccl {

namespace {

constexpr char kMagic[4] = {'W', 'P', 'U', 'T'};
enum Kind : uint32_t { kPut = 1, kAcknowledged = 2, kLeaves = 3 };
enum Taken : uint32_t { kTaken = 1, kNoSuchPlace = 2 };

// Nobody knows when a peer will write next: what waits for that has no deadline of its own. Ten
// years.
constexpr int64_t kPatienceMs = int64_t{10} * 365 * 24 * 3600 * 1000;

// Polls that find nothing before the thread sleeps, and how long it sleeps then: longer and longer.
constexpr int kPollsMax = 200;
constexpr std::chrono::microseconds kSleepMin{20};
constexpr std::chrono::microseconds kSleepMax{1000};
constexpr int64_t kGoodbyeAtExitMs = 100;

// For calls whose failure changes nothing: the communicator is on its way out.
void ignore(weir_result_t) {}

// Couriers whose threads must end before the process unloads what they use. A forked child has none
// of its parent's threads.
struct Couriers {
  std::mutex lock;
  std::unordered_set<Courier*> all;
};
Couriers& couriers() {
  static constinit PerProcess<Couriers> it;
  return it.get();
}

void quit_at_exit() {
  Couriers& it = couriers();
  std::lock_guard lock(it.lock);
  for (Courier* courier : it.all) courier->quit();
}

}  // namespace

Courier::Courier(weir_comm_t comm, int rank, int rank_count, Receiver* receiver)
    : comm_(comm),
      rank_(rank),
      receiver_(receiver),
      incoming_(static_cast<size_t>(rank_count)),
      under_way_(static_cast<size_t>(rank_count)) {
  ignore(weir_comm_set_timeout(comm_, kPatienceMs));
  thread_ = std::thread([this] { serve(); });
  // After the first communicator, and so before the exit handlers of the libraries that it uses.
  static const int exits = std::atexit(quit_at_exit);
  (void)exits;
  std::lock_guard lock(couriers().lock);
  couriers().all.insert(this);
}

Courier::~Courier() {
  {
    std::lock_guard lock(couriers().lock);
    couriers().all.erase(this);
  }
  {
    std::lock_guard lock(lock_);
    stop_ = true;
  }
  work_.notify_all();
  if (thread_.joinable()) thread_.join();
  weir_comm_destroy(comm_);
}

void Courier::quit() {
  {
    std::lock_guard lock(lock_);
    goodbye_ms_ = kGoodbyeAtExitMs;
    stop_ = true;
  }
  work_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Courier::send(std::shared_ptr<Parcel> parcel) {
  under_way_[static_cast<size_t>(parcel->peer)].fetch_add(1);
  {
    std::lock_guard lock(lock_);
    parcels_.push_back(std::move(parcel));
  }
  work_.notify_all();
}

void Courier::wait(const Parcel& parcel, int64_t timeout_ms) {
  std::unique_lock lock(lock_);
  done_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                 [&] { return parcel.state.load() != Parcel::kUnderWay || failed_.load(); });
}

void Courier::abort() {
  weir_comm_abort(comm_);
  fail("the communicator was aborted");
  work_.notify_all();
}

void Courier::wait_until_failed() {
  std::unique_lock lock(lock_);
  done_.wait(lock, [&] { return ended_; });
}

std::string Courier::failure() const {
  std::lock_guard lock(lock_);
  return failure_;
}

void Courier::fail(const std::string& text) {
  {
    std::lock_guard lock(lock_);
    if (failure_.empty()) failure_ = text;
    failed_.store(true, std::memory_order_release);
  }
  done_.notify_all();
}

Courier::Head Courier::make_head(uint32_t kind) {
  Head head{};
  std::memcpy(head.magic, kMagic, sizeof head.magic);
  head.kind = kind;
  return head;
}

// ---- The thread ---------------------------------------------------------------------------------

void Courier::serve() {
  int polls = 0;
  std::chrono::microseconds sleep = kSleepMin;
  try {
    for (int peer = 0; peer < static_cast<int>(incoming_.size()); ++peer) {
      if (peer != rank_ && !begin_receive(peer)) break;
    }
    for (;;) {
      const bool moved = !failed() && step();
      std::unique_lock lock(lock_);
      if (stop_ || failed()) break;
      if (moved) {
        polls = 0;
        sleep = kSleepMin;
      } else if (++polls > kPollsMax && parcels_.empty()) {
        work_.wait_for(lock, sleep);
        sleep = std::min(sleep * 2, kSleepMax);
      } else {
        lock.unlock();
        std::this_thread::yield();
      }
    }
    int64_t goodbye_ms = 0;
    {
      std::lock_guard lock(lock_);
      goodbye_ms = goodbye_ms_;
    }
    if (!failed()) say_goodbye(goodbye_ms);
  } catch (const std::exception& error) {
    fail(error.what());
  }
  end_requests();
  {
    std::lock_guard lock(lock_);
    ended_ = true;
  }
  done_.notify_all();
}

// What is left points at what goes: the callers' buffers, the windows and this object.
void Courier::end_requests() {
  const auto end = [this](weir_request_t& request) {
    if (request == nullptr) return;
    weir_comm_abort(comm_);
    ignore(weir_wait(&request));
  };
  for (Incoming& in : incoming_) {
    const bool in_window = in.request != nullptr && in.payload && !in.refused;
    end(in.request);
    if (in_window) receiver_->arrived(in.head.window);
  }
  for (Outgoing& out : outgoing_) {
    end(out.head_request);
    end(out.payload_request);
  }
}

bool Courier::step() {
  bool moved = take_parcels();
  for (int peer = 0; peer < static_cast<int>(incoming_.size()) && !failed(); ++peer) {
    if (peer != rank_) moved = step_incoming(peer) || moved;
  }
  return (!failed() && step_outgoing()) || moved;
}

bool Courier::take_parcels() {
  std::deque<std::shared_ptr<Parcel>> taken;
  {
    std::lock_guard lock(lock_);
    taken.swap(parcels_);
  }
  for (auto& parcel : taken) {
    const uint64_t ticket = next_ticket_++;
    const int peer = parcel->peer;
    awaiting_.emplace(ticket, parcel);
    if (incoming_[static_cast<size_t>(peer)].said_bye) {
      settle(ticket, Parcel::kLeft);
      continue;
    }
    Head head = make_head(kPut);
    head.ticket = ticket;
    head.window = parcel->window;
    head.offset = parcel->offset;
    head.bytes = parcel->bytes;
    head.signal = parcel->signal;
    head.context = parcel->context;
    post(peer, head, parcel->data);
  }
  return !taken.empty();
}

void Courier::post(int peer, const Head& head, const void* data) {
  Outgoing& out = outgoing_.emplace_back();
  out.head = head;
  weir_result_t result =
      weir_send(comm_, &out.head, sizeof out.head, WEIR_UINT8, peer, &out.head_request);
  if (result == WEIR_OK && head.kind == kPut && head.bytes > 0) {
    result = weir_send(comm_, data, head.bytes, WEIR_UINT8, peer, &out.payload_request);
  }
  if (result != WEIR_OK) {
    fail(fmt::format("sending to rank {}: {}", peer, weir_last_error(nullptr)));
  }
}

bool Courier::step_outgoing() {
  bool moved = false;
  for (Outgoing& out : outgoing_) {
    for (weir_request_t* request : {&out.head_request, &out.payload_request}) {
      if (*request == nullptr) continue;
      int done = 0;
      if (weir_test(request, &done) != WEIR_OK) {
        *request = nullptr;
        fail(weir_last_error(nullptr));
        return true;
      }
      moved = moved || done != 0;
    }
  }
  while (!outgoing_.empty() && outgoing_.front().head_request == nullptr &&
         outgoing_.front().payload_request == nullptr) {
    outgoing_.pop_front();
  }
  return moved;
}

bool Courier::begin_receive(int peer) {
  Incoming& in = incoming_[static_cast<size_t>(peer)];
  in.payload = false;
  if (weir_recv(comm_, &in.head, sizeof in.head, WEIR_UINT8, peer, &in.request) == WEIR_OK) {
    return true;
  }
  fail(fmt::format("receiving from rank {}: {}", peer, weir_last_error(nullptr)));
  return false;
}

bool Courier::step_incoming(int peer) {
  Incoming& in = incoming_[static_cast<size_t>(peer)];
  if (in.left || in.request == nullptr) return false;
  int done = 0;
  if (weir_test(&in.request, &done) != WEIR_OK) {
    in.request = nullptr;
    if (in.payload && !in.refused) receiver_->arrived(in.head.window);
    fail(weir_last_error(nullptr));
    return true;
  }
  if (done == 0) return false;
  return in.payload ? deliver(peer) : handle(peer);
}

// A head has come.
bool Courier::handle(int peer) {
  Incoming& in = incoming_[static_cast<size_t>(peer)];
  const Head& head = in.head;
  const bool sound = std::memcmp(head.magic, kMagic, sizeof kMagic) == 0 && head.kind >= kPut &&
                     head.kind <= kLeaves && head.bytes <= PTRDIFF_MAX;
  if (!sound) {
    fail(fmt::format("rank {} sent what is no one-sided write", peer));
    return true;
  }
  if (head.kind == kLeaves) {
    in.left = true;
    say_bye(peer);
    std::vector<uint64_t> lost;
    for (const auto& [ticket, parcel] : awaiting_) {
      if (parcel->peer == peer) lost.push_back(ticket);
    }
    for (const uint64_t ticket : lost) settle(ticket, Parcel::kLeft);
    return true;
  }
  if (head.kind == kAcknowledged) {
    const auto found = awaiting_.find(head.ticket);
    if (found == awaiting_.end() || found->second->peer != peer) {
      fail(fmt::format("rank {} acknowledged a write that it was not sent", peer));
      return true;
    }
    settle(head.ticket, head.result == kTaken ? Parcel::kDone : Parcel::kRefused);
    return begin_receive(peer);
  }
  in.refused = false;
  if (head.bytes == 0) return deliver(peer);
  unsigned char* place = receiver_->place(head.window, head.offset, head.bytes);
  in.refused = place == nullptr;
  if (in.refused) {
    in.waste.resize(head.bytes);
    place = in.waste.data();
  }
  in.payload = true;
  if (weir_recv(comm_, place, head.bytes, WEIR_UINT8, peer, &in.request) != WEIR_OK) {
    if (!in.refused) receiver_->arrived(head.window);
    fail(fmt::format("receiving from rank {}: {}", peer, weir_last_error(nullptr)));
  }
  return true;
}

// All of a put has come.
bool Courier::deliver(int peer) {
  Incoming& in = incoming_[static_cast<size_t>(peer)];
  if (in.head.bytes > 0 && !in.refused) receiver_->arrived(in.head.window);
  in.waste = {};
  const bool taken = !in.refused && receiver_->signal(peer, in.head.context, in.head.signal);
  Head answer = make_head(kAcknowledged);
  answer.ticket = in.head.ticket;
  answer.result = taken ? kTaken : kNoSuchPlace;
  if (!in.said_bye) post(peer, answer, nullptr);
  return begin_receive(peer);
}

void Courier::settle(uint64_t ticket, Parcel::State state) {
  const auto found = awaiting_.find(ticket);
  {
    std::lock_guard lock(lock_);
    found->second->state = state;
    under_way_[static_cast<size_t>(found->second->peer)].fetch_sub(1);
  }
  awaiting_.erase(found);
  done_.notify_all();
}

void Courier::say_bye(int peer) {
  Incoming& in = incoming_[static_cast<size_t>(peer)];
  if (in.said_bye) return;
  in.said_bye = true;
  post(peer, make_head(kLeaves), nullptr);
}

void Courier::say_goodbye(int64_t while_ms) {
  for (int peer = 0; peer < static_cast<int>(incoming_.size()) && !failed(); ++peer) {
    if (peer != rank_) say_bye(peer);
  }
  const auto all_left = [&] {
    for (size_t peer = 0; peer < incoming_.size(); ++peer) {
      if (static_cast<int>(peer) != rank_ && !incoming_[peer].left) return false;
    }
    return outgoing_.empty();
  };
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(while_ms);
  for (auto sleep = kSleepMin; !failed() && !all_left(); sleep = std::min(sleep * 2, kSleepMax)) {
    if (std::chrono::steady_clock::now() > until) return;
    if (!step()) std::this_thread::sleep_for(sleep);
  }
}

}  // namespace weir::nccl
