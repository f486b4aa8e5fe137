// SPDX-License-Identifier: Apache-2.0
// Batch: sends and receives of many channels in one system call, through io_uring.
//
// Each of them is nonblocking: when the call returns, all are done or were found impossible now. So
// nothing is in progress between calls, the kernel holds no buffer, and any thread may make the
// next call. Operations that cannot share a call (TLS, zero-copy, those being timed) are done at
// once, each by itself.
//
// In builds without liburing, or where the kernel does not allow io_uring, no batch can be made,
// and the reason is given. One thread at a time.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>

#include "plugins/tcp/channel.h"
#include "plugins/tcp/transfer.h"

namespace weir::plugins::tcp {

enum class IoMode : uint8_t { kAuto, kUring, kPoll };
// Of WEIR_TCP_IO, null or "" for auto. False: none of them.
bool parse_io(const char* text, IoMode* mode);

class Batch {
 public:
  static constexpr uint32_t kSlots = 64;

  // Whether the kernel makes such a ring for this process; if not, `*reason` says why.
  static bool allowed(std::string* reason);
  // Null: `*reason` says why.
  static std::unique_ptr<Batch> make(std::string* reason);
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  // Does what the channel's next call would do, with the next flush or before.
  void send(Channel* channel);
  void receive(Channel* channel);
  // Makes the calls and passes the results to the channels.
  void flush();
  // The kernel refuses calls that it has allowed before: then each is made by itself.
  bool is_broken() const { return broken_; }

 private:
  struct Slot {
    Channel* channel;
    bool is_send;
    bool done;
    ssize_t result;
    msghdr message;
    Transfer transfer;
  };
  struct Ring;

  Batch();
  Slot* next_slot(Channel* channel, bool is_send);
  void add(Slot* slot);
  void submit();
  static void make_call(Slot* slot);

  std::unique_ptr<Ring> ring_;
  std::unique_ptr<Slot[]> slots_;
  uint32_t count_ = 0;
  bool broken_ = false;
};

}  // namespace weir::plugins::tcp
