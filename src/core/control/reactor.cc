// SPDX-License-Identifier: Apache-2.0
#include "core/control/reactor.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/per_process.h"
#include "net/openssl_at_exit.h"

namespace weir::control {

namespace {

constexpr uint64_t kWakeData = UINT64_MAX;
constexpr int kEventsMax = 256;

uint64_t data_of(uint32_t id, uint32_t token) { return uint64_t{id} << 32 | token; }

// For epoll_wait.
int timeout_ms_until(uint64_t time_ns) {
  if (time_ns == UINT64_MAX) return -1;
  const uint64_t now = now_ns();
  const uint64_t left_ms = time_ns > now ? (time_ns - now + 999'999) / 1'000'000 : 0;
  return static_cast<int>(std::min<uint64_t>(left_ms, 60'000));
}

}  // namespace

struct ReactorState {
  ~ReactorState() {
    if (epoll >= 0) close(epoll);
    if (wake >= 0) close(wake);
  }

  struct Entry {
    Reactor::Client* client = nullptr;
    uint64_t time_ns = UINT64_MAX;  // as in `times`
  };

  void run() {
    std::vector<epoll_event> events(kEventsMax);
    std::vector<uint32_t> ids;
    uint64_t next_ns = UINT64_MAX;
    while (!ends) {
      const int count = epoll_wait(epoll, events.data(), kEventsMax, timeout_ms_until(next_ns));
      const std::lock_guard guard(lock);
      for (int i = 0; i < count && !ends; ++i) {
        const uint64_t data = events[static_cast<size_t>(i)].data.u64;
        if (data == kWakeData) {
          take_woken(&ids);
          for (const uint32_t id : ids) note_time(id);
          continue;
        }
        const auto id = static_cast<uint32_t>(data >> 32);
        const auto it = clients.find(id);
        if (it == clients.end()) continue;
        it->second.client->on_events(static_cast<uint32_t>(data),
                                     events[static_cast<size_t>(i)].events);
        note_time(id);
      }
      const uint64_t now = now_ns();
      ids.clear();
      for (const auto& [time_ns, id] : times) {
        if (time_ns > now) break;
        ids.push_back(id);
      }
      for (const uint32_t id : ids) {
        if (ends) return;
        clients.at(id).client->on_time(now);
        note_time(id);
      }
      next_ns = times.empty() ? UINT64_MAX : times.begin()->first;
    }
  }

  // Its time may have changed. Avoids a look at thousands of clients for one.
  void note_time(uint32_t id) {
    const auto it = clients.find(id);
    if (it == clients.end()) return;
    const uint64_t time_ns = it->second.client->next_time_ns.load(std::memory_order_acquire);
    if (time_ns == it->second.time_ns) return;
    // Allocates no memory, since warm calls must not.
    auto node = times.extract({it->second.time_ns, id});
    node.value().first = it->second.time_ns = time_ns;
    times.insert(std::move(node));
  }

  void take_woken(std::vector<uint32_t>* ids) {
    uint64_t value = 0;
    (void)!read(wake, &value, sizeof value);
    const std::lock_guard guard(woken_lock);
    ids->assign(woken.begin(), woken.end());
    woken.clear();
  }

  void signal(uint32_t id) {
    {
      const std::lock_guard guard(woken_lock);
      if (woken.empty() || woken.back() != id) woken.push_back(id);
    }
    const uint64_t one = 1;
    (void)!write(wake, &one, sizeof one);
  }

  int epoll = -1;
  int wake = -1;
  std::mutex lock;  // held while clients are called
  std::unordered_map<uint32_t, Entry> clients;
  std::set<std::pair<uint64_t, uint32_t>> times;  // of all clients
  std::mutex woken_lock;
  std::vector<uint32_t> woken;  // clients whose times have become earlier
  uint32_t next_id = 1;
  std::atomic<bool> ends{false};
  std::thread thread;
};

namespace {

// The reactor of this process, while it has clients.
struct Current {
  std::mutex lock;
  std::shared_ptr<ReactorState> state;
};
constinit PerProcess<Current> current;

// Clients need OpenSSL's tables. Where the program has OpenSSL free them when the process exits
// (net/openssl_at_exit.h), no client is called from then on, though the thread stays. Otherwise it
// works until the process is gone: exit handlers of the program may use communicators.
constexpr int kExitPatienceMs = 500;

void stop_with_openssl() {
  Current& now = current.get();
  if (!now.lock.try_lock()) return;  // a network is being made or ended at this moment
  const std::lock_guard guard(now.lock, std::adopt_lock);
  if (now.state == nullptr) return;
  // The timeout is for a thread that exits within a client's function and would wait for itself.
  std::unique_lock inner(now.state->lock, std::try_to_lock);
  for (int ms = 0; ms < kExitPatienceMs && !inner.owns_lock(); ++ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    (void)inner.try_lock();
  }
  now.state->ends = true;
}

Result<std::shared_ptr<ReactorState>> start() {
  net::keep_openssl_at_exit();
  static const int registered = OPENSSL_atexit(stop_with_openssl);
  (void)registered;
  auto state = std::make_shared<ReactorState>();
  state->epoll = epoll_create1(EPOLL_CLOEXEC);
  if (state->epoll < 0) return system_error("epoll_create1, for the control network");
  state->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (state->wake < 0) return system_error("eventfd, for the control network");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeData;
  if (epoll_ctl(state->epoll, EPOLL_CTL_ADD, state->wake, &event) != 0) {
    return system_error("epoll_ctl, for the control network");
  }
  // Handlers of the program run in its own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::string problem;
  try {
    state->thread = std::thread([raw = state.get()] {
      pthread_setname_np(pthread_self(), "weir-control");
      raw->run();
    });
  } catch (const std::system_error& error) {
    problem = error.what();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!problem.empty())
    return Status(Code::kSystem, "a thread for the control network: " + problem);
  return state;
}

}  // namespace

Result<std::unique_ptr<Reactor::Registration>> Reactor::Registration::make(Client* client) {
  Current& now = current.get();
  const std::lock_guard guard(now.lock);
  if (now.state == nullptr) {
    auto started = start();
    if (!started.ok()) return started.status();
    now.state = started.take();
  }
  const std::lock_guard inner(now.state->lock);
  const uint32_t id = now.state->next_id++;
  now.state->clients[id].client = client;
  now.state->times.emplace(UINT64_MAX, id);
  return std::unique_ptr<Registration>(new Registration(now.state, id, process_generation()));
}

void Reactor::Registration::end() {
  if (state_ == nullptr) return;
  if (generation_ != process_generation()) {
    // The thread belongs to the parent, and so does any lock that it held at the fork.
    new std::shared_ptr<ReactorState>(std::move(state_));
    return;
  }
  Current& now = current.get();
  const std::lock_guard guard(now.lock);
  bool last = false;
  {
    const std::lock_guard inner(state_->lock);
    if (const auto it = state_->clients.find(id_); it != state_->clients.end()) {
      state_->times.erase({it->second.time_ns, id_});
      state_->clients.erase(it);
    }
    last = state_->clients.empty();
    state_->ends = last;
  }
  if (last) {
    state_->signal(id_);
    state_->thread.join();
    if (now.state == state_) now.state.reset();
  }
  state_.reset();
}

bool Reactor::Registration::add(int fd, uint32_t token, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = data_of(id_, token);
  return epoll_ctl(state_->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

bool Reactor::Registration::change(int fd, uint32_t token, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = data_of(id_, token);
  return epoll_ctl(state_->epoll, EPOLL_CTL_MOD, fd, &event) == 0;
}

void Reactor::Registration::remove(int fd) {
  (void)epoll_ctl(state_->epoll, EPOLL_CTL_DEL, fd, nullptr);
}

void Reactor::Registration::wake() { state_->signal(id_); }

}  // namespace weir::control
