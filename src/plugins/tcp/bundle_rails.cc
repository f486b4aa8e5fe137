// SPDX-License-Identifier: Apache-2.0
// The life of a bundle's rails: how a failed one is detected, taken out and brought back.
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "net/ip_socket.h"
#include "plugins/tcp/bundle.h"

namespace weir::plugins::tcp {
namespace {

constexpr uint32_t kStallMs = 500;
constexpr uint64_t kGoodbyePatienceNs = 500'000'000;
// A rail is late if its bytes ahead would take it so long, and the others so much less, at so many
// looks.
constexpr double kLateNs = 1e9;
constexpr double kLateFactor = 8;
constexpr uint32_t kLateLooks = 10;

// Bytes that the peer's host has not acknowledged.
int unacknowledged(int fd) {
  int waiting = 0;
  return ioctl(fd, SIOCOUTQ, &waiting) == 0 ? waiting : 0;
}

}  // namespace

void Bundle::look_after(uint64_t now_ns) {
  looked_ns_ = now_ns;
  for (uint32_t i = 0; i < rail_count() && !failed_; ++i) {
    if (links_[i].down) continue;
    if (controls_[i].lost()) {
      take_down(i, "its connection was closed");
    } else if (links_[i].late_ns != 0 && now_ns - links_[i].late_ns > kGoodbyePatienceNs &&
               rails_[i].received() == 0 && rails_[i].current() == nullptr) {
      take_down(i, "the peer had left");
    } else if (up_count() > 1 && (net::is_stalled(rails_[i].fd(), kStallMs) ||
                                  net::is_stalled(controls_[i].fd(), kStallMs))) {
      take_down(i, "the peer's host does not answer over it");
    } else if (carries(i)) {
      rails_[i].look_at_answers();
      rails_[i].look_ahead(now_ns);
      links_[i].late_looks = is_late(i) ? links_[i].late_looks + 1 : 0;
      if (links_[i].late_looks < kLateLooks) continue;
      // The kernel must not go on sending what now goes over other rails.
      rails_[i].stream().discard();
      take_down(i, "it became too slow for the data assigned to it");
    }
  }
  for (Lane& lane : lanes_) {
    const bool waits = lane.recv.head != nullptr && lane.recv.head->number < lane.looked_posted;
    urgent_ = urgent_ || (waits && lane.told_posted < lane.recv.posted);
    lane.looked_posted = lane.recv.posted;
  }
}

bool Bundle::is_late(uint32_t rail) const {
  const auto ahead_bytes = static_cast<double>(rails_[rail].ahead_bytes());
  double others_rate = 0;
  for (uint32_t i = 0; i < rail_count(); ++i) {
    if (i != rail && carries(i) && rails_[i].is_measured()) others_rate += rails_[i].rate();
  }
  return ahead_bytes > kLateNs * rails_[rail].rate() &&
         others_rate > kLateFactor * rails_[rail].rate();
}

// A peer that leaves says so on the other connection, which may take longer.
void Bundle::begin_end(uint32_t i) {
  Link& link = links_[i];
  Control& control = controls_[i];
  control.receive();
  if (link.ending_ns == 0) link.ending_ns = now_ns_;
  if (control.left() || control.lost() || now_ns_ - link.ending_ns > kGoodbyePatienceNs) {
    take_down(i, rails_[i].health() == Rail::Health::kEnded ? "its connection was closed"
                                                            : "its connection broke");
  }
}

void Bundle::take_down(uint32_t i, const char* reason) {
  Link& link = links_[i];
  // The peer's last state may say that it has everything, and a goodbye may follow it.
  controls_[i].receive();
  wire::PeerState state;
  if (controls_[i].take_state(&state)) apply(state);
  if (link.down || failed_) return;
  const int error_number = rails_[i].error_number();
  link.down = true;
  link.reason = reason;
  ++down_count_;
  news_ |= 1u << i;
  // A small message that was arriving early comes again; a large one keeps its place.
  if (const wire::FragmentHeader* current = rails_[i].current(); current != nullptr) {
    Early& early = lanes_[current->lane].small[current->message_number % kAheadCount];
    if (early.number == current->message_number && !early.begun) early.used = false;
  }
  rails_[i].stream().close();
  controls_[i].stream().close();
  rails_[i].detach();
  controls_[i].attach(Stream());
  urgent_ = true;
  if (up_count() != 0) return;
  none_up_ns_ = now_ns_;
  if (!awaits_first()) fail_all(WEIR_ERROR_PEER_LOST, error_number);
}

bool Bundle::may_return(uint32_t rail) const {
  const Link& link = links_[rail];
  return link.down && link.peer_closed && !failed_ && (link.is_fresh || !left());
}

void Bundle::forget_connection(uint32_t i) {
  if (!links_[i].down) {
    rails_[i].stream().close();
    controls_[i].stream().close();
    rails_[i].detach();
    controls_[i].attach(Stream());
    links_[i].down = true;
    ++down_count_;
  }
  take_back(i);
}

void Bundle::move(uint32_t rail) {
  take_down(rail, "it goes over the link of another one");
  news_ &= ~(1u << rail);
}

// Nothing was received over it: that is told.
void Bundle::pass_over_connection(uint32_t i) {
  Link& link = links_[i];
  const uint32_t returns = link.returns + 1;
  link = Link();
  link.is_fresh = false;
  link.returns = returns;
  rails_[i].attach(Stream(), now_ns_);
  rails_[i].detach();
  urgent_ = true;
}

// The earliest is taken from the end of the list first.
void Bundle::take_back(uint32_t i) {
  const auto before = static_cast<ptrdiff_t>(homeless_.size());
  rails_[i].take_back([this](const Fragment& fragment) {
    if (fragment.copy != Fragment::kGone) homeless_.push_back(fragment);
  });
  std::reverse(homeless_.begin() + before, homeless_.end());
}

void Bundle::quiesce() {
  for (Lane& lane : lanes_) {
    lane.send.head = lane.send.tail = lane.recv.head = lane.recv.tail = lane.cut = nullptr;
  }
  pending_ = 0;
  std::erase_if(homeless_, [](const Fragment& fragment) { return fragment.op != nullptr; });
  for (Rail& rail : rails_) {
    rail.drop_owned();
    for (uint8_t lane = 0; lane < kLaneCount; ++lane) rail.forget_lane(lane);
  }
}

void Bundle::leave() {
  quiesce();
  for (uint32_t i = 0; i < rail_count(); ++i) {
    if (!links_[i].down) take_down(i, "this rank has left the peer");
  }
  fail_all(WEIR_ERROR_PEER_LOST, 0);
  news_ = 0;
  for (Lane& lane : lanes_) lane.send.failure.reported = lane.recv.failure.reported = true;
}

void Bundle::listen() {
  for (Control& control : controls_) control.receive();
}

bool Bundle::is_acknowledged() const {
  for (uint32_t i = 0; i < rail_count() && !failed_; ++i) {
    if (awaits_word(i) || (!links_[i].down && unacknowledged(rails_[i].fd()) > 0)) return false;
  }
  return homeless_.empty();
}

bool Bundle::awaits_word() const {
  bool awaits = false;
  bool reaches = false;
  for (uint32_t i = 0; i < rail_count() && !failed_; ++i) {
    awaits = awaits || awaits_word(i);
    reaches = reaches || (!links_[i].down && unacknowledged(rails_[i].fd()) == 0 &&
                          unacknowledged(controls_[i].fd()) == 0);
  }
  return awaits && reaches;
}

bool Bundle::awaits_word(uint32_t i) const {
  const Link& link = links_[i];
  return link.down && !link.peer_closed && !left() && rails_[i].has_outstanding_copies();
}

bool Bundle::left() const {
  return std::any_of(controls_.begin(), controls_.end(),
                     [](const Control& control) { return control.left(); });
}

// A peer that has left may have used a rail whose connection has not come yet.
bool Bundle::awaits_first() const {
  return up_count() == 0 && !failed_ && (!left() || now_ns_ - none_up_ns_ <= kGoodbyePatienceNs) &&
         std::any_of(links_.begin(), links_.end(), [](const Link& link) { return link.is_fresh; });
}

bool Bundle::lost() const {
  if (!begun_ || awaits_first()) return false;
  if (failed_ && up_count() == 0) return true;
  for (uint32_t i = 0; i < rail_count(); ++i) {
    if (!links_[i].down && !controls_[i].lost()) return false;
  }
  return true;
}

}  // namespace weir::plugins::tcp
