// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/rail.h"

#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#include <algorithm>
#include <bit>
#include <cstddef>

namespace weir::plugins::tcp {
namespace {

using wire::kFragmentHeaderBytes;

constexpr uint32_t kBurst = 8;  // system calls of one push or read
constexpr size_t kPiecesMax = 16;
constexpr uint64_t kCallBytesMax = 512 * 1024;
constexpr double kFirstRate = 1.25;  // 10 Gbit/s, until something is known
constexpr uint64_t kSampleBytes = 64 * 1024;
constexpr uint32_t kSilentMax = 32;
// So much longer than usual a byte takes, twice, where the rail has become slow.
constexpr double kSlowFactor = 4;
// After a look that is so late, when bytes arrived is not known.
constexpr uint64_t kLateLookNs = 2'000'000;
// After so long without use, what was measured before counts no more.
constexpr uint64_t kStaleNs = 10'000'000'000;
// The time that a rail takes for one fragment, and for what may be on its way.
constexpr double kFragmentNs = 500e3;
constexpr double kFragmentNsLeast = 50e3;
constexpr double kWindowNs = 4e6;
constexpr double kAheadNs = 50e6;
// Of one that has come back; twice as long each time that it failed before it had carried much.
constexpr uint64_t kFirstTookNs = 5'000'000;
constexpr uint32_t kFailuresMost = 8;
// A host may take 40 ms to acknowledge what it has.
constexpr uint64_t kPatienceNs = 50'000'000;
constexpr uint32_t kFragmentBytesLeast = 2 * 1024;
constexpr uint32_t kFragmentBytesUsual = 64 * 1024;
constexpr uint32_t kFragmentBytesMost = 256 * 1024;
constexpr uint64_t kWindowBytesMost = 8 * 1024 * 1024;
// A fragment of this size is read with nothing behind it but the next header.
constexpr uint32_t kLargeBytes = 16 * 1024;

}  // namespace

Rail::Rail(uint32_t index)
    : index_(index), sent_(std::make_unique<Sent[]>(kFragmentsMax)), rate_(kFirstRate) {}

void Rail::attach(Stream stream, uint64_t now_ns) {
  stream_ = stream;
  health_ = Health::kUp;
  error_number_ = 0;
  acknowledged_ = written_ = queued_ = 0;
  part_ = 0;
  outstanding_bytes_ = unwritten_bytes_ = ahead_bytes_ = 0;
  busy_since_ns_ = now_ns;
  sample_bytes_ = sample_ns_ = 0;
  sample_count_ = 0;
  kernel_rate_ = 0;
  silent_count_ = 0;
  failures_ = proven_bytes_ < kWindowBytesLeast ? std::min(failures_ + 1, kFailuresMost) : 0;
  took_ns_ = kFirstTookNs << failures_;
  proven_bytes_ = kTrialBytes;
  arrived_bytes_ = sent_bytes_;
  is_marked_ = false;
  kept_pace_ns_ = behind_since_ns_ = 0;
  held_up_us_ = 0;
  looked_sent_bytes_ = UINT64_MAX;
  look_at_answers();
  received_ = 0;
  in_fragment_ = false;
  got_ = 0;
  ahead_begin_ = ahead_end_ = 0;
}

void Rail::fail(Health health, int error_number) {
  health_ = health;
  error_number_ = error_number;
}

uint32_t Rail::fragment_bytes() const {
  const double bytes = rate_ * kFragmentNs;
  if (bytes >= kFragmentBytesMost) return kFragmentBytesMost;
  return std::max(kFragmentBytesUsual, static_cast<uint32_t>(bytes) & ~uint32_t{4095});
}

uint32_t Rail::fragment_bytes_least(double rate) {
  const double bytes = rate * kFragmentNsLeast;
  if (bytes >= kFragmentBytesUsual) return kFragmentBytesUsual;
  return std::max(kFragmentBytesLeast, static_cast<uint32_t>(bytes) & ~uint32_t{1023});
}

bool Rail::has_much_outstanding() const {
  if (outstanding_bytes_ < kTrialBytes) return false;
  return outstanding_bytes_ >= std::min<uint64_t>(kFragmentBytesLeast, ahead_bytes_max());
}

void Rail::look_ahead(uint64_t now_ns) {
  ahead_bytes_ = outstanding_bytes_;
  int in_socket = 0;
  if (outstanding_bytes_ == 0 || !(is_marked_ || has_much_outstanding())) {
    arrived_bytes_ = sent_bytes_;
  } else if (ioctl(fd(), SIOCOUTQ, &in_socket) == 0 && in_socket >= 0) {
    const uint64_t unacknowledged = unwritten_bytes_ + static_cast<uint64_t>(in_socket);
    ahead_bytes_ = std::min(outstanding_bytes_, unacknowledged);
    arrived_bytes_ = std::max(arrived_bytes_, sent_bytes_ + unwritten_bytes_ - ahead_bytes_);
  }
  if (is_marked_) judge_pace(now_ns);
  looked_ns_ = now_ns;
}

uint64_t Rail::ahead_bytes_max() const {
  if (!is_measured_) return std::min(proven_bytes_, window_bytes());
  const double bytes = rate_ * (kAheadNs + static_cast<double>(answer_least_us_) * 1e3);
  const uint64_t most = std::min(proven_bytes_, window_bytes());
  return bytes >= static_cast<double>(most) ? most
                                            : std::max(kTrialBytes, static_cast<uint64_t>(bytes));
}

void Rail::look_at_answers() {
  if (looked_sent_bytes_ == sent_bytes_) return;
  looked_sent_bytes_ = sent_bytes_;
  tcp_info info{};
  socklen_t bytes = sizeof info;
  answer_us_ = answer_least_us_ = answer_step_ns_ = 0;
  if (getsockopt(fd(), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return;
  answer_us_ = info.tcpi_rtt;
  answer_least_us_ = std::min(info.tcpi_min_rtt, info.tcpi_rtt);
  answer_step_ns_ = std::bit_floor(answer_us_ / 1000) * 1'000'000;
}

// If the window is closed, the cause is the peer, which does not read.
bool Rail::was_held_up_by_peer() {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (getsockopt(fd(), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return false;
  const uint64_t before = held_up_us_;
  held_up_us_ = info.tcpi_rwnd_limited;
  return held_up_us_ != before;
}

void Rail::mark(uint64_t now_ns) {
  mark_ns_ = now_ns;
  mark_arrived_ = arrived_bytes_;
}

// What is seen late only tells that the rail is no slower than that.
void Rail::take_pace(uint64_t bytes, uint64_t end_ns) {
  if (sample_count_ >= kSamplesLeast) return;
  const uint64_t past_ns = end_ns - mark_ns_;
  const double pace = static_cast<double>(bytes) / static_cast<double>(past_ns);
  if (is_measured_ ? pace <= rate_ : end_ns - looked_ns_ > past_ns / 2) return;
  rate_ = pace;
  is_measured_ = true;
}

void Rail::judge_pace(uint64_t now_ns) {
  if (now_ns <= mark_ns_) return;
  // At the look before this one it had not arrived; when it did afterwards is not known.
  const uint64_t end_ns = std::min(now_ns, looked_ns_ + kLateLookNs);
  if (arrived_bytes_ >= mark_sent_) {
    const uint64_t bytes = mark_sent_ - mark_arrived_;
    is_marked_ = false;
    take_pace(bytes, end_ns);
    if (end_ns - looked_ns_ <= (end_ns - mark_ns_) / 4) {  // not seen late
      sample_bytes_ += bytes;
      sample_ns_ += end_ns - mark_ns_;
    }
    took_ns_ = end_ns - mark_began_ns_;
    proven_bytes_ = std::max(proven_bytes_, bytes + bytes / 2);
    compare_to_rate(bytes, end_ns);
    return;
  }
  const auto past_ns = static_cast<double>(now_ns - mark_ns_);
  const double answer_ns = static_cast<double>(answer_us_) * 1e3;
  if (past_ns < static_cast<double>(kPatienceNs) + 2 * answer_ns) return;
  const double pace =
      static_cast<double>(arrived_bytes_ - mark_arrived_ + kTrialBytes) / (past_ns - answer_ns);
  if (pace > rate_ / 2) return;
  const bool held_up = was_held_up_by_peer();
  // What will arrive later than this is measured by the time since it left, if nothing has.
  if (held_up || arrived_bytes_ > mark_arrived_) mark(now_ns);
  if (!held_up) become_slow(pace);
}

void Rail::become_slow(double pace) {
  rate_ = pace;
  is_measured_ = true;
  proven_bytes_ = kTrialBytes;
  begin_trial();
}

void Rail::compare_to_rate(uint64_t bytes, uint64_t end_ns) {
  const uint64_t answer_ns = answer_least_us_ * 1000;
  const uint64_t past_ns = end_ns - mark_ns_;
  const bool is_long = is_measured_ && past_ns >= kPatienceNs + 2 * answer_ns;
  if (is_long) latest_pace_ = static_cast<double>(bytes) / static_cast<double>(past_ns - answer_ns);
  const bool is_behind = is_long && latest_pace_ <= rate_ / 2;
  behind_since_ns_ = is_behind ? mark_began_ns_ : 0;
  if (!is_behind) kept_pace_ns_ = end_ns;
}

void Rail::take_latest_pace() {
  if (!was_held_up_by_peer()) become_slow(latest_pace_);
}

uint64_t Rail::window_bytes() const {
  const double bytes = rate_ * kWindowNs;
  if (bytes >= static_cast<double>(kWindowBytesMost)) return kWindowBytesMost;
  return std::max(kWindowBytesLeast, static_cast<uint64_t>(bytes));
}

void Rail::enqueue(const Fragment& fragment, uint64_t posted, uint64_t now_ns) {
  Sent& sent = sent_[queued_ % kFragmentsMax];
  sent.fragment = fragment;
  wire::FragmentHeader header;
  header.lane = fragment.lane;
  header.fragment_number = static_cast<uint32_t>(queued_);
  header.message_number = fragment.message_number;
  header.message_bytes = fragment.message_bytes;
  header.offset = fragment.offset;
  header.bytes = fragment.bytes;
  header.received = static_cast<uint32_t>(received_);
  header.posted = posted;
  wire::encode(header, sent.header);
  ++queued_;
  if (outstanding_bytes_ == 0) {
    if (idle_ns(now_ns) > kStaleNs) begin_trial();
    busy_since_ns_ = now_ns;
  }
  const uint64_t bytes = fragment.bytes + kFragmentHeaderBytes;
  outstanding_bytes_ += bytes;
  unwritten_bytes_ += bytes;
  ahead_bytes_ += bytes;
}

// 0: none. A rail that is given little has gaps, which the kernel counts, so the faster of both.
double Rail::take_sample() {
  const double own = static_cast<double>(sample_bytes_) / static_cast<double>(sample_ns_);
  tcp_info info{};
  socklen_t bytes = sizeof info;
  const bool tells = getsockopt(fd(), IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 &&
                     bytes >= offsetof(tcp_info, tcpi_delivery_rate) + sizeof(uint64_t);
  // A rate that the kernel has reported before is not new.
  if (tells && info.tcpi_delivery_rate_app_limited == 0 && info.tcpi_delivery_rate != 0 &&
      info.tcpi_delivery_rate != kernel_rate_) {
    kernel_rate_ = info.tcpi_delivery_rate;
    silent_count_ = 0;
    return std::max(own, static_cast<double>(kernel_rate_) / 1e9);
  }
  if (tells && ++silent_count_ < kSilentMax) return 0;
  return own;
}

void Rail::measure(uint64_t bytes, uint64_t now_ns) {
  outstanding_bytes_ -= std::min(outstanding_bytes_, bytes);
  busy_since_ns_ = now_ns;
  if (outstanding_bytes_ == 0) look_ahead(now_ns);
  if (sample_bytes_ < kSampleBytes || sample_ns_ == 0) return;
  const double sample = take_sample();
  sample_bytes_ = sample_ns_ = 0;
  if (sample == 0) return;
  double byte_ns = 1 / sample;
  const bool is_known = sample_count_ >= kSamplesLeast;
  slow_count_ = is_known && byte_ns > kSlowFactor * byte_ns_ ? slow_count_ + 1 : 0;
  if (slow_count_ == kSlowLeast) {
    byte_ns_ = byte_ns;
    sample_count_ = kSamplesLeast;
    slow_count_ = 0;
  } else if (is_known) {
    byte_ns = std::clamp(byte_ns, byte_ns_ / 2, byte_ns_ * 2);
  }
  sample_count_ = std::min(sample_count_ + 1, kSamples);
  byte_ns_ += (byte_ns - byte_ns_) / sample_count_;
  if (sample_count_ < kSamplesLeast) return;
  rate_ = 1 / byte_ns_;
  is_measured_ = true;
}

void Rail::push(uint64_t now_ns) {
  const uint64_t sent_before = sent_bytes_;
  write();
  if (is_marked_ || sent_bytes_ == sent_before || !has_much_outstanding()) return;
  is_marked_ = true;
  mark(now_ns);
  looked_ns_ = mark_began_ns_ = now_ns;
  mark_sent_ = sent_bytes_;
}

void Rail::write() {
  for (uint32_t call = 0; call < kBurst && written_ < queued_ && health_ == Health::kUp;) {
    iovec pieces[kPiecesMax];
    size_t count = 0;
    uint64_t bytes = 0;
    size_t skip = part_;
    for (uint64_t k = written_; k < queued_ && count + 2 <= kPiecesMax && bytes < kCallBytesMax;
         ++k) {
      Sent& sent = sent_[k % kFragmentsMax];
      if (skip < kFragmentHeaderBytes) {
        pieces[count++] = {sent.header + skip, kFragmentHeaderBytes - skip};
        bytes += kFragmentHeaderBytes - skip;
        skip = kFragmentHeaderBytes;
      }
      const size_t done = skip - kFragmentHeaderBytes;
      if (sent.fragment.bytes > done) {
        pieces[count++] = {const_cast<unsigned char*>(sent.fragment.data) + done,
                           sent.fragment.bytes - done};
        bytes += sent.fragment.bytes - done;
      }
      skip = 0;
    }
    const ssize_t sent = stream_.send(pieces, count);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (!Stream::is_temporary(errno)) fail(Health::kFailed, errno);
      return;
    }
    ++call;
    sent_bytes_ += static_cast<uint64_t>(sent);
    unwritten_bytes_ -= static_cast<uint64_t>(sent);
    size_t left = static_cast<size_t>(sent);
    while (left > 0) {
      const size_t whole = kFragmentHeaderBytes + sent_[written_ % kFragmentsMax].fragment.bytes;
      const size_t part = std::min(left, whole - part_);
      part_ += part;
      left -= part;
      if (part_ == whole) {
        ++written_;
        part_ = 0;
      }
    }
    if (static_cast<uint64_t>(sent) < bytes) return;
  }
}

void Rail::drop_owned() {
  uint64_t kept = written_;
  while (kept < queued_ && sent_[kept % kFragmentsMax].fragment.op == nullptr) ++kept;
  queued_ = kept;
  // The peer still counts those that have left.
  for (uint64_t k = acknowledged_; k < written_; ++k) {
    Fragment& fragment = sent_[k % kFragmentsMax].fragment;
    if (fragment.op == nullptr) continue;
    fragment.op = nullptr;
    fragment.copy = Fragment::kGone;
  }
}

bool Rail::has_outstanding_copies() const {
  for (uint64_t k = acknowledged_; k < queued_; ++k) {
    const Fragment& fragment = sent_[k % kFragmentsMax].fragment;
    if (fragment.op == nullptr && fragment.copy != Fragment::kGone) return true;
  }
  return false;
}

bool Rail::begin_fragment(Receiver* receiver) {
  const bool good = wire::decode(ahead_ + ahead_begin_, &current_) &&
                    current_.fragment_number == static_cast<uint32_t>(received_) &&
                    receiver->hear(index_, current_);
  bool wanted = good;
  to_ = good ? receiver->place(current_, &wanted) : nullptr;
  if (!wanted) {
    fail(Health::kDamaged, 0);
    return false;
  }
  ahead_begin_ += kFragmentHeaderBytes;
  in_fragment_ = true;
  got_ = 0;
  return true;
}

void Rail::end_fragment(Receiver* receiver) {
  in_fragment_ = false;
  ++received_;
  received_bytes_ += current_.bytes;
  // The sender measures the rail by it, and must not measure how long the kernel waits for more.
  const bool is_small_part =
      current_.bytes < kLargeBytes && current_.bytes < current_.message_bytes;
  if (const int on = 1; is_small_part) {
    (void)setsockopt(fd(), IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
  }
  receiver->finish(current_);
}

void Rail::redirect(uint8_t lane, uint64_t message_number, unsigned char* data) {
  if (!in_fragment_ || current_.lane != lane || current_.message_number != message_number) return;
  to_ = data + current_.offset;
}

void Rail::forget_lane(uint8_t lane) {
  if (in_fragment_ && current_.lane == lane) to_ = nullptr;
}

// Uses up what was read ahead but for a part of a header; false after a failure.
bool Rail::take_ahead(Receiver* receiver) {
  for (;;) {
    if (!in_fragment_) {
      if (ahead_end_ - ahead_begin_ < kFragmentHeaderBytes) break;
      if (!begin_fragment(receiver)) return false;
    }
    const size_t part = std::min<size_t>(current_.bytes - got_, ahead_end_ - ahead_begin_);
    if (to_ != nullptr && part > 0) memcpy(to_ + got_, ahead_ + ahead_begin_, part);
    got_ += static_cast<uint32_t>(part);
    ahead_begin_ += part;
    if (got_ < current_.bytes) break;
    end_fragment(receiver);
  }
  memmove(ahead_, ahead_ + ahead_begin_, ahead_end_ - ahead_begin_);
  ahead_end_ -= ahead_begin_;
  ahead_begin_ = 0;
  return true;
}

bool Rail::read(Receiver* receiver) {
  unsigned char unwanted[4096];
  for (uint32_t call = 0; call < kBurst && health_ == Health::kUp;) {
    iovec pieces[2];
    size_t count = 0;
    size_t direct = 0;
    if (in_fragment_) {
      direct = current_.bytes - got_;
      if (to_ == nullptr) direct = std::min(direct, sizeof unwanted);
      pieces[count++] = {to_ != nullptr ? to_ + got_ : unwanted, direct};
    }
    const bool last = !in_fragment_ || got_ + direct == current_.bytes;
    const bool large = in_fragment_ && current_.bytes >= kLargeBytes;
    const size_t room = (large ? kFragmentHeaderBytes : kAheadBytes) - ahead_end_;
    // What stands behind a part of an unwanted fragment is more of it.
    if (last) pieces[count++] = {ahead_ + ahead_end_, room};
    const ssize_t got = stream_.receive(pieces, count);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (Stream::is_temporary(errno)) return !Stream::is_empty(errno);
      fail(Health::kFailed, errno);
      return false;
    }
    if (got == 0) {
      fail(Health::kEnded, 0);
      return false;
    }
    ++call;
    const auto bytes = static_cast<size_t>(got);
    const size_t asked = direct + (last ? room : 0);
    if (in_fragment_) {
      got_ += static_cast<uint32_t>(std::min(bytes, direct));
      if (got_ == current_.bytes) end_fragment(receiver);
    }
    if (bytes > direct) ahead_end_ += bytes - direct;
    if (!take_ahead(receiver)) return false;
    if (bytes < asked) return stream_.has_unread();
  }
  return health_ == Health::kUp;
}

}  // namespace weir::plugins::tcp
