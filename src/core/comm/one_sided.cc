// SPDX-License-Identifier: Apache-2.0
#include "core/comm/one_sided.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/comm/process.h"

namespace weir::comm {

namespace {

// The description of a rank's part of a window. It has no padding: all bytes are compared or
// copied.
struct Record {
  uint64_t number;
  uint64_t bytes;
  uint64_t word;  // Windows::word_of the memory, 0: not symmetric memory
  uint64_t on_device;
  uint64_t word_shift;
  uint64_t reaches_all;
};

constexpr std::string_view kSameOrder =
    "all ranks must create and destroy windows in the same order";

struct KeyRecord {
  uint64_t bytes;  // 0: none
  unsigned char key[WEIR_TRANSPORT_KEY_BYTES_MAX];
};

}  // namespace

OneSided::OneSided(Owner owner, std::unique_ptr<Communicator> carrier, CommState& carrier_state)
    : owner_(std::move(owner)),
      carrier_(std::move(carrier)),
      carrier_state_(carrier_state),
      service_(carrier_->one_sided_service()) {}

void OneSided::leave_to_parent(std::unique_ptr<OneSided> side) {
  Communicator::leave_to_parent(std::move(side->carrier_));
}

OneSided::~OneSided() {
  if (carrier_ == nullptr) return;  // left to the parent
  {
    // Peers see a rank that has nothing under way as having left, and are not told of an abort.
    const std::lock_guard lock(carrier_state_.lock);
    const uint32_t served = service_->served() + service_->take_ended();
    end_watches(served);
    service_->stop();
  }
  carrier_.reset();  // which may look at the windows until then
}

Result<const OneSidedWindow*> OneSided::create(void* memory, uint64_t bytes,
                                               const OneSidedReach* reach) {
  if (windows_.size() >= kWindowsMax) {
    return Status(
        Code::kNoMemory,
        fmt::format(
            "a communicator can have at most {} windows for one-sided operations; destroy some",
            kWindowsMax));
  }
  carrier_->set_timeout(owner_.state.timeout_ms.load());
  auto window = std::make_unique<OneSidedWindow>();
  window->number = next_number_++;
  window->own = bytes > 0 ? static_cast<unsigned char*>(memory) : nullptr;
  window->own_bytes = bytes;
  window->parts = std::vector<OneSidedWindow::Part>(owner_.state.rank_count());
  const void* const buffers[] = {memory};
  const Result<int> device = owner_.devices.device_of(buffers);
  if (!device.ok()) return device.status();
  uint64_t word = 0;
  {
    const std::lock_guard lock(owner_.state.lock);
    if (bytes > 0) word = owner_.windows.word_of(memory, bytes);
  }
  {
    // Before the others hear of it: a rank that has heard of all parts may begin.
    const std::lock_guard lock(carrier_state_.lock);
    service_->add_window(window.get());
  }
  Status status = exchange(window.get(), word, device.value() >= 0, reach);
  if (status.ok() && !window->is_mapped && reach == nullptr) status = exchange_keys(window.get());
  const std::lock_guard lock(carrier_state_.lock);
  if (!status.ok()) {
    service_->remove_window(window.get());
    deregister(*window);
    return status;
  }
  if (!window->is_mapped) {
    service_->serve(*window);
    carrier_->requests().begin_watch();
    watch_requests();
  }
  windows_.push_back(std::move(window));
  return windows_.back().get();
}

Status OneSided::gather(engine::Purpose purpose, const void* mine, size_t bytes, void* all) {
  engine::Call call;
  call.purpose = purpose;
  call.collective = Collective::kAllGather;
  call.type = DataType::kUint8;
  call.count = bytes;
  call.input = mine;
  call.output = all;
  // Collectives use the owner: receives that are posted at the carrier end with the peer that
  // leaves.
  return owner_.run(call);
}

Status OneSided::exchange(OneSidedWindow* window, uint64_t word, bool on_device,
                          const OneSidedReach* reach) {
  const Rank n = owner_.state.rank_count();
  const Record mine{window->number,
                    window->own_bytes,
                    word,
                    on_device ? 1u : 0u,
                    -reinterpret_cast<uintptr_t>(window->own) % sizeof(uint64_t),
                    reach == nullptr || reach->is_everywhere ? 1u : 0u};
  std::vector<Record> all(n);
  WEIR_RETURN_IF_ERROR(gather(engine::Purpose::kWindowCreate, &mine, sizeof mine, all.data()));
  window->is_mapped = true;
  const std::lock_guard lock(owner_.state.lock);
  for (Rank p = 0; p < n; ++p) {
    if (all[p].number != window->number) {
      return Status(
          Code::kMismatch,
          fmt::format("rank {} creates window {} of '{}' while rank {} creates window {}; {}",
                      owner_.state.rank(), window->number, owner_.state.name, p, all[p].number,
                      kSameOrder));
    }
    OneSidedWindow::Part& part = window->parts[p];
    part.bytes = all[p].bytes;
    part.on_device = all[p].on_device != 0;
    part.word_shift = all[p].word_shift;
    window->is_mapped = window->is_mapped && all[p].reaches_all != 0;
    if (part.on_device || part.bytes == 0) continue;
    if (reach != nullptr) {
      part.mapped = reach->addresses[p];
    } else {
      if (all[p].word != 0) {
        part.mapped = owner_.windows.at_peer(all[p].word, all[0].word, p, part.bytes);
      }
      // Every rank finds the same: symmetric memory is mapped by all or by none.
      window->is_mapped = window->is_mapped && (n == 1 || part.mapped != nullptr);
    }
    if (p == owner_.state.rank()) part.mapped = window->own;
  }
  return Status();
}

Status OneSided::exchange_keys(OneSidedWindow* window) {
  const weir_transport_functions_t& transport = *carrier_state_.context.transport;
  weir_transport_t* const instance = carrier_state_.context.instance;
  constexpr uint64_t kNeeded = WEIR_CAP_PUT | WEIR_CAP_GET;
  if ((transport.caps.bits & kNeeded) != kNeeded) return Status();
  KeyRecord mine{};
  {
    const std::lock_guard lock(carrier_state_.lock);
    char reason[512] = "";
    if ((transport.remote_caps(instance, reason, sizeof reason) & kNeeded) != kNeeded) {
      return Status();
    }
    // Memory that cannot be registered with the network is reached by messages.
    const bool is_host = window->own_bytes > 0 && !window->parts[owner_.state.rank()].on_device;
    size_t bytes = sizeof mine.key;
    if (is_host && transport.memory_register(instance, window->own, window->own_bytes,
                                             &window->registered) == WEIR_OK) {
      const weir_result_t result =
          transport.memory_key(instance, window->registered, mine.key, &bytes);
      if (result == WEIR_OK) mine.bytes = bytes;
    }
  }
  std::vector<KeyRecord> all(owner_.state.rank_count());
  WEIR_RETURN_IF_ERROR(gather(engine::Purpose::kWindowCreate, &mine, sizeof mine, all.data()));
  for (Rank p = 0; p < owner_.state.rank_count(); ++p) {
    if (all[p].bytes > sizeof all[p].key) {
      return Status(
          Code::kRefused,
          fmt::format("rank {} sent a memory key of {} bytes, which is too long", p, all[p].bytes));
    }
    // This rank's own memory is reached by loads and stores.
    if (p == owner_.state.rank()) continue;
    window->parts[p].key.assign(all[p].key, all[p].key + all[p].bytes);
  }
  return Status();
}

void OneSided::deregister(const OneSidedWindow& window) {
  // A failed communicator has deregistered it with all that was posted.
  if (window.registered == nullptr || !carrier_->health().ok()) return;
  carrier_state_.context.transport->memory_deregister(carrier_state_.context.instance,
                                                      window.registered);
}

Status OneSided::run(const OneSidedCall& call) {
  Request* request = carrier_->requests().acquire();
  request->peer = owner_.state.rank();
  request->kind = RequestKind::kOneSided;
  if (request->one_sided == nullptr) request->one_sided = std::make_unique<OneSidedCall>();
  *request->one_sided = call;
  Status status = start(*request);
  if (status.ok()) status = carrier_->wait(*request);
  carrier_->requests().release(request);
  return status;
}

std::unique_ptr<OneSidedWindow> OneSided::take(const OneSidedWindow* window) {
  const auto found = std::find_if(windows_.begin(), windows_.end(),
                                  [window](const auto& one) { return one.get() == window; });
  std::unique_ptr<OneSidedWindow> taken = std::move(*found);
  windows_.erase(found);
  return taken;
}

Status OneSided::meet_to_destroy(const OneSidedWindow& window) {
  std::vector<uint32_t> all(owner_.state.rank_count());
  WEIR_RETURN_IF_ERROR(
      gather(engine::Purpose::kWindowDestroy, &window.number, sizeof window.number, all.data()));
  for (Rank p = 0; p < owner_.state.rank_count(); ++p) {
    if (all[p] == all[0]) continue;
    return Status(Code::kMismatch,
                  fmt::format("rank 0 destroys window {} of '{}' while rank {} destroys window {}, "
                              "counted in the order of creation; {}",
                              all[0], owner_.state.name, p, all[p], kSameOrder));
  }
  return Status();
}

Status OneSided::destroy(const OneSidedWindow* window) {
  OneSidedCall flush;
  flush.kind = OneSidedKind::kFlush;
  flush.all_ranks = true;
  Status status = run(flush);
  if (status.ok()) status = meet_to_destroy(*window);
  const std::unique_ptr<OneSidedWindow> taken = take(window);
  const std::lock_guard lock(carrier_state_.lock);
  deregister(*taken);
  service_->remove_window(taken.get());
  end_watches(service_->take_ended());
  return status;
}

void OneSided::end_watches(uint32_t count) {
  for (; count > 0; --count) carrier_->requests().end_watch();
}

Status OneSided::retire(const OneSidedWindow* window) {
  Status status;
  // Once the communicator has failed, no rank writes to its windows any more.
  if (!window->is_mapped && carrier_->health().ok()) {
    OneSidedCall call;
    call.kind = OneSidedKind::kRetire;
    call.window = window;
    status = run(call);
  }
  std::unique_ptr<OneSidedWindow> taken = take(window);
  const std::lock_guard lock(carrier_state_.lock);
  deregister(*taken);
  if (taken->is_mapped) {
    service_->remove_window(taken.get());
  } else {
    service_->keep(std::move(taken));
  }
  end_watches(service_->take_ended());
  return status;
}

uint32_t OneSided::window_in(const void* memory, uint64_t bytes) const {
  const auto* const begin = static_cast<const unsigned char*>(memory);
  for (const auto& window : windows_) {
    if (window->own != nullptr && window->own >= begin && window->own < begin + bytes) {
      return window->number;
    }
  }
  return 0;
}

bool OneSided::do_directly(const OneSidedCall& call, Rank target) {
  if (!go_directly(call, target)) return false;
  Recorder& recorder = owner_.state.recorder;
  // Operations that did not wait and move no bytes are not recorded.
  const bool is_told = call.kind != OneSidedKind::kFlush && call.kind != OneSidedKind::kWaitSignal;
  if (is_told && recorder.on()) recorder.message_done(record_kind(call), target, call.bytes);
  return true;
}

bool OneSided::go_directly(const OneSidedCall& call, Rank target) {
  unsigned char* const at = call.window != nullptr ? call.window->parts[target].mapped : nullptr;
  unsigned char* const signal =
      call.signal_window != nullptr ? call.signal_window->parts[target].mapped : nullptr;
  const bool is_near = (call.window == nullptr || call.bytes == 0 || at != nullptr) &&
                       (call.signal_window == nullptr || signal != nullptr);
  // On the own rank everything is done at once, and so in order.
  if (!is_near || (target != owner_.state.rank() && !service_->may_go_directly(target)))
    return false;
  // Ranks are not told about the end of a window that all map.
  if (service_->served() != 0 && !refused_by(call, target).ok()) return false;
  switch (call.kind) {
    case OneSidedKind::kPut:
      if (call.bytes > 0) std::memmove(at + call.offset, call.source, call.bytes);
      return true;
    case OneSidedKind::kGet:
      if (call.bytes > 0) std::memmove(call.destination, at + call.offset, call.bytes);
      return true;
    case OneSidedKind::kPutSignal:
      if (call.bytes > 0) std::memmove(at + call.offset, call.source, call.bytes);
      [[fallthrough]];
    case OneSidedKind::kSignal:
      add_to_word(signal + call.signal_offset, call.value);
      return true;
    case OneSidedKind::kFetchAdd:
    case OneSidedKind::kCompareSwap: {
      const uint64_t old = call.kind == OneSidedKind::kFetchAdd
                               ? add_to_word(at + call.offset, call.value)
                               : swap_word(at + call.offset, call.expected, call.value);
      if (call.old != nullptr) *call.old = old;
      return true;
    }
    case OneSidedKind::kWaitSignal:
      return has_reached(load_word(call.window->own + call.offset), call.value);
    case OneSidedKind::kRetire:
      return false;
    case OneSidedKind::kFlush:
      // Where all windows are mapped everything was done by the calls themselves.
      if (service_->served() != 0) return false;
      std::atomic_thread_fence(std::memory_order_seq_cst);
      return true;
  }
  return false;
}

Status OneSided::start(Request& request) {
  const OneSidedCall& call = *request.one_sided;
  Status refused = refused_by(call, request.peer);
  if (!refused.ok()) return refused;
  request.record =
      owner_.records.one_sided_begun(record_kind(call), request.peer, record_units(call));
  carrier_->set_timeout(owner_.state.timeout_ms.load());
  return carrier_->start(request);
}

void OneSided::fence(Rank target) {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // for loads and stores
  if (service_->served() == 0) return;
  const std::lock_guard lock(carrier_state_.lock);
  service_->fence(target);
}

}  // namespace weir::comm
