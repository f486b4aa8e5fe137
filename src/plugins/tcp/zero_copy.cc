// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/zero_copy.h"

#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "plugins/tcp/clock.h"

namespace weir::plugins::tcp {
namespace {

// What it must save to be worth that a send completes later.
constexpr double kGainLeast = 0.9;
constexpr uint64_t kRefusedMax = 16;
// The time that a network interface may take to release pages that need not be sent any more.
constexpr uint64_t kInterfaceNs = 1'000'000'000;

double median(const double* values, uint32_t count) {
  double sorted[ZeroCopy::kTrialCount];
  std::copy_n(values, count, sorted);
  std::nth_element(sorted, sorted + count / 2, sorted + count);
  return sorted[count / 2];
}

}  // namespace

bool ZeroCopy::parse(const char* text, Mode* mode) {
  if (text == nullptr || *text == '\0' || strcmp(text, "auto") == 0) {
    *mode = Mode::kAuto;
  } else if (strcmp(text, "on") == 0) {
    *mode = Mode::kOn;
  } else if (strcmp(text, "off") == 0) {
    *mode = Mode::kOff;
  } else {
    return false;
  }
  return true;
}

void ZeroCopy::attach(int fd, Mode mode) {
  *this = ZeroCopy();
  fd_ = fd;
  forced_ = mode == Mode::kOn;
  if (mode == Mode::kOff) return turn_off("as WEIR_TCP_ZEROCOPY says");
  const int on = 1;
  if (setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) != 0) {
    return turn_off("the kernel does not support zero-copy");
  }
  state_ = forced_ ? State::kOn : State::kTrial;
  why_ = forced_ ? "as WEIR_TCP_ZEROCOPY says" : "";
}

void ZeroCopy::turn_off(const char* why) {
  state_ = State::kOff;
  why_ = why;
}

bool ZeroCopy::choose(uint64_t bytes) {
  if (state_ == State::kOff || bytes < kBytesMin || !has_room()) return false;
  return state_ == State::kOn || messages_++ % 2 == 0;
}

void ZeroCopy::refused() {
  if (++refused_ >= kRefusedMax && !forced_) {
    turn_off("the kernel has no room to pin pages (RLIMIT_MEMLOCK, net.core.optmem_max)");
  }
}

void ZeroCopy::measured(bool zero_copy, uint64_t bytes, uint64_t ns) {
  if (state_ != State::kTrial || bytes == 0) return;
  Way& way = zero_copy ? sharing_ : copying_;
  if (zero_copy) ns += std::exchange(collecting_ns_, 0);
  if (way.count < kTrialCount) {
    way.ns_per_byte[way.count++] = static_cast<double>(ns) / static_cast<double>(bytes);
  }
  // The kernel must have reported on all of them: it may have copied.
  if (copying_.count == kTrialCount && sharing_.count == kTrialCount && !holds()) judge();
}

void ZeroCopy::judge() {
  copying_cost_ = median(copying_.ns_per_byte, copying_.count) * 1024;
  sharing_cost_ = median(sharing_.ns_per_byte, sharing_.count) * 1024;
  if (sharing_cost_ < copying_cost_ * kGainLeast) {
    state_ = State::kOn;
    why_ = "measured";
  } else {
    turn_off("zero-copy does not cost less here");
  }
}

void ZeroCopy::given_back(uint32_t first, uint32_t last, bool copied) {
  if (copied && state_ != State::kOff && !forced_) {
    turn_off("the kernel copies nonetheless, as it does within one host");
  }
  const uint32_t count = last - first + 1;  // modulo 2^32, as the kernel counts
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t place = first + i - static_cast<uint32_t>(oldest_);
    if (place >= begun_ - oldest_) break;
    back_ |= uint64_t{1} << place;
  }
  while ((back_ & 1) != 0) {
    back_ >>= 1;
    ++oldest_;
  }
}

void ZeroCopy::collect() {
  while (holds()) {
    alignas(cmsghdr) unsigned char control[128];
    msghdr message{};
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const uint64_t begin_ns = on_trial() ? monotonic_ns() : 0;
    if (recvmsg(fd_, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    if (on_trial()) collecting_ns_ += monotonic_ns() - begin_ns;
    for (cmsghdr* one = CMSG_FIRSTHDR(&message); one != nullptr; one = CMSG_NXTHDR(&message, one)) {
      const bool is_error = (one->cmsg_level == SOL_IP && one->cmsg_type == IP_RECVERR) ||
                            (one->cmsg_level == SOL_IPV6 && one->cmsg_type == IPV6_RECVERR);
      if (!is_error || one->cmsg_len < CMSG_LEN(sizeof(sock_extended_err))) continue;
      sock_extended_err error;
      memcpy(&error, CMSG_DATA(one), sizeof error);
      if (error.ee_origin != SO_EE_ORIGIN_ZEROCOPY || error.ee_errno != 0) continue;
      given_back(error.ee_info, error.ee_data, (error.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0);
    }
  }
}

bool ZeroCopy::wait_until(uint64_t end_ns) {
  for (;;) {
    collect();
    if (!holds()) return true;
    if (monotonic_ns() >= end_ns) return false;
    // poll reports the error queue without being asked; an end, too, which must not make us spin.
    pollfd entry = {fd_, 0, 0};
    if (poll(&entry, 1, 1) == 1 && (entry.revents & POLLERR) == 0) {
      const timespec pause = {0, 200'000};
      nanosleep(&pause, nullptr);
    }
  }
}

bool ZeroCopy::recall(uint64_t patience_ns) {
  if (wait_until(patience_ns)) return true;
  // Not close: the kernel would go on sending from the buffers, and could not report when it is
  // done.
  sockaddr nowhere{};
  nowhere.sa_family = AF_UNSPEC;
  (void)connect(fd_, &nowhere, sizeof nowhere);
  return wait_until(monotonic_ns() + kInterfaceNs);
}

std::string ZeroCopy::describe() const {
  std::string text = state_ == State::kOff     ? "copied"
                     : state_ == State::kTrial ? "copied and zero-copy in turn, on trial"
                                               : "zero-copy";
  if (*why_ != '\0') text += std::string(": ") + why_;
  if (copying_cost_ > 0) {
    char figures[64];
    (void)snprintf(figures, sizeof figures, ", %.0f ns per KiB against %.0f", sharing_cost_,
                   copying_cost_);
    text += figures;
  }
  return text;
}

}  // namespace weir::plugins::tcp
