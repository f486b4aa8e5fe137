// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/bundle.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace weir::plugins::tcp {
namespace {

constexpr uint64_t kIdleNs = 500'000;
// The peer is told of received data after so many bytes or fragments at the latest.
constexpr uint64_t kTellBytes = 64 * 1024;
constexpr uint64_t kTellFragments = 16;

constexpr uint64_t kEarlyBytesPerLane =
    Bundle::kAheadCount * Bundle::kEagerBytes + Bundle::kLargeAheadCount * Bundle::kLargeBytes;

}  // namespace

Bundle::Bundle(uint32_t rail_count, Clock clock)
    : clock_(clock),
      links_(rail_count),
      controls_(rail_count),
      down_count_(rail_count),
      copies_(new unsigned char[kCopiesMax * kEagerBytes]),
      early_(new unsigned char[kLaneCount * kEarlyBytesPerLane]) {
  static_assert(kTellFragments * 4 <= std::min(kCopiesMax, Rail::kFragmentsMax));
  static_assert(kTellBytes * 4 <= Rail::kWindowBytesLeast);
  rails_.reserve(rail_count);
  for (uint32_t i = 0; i < rail_count; ++i) rails_.emplace_back(i);
  homeless_.reserve(size_t{rail_count} * Rail::kFragmentsMax * 2);
  for (uint32_t i = kCopiesMax; i-- > 0;) free_copies_.push_back(i);
}

Bundle::~Bundle() {
  for (uint32_t i = 0; i < rail_count(); ++i) {
    rails_[i].stream().close();
    controls_[i].stream().close();
  }
}

void Bundle::attach(uint32_t rail, Stream data, Stream control, uint32_t returns) {
  Link& link = links_[rail];
  if (link.down) --down_count_;
  begun_ = true;
  link = Link();
  link.down = link.is_fresh = false;
  link.peer_closed = false;
  link.returns = returns;
  link.late_ns = left() ? clock_() : 0;
  link.told_bytes = rails_[rail].received_bytes();
  rails_[rail].attach(data, clock_());
  controls_[rail].attach(control);
  urgent_ = true;
}

// Operations.

void Bundle::append(Queue* queue, Op* op) {
  if (queue->tail != nullptr) {
    queue->tail->next = reinterpret_cast<uint64_t>(op);
  } else {
    queue->head = op;
  }
  queue->tail = op;
}

void Bundle::finish(Queue* queue) {
  Op* op = queue->head;
  queue->head = next_of(op);
  if (queue->head == nullptr) queue->tail = nullptr;
  op->state = kOpDone;
}

void Bundle::fail(Queue* queue, weir_result_t result, int error_number) {
  if (queue->failure.result != WEIR_OK) return;
  queue->failure.result = result;
  queue->failure.error_number = error_number;
  // A caller that waits for nothing is told nothing.
  queue->failure.reported = queue->head == nullptr;
  while (queue->head != nullptr) {
    Op* op = queue->head;
    finish(queue);
    op->state = kOpFailed + static_cast<uint64_t>(result);
  }
}

void Bundle::fail_all(weir_result_t result, int error_number) {
  if (failed_) return;
  failed_ = true;
  pending_ = 0;
  homeless_.clear();
  for (Lane& lane : lanes_) {
    fail(&lane.send, result, error_number);
    fail(&lane.recv, result, error_number);
    lane.cut = nullptr;
  }
  // The buffers are their owners' again: nothing may leave from them or arrive in them.
  for (uint32_t i = 0; i < rail_count(); ++i) {
    rails_[i].stream().close();
    rails_[i].detach();
    rails_[i].take_back([](const Fragment&) {});
  }
}

void Bundle::begin(Op* op, Lane* lane, uint64_t data, uint64_t bytes, uint64_t flags) {
  Queue* queue = (flags & kSend) != 0 ? &lane->send : &lane->recv;
  op->state = kOpPending;
  op->next = 0;
  op->channel = reinterpret_cast<uint64_t>(this);
  op->data = data;
  op->bytes = bytes;
  op->done_bytes = 0;
  op->number = queue->posted++;
  op->is_send = flags | kOfBundle | static_cast<uint64_t>(lane - lanes_) << kLaneShift;
  append(queue, op);
  ++pending_;
}

weir_result_t Bundle::post_send(uint32_t lane_index, const void* data, uint64_t bytes, Op* op) {
  Lane& lane = lanes_[lane_index];
  if (lane.send.failure.result != WEIR_OK) return lane.send.failure.result;
  begin(op, &lane, reinterpret_cast<uint64_t>(data), bytes, kSend);
  if (lane.cut == nullptr) lane.cut = op;
  now_ns_ = clock_();
  schedule(now_ns_);
  push();
  if (op->state == kOpDone) return WEIR_OK;
  return lane.send.failure.result != WEIR_OK ? lane.send.failure.result : WEIR_IN_PROGRESS;
}

weir_result_t Bundle::post_recv(uint32_t lane_index, void* data, uint64_t bytes, Op* op) {
  Lane& lane = lanes_[lane_index];
  if (lane.recv.failure.result != WEIR_OK) return take_legacy(lane_index, data, bytes, op);
  begin(op, &lane, reinterpret_cast<uint64_t>(data), bytes, 0);
  for (Early* early :
       {&lane.small[op->number % kAheadCount], &lane.large[op->number % kLargeAheadCount]}) {
    if (early->used && early->number == op->number) deliver(&lane, op, early);
  }
  if (lane.recv.failure.result != WEIR_OK) return lane.recv.failure.result;
  // The sender of a long message waits for this; a sender of short ones does when it is far ahead.
  if (bytes > kEagerBytes || lane.recv.posted - lane.told_posted >= kAheadCount / 2) {
    urgent_ = true;
    tell();
  }
  if (op->state == kOpPending) drive();
  if (op->state == kOpDone) return WEIR_OK;
  return lane.recv.failure.result != WEIR_OK ? lane.recv.failure.result : WEIR_IN_PROGRESS;
}

// Messages that came early from a peer that has left since, or was lost, are still received.
weir_result_t Bundle::take_legacy(uint32_t lane_index, void* data, uint64_t bytes, Op* op) {
  Lane& lane = lanes_[lane_index];
  Early& early = early_of(&lane, lane.recv.posted, bytes);
  const bool is_there = lane.recv.failure.result == WEIR_ERROR_PEER_LOST && early.complete() &&
                        early.number == lane.recv.posted && early.bytes == bytes;
  if (!is_there) return lane.recv.failure.result;
  if (bytes != 0) memcpy(data, early_bytes(lane_index, early), bytes);
  early.used = false;
  ++lane.recv.posted;
  op->state = kOpDone;
  op->is_send = kOfBundle;
  return WEIR_OK;
}

bool Bundle::idle() const {
  return failed_ || (pending_ == 0 && down_count_ == 0 && homeless_.empty() &&
                     std::none_of(rails_.begin(), rails_.end(),
                                  [](const Rail& rail) { return rail.has_outstanding(); }) &&
                     std::none_of(controls_.begin(), controls_.end(),
                                  [](const Control& control) { return control.waits(); }));
}

// Receiving.

Op* Bundle::find_recv(Lane* lane, uint64_t number) {
  Op* op = lane->recv.head;
  while (op != nullptr && op->number != number) op = next_of(op);
  return op;
}

Bundle::Early& Bundle::early_of(Lane* lane, uint64_t number, uint64_t bytes) {
  return bytes <= kEagerBytes ? lane->small[number % kAheadCount]
                              : lane->large[number % kLargeAheadCount];
}

unsigned char* Bundle::early_bytes(uint32_t lane, const Early& early) {
  unsigned char* base = early_.get() + lane * kEarlyBytesPerLane;
  if (early.bytes <= kEagerBytes) return base + early.number % kAheadCount * kEagerBytes;
  return base + kAheadCount * kEagerBytes + early.number % kLargeAheadCount * kLargeBytes;
}

void Bundle::fail_recv(uint32_t lane_index, uint64_t sent_bytes, uint64_t expected_bytes) {
  Queue& queue = lanes_[lane_index].recv;
  for (const Op* op = queue.head; op != nullptr; op = next_of(op)) --pending_;
  queue.failure.sent_bytes = sent_bytes;
  queue.failure.expected_bytes = expected_bytes;
  fail(&queue, WEIR_ERROR_MISMATCH, 0);
  for (Rail& rail : rails_) rail.forget_lane(static_cast<uint8_t>(lane_index));
}

bool Bundle::hear(uint32_t rail, const wire::FragmentHeader& header) {
  Lane& lane = lanes_[header.lane];
  lane.granted = std::max(lane.granted, header.posted);
  return acknowledge(rail, header.received, now_ns_);
}

unsigned char* Bundle::place(const wire::FragmentHeader& header, bool* good) {
  Lane& lane = lanes_[header.lane];
  const uint64_t number = header.message_number;
  *good = true;
  if (lane.recv.failure.result != WEIR_OK) return nullptr;
  if (number < lane.recv.posted) {
    Op* op = find_recv(&lane, number);
    // None: it has completed, and this one comes twice.
    if (op == nullptr || (op->is_send & kComplete) != 0) return nullptr;
    if (op->bytes == header.message_bytes) {
      return reinterpret_cast<unsigned char*>(op->data) + header.offset;
    }
    fail_recv(header.lane, header.message_bytes, op->bytes);
    return nullptr;
  }
  Early& early = early_of(&lane, number, header.message_bytes);
  if (early.used && early.number == number) {
    *good = early.bytes == header.message_bytes && header.message_bytes > kEagerBytes;
    return *good ? early_bytes(header.lane, early) + header.offset : nullptr;
  }
  const bool is_small = header.message_bytes <= kEagerBytes;
  *good = !early.used && header.message_bytes <= kLargeBytes &&
          number - lane.recv.posted < (is_small ? kAheadCount : kLargeAheadCount) &&
          (!is_small || header.bytes == header.message_bytes);
  if (!*good) return nullptr;
  early = {number, header.message_bytes, 0, true, false};
  return early_bytes(header.lane, early) + header.offset;
}

void Bundle::finish(const wire::FragmentHeader& header) {
  Lane& lane = lanes_[header.lane];
  if (lane.recv.failure.result != WEIR_OK) return;
  const uint64_t number = header.message_number;
  if (number >= lane.recv.posted) {
    Early& early = early_of(&lane, number, header.message_bytes);
    early.got += header.bytes;
    early.begun = true;
    return;
  }
  Op* op = find_recv(&lane, number);
  if (op == nullptr || (op->is_send & kComplete) != 0) return;
  op->done_bytes += header.bytes;
  if (op->done_bytes == op->bytes) complete_recv(&lane, op);
}

void Bundle::complete_recv(Lane* lane, Op* op) {
  op->is_send |= kComplete;
  if (op->bytes > kEagerBytes) urgent_ = true;  // the sender waits
  for (; lane->recv.head != nullptr && (lane->recv.head->is_send & kComplete) != 0; --pending_) {
    finish(&lane->recv);
  }
}

// Copies what has come early; the rest of it comes to the receive's buffer.
void Bundle::deliver(Lane* lane, Op* op, Early* early) {
  const auto lane_index = static_cast<uint32_t>(lane - lanes_);
  if (early->bytes != op->bytes) return fail_recv(lane_index, early->bytes, op->bytes);
  if (early->bytes != 0) {
    memcpy(reinterpret_cast<void*>(op->data), early_bytes(lane_index, *early), early->bytes);
  }
  op->done_bytes = early->got;
  const bool is_complete = early->complete();
  early->used = false;
  if (is_complete) return complete_recv(lane, op);
  for (Rail& rail : rails_) {
    rail.redirect(static_cast<uint8_t>(lane_index), op->number,
                  reinterpret_cast<unsigned char*>(op->data));
  }
}

// Sending.

uint32_t Bundle::find_flows(Flow* flows, uint32_t* rails) const {
  uint32_t count = 0;
  double measured_sum = 0;
  uint32_t measured_count = 0;
  for (uint32_t i = 0; i < rail_count(); ++i) {
    if (!carries(i)) continue;
    rails[count++] = i;
    if (!rails_[i].is_measured()) continue;
    measured_sum += rails_[i].rate();
    ++measured_count;
  }
  for (uint32_t k = 0; k < count; ++k) {
    const Rail& rail = rails_[rails[k]];
    const bool is_guess = !rail.is_measured() && measured_count > 0;
    const double rate = is_guess ? measured_sum / measured_count : rail.rate();
    flows[k] = {rate, rail.ahead_bytes(), Rail::fragment_bytes_least(rate)};
  }
  return count;
}

bool Bundle::takes_more(const Rail& rail) {
  return rail.has_room() && rail.outstanding_bytes() < rail.window_bytes();
}

// For so many bytes in one piece: the rail that will deliver them first.
Rail* Bundle::quickest(uint64_t bytes) {
  Flow flows[kRailsMax];
  uint32_t rails[kRailsMax];
  const uint32_t count = find_flows(flows, rails);
  Rail* best = nullptr;
  double best_ns = 0;
  for (uint32_t k = 0; k < count; ++k) {
    Rail& rail = rails_[rails[k]];
    const double ns = static_cast<double>(flows[k].ahead_bytes + bytes) / flows[k].rate +
                      static_cast<double>(rail.answer_ns());
    if (best != nullptr && ns >= best_ns) continue;
    best = &rail;
    best_ns = ns;
  }
  return best;
}

// The quickest rail, if it takes the bytes now.
Rail* Bundle::choose(uint32_t bytes) {
  Rail* best = quickest(bytes);
  return best != nullptr && takes_more(*best) ? best : nullptr;
}

// For a part of so many bytes that are to end together: of the rails that have a share of them and
// take it now, the one that gets to it first; or a rail on trial.
Rail* Bundle::choose_part(uint64_t bytes, uint32_t* part_bytes) {
  if (shares_.count != 0) return choose_fixed_part(bytes, part_bytes);
  Flow flows[kRailsMax];
  uint32_t rails[kRailsMax];
  uint64_t shares[kRailsMax];
  const uint32_t count = find_flows(flows, rails);
  if (count == 0) return nullptr;
  share_out(flows, count, bytes, shares);
  Rail* best = nullptr;
  double best_ns = 0;
  for (uint32_t k = 0; k < count; ++k) {
    Rail& rail = rails_[rails[k]];
    const uint64_t ahead_max = rail.ahead_bytes_max();
    if (!takes_more(rail) || flows[k].ahead_bytes >= ahead_max) continue;
    const uint64_t trial_bytes = std::min<uint64_t>(ahead_max, kEagerBytes);
    if (shares[k] == 0 && bytes > 4 * trial_bytes && rail.is_due_for_trial(now_ns_)) {
      rail.begin_trial();
      *part_bytes = static_cast<uint32_t>(trial_bytes);
      return &rail;
    }
    const double ns = static_cast<double>(flows[k].ahead_bytes) / flows[k].rate;
    if (shares[k] == 0 || (best != nullptr && ns >= best_ns)) continue;
    best = &rail;
    best_ns = ns;
    const uint64_t room = std::max(ahead_max - flows[k].ahead_bytes, Rail::kTrialBytes);
    *part_bytes =
        static_cast<uint32_t>(std::min({shares[k], room, uint64_t{rail.fragment_bytes()}}));
  }
  return best;
}

// The rail that has had the least for its share, if it takes more now.
Rail* Bundle::choose_fixed_part(uint64_t bytes, uint32_t* part_bytes) {
  uint32_t least = kRailsMax;
  for (uint32_t i = 0; i < rail_count(); ++i) {
    const auto part = [&](uint32_t rail) { return given_bytes_[rail] / shares_.part[rail]; };
    if (carries(i) && (least == kRailsMax || part(i) < part(least))) least = i;
  }
  if (least == kRailsMax) return nullptr;
  Rail& rail = rails_[least];
  if (!takes_more(rail) || rail.ahead_bytes() >= rail.ahead_bytes_max()) return nullptr;
  *part_bytes = static_cast<uint32_t>(std::min<uint64_t>(bytes, rail.fragment_bytes()));
  given_bytes_[least] += *part_bytes;
  return &rail;
}

void Bundle::give(Fragment fragment, Rail* rail, uint64_t now_ns) {
  Lane& lane = lanes_[fragment.lane];
  lane.told_posted = lane.recv.posted;
  Link& link = links_[static_cast<size_t>(rail - rails_.data())];
  link.told_received = rail->received();
  link.told_bytes = rail->received_bytes();
  rail->enqueue(fragment, lane.recv.posted, now_ns);
}

// One fragment of the lane's next send; false: not now.
bool Bundle::cut(uint32_t lane_index, uint64_t now_ns) {
  Lane& lane = lanes_[lane_index];
  Op* op = lane.cut;
  if (op == nullptr) return false;
  const bool eager = op->bytes <= kEagerBytes;
  const uint64_t done = op->is_send >> kCutShift;
  const uint32_t ahead = eager ? kAheadCount : op->bytes <= kLargeBytes ? kLargeAheadCount : 0;
  if (op->number >= lane.granted && op->number - lane.granted >= ahead) return false;
  Fragment fragment;
  fragment.op = op;
  fragment.data = reinterpret_cast<const unsigned char*>(op->data) + done;
  fragment.message_number = op->number;
  fragment.message_bytes = op->bytes;
  fragment.offset = done;
  fragment.lane = static_cast<uint8_t>(lane_index);
  if (eager && free_copies_.empty()) return false;
  auto bytes = static_cast<uint32_t>(op->bytes);
  Rail* rail = eager ? choose(bytes) : choose_part(op->bytes - done, &bytes);
  if (rail == nullptr) return false;
  fragment.bytes = bytes;
  if (eager) {
    fragment.copy = free_copies_.back();
    unsigned char* copy = copies_.get() + size_t{fragment.copy} * kEagerBytes;
    if (bytes != 0) memcpy(copy, fragment.data, bytes);
    fragment.data = copy;
    fragment.op = nullptr;
  }
  give(fragment, rail, now_ns);
  op->is_send += uint64_t{bytes} << kCutShift;
  if (done + bytes == op->bytes) lane.cut = next_of(op);
  if (eager) {
    free_copies_.pop_back();
    complete_send(&lane, op);
  }
  return true;
}

void Bundle::complete_send(Lane* lane, Op* op) {
  op->is_send |= kComplete;
  Queue& queue = lane->send;
  for (; queue.head != nullptr && (queue.head->is_send & kComplete) != 0; --pending_) {
    finish(&queue);
  }
}

bool Bundle::has_unsent() const {
  return !homeless_.empty() || std::any_of(std::begin(lanes_), std::end(lanes_),
                                           [](const Lane& lane) { return lane.cut != nullptr; });
}

// What holds up all rails, as a network that others fill does, tells nothing about one of them.
void Bundle::correct_rates() {
  for (Rail& rail : rails_) {
    const uint64_t since_ns = rail.take_behind_since_ns();
    if (since_ns == 0) continue;
    const bool others_were_not =
        std::any_of(rails_.begin(), rails_.end(), [since_ns](const Rail& other) {
          return other.is_open() && other.kept_pace_ns() > since_ns;
        });
    if (others_were_not) rail.take_latest_pace();
  }
}

void Bundle::schedule(uint64_t now_ns) {
  if (failed_ || !has_unsent()) return;
  for (Rail& rail : rails_) rail.look_ahead(now_ns);
  while (!homeless_.empty()) {
    Rail* rail = choose(homeless_.back().bytes);
    if (rail == nullptr) return;
    give(homeless_.back(), rail, now_ns);
    homeless_.pop_back();
  }
  for (bool any = true; any;) {
    any = false;
    for (uint32_t i = 0; i < kLaneCount; ++i) {
      any = cut((first_lane_ + i) % kLaneCount, now_ns) || any;
    }
    first_lane_ = (first_lane_ + 1) % kLaneCount;
  }
}

void Bundle::push() {
  for (uint32_t i = 0; i < rail_count() && !failed_; ++i) {
    if (!carries(i) || !rails_[i].has_unwritten()) continue;
    rails_[i].push(now_ns_);
    if (rails_[i].health() != Rail::Health::kUp) begin_end(i);
  }
}

bool Bundle::flush() {
  push();
  for (uint32_t i = 0; i < rail_count() && !failed_; ++i) {
    if (carries(i) && rails_[i].has_unwritten()) return false;
  }
  return true;
}

// What the peer has received.

void Bundle::arrived(const Fragment& fragment) {
  Op* op = fragment.op;
  if (op == nullptr) {
    if (fragment.copy != Fragment::kGone) free_copies_.push_back(fragment.copy);
    return;
  }
  op->done_bytes += fragment.bytes;
  if (op->done_bytes == op->bytes) complete_send(&lanes_[fragment.lane], op);
}

bool Bundle::acknowledge(uint32_t rail, uint32_t count, uint64_t now_ns) {
  return rails_[rail].acknowledge(count, now_ns,
                                  [this](const Fragment& fragment) { arrived(fragment); });
}

void Bundle::apply(const wire::PeerState& state) {
  if (state.rail_count != rail_count()) return fail_all(WEIR_ERROR_INTERNAL, 0);
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    lanes_[lane].granted = std::max(lanes_[lane].granted, state.posted[lane]);
  }
  for (uint32_t i = 0; i < rail_count() && !failed_; ++i) {
    const wire::RailState& said = state.rails[i];
    Link& link = links_[i];
    // The peer has used and ended a connection that has not come here.
    if (said.closed && said.returns == link.returns + 1 && link.down && link.peer_closed) {
      pass_over_connection(i);
    }
    if (said.returns != link.returns || link.peer_closed) continue;
    if (!acknowledge(i, static_cast<uint32_t>(said.received), now_ns_)) {
      return fail_all(WEIR_ERROR_INTERNAL, 0);
    }
    if (!said.closed) continue;
    if (!link.down) take_down(i, "the peer took it out of use");
    if (failed_) return;
    link.peer_closed = true;
    take_back(i);
  }
}

void Bundle::take_states() {
  wire::PeerState state;
  for (uint32_t i = 0; i < rail_count() && !failed_; ++i) {
    controls_[i].flush();
    if (!knows_arrivals_ || links_[i].has_control) {
      links_[i].has_control = controls_[i].receive();
    }
    if (controls_[i].take_state(&state)) apply(state);
  }
}

void Bundle::tell() {
  if (!urgent_ || failed_) return;
  const auto untold_bytes = [this](uint32_t rail) {
    return rails_[rail].received_bytes() - links_[rail].told_bytes;
  };
  for (uint32_t i = 0; i < rail_count(); ++i) {
    const bool brings = untold_bytes(i) > 0;
    if (brings && (!bringer_ || untold_bytes(i) > untold_bytes(*bringer_))) bringer_ = i;
  }
  const auto serves = [this](uint32_t rail) {
    return !links_[rail].down && !controls_[rail].lost();
  };
  const Rail* best = quickest(wire::kStateBytesMax);
  uint32_t way = best != nullptr ? static_cast<uint32_t>(best - rails_.data()) : 0;
  if (bringer_ && carries(*bringer_)) way = *bringer_;
  for (uint32_t i = 0; i < rail_count() && !serves(way); ++i) way = i;
  if (!serves(way)) return;
  urgent_ = false;
  wire::PeerState state;
  state.rail_count = rail_count();
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    state.posted[lane] = lanes_[lane].told_posted = lanes_[lane].recv.posted;
  }
  for (uint32_t i = 0; i < rail_count(); ++i) {
    state.rails[i] = {links_[i].returns, links_[i].down, rails_[i].received()};
    links_[i].told_received = rails_[i].received();
    links_[i].told_bytes = rails_[i].received_bytes();
  }
  controls_[way].send_state(state);
}

void Bundle::drive() {
  if (failed_) return;
  const uint64_t now_ns = clock_();
  // No operation waits for the result, but a rail that fails must be noticed in the end.
  if (pending_ == 0 && now_ns - now_ns_ < kIdleNs) return;
  now_ns_ = now_ns;
  uint64_t untold = 0;
  uint64_t untold_bytes = 0;
  for (uint32_t i = 0; i < rail_count() && !failed_; ++i) {
    if (links_[i].down) continue;
    Rail& rail = rails_[i];
    if (links_[i].ending_ns == 0 && (!knows_arrivals_ || links_[i].has_data)) {
      links_[i].has_data = rail.read(this);
    }
    rail.watch(now_ns_);
    if (rail.health() == Rail::Health::kDamaged) return fail_all(WEIR_ERROR_INTERNAL, 0);
    if (rail.health() != Rail::Health::kUp) begin_end(i);
    untold += rail.received() - links_[i].told_received;
    untold_bytes += rail.received_bytes() - links_[i].told_bytes;
  }
  urgent_ = urgent_ || untold >= kTellFragments || untold_bytes >= kTellBytes;
  const bool sends = std::any_of(std::begin(lanes_), std::end(lanes_),
                                 [](const Lane& lane) { return lane.send.head != nullptr; });
  if (sends || pending_ == 0 || down_count_ > 0 || ++drives_ % 16 == 0) take_states();
  if (begun_ && up_count() == 0 && !awaits_first()) return fail_all(WEIR_ERROR_PEER_LOST, 0);
  correct_rates();
  schedule(now_ns_);
  push();
  if (now_ns_ - looked_ns_ >= kLookNs) look_after(now_ns_);
  tell();
}

}  // namespace weir::plugins::tcp
