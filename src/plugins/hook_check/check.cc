// SPDX-License-Identifier: Apache-2.0
// hook_check: checks that both sides keep the contract of plugin.h. A breach by the caller is
// WEIR_ERROR_INVALID_USAGE, one by the transport WEIR_ERROR_INTERNAL; the text begins with
// "check(name)".
//
// Checked of the caller: connected and not closed; one thread at a time; peer, lane and length in
// range; operation zeroed, and not posted twice; a buffer of the host's that is being sent does not
// change; test only of operations in flight; memory that is registered, remote memory that is open.
// Checked of the transport: results that the call may return; completion in order per (peer, lane,
// direction); connect ends by its deadline.
#include <inttypes.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "plugins/hook/hook.h"
#include "plugins/hook/in_flight.h"

namespace weir::plugins::hook_check {
namespace {

constexpr uint64_t kDeadlineGraceNs = 250'000'000;
constexpr size_t kQuarantine = 32;  // closed instances kept, so that a late use is recognized

uint64_t checksum(const void* data, uint64_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint64_t sum = bytes * 0x9e3779b97f4a7c15u;
  for (; bytes >= 8; bytes -= 8, p += 8) {
    uint64_t word;
    memcpy(&word, p, 8);
    sum = (sum ^ word) * 0xff51afd7ed558ccdu;
    sum ^= sum >> 29;
  }
  for (; bytes > 0; --bytes, ++p) sum = (sum ^ *p) * 0xff51afd7ed558ccdu;
  return sum;
}

struct Record {
  weir_transport_op_t* op;
  weir_transport_op_t*
      earlier;  // the one posted before on this peer, lane and direction, in flight
  weir_transport_op_t* later;
  const void* data;
  uint64_t bytes;
  uint64_t sum;
  uint32_t peer;
  uint32_t lane;
  bool sending;
  bool remote;          // put, get or put_signal: keeps no order
  weir_result_t known;  // the transport's result when a later operation was tested
};

class Check final : public hook::Hook {
 public:
  static constexpr char kName[] = "check";
  static constexpr bool kPassesDevices = true;

  Check(const weir_host_t* host, const weir_transport_part_t* parts,
        const weir_transport_config_t& config)
      : Hook(host, parts, config),
        last_(size_t{2} * inner_->caps.lane_count * config.rank_count, nullptr) {}

  weir_result_t connect(const unsigned char* const* addresses, const size_t* address_bytes,
                        uint64_t deadline_ns) override {
    const Entered entered(this);
    if (!entered.alone()) return crowded();
    if (closed_) return breach("connect", "the instance is closed");
    if (connected_) return breach("connect", "it was called twice");
    for (uint32_t i = 0; i < rank_count_; ++i) {
      if (addresses[i] == nullptr || address_bytes[i] > WEIR_TRANSPORT_ADDRESS_BYTES_MAX) {
        return breach("connect", "an address is missing or too long");
      }
    }
    const weir_result_t result = inner_->connect(instance_, addresses, address_bytes, deadline_ns);
    const uint64_t now = hook::monotonic_ns();
    if (now > deadline_ns && now - deadline_ns > kDeadlineGraceNs) {
      return fail(WEIR_ERROR_INTERNAL, "check(%s): connect ended %" PRIu64 " ms after its deadline",
                  inner_->name, (now - deadline_ns) / 1'000'000);
    }
    connected_ = result == WEIR_OK;
    return only(result, "connect", false);
  }

  weir_result_t address(unsigned char* address, size_t* bytes) override {
    const weir_result_t result = inner_->address(instance_, address, bytes);
    if (result == WEIR_OK && *bytes > WEIR_TRANSPORT_ADDRESS_BYTES_MAX) {
      return fail(WEIR_ERROR_INTERNAL, "check(%s): an address of %zu bytes", inner_->name, *bytes);
    }
    return only(result, "address", false);
  }

  weir_result_t send(uint32_t peer, uint32_t lane, const void* data, uint64_t bytes,
                     weir_transport_op_t* op) override {
    const Entered entered(this);
    if (!entered.alone()) return crowded();
    const weir_result_t checked = check_post("send", peer, lane, data, bytes, op);
    if (checked != WEIR_OK) return checked;
    const uint64_t sum = checksum(data, bytes);
    const weir_result_t result = inner_->send(instance_, peer, lane, data, bytes, op);
    return posted(true, peer, lane, data, bytes, sum, op, result);
  }

  weir_result_t recv(uint32_t peer, uint32_t lane, void* data, uint64_t bytes,
                     weir_transport_op_t* op) override {
    const Entered entered(this);
    if (!entered.alone()) return crowded();
    const weir_result_t checked = check_post("recv", peer, lane, data, bytes, op);
    if (checked != WEIR_OK) return checked;
    const weir_result_t result = inner_->recv(instance_, peer, lane, data, bytes, op);
    return posted(false, peer, lane, data, bytes, 0, op, result);
  }

  weir_result_t device_viable(uint32_t peer, int device, char* reason,
                              size_t reason_bytes) override {
    const Entered entered(this);
    if (!entered.alone()) return crowded();
    if (closed_) return breach("device_viable", "the instance is closed");
    if (!connected_) return breach("device_viable", "connect has not succeeded");
    if (peer >= rank_count_) return breach("device_viable", "there is no such rank");
    if (reason == nullptr || reason_bytes == 0) return breach("device_viable", "there is no room");
    const weir_result_t result = Hook::device_viable(peer, device, reason, reason_bytes);
    if (result == WEIR_ERROR_UNSUPPORTED && memchr(reason, 0, reason_bytes) == reason) {
      return fail(WEIR_ERROR_INTERNAL, "check(%s): device_viable gave no reason", inner_->name);
    }
    return only(result, "device_viable", false);
  }

  // The data are not checked: only the device can access them.
  weir_result_t device_message(const hook::DeviceMessage& m, weir_transport_op_t* op) override {
    const Entered entered(this);
    if (!entered.alone()) return crowded();
    const char* const call = m.sending ? "device_send" : "device_recv";
    const weir_result_t checked = check_post(call, m.peer, m.lane, m.data, m.bytes, op);
    if (checked != WEIR_OK) return checked;
    if (m.device < 0) return breach(call, "there is no such device");
    const weir_result_t result = device_message_inner(m, op);
    return posted(m.sending, m.peer, m.lane, nullptr, 0, checksum(nullptr, 0), op, result);
  }

  weir_result_t test(weir_transport_op_t* op) override {
    const Entered entered(this);
    if (!entered.alone()) return crowded();
    if (closed_) return breach("test", "the instance is closed");
    if (quiet_) return breach("test", "the instance was quiesced");
    Record* record = in_flight_.find(op);
    if (record == nullptr) return breach("test", "the operation is not in flight");
    const weir_result_t result =
        record->known != WEIR_IN_PROGRESS ? record->known : inner_->test(instance_, op);
    if (result == WEIR_IN_PROGRESS) return result;
    return finished(*record, result);
  }

  weir_result_t progress() override {
    const Entered entered(this);
    if (!entered.alone()) return crowded();
    if (closed_) return breach("progress", "the instance is closed");
    if (!connected_) return breach("progress", "connect has not succeeded");
    if (quiet_) return breach("progress", "the instance was quiesced");
    return only(inner_->progress(instance_), "progress", false);
  }

  weir_result_t peer_alive(uint32_t peer) override {
    const Entered entered(this);
    if (!entered.alone()) return crowded();
    if (closed_) return breach("peer_alive", "the instance is closed");
    if (peer >= rank_count_) return breach("peer_alive", "there is no such rank");
    return only(inner_->peer_alive(instance_, peer), "peer_alive", false);
  }

  void quiesce() override {
    const Entered entered(this);
    if (!entered.alone()) return (void)crowded();
    if (closed_) return (void)breach("quiesce", "the instance is closed");
    if (!connected_) return (void)breach("quiesce", "connect has not succeeded");
    quiet_ = true;
    memories_.clear();
    remotes_.clear();
    Hook::quiesce();
  }

  void describe_peer(uint32_t peer, char* text, size_t text_bytes) override {
    const Entered entered(this);
    if (text == nullptr || text_bytes == 0) {
      return (void)breach("describe_peer", "there is no room");
    }
    text[0] = 0;
    if (!entered.alone()) return (void)crowded();
    if (closed_) return (void)breach("describe_peer", "the instance is closed");
    if (!connected_) return (void)breach("describe_peer", "connect has not succeeded");
    if (peer >= rank_count_) return (void)breach("describe_peer", "there is no such rank");
    Hook::describe_peer(peer, text, text_bytes);
    if (memchr(text, 0, text_bytes) != nullptr) return;
    text[0] = 0;
    warn("check(%s): describe_peer: the text has no end", inner_->name);
  }

  weir_result_t memory_register(void* base, uint64_t bytes,
                                weir_transport_memory_t** memory) override {
    const Entered entered(this);
    if (!entered.alone()) return crowded();
    const weir_result_t checked = check_remote("memory_register");
    if (checked != WEIR_OK) return checked;
    if (base == nullptr || bytes == 0) return breach("memory_register", "there is no memory");
    if (memory == nullptr) return breach("memory_register", "there is no room");
    const weir_result_t result = Hook::memory_register(base, bytes, memory);
    if (result == WEIR_OK) memories_.push_back(*memory);
    return only(result, "memory_register", false);
  }

  weir_result_t memory_key(const weir_transport_memory_t* memory, unsigned char* key,
                           size_t* bytes) override {
    const Entered entered(this);
    if (!entered.alone()) return crowded();
    const weir_result_t checked = check_remote("memory_key");
    if (checked != WEIR_OK) return checked;
    if (!is_memory(memory)) return breach("memory_key", "the memory is not registered");
    const weir_result_t result = Hook::memory_key(memory, key, bytes);
    if (result == WEIR_OK && *bytes > WEIR_TRANSPORT_KEY_BYTES_MAX) {
      return fail(WEIR_ERROR_INTERNAL, "check(%s): a key of %zu bytes", inner_->name, *bytes);
    }
    return only(result, "memory_key", false);
  }

  void memory_deregister(weir_transport_memory_t* memory) override {
    const Entered entered(this);
    if (!is_memory(memory) || !entered.alone()) {
      breach("memory_deregister", "the memory is not registered");
      return;
    }
    std::erase(memories_, memory);
    Hook::memory_deregister(memory);
  }

  weir_result_t remote_open(uint32_t peer, const unsigned char* key, size_t key_bytes,
                            weir_transport_remote_t** remote) override {
    const Entered entered(this);
    if (!entered.alone()) return crowded();
    const weir_result_t checked = check_remote("remote_open");
    if (checked != WEIR_OK) return checked;
    if (peer >= rank_count_) return breach("remote_open", "there is no such rank");
    if (key == nullptr || remote == nullptr) return breach("remote_open", "there is no key");
    const weir_result_t result = Hook::remote_open(peer, key, key_bytes, remote);
    if (result == WEIR_OK) remotes_.push_back(*remote);
    return only(result, "remote_open", false);
  }

  void remote_close(weir_transport_remote_t* remote) override {
    const Entered entered(this);
    if (!is_remote(remote) || !entered.alone()) {
      breach("remote_close", "the remote memory is not open");
      return;
    }
    std::erase(remotes_, remote);
    Hook::remote_close(remote);
  }

  weir_result_t access(const hook::RemoteRequest& request, weir_transport_op_t* op) override {
    const Entered entered(this);
    if (!entered.alone()) return crowded();
    weir_result_t checked = check_remote(request.name());
    if (checked == WEIR_OK)
      checked = check_operation(request.name(), request.data, request.bytes, op);
    if (checked != WEIR_OK) return checked;
    const bool no_bytes = request.signal != nullptr && request.bytes == 0;
    if ((!is_remote(request.remote) && !(no_bytes && request.remote == nullptr)) ||
        (request.signal != nullptr && !is_remote(request.signal))) {
      return breach(request.name(), "the remote memory is not open");
    }
    const weir_result_t result = access_inner(request, op);
    if (result == WEIR_IN_PROGRESS) {
      // Computed only now: a refused request may name more memory than can be read.
      const uint64_t sum = request.is_get ? 0 : checksum(request.data, request.bytes);
      *in_flight_.add(op) = {op, nullptr, nullptr,         request.data, request.bytes,   sum,
                             0,  0,       !request.is_get, true,         WEIR_IN_PROGRESS};
    }
    return only(result, request.name(), true);
  }

  weir_result_t signal_read(const weir_transport_memory_t* memory, uint64_t offset_bytes,
                            uint64_t* value) override {
    const Entered entered(this);
    if (!entered.alone()) return crowded();
    const weir_result_t checked = check_remote("signal_read");
    if (checked != WEIR_OK) return checked;
    if (!is_memory(memory)) return breach("signal_read", "the memory is not registered");
    if (value == nullptr) return breach("signal_read", "there is no room");
    return only(Hook::signal_read(memory, offset_bytes, value), "signal_read", false);
  }

  void close() override {
    if (closed_) {
      breach("close", "the instance is closed already");
      return;
    }
    if (in_flight_.count() != 0 && !quiet_) {
      warn("check(%s): %zu operations were in flight at close", inner_->name, in_flight_.count());
    }
    closed_ = true;
    memories_.clear();
    remotes_.clear();
    Hook::close();
  }

  void dispose() override {
    if (disposed_) return;
    disposed_ = true;
    // The shell stays for a while: a use after close then finds `closed_` and not freed memory.
    static std::atomic<Check*> quarantine[kQuarantine];
    static std::atomic<size_t> next{0};
    delete quarantine[next.fetch_add(1) % kQuarantine].exchange(this);
  }

 private:
  class Entered {
   public:
    explicit Entered(Check* check)
        : check_(check), alone_(!check->inside_.exchange(true, std::memory_order_acquire)) {}
    ~Entered() {
      if (alone_) check_->inside_.store(false, std::memory_order_release);
    }
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;
    bool alone() const { return alone_; }

   private:
    Check* check_;
    bool alone_;
  };

  weir_result_t crowded() const {
    return breach("call", "two threads are in one instance at a time");
  }

  weir_result_t breach(const char* call, const char* text) const {
    return fail(WEIR_ERROR_INVALID_USAGE, "check(%s): %s of rank %u: %s", inner_->name, call, rank_,
                text);
  }

  weir_result_t only(weir_result_t result, const char* call, bool may_wait) const {
    if (result == WEIR_OK || (result > WEIR_IN_PROGRESS && result <= WEIR_ERROR_INTERNAL))
      return result;
    if (result == WEIR_IN_PROGRESS && may_wait) return result;
    return fail(WEIR_ERROR_INTERNAL, "check(%s): %s returned %d", inner_->name, call,
                static_cast<int>(result));
  }

  weir_result_t check_post(const char* call, uint32_t peer, uint32_t lane, const void* data,
                           uint64_t bytes, const weir_transport_op_t* op) {
    if (closed_) return breach(call, "the instance is closed");
    if (!connected_) return breach(call, "connect has not succeeded");
    if (quiet_) return breach(call, "the instance was quiesced");
    if (peer >= rank_count_) return breach(call, "there is no such peer");
    if (peer == rank_ && (inner_->caps.bits & WEIR_CAP_SELF) == 0) {
      return breach(call, "to itself, which this transport cannot");
    }
    if (lane >= inner_->caps.lane_count) return breach(call, "there is no such lane");
    if (bytes > inner_->caps.message_bytes_max) return breach(call, "the message is too long");
    return check_operation(call, data, bytes, op);
  }

  weir_result_t check_operation(const char* call, const void* data, uint64_t bytes,
                                const weir_transport_op_t* op) {
    if (data == nullptr && bytes != 0) return breach(call, "there is no buffer");
    if (op == nullptr) return breach(call, "there is no operation");
    if (in_flight_.find(op) != nullptr) return breach(call, "the operation is in flight already");
    for (const uint64_t word : op->word) {
      if (word != 0) return breach(call, "the operation was not zeroed");
    }
    if (in_flight_.full())
      return breach(call, "more operations are in flight than this hook can follow");
    return WEIR_OK;
  }

  weir_transport_op_t*& last(bool sending, uint32_t peer, uint32_t lane) {
    return last_[((sending ? 0 : inner_->caps.lane_count) + lane) * size_t{rank_count_} + peer];
  }

  weir_result_t posted(bool sending, uint32_t peer, uint32_t lane, const void* data, uint64_t bytes,
                       uint64_t sum, weir_transport_op_t* op, weir_result_t result) {
    Record record = {
        op,    last(sending, peer, lane), nullptr, data, bytes, sum, peer, lane, sending,
        false, WEIR_IN_PROGRESS};
    if (result == WEIR_IN_PROGRESS) {
      *in_flight_.add(op) = record;
      if (record.earlier != nullptr) in_flight_.find(record.earlier)->later = op;
      last(sending, peer, lane) = op;
      return result;
    }
    if (result == WEIR_OK) {
      const weir_result_t ordered = check_order(record);
      if (ordered != WEIR_OK) return ordered;
      if (sending && checksum(data, bytes) != sum) return changed(record);
    }
    return only(result, sending ? "send" : "recv", true);
  }

  // All that was posted before on the same channel must be complete.
  weir_result_t check_order(const Record& record) {
    for (weir_transport_op_t* op = record.earlier; op != nullptr;) {
      Record* earlier = in_flight_.find(op);
      if (earlier->known != WEIR_IN_PROGRESS) break;
      earlier->known = inner_->test(instance_, op);
      if (earlier->known == WEIR_IN_PROGRESS) {
        return fail(WEIR_ERROR_INTERNAL,
                    "check(%s): a %s completed before an earlier one (peer %u, lane %u)",
                    inner_->name, record.sending ? "send" : "recv", record.peer, record.lane);
      }
      op = earlier->earlier;
    }
    return WEIR_OK;
  }

  weir_result_t changed(const Record& record) const {
    return fail(WEIR_ERROR_INVALID_USAGE,
                "check(%s): the buffer of a send of %" PRIu64
                " bytes to rank %u (lane %u) was changed "
                "while it was in flight",
                inner_->name, record.bytes, record.peer, record.lane);
  }

  weir_result_t changed_put(const Record& record) const {
    return fail(WEIR_ERROR_INVALID_USAGE,
                "check(%s): the buffer of a put of %" PRIu64
                " bytes was changed while it was in flight",
                inner_->name, record.bytes);
  }

  // The checks common to all calls on remote memory; WEIR_OK or the breach.
  weir_result_t check_remote(const char* call) const {
    if (closed_) return breach(call, "the instance is closed");
    if (!connected_) return breach(call, "connect has not succeeded");
    return WEIR_OK;
  }

  weir_result_t finished(Record record, weir_result_t result) {
    weir_result_t verdict = only(result, "test", true);
    if (record.remote) {
      if (result == WEIR_OK && record.sending &&
          checksum(record.data, record.bytes) != record.sum) {
        verdict = changed_put(record);
      }
      in_flight_.remove(record.op);
      return verdict;
    }
    if (result == WEIR_OK) {
      verdict = check_order(record);
      if (verdict == WEIR_OK && record.sending &&
          checksum(record.data, record.bytes) != record.sum) {
        verdict = changed(record);
      }
    }
    if (record.earlier != nullptr) in_flight_.find(record.earlier)->later = record.later;
    if (record.later != nullptr) {
      in_flight_.find(record.later)->earlier = record.earlier;
    } else {
      last(record.sending, record.peer, record.lane) = record.earlier;
    }
    in_flight_.remove(record.op);
    return verdict;
  }

  bool is_memory(const weir_transport_memory_t* memory) const {
    return std::find(memories_.begin(), memories_.end(), memory) != memories_.end();
  }
  bool is_remote(const weir_transport_remote_t* remote) const {
    return std::find(remotes_.begin(), remotes_.end(), remote) != remotes_.end();
  }

  std::vector<const weir_transport_memory_t*> memories_;
  std::vector<const weir_transport_remote_t*> remotes_;
  std::atomic<bool> inside_{false};
  bool connected_ = false;
  bool closed_ = false;
  bool quiet_ = false;
  bool disposed_ = false;
  hook::InFlight<Record> in_flight_;
  std::vector<weir_transport_op_t*> last_;  // newest in flight, per direction, lane, peer
};

}  // namespace

const weir_transport_functions_t* wrap(const weir_transport_functions_t* inner) {
  return hook::make_table<Check>(inner);
}

}  // namespace weir::plugins::hook_check
