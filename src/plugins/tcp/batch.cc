// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/batch.h"

#include <errno.h>
#include <string.h>

#if WEIR_HAVE_URING
#include <liburing.h>
#endif

namespace weir::plugins::tcp {

bool parse_io(const char* text, IoMode* mode) {
  if (text == nullptr || *text == '\0' || strcmp(text, "auto") == 0) {
    *mode = IoMode::kAuto;
  } else if (strcmp(text, "io_uring") == 0) {
    *mode = IoMode::kUring;
  } else if (strcmp(text, "poll") == 0) {
    *mode = IoMode::kPoll;
  } else {
    return false;
  }
  return true;
}

#if WEIR_HAVE_URING

struct Batch::Ring {
  io_uring ring = {};
  ~Ring() { io_uring_queue_exit(&ring); }
};

namespace {

bool make_ring(unsigned entries, io_uring* ring, std::string* reason) {
  // Without the first flag (Linux 5.18) the kernel stops at a request that it does not take.
  int number = 0;
  for (const unsigned flags : {unsigned{IORING_SETUP_SUBMIT_ALL}, 0u}) {
    number = -io_uring_queue_init(entries, ring, flags);
    if (number != EINVAL) break;
  }
  if (number == 0) return true;
  char text[128];
  *reason = std::string("io_uring_setup: ") + strerror_r(number, text, sizeof text);
  *reason += number == ENOMEM
                 ? "; raise the limit of locked memory (ulimit -l)"
                 : "; it needs kernel.io_uring_disabled=0 and a container that allows it";
  return false;
}

}  // namespace

bool Batch::allowed(std::string* reason) {
  io_uring ring = {};
  if (!make_ring(1, &ring, reason)) return false;
  io_uring_queue_exit(&ring);
  return true;
}

std::unique_ptr<Batch> Batch::make(std::string* reason) {
  io_uring ring = {};
  if (!make_ring(kSlots, &ring, reason)) return nullptr;
  std::unique_ptr<Batch> batch(new Batch());
  batch->ring_ = std::make_unique<Ring>();
  batch->ring_->ring = ring;
  batch->slots_ = std::make_unique<Slot[]>(kSlots);
  return batch;
}

void Batch::add(Slot* slot) {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_->ring);  // there are as many as slots
  const Transfer& transfer = slot->transfer;
  const int fd =
      slot->is_send ? slot->channel->send_stream().fd() : slot->channel->recv_stream().fd();
  const int flags = MSG_DONTWAIT | (slot->is_send ? MSG_NOSIGNAL : 0);
  if (transfer.count == 1) {
    const iovec& piece = transfer.pieces[0];
    if (slot->is_send) {
      io_uring_prep_send(entry, fd, piece.iov_base, piece.iov_len, flags);
    } else {
      io_uring_prep_recv(entry, fd, piece.iov_base, piece.iov_len, flags);
    }
  } else {
    slot->message = {};
    slot->message.msg_iov = slot->transfer.pieces;
    slot->message.msg_iovlen = transfer.count;
    if (slot->is_send) {
      io_uring_prep_sendmsg(entry, fd, &slot->message, static_cast<unsigned>(flags));
    } else {
      io_uring_prep_recvmsg(entry, fd, &slot->message, static_cast<unsigned>(flags));
    }
  }
  io_uring_sqe_set_data64(entry, static_cast<uint64_t>(slot - slots_.get()));
}

void Batch::submit() {
  constexpr uint32_t kFailuresMax = 64;
  uint32_t failures = 0;
  for (uint32_t done = 0; done < count_;) {
    const int submitted = io_uring_submit_and_wait(&ring_->ring, count_ - done);
    unsigned head = 0;
    unsigned seen = 0;
    io_uring_cqe* event = nullptr;
    io_uring_for_each_cqe(&ring_->ring, head, event) {
      ++seen;
      if (event->user_data >= count_ || slots_[event->user_data].done) continue;
      slots_[event->user_data].result = event->res;
      slots_[event->user_data].done = true;
    }
    io_uring_cq_advance(&ring_->ring, seen);
    done += seen;
    if (submitted >= 0 || submitted == -EINTR) continue;
    const bool passes = submitted == -EAGAIN || submitted == -EBUSY;
    if (passes && ++failures < kFailuresMax) continue;
    // What the kernel has taken is done; the ring is closed, so that it takes no more.
    broken_ = true;
    ring_.reset();
    return;
  }
}

#else

struct Batch::Ring {};

bool Batch::allowed(std::string* reason) {
  *reason = "this build is without liburing";
  return false;
}

std::unique_ptr<Batch> Batch::make(std::string* reason) {
  (void)allowed(reason);
  return nullptr;
}

void Batch::add(Slot*) {}
void Batch::submit() {}

#endif

Batch::Batch() = default;
Batch::~Batch() = default;

void Batch::make_call(Slot* slot) {
  slot->result =
      slot->is_send ? slot->channel->send(slot->transfer) : slot->channel->receive(slot->transfer);
}

Batch::Slot* Batch::next_slot(Channel* channel, bool is_send) {
  if (count_ == kSlots) flush();
  Slot* slot = &slots_[count_];
  slot->channel = channel;
  slot->is_send = is_send;
  slot->done = false;
  slot->transfer.clear();
  return slot;
}

void Batch::send(Channel* channel) {
  if (channel->awaits_kernel()) channel->release();
  Slot* slot = next_slot(channel, true);
  if (!channel->prepare_send(&slot->transfer)) return;
  const Transfer& transfer = slot->transfer;
  if (transfer.shared || transfer.timed || channel->send_stream().is_secured()) {
    channel->settle_send(transfer, channel->send(transfer));
    return;
  }
  ++count_;
}

void Batch::receive(Channel* channel) {
  Slot* slot = next_slot(channel, false);
  if (!channel->prepare_recv(&slot->transfer)) return;
  if (channel->recv_stream().is_secured()) {
    channel->settle_recv(slot->transfer, channel->receive(slot->transfer));
    return;
  }
  ++count_;
}

void Batch::flush() {
  if (count_ > 1 && !broken_) {
    for (uint32_t i = 0; i < count_; ++i) add(&slots_[i]);
    submit();
  }
  for (uint32_t i = 0; i < count_; ++i) {
    Slot& slot = slots_[i];
    if (!slot.done) make_call(&slot);
    if (slot.is_send) {
      slot.channel->settle_send(slot.transfer, slot.result);
    } else {
      slot.channel->settle_recv(slot.transfer, slot.result);
    }
  }
  count_ = 0;
}

}  // namespace weir::plugins::tcp
