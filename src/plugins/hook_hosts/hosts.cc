// SPDX-License-Identifier: Apache-2.0
// Hosts: a composite of a network transport for ranks on several hosts and a shared-memory
// transport for ranks of one host. It wraps the network transport as a hook does and opens the
// local one beside it for the ranks of this host, once the addresses show which those are. Messages
// between two ranks always use the same one of the two; one-sided operations go over the network,
// which reaches every rank.
//
// The local transport numbers the ranks of this host from 0. It must need neither addresses nor
// messages of the control network, which would be mixed with those of the network transport.
//
// Bytes of its address:
//
//   offset  bytes  field
//        0     24  identity of the host, as net::declared_host: equal for ranks that share memory
//       24      …  address of the network transport
#include <string.h>

#include <algorithm>
#include <string>
#include <vector>

#include "net/interfaces.h"
#include "plugins/common/look.h"
#include "plugins/hook/hook.h"
#include "weir/plugin.h"

namespace weir::plugins::hook_hosts {
namespace {

constexpr size_t kHostBytes = sizeof(net::HostIdentity::bytes);
constexpr uint64_t kViaLocal = 1;  // in an operation's `wrapper`

constexpr size_t kLocal = 1;  // of the parts

class Hosts final : public hook::Hook {
 public:
  static constexpr char kName[] = "hosts";
  static constexpr bool kPassesDevices = true;

  Hosts(const weir_host_t* host, const weir_transport_part_t* parts,
        const weir_transport_config_t& config)
      : Hook(host, parts, config),
        local_functions_(parts[kLocal].transport),
        secret_(config.secret, config.secret + config.secret_bytes),
        local_config_(config),
        identity_(net::declared_host(setting("WEIR_HOST_ID"), setting("NCCL_HOSTID"))),
        lane_count_(std::min(inner_->caps.lane_count, local_functions_->caps.lane_count)) {
    local_config_.secret = secret_.data();
    // Messages need no segment, and peers of other hosts would see another one.
    local_config_.segment_bytes = 1;
    local_host_ = *host;
    local_host_.context = this;
    local_host_.error = [](void* self, const char* text) {
      static_cast<Hosts*>(self)->tell_of_local(text);
    };
    local_host_.log = [](void* self, int level, const char* text) {
      const weir_host_t* outer = static_cast<Hosts*>(self)->host_;
      outer->log(outer->context, level, text);
    };
    local_host_.setting = [](void* self, const char* name) {
      return static_cast<Hosts*>(self)->setting(name);
    };
    local_host_.struct_bytes = sizeof local_host_;
    local_host_.look = [](void* self) { return common::look(static_cast<Hosts*>(self)->host_); };
    local_host_.control = outer_control() == nullptr ? nullptr : &local_control_;
    fill_local_control();
  }
  ~Hosts() override { explicit_bzero(secret_.data(), secret_.size()); }

  // The capabilities that both have.
  static void limit(const weir_transport_part_t* parts, weir_transport_caps_t* caps) {
    const weir_transport_caps_t& local = parts[kLocal].transport->caps;
    caps->bits &=
        local.bits | WEIR_CAP_SELF | WEIR_CAP_QUIESCE | WEIR_CAP_DEVICE_MEMORY | hook::kRemoteCaps;
    caps->bits |= local.bits & WEIR_CAP_QUIESCE;
    // device_viable tells with which peers.
    if ((caps->bits & WEIR_CAP_DEVICE_MEMORY) == 0) caps->memory_kinds &= local.memory_kinds;
    caps->lane_count = std::min(caps->lane_count, local.lane_count);
    caps->message_bytes_max = std::min(caps->message_bytes_max, local.message_bytes_max);
    caps->credit = std::min(caps->credit, local.credit);
  }

  // Viable if both are.
  static weir_result_t viable(const weir_transport_part_t* parts, const weir_host_t* host,
                              char* reason, size_t reason_bytes) {
    return hook::parts_viable(parts, host, reason, reason_bytes);
  }

  weir_result_t address(unsigned char* address, size_t* bytes) override {
    unsigned char inner[WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
    size_t inner_bytes = sizeof inner;
    const weir_result_t result = inner_->address(instance_, inner, &inner_bytes);
    if (result != WEIR_OK) return result;
    if (inner_bytes + kHostBytes > WEIR_TRANSPORT_ADDRESS_BYTES_MAX) {
      return fail(WEIR_ERROR_UNSUPPORTED,
                  "hosts: the address of %zu bytes of transport '%s' is too long", inner_bytes,
                  inner_->name);
    }
    memcpy(address, identity_.bytes.data(), kHostBytes);
    memcpy(address + kHostBytes, inner, inner_bytes);
    *bytes = kHostBytes + inner_bytes;
    return WEIR_OK;
  }

  weir_result_t connect(const unsigned char* const* addresses, const size_t* address_bytes,
                        uint64_t deadline_ns) override {
    std::vector<const unsigned char*> inner(rank_count_);
    std::vector<size_t> inner_bytes(rank_count_);
    local_of_.assign(rank_count_, kElsewhere);
    members_.clear();
    for (uint32_t peer = 0; peer < rank_count_; ++peer) {
      if (addresses[peer] == nullptr || address_bytes[peer] < kHostBytes) {
        return fail(WEIR_ERROR_INVALID_ARGUMENT,
                    "hosts: the address of rank %u has %zu bytes, which is too short", peer,
                    addresses[peer] == nullptr ? size_t{0} : address_bytes[peer]);
      }
      inner[peer] = addresses[peer] + kHostBytes;
      inner_bytes[peer] = address_bytes[peer] - kHostBytes;
      const bool here =
          peer == rank_ ||
          (identity_.known() && memcmp(addresses[peer], identity_.bytes.data(), kHostBytes) == 0);
      if (!here) continue;
      local_of_[peer] = static_cast<uint32_t>(members_.size());
      members_.push_back(peer);
    }
    weir_result_t result =
        inner_->connect(instance_, inner.data(), inner_bytes.data(), deadline_ns);
    if (result != WEIR_OK || members_.size() == 1) {
      local_of_.assign(rank_count_, kElsewhere);
      return result;
    }
    local_config_.rank = local_of_[rank_];
    local_config_.rank_count = static_cast<uint32_t>(members_.size());
    result =
        local_functions_->open(local_functions_->context, &local_host_, &local_config_, &local_);
    if (result != WEIR_OK) return result;
    // None of them has an address.
    std::vector<const unsigned char*> local(members_.size());
    std::vector<size_t> local_bytes(members_.size());
    result = local_functions_->connect(local_, local.data(), local_bytes.data(), deadline_ns);
    if (result != WEIR_OK) return result;
    // To itself a rank sends over the network transport, which can do that.
    local_of_[rank_] = kElsewhere;
    return WEIR_OK;
  }

  weir_result_t send(uint32_t peer, uint32_t lane, const void* data, uint64_t bytes,
                     weir_transport_op_t* op) override {
    if (!is_local(peer)) return inner_->send(instance_, peer, lane, data, bytes, op);
    if (lane >= lane_count_) return bad_lane(lane);
    op->wrapper = kViaLocal;
    return local_functions_->send(local_, local_of_[peer], lane, data, bytes, op);
  }
  weir_result_t recv(uint32_t peer, uint32_t lane, void* data, uint64_t bytes,
                     weir_transport_op_t* op) override {
    if (!is_local(peer)) return inner_->recv(instance_, peer, lane, data, bytes, op);
    if (lane >= lane_count_) return bad_lane(lane);
    op->wrapper = kViaLocal;
    return local_functions_->recv(local_, local_of_[peer], lane, data, bytes, op);
  }
  // Messages with one rank keep one order, and so use one transport.
  weir_result_t device_viable(uint32_t peer, int device, char* reason,
                              size_t reason_bytes) override {
    if (!is_local(peer)) return Hook::device_viable(peer, device, reason, reason_bytes);
    snprintf(reason, reason_bytes,
             "rank %u is on this host, where transport '%s' sends messages from host memory only",
             peer, local_functions_->name);
    return WEIR_ERROR_UNSUPPORTED;
  }
  weir_result_t device_message(const hook::DeviceMessage& m, weir_transport_op_t* op) override {
    if (!is_local(m.peer)) return device_message_inner(m, op);
    return fail(
        WEIR_ERROR_UNSUPPORTED,
        "hosts: rank %u is on this host, where transport '%s' sends messages from host memory only",
        m.peer, local_functions_->name);
  }
  weir_result_t test(weir_transport_op_t* op) override {
    return op->wrapper == kViaLocal ? local_functions_->test(local_, op)
                                    : inner_->test(instance_, op);
  }
  weir_result_t progress() override {
    const weir_result_t local = local_ != nullptr ? local_functions_->progress(local_) : WEIR_OK;
    const weir_result_t network = inner_->progress(instance_);
    return local != WEIR_OK ? local : network;
  }
  weir_result_t peer_alive(uint32_t peer) override {
    return is_local(peer) ? local_functions_->peer_alive(local_, local_of_[peer])
                          : inner_->peer_alive(instance_, peer);
  }
  void describe_peer(uint32_t peer, char* text, size_t text_bytes) override {
    if (!is_local(peer)) return Hook::describe_peer(peer, text, text_bytes);
    snprintf(text, text_bytes, "rank %u over %s (on this host)", peer, local_functions_->name);
  }
  void quiesce() override {
    if (local_ != nullptr && (local_functions_->caps.bits & WEIR_CAP_QUIESCE) != 0) {
      local_functions_->quiesce(local_);
    }
    Hook::quiesce();
  }
  void close() override {
    if (local_ != nullptr) local_functions_->close(local_);
    inner_->close(instance_);
  }

 private:
  static constexpr uint32_t kElsewhere = UINT32_MAX;

  bool is_local(uint32_t peer) const {
    return peer < local_of_.size() && local_of_[peer] != kElsewhere;
  }

  weir_result_t bad_lane(uint32_t lane) const {
    return fail(WEIR_ERROR_INVALID_ARGUMENT, "hosts: lane %u: there are %u lanes", lane,
                lane_count_);
  }

  // The local transport numbers the ranks of this host from 0.
  void tell_of_local(const char* text) {
    std::string ranks;
    for (const uint32_t member : members_) {
      ranks += (ranks.empty() ? "" : ", ") + std::to_string(member);
    }
    const std::string all =
        std::string(text) +
        " (rank numbers are those of the local transport, whose ranks from 0 on are ranks " +
        ranks + " of the communicator)";
    host_->error(host_->context, all.c_str());
  }

  const weir_control_t* outer_control() const {
    constexpr size_t kEnd = offsetof(weir_host_t, control) + sizeof(void*);
    return host_->struct_bytes < kEnd ? nullptr : host_->control;
  }

  // The same control network, with the numbers that the ranks have on this host.
  void fill_local_control() {
    local_control_.struct_bytes = sizeof local_control_;
    local_control_.context = this;
    local_control_.life = [](void* self, uint32_t peer) {
      return outer(self)->life(outer(self)->context, member(self, peer));
    };
    local_control_.shares_host = [](void* self, uint32_t peer) {
      return outer(self)->shares_host(outer(self)->context, member(self, peer));
    };
    local_control_.send = [](void* self, uint32_t, const void*, size_t) {
      return static_cast<Hosts*>(self)->fail(
          WEIR_ERROR_UNSUPPORTED, "hosts: the local transport cannot send control messages");
    };
    local_control_.receive = [](void*, uint32_t, void*, size_t*) { return WEIR_IN_PROGRESS; };
    local_control_.flush = [](void* self, uint32_t peer, uint64_t deadline_ns) {
      return outer(self)->flush(outer(self)->context, member(self, peer), deadline_ns);
    };
    local_control_.offer = [](void* self, const unsigned char* key, int fd) {
      return outer(self)->offer(outer(self)->context, key, fd);
    };
    local_control_.withdraw = [](void* self, const unsigned char* key) {
      outer(self)->withdraw(outer(self)->context, key);
    };
    local_control_.fetch = [](void* self, uint32_t peer, const unsigned char* key,
                              uint64_t deadline_ns, int* fd) {
      return outer(self)->fetch(outer(self)->context, member(self, peer), key, deadline_ns, fd);
    };
    local_control_.pair_key = [](void* self, uint32_t peer, const char* purpose,
                                 unsigned char* key) {
      outer(self)->pair_key(outer(self)->context, member(self, peer), purpose, key);
    };
    local_control_.describe = [](void* self, uint32_t peer, char* text, size_t text_bytes) {
      outer(self)->describe(outer(self)->context, member(self, peer), text, text_bytes);
    };
  }
  static const weir_control_t* outer(void* self) {
    return static_cast<Hosts*>(self)->outer_control();
  }
  static uint32_t member(void* self, uint32_t peer) {
    return static_cast<Hosts*>(self)->members_[peer];
  }

  const weir_transport_functions_t* const local_functions_;
  std::vector<unsigned char> secret_;
  weir_transport_config_t local_config_;
  weir_host_t local_host_{};
  weir_control_t local_control_{};
  const net::HostIdentity identity_;
  const uint32_t lane_count_;
  weir_transport_t* local_ = nullptr;
  std::vector<uint32_t> local_of_;  // by rank: its number on this host
  std::vector<uint32_t> members_;   // ranks of this host
};

}  // namespace

const weir_transport_functions_t* make(const weir_transport_functions_t* network,
                                       const weir_transport_functions_t* local) {
  return hook::make_table<Hosts>({{network, "between hosts"}, {local, "within a host"}});
}

}  // namespace weir::plugins::hook_hosts
