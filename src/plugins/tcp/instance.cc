// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/instance.h"

#include <string.h>
#include <sys/socket.h>
#include <time.h>

namespace weir::plugins::tcp {
namespace {

// For what has not left, or whose memory the kernel holds, when a rank leaves.
constexpr uint64_t kFarewellNs = 500'000'000;

void flush(Bundle* bundle) {
  const uint64_t end = monotonic_ns() + kFarewellNs;
  while (!bundle->flush() && monotonic_ns() < end) {
    const timespec pause = {0, 200'000};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace

Instance::~Instance() {
  // A forked child has copies of the connections, which are its parent's to end.
  const bool ends = owner == getpid();
  if (ends) {
    for (const std::unique_ptr<Bundle>& bundle : bundles) {
      if (bundle != nullptr) flush(bundle.get());
    }
    for_each_control([this](Control& control) {
      control.say_goodbye(notice, notice_bytes, notice_version);
      control.stream().shut();
    });
    for (const std::unique_ptr<Bundle>& bundle : bundles) {
      for (uint32_t rail = 0; bundle != nullptr && rail < bundle->rail_count(); ++rail) {
        bundle->data_stream(rail).shut();
      }
    }
  }
  for (Control& control : controls) {
    control.stream().close();
  }
  const uint64_t patience_ns = ends ? monotonic_ns() + kFarewellNs : 0;
  for (Channel& channel : channels) {
    if (ends) (void)channel.recall(patience_ns);
    // One that is not used both ways yet is closed as what it is.
    const int unused = channel.unused_stream().fd();
    const bool is_one = unused >= 0 || channel.recv_stream().fd() == channel.send_stream().fd();
    if (unused >= 0) channel.recv_stream() = Stream();
    // What the kernel has taken still arrives.
    if (ends) channel.send_stream().shut();
    if (unused < 0) channel.send_stream().close();
    if (!is_one) channel.recv_stream().close();
    channel.unused_stream().close();
  }
  explicit_bzero(identity.key.data(), identity.key.size());
}

weir_result_t tell(Instance* self, uint32_t peer_index, uint32_t lane_index, bool is_send,
                   Failure* told) {
  Failure& failure = *told;
  failure.reported = true;
  const std::string peer = text_of(peer_index);
  const std::string lane = text_of(lane_index);
  const std::string me = text_of(self->identity.rank);
  switch (failure.result) {
    case WEIR_ERROR_MISMATCH:
      return self->report.fail(failure.result, "tcp: rank " + peer + " sent a message of " +
                                                   text_of(failure.sent_bytes) +
                                                   " bytes where rank " + me + " expected " +
                                                   text_of(failure.expected_bytes) + " (lane " +
                                                   lane + ")");
    case WEIR_ERROR_PEER_LOST: {
      Bundle* bundle = self->bundles[peer_index].get();
      Control& control = self->controls[peer_index];
      control.receive();
      if (!control.left() && control.lane_ended_ns == 0) control.lane_ended_ns = monotonic_ns();
      const bool left = bundle != nullptr ? bundle->left() : control.left();
      const std::string how =
          left ? "has closed the communicator"
               : "was lost: its connection " + (failure.error_number == 0
                                                    ? std::string("was closed")
                                                    : "failed, " + reason_of(failure.error_number));
      return self->report.fail(failure.result,
                               "tcp: rank " + peer + " " + how +
                                   (is_send ? ", while rank " + me + " sent to it"
                                            : ", while rank " + me + " waited for a message") +
                                   " (lane " + lane + ")");
    }
    case WEIR_ERROR_SYSTEM:
      return self->report.fail(
          failure.result, "tcp: rank " + me + " cannot connect lane " + lane + " to rank " + peer +
                              ": " + reason_of(failure.error_number) +
                              "; raise `ulimit -n`, or have all connections made at the start "
                              "with WEIR_TCP_LAZY=0");
    default:
      return self->report.fail(
          failure.result, "tcp: what rank " + peer + " sent to rank " + me + " on lane " + lane +
                              " is no message of this protocol: it was damaged on its "
                              "way, or something else wrote into the connection");
  }
}

}  // namespace weir::plugins::tcp
