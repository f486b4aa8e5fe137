// SPDX-License-Identifier: Apache-2.0
// Reactor: one thread per process that waits for the descriptors of all control networks of the
// process and calls their owners on events. It starts with the first client, ends with the last,
// and sleeps while nothing happens. The thread blocks all signals, and calls no client any more
// once the process has begun to exit. In a child made by fork there is none: the child starts its
// own with its own first client.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "core/base/status.h"

namespace weir::control {

class Reactor {
 public:
  class Client {
   public:
    // In the reactor's thread: `events` of epoll for the descriptor that was added with `token`.
    virtual void on_events(uint32_t token, uint32_t events) = 0;
    // In the reactor's thread, when the time of `next_time_ns` has come.
    virtual void on_time(uint64_t now_ns) = 0;
    // When `on_time` is to be called; UINT64_MAX: never. May be changed from any thread, followed
    // by `Reactor::wake` where it has become earlier.
    std::atomic<uint64_t> next_time_ns{UINT64_MAX};

   protected:
    ~Client() = default;
  };

  // A client's place in the reactor of this process.
  class Registration {
   public:
    // kSystem: no epoll descriptor or no thread is available.
    static Result<std::unique_ptr<Registration>> make(Client* client);
    ~Registration() { end(); }
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;

    // Returns when the reactor is not in the client's functions and will not call them again. Not
    // while the caller holds a lock that those functions take. In a forked child it does nothing.
    void end();
    // Level-triggered. False: errno says why. Any thread; closing a descriptor removes it.
    bool add(int fd, uint32_t token, uint32_t events);
    bool change(int fd, uint32_t token, uint32_t events);
    void remove(int fd);
    // `next_time_ns` has become earlier.
    void wake();

   private:
    Registration(std::shared_ptr<struct ReactorState> state, uint32_t id, uint64_t generation)
        : state_(std::move(state)), id_(id), generation_(generation) {}

    std::shared_ptr<struct ReactorState> state_;
    uint32_t id_;
    uint64_t generation_;  // of the process that made it
  };
};

}  // namespace weir::control
