// SPDX-License-Identifier: Apache-2.0
#include "core/engine/probe_messages.h"

#include <fmt/format.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/clock.h"
#include "core/engine/slicing.h"
#include "core/engine/transport_lanes.h"

namespace weir::engine {

namespace {

constexpr uint64_t kLookNs = 10'000'000;
constexpr timespec kNap{0, 20'000};
constexpr uint32_t kSmallLane = 0;

}  // namespace

ProbePatience::ProbePatience(const Context& context, Rank peer, uint64_t deadline_ns,
                             ProbeWatch watch)
    : context_(context),
      peer_(peer),
      deadline_ns_(deadline_ns),
      watch_(std::move(watch)),
      began_ns_(now_ns()) {}

Status ProbePatience::look() {
  const uint64_t now = now_ns();
  if (now >= deadline_ns_) {
    return Status(
        Code::kTimeout,
        fmt::format(
            "the start-up probe: rank {} waits for rank {}, which does not answer; the probe began "
            "{:.3g} s ago. Check whether that rank is stopped, and the link between the two",
            context_.rank, peer_, static_cast<double>(now - began_ns_) * 1e-9));
  }
  if (now < next_look_ns_) return Status();
  next_look_ns_ = now + kLookNs;
  if (watch_) WEIR_RETURN_IF_ERROR(watch_());
  const bool sees_death = (context_.transport->caps.bits & WEIR_CAP_PEER_FAILURE) != 0;
  if (sees_death && context_.transport->peer_alive(context_.instance, peer_) != WEIR_OK) {
    return Status(Code::kPeerLost, fmt::format("the start-up probe: rank {}, for which rank {} "
                                               "waits, has died",
                                               peer_, context_.rank));
  }
  return Status();
}

ProbeMessages::~ProbeMessages() {
  const auto is_posted = [](const Slot& slot) { return slot.posted; };
  if (small_slot_.posted || std::any_of(slots_.begin(), slots_.end(), is_posted)) {
    context_.quiesce();
  }
}

Status ProbeMessages::post(Slot* slot, bool sends, uint32_t lane, unsigned char* data,
                           uint64_t bytes) {
  const weir_transport_functions_t& transport = *context_.transport;
  slot->op = {};
  const weir_result_t result =
      sends ? transport.send(context_.instance, peer_, lane, data, bytes, &slot->op)
            : transport.recv(context_.instance, peer_, lane, data, bytes, &slot->op);
  slot->posted = result == WEIR_IN_PROGRESS;
  if (result <= WEIR_IN_PROGRESS) return Status();
  return Status(static_cast<Code>(result),
                fmt::format("the start-up probe: a message {} rank {} failed on rank {}",
                            sends ? "to" : "from", peer_, context_.rank));
}

Status ProbeMessages::wait(Slot* slot, bool naps) {
  for (uint32_t tries = 1; slot->posted; ++tries) {
    (void)context_.transport->progress(context_.instance);
    const weir_result_t result = context_.transport->test(context_.instance, &slot->op);
    slot->posted = result == WEIR_IN_PROGRESS;
    if (result > WEIR_IN_PROGRESS) {
      return Status(static_cast<Code>(result),
                    fmt::format("the start-up probe: a message between ranks {} and {} failed on "
                                "rank {}",
                                context_.rank, peer_, context_.rank));
    }
    if (!slot->posted) break;
    if (naps) {
      nanosleep(&kNap, nullptr);
    } else if (tries % 64 == 0) {
      sched_yield();
    }
    if (tries % 64 == 0) WEIR_RETURN_IF_ERROR(patience_.look());
  }
  return Status();
}

Status ProbeMessages::send(const void* data, uint64_t bytes) {
  std::memcpy(small_.data(), data, bytes);
  WEIR_RETURN_IF_ERROR(post(&small_slot_, true, kSmallLane, small_.data(), bytes));
  return wait(&small_slot_, false);
}

Status ProbeMessages::recv(void* data, uint64_t bytes) {
  WEIR_RETURN_IF_ERROR(post(&small_slot_, false, kSmallLane, small_.data(), bytes));
  WEIR_RETURN_IF_ERROR(wait(&small_slot_, false));
  std::memcpy(data, small_.data(), bytes);
  return Status();
}

Status ProbeMessages::move(uint64_t bytes, bool sends, bool naps) {
  if (buffer_bytes_ < bytes) {
    constexpr uint64_t kPageBytes = 4096;
    const uint64_t pages = (bytes + kPageBytes - 1) / kPageBytes;
    buffer_.reset(static_cast<unsigned char*>(std::aligned_alloc(kPageBytes, pages * kPageBytes)));
    if (buffer_ == nullptr) return Status(Code::kNoMemory, "the start-up probe's buffer");
    std::memset(buffer_.get(), 1, pages * kPageBytes);
    buffer_bytes_ = bytes;
  }
  return move(buffer_.get(), bytes, sends, naps);
}

Status ProbeMessages::move(unsigned char* data, uint64_t bytes, bool sends, bool naps) {
  const weir_transport_caps_t& caps = context_.transport->caps;
  const uint32_t lanes = std::max(1u, std::min(kInFlight, program_lanes(caps)));
  const uint32_t first = caps.lane_count > 1 ? kFirstProgramLane : kMessageLane;
  uint32_t index = 0;
  for (uint64_t at = 0; at < bytes; at += kMessageSliceBytes, ++index) {
    const uint32_t lane = index % lanes;
    WEIR_RETURN_IF_ERROR(wait(&slots_[lane], naps));
    const uint64_t part = std::min<uint64_t>(kMessageSliceBytes, bytes - at);
    WEIR_RETURN_IF_ERROR(post(&slots_[lane], sends, first + lane, data + at, part));
  }
  for (Slot& slot : slots_) WEIR_RETURN_IF_ERROR(wait(&slot, naps));
  return Status();
}

}  // namespace weir::engine
