// SPDX-License-Identifier: Apache-2.0
#include "nccl/stream/flight.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "nccl/direct/ways.h"

namespace weir::nccl {

namespace {

// Rows of staging begin at this multiple.
constexpr size_t kAlign = 256;

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// A slice of several blocks is no contiguous part of the caller's buffer.
bool needs_stage(const Cut& cut, size_t blocks, bool on_device) {
  return blocks > 0 && (on_device || (blocks > 1 && cut.slice_count > 1));
}

// What starts one after the other.
class Orders {
 public:
  size_t of(const Operation& operation) {
    size_t key = 0;
    if (operation.kind == OperationKind::kOneSided) key = 1;
    if (is_message(operation.kind)) {
      key = 2 + 2 * static_cast<size_t>(operation.peer) + (operation.kind == OperationKind::kSend);
    }
    return known_.try_emplace(key, known_.size()).first->second;
  }
  size_t count() const { return known_.size(); }

 private:
  std::unordered_map<size_t, size_t> known_;
};

// Who copies, and how often the stream rings.
void choose_form(Flight& flight, bool alone, size_t slices_max, size_t whole_bytes) {
  bool copied = false;  // something is, between a device and the staging
  bool passed = false;
  bool direct = false;
  for (const Lane& it : flight.lanes) {
    copied = copied || it.send_on_device || it.recv_on_device;
    passed = passed || it.passed();
    direct = direct || (!it.passed() && !it.one_sided() && goes_direct(it.operation));
  }
  if (direct) {
    flight.copied_by_proxy = copied || passed;
  } else if (!copied) {
    flight.copied_by_proxy = passed;
  } else if (slices_max > 1) {
    flight.takes_turns = alone && flight.lanes.size() == 1;
    flight.copied_by_proxy = !flight.takes_turns && whole_bytes > kWholeMax;
    flight.gated = flight.copied_by_proxy;
  }
}

}  // namespace

char* Flight::send_stage(const Lane& lane, size_t slice) const {
  return staging->bytes + lane.send_offset + slice % lane.depth * lane.cut.send_bytes();
}

char* Flight::recv_stage(const Lane& lane, size_t slice) const {
  return staging->bytes + lane.recv_offset + slice % lane.depth * lane.cut.recv_bytes();
}

Mailbox& Flight::mailbox(const Lane& lane, size_t slice) const {
  return staging->mailboxes[gated ? 0 : lane.first_mailbox + slice % lane.depth];
}

std::unique_ptr<Flight> plan_flight(std::vector<Operation> operations, bool alone,
                                    bool (*on_device)(const void* context, const void* pointer),
                                    const void* context) {
  auto flight = std::make_unique<Flight>();
  flight->comm = operations.front().comm;
  size_t slices_max = 1;
  size_t once_bytes = 0;   // of staging, at depth 1
  size_t whole_bytes = 0;  // with a place for each slice
  Orders orders;
  for (Operation& operation : operations) {
    Lane& lane = flight->lanes.emplace_back();
    lane.operation = std::move(operation);
    lane.cut = cut(lane.operation, flight->comm->devices().chunk_bytes());
    const bool some = lane.operation.count > 0;
    lane.send_on_device =
        some && lane.cut.send_blocks > 0 && on_device(context, lane.operation.send);
    lane.recv_on_device =
        some && lane.cut.recv_blocks > 0 && on_device(context, lane.operation.recv);
    const auto& factor = lane.operation.factor;
    lane.scalar_on_device = factor.has_value() && factor->device_scalar != nullptr &&
                            on_device(context, factor->device_scalar);
    lane.order = orders.of(lane.operation);
    if (lane.message() && (lane.send_on_device || lane.recv_on_device)) {
      lane.operation.device = flight->comm->passes(
          lane.operation.peer, lane.send_on_device ? lane.operation.send : lane.operation.recv);
      if (lane.passed()) {
        lane.send_on_device = lane.recv_on_device = false;
        if (flight->comm->devices().note(DeviceWays::Event::kTransported)) {
          explain(*flight->comm,
                  fmt::format("messages of rank {} on memory of devices are the transport's",
                              flight->comm->rank()));
        }
      }
    }
    slices_max = std::max(slices_max, lane.cut.slice_count);
    const auto count_bytes = [&](size_t bytes) {
      once_bytes += bytes;
      whole_bytes += aligned(lane.cut.slice_count * bytes);
    };
    if (needs_stage(lane.cut, lane.cut.send_blocks, lane.send_on_device)) {
      count_bytes(lane.cut.send_bytes());
    }
    if (needs_stage(lane.cut, lane.cut.recv_blocks, lane.recv_on_device)) {
      count_bytes(lane.cut.recv_bytes());
    }
  }
  flight->order_count = orders.count();
  choose_form(*flight, alone, slices_max, whole_bytes);
  const size_t affordable = once_bytes == 0 ? kDepthMax : kStagingMax / once_bytes;
  const bool whole = !flight->gated && !flight->takes_turns;
  size_t offset = 0;
  size_t mailbox = 0;
  for (Lane& lane : flight->lanes) {
    lane.depth = whole
                     ? lane.cut.slice_count
                     : std::clamp<size_t>(std::min(affordable, lane.cut.slice_count), 1, kDepthMax);
    lane.first_mailbox = mailbox;
    mailbox += lane.depth;
    const auto place = [&](size_t bytes) {
      const size_t at = offset;
      offset += aligned(lane.depth * bytes);
      return at;
    };
    if (needs_stage(lane.cut, lane.cut.send_blocks, lane.send_on_device)) {
      lane.send_offset = place(lane.cut.send_bytes());
    }
    if (needs_stage(lane.cut, lane.cut.recv_blocks, lane.recv_on_device)) {
      lane.recv_offset = place(lane.cut.recv_bytes());
    }
    if (lane.scalar_on_device) {
      lane.scalar_offset = offset;
      offset += kAlign;
    }
  }
  flight->mailbox_count = flight->gated ? 1 : mailbox;
  flight->byte_count = offset;
  for (size_t i = 0; i < flight->lanes.size(); ++i) {
    for (size_t k = 0; k < flight->lanes[i].cut.slice_count; ++k) flight->items.push_back({i, k});
  }
  flight->rings = flight->gated ? 1 : flight->items.size();
  return flight;
}

}  // namespace weir::nccl
