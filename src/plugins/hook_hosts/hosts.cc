// SPDX-License-Identifier: Apache-2.0
// Hosts: a network transport for ranks on several hosts, with another one, of shared memory, between
// those of one host. It wraps the network transport as a hook does and opens the local one beside it
// for the ranks of this host, once the addresses have told which those are. Messages take one of the two, for good; words
// beside messages (notices) and one-sided operations go over the network, which reaches everybody.
//
// Bytes of its address:
//
//   offset  bytes  field
//        0     24  identity of the host, as net::declared_host: equal for ranks that share memory
//       24      …  address of the network transport
//
// In `connect`, over lane 0 of the network, every rank sends each other rank of its host one message
// of kLocalAddressBytes: the length of its local address (2 bytes, little-endian), then the address.
#include <string.h>

#include <algorithm>
#include <string>
#include <vector>

#include "net/interfaces.h"
#include "plugins/common/look.h"
#include "plugins/hook/hook.h"

namespace weir::plugins::hook_hosts {
namespace {

constexpr size_t kHostBytes = sizeof(net::HostIdentity::bytes);
constexpr size_t kLocalAddressBytes = 2 + 254;
constexpr uint64_t kViaLocal = 1;  // in an operation's `wrapper`

// Set by wrap, before anything is opened.
const weir_transport_functions_t* local_transport = nullptr;

class Hosts final : public hook::Hook {
 public:
  static constexpr char kName[] = "hosts";
  static constexpr bool kPassesDevices = true;

  Hosts(const weir_host_t* host, const weir_transport_functions_t* inner,
        const weir_transport_config_t& config)
      : Hook(host, inner, config),
        secret_(config.secret, config.secret + config.secret_bytes),
        local_config_(config),
        identity_(net::declared_host(setting("WEIR_HOST_ID"), setting("NCCL_HOSTID"))),
        lane_count_(std::min(inner->caps.lane_count, local_transport->caps.lane_count)) {
    local_config_.secret = secret_.data();
    // Messages need none, and peers of other hosts would see another one.
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
  }
  ~Hosts() override { explicit_bzero(secret_.data(), secret_.size()); }

  // What both can do.
  static void limit(weir_transport_caps_t* caps) {
    const weir_transport_caps_t& local = local_transport->caps;
    caps->bits &= local.bits | WEIR_CAP_SELF | WEIR_CAP_NOTICE | WEIR_CAP_QUIESCE |
                  WEIR_CAP_DEVICE_MEMORY | hook::kRemoteCaps;
    caps->bits |= local.bits & WEIR_CAP_QUIESCE;
    // device_viable tells with whom.
    if ((caps->bits & WEIR_CAP_DEVICE_MEMORY) == 0) caps->memory_kinds &= local.memory_kinds;
    caps->lane_count = std::min(caps->lane_count, local.lane_count);
    caps->message_bytes_max = std::min(caps->message_bytes_max, local.message_bytes_max);
    caps->credit = std::min(caps->credit, local.credit);
  }

  weir_result_t address(unsigned char* address, size_t* bytes) override {
    unsigned char inner[WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
    size_t inner_bytes = sizeof inner;
    const weir_result_t result = inner_->address(instance_, inner, &inner_bytes);
    if (result != WEIR_OK) return result;
    if (inner_bytes + kHostBytes > WEIR_TRANSPORT_ADDRESS_BYTES_MAX) {
      return fail(WEIR_ERROR_UNSUPPORTED, "hosts: an address of %zu bytes of transport '%s'",
                  inner_bytes, inner_->name);
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
        return fail(WEIR_ERROR_INVALID_ARGUMENT, "hosts: the address of rank %u has %zu bytes",
                    peer, addresses[peer] == nullptr ? size_t{0} : address_bytes[peer]);
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
    result = local_functions_->open(&local_host_, &local_config_, &local_);
    if (result != WEIR_OK) return result;
    std::vector<unsigned char> all(members_.size() * kLocalAddressBytes);
    result = gather_local_addresses(all.data(), deadline_ns);
    if (result != WEIR_OK) return result;
    std::vector<const unsigned char*> local(members_.size());
    std::vector<size_t> local_bytes(members_.size());
    for (size_t i = 0; i < members_.size(); ++i) {
      const unsigned char* const at = all.data() + i * kLocalAddressBytes;
      local_bytes[i] = std::min<size_t>(at[0] + at[1] * size_t{256}, kLocalAddressBytes - 2);
      local[i] = at + 2;
    }
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
  // Messages with one rank keep one order, and go one way.
  weir_result_t device_viable(uint32_t peer, int device, char* reason,
                              size_t reason_bytes) override {
    if (!is_local(peer)) return Hook::device_viable(peer, device, reason, reason_bytes);
    snprintf(reason, reason_bytes,
             "rank %u is on this host, and transport '%s' between them takes memory of the host",
             peer, local_functions_->name);
    return WEIR_ERROR_UNSUPPORTED;
  }
  weir_result_t device_message(const hook::DeviceMessage& m, weir_transport_op_t* op) override {
    if (!is_local(m.peer)) return device_message_inner(m, op);
    return fail(WEIR_ERROR_UNSUPPORTED,
                "hosts: rank %u is on this host, and transport '%s' between them takes memory of "
                "the host",
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
    const std::string all = std::string(text) +
                            " (of this host, where the ranks from 0 on are ranks " + ranks +
                            " of the communicator)";
    host_->error(host_->context, all.c_str());
  }

  weir_result_t gather_local_addresses(unsigned char* all, uint64_t deadline_ns) {
    unsigned char* const own = all + local_of_[rank_] * kLocalAddressBytes;
    unsigned char address[WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
    size_t bytes = sizeof address;
    weir_result_t result = local_functions_->address(local_, address, &bytes);
    if (result != WEIR_OK) return result;
    if (bytes > kLocalAddressBytes - 2) {
      return fail(WEIR_ERROR_INTERNAL, "hosts: an address of %zu bytes of the local transport",
                  bytes);
    }
    own[0] = static_cast<unsigned char>(bytes);
    own[1] = static_cast<unsigned char>(bytes >> 8);
    memcpy(own + 2, address, bytes);
    struct Exchange {
      weir_transport_op_t op;
      uint32_t peer;
      bool done;
    };
    std::vector<Exchange> exchanges;
    // What is posted lies in memory that ends here.
    const auto give_up = [&](weir_result_t why) {
      Hook::quiesce();
      return why;
    };
    exchanges.reserve(2 * members_.size());
    for (const uint32_t peer : members_) {
      if (peer == rank_) continue;
      for (const bool sending : {false, true}) {
        Exchange& one = exchanges.emplace_back(Exchange{{}, peer, false});
        unsigned char* const at = all + local_of_[peer] * kLocalAddressBytes;
        result = sending ? inner_->send(instance_, peer, 0, own, kLocalAddressBytes, &one.op)
                         : inner_->recv(instance_, peer, 0, at, kLocalAddressBytes, &one.op);
        if (result != WEIR_OK && result != WEIR_IN_PROGRESS) return give_up(result);
        one.done = result == WEIR_OK;
      }
    }
    for (;;) {
      const Exchange* missing = nullptr;
      for (Exchange& one : exchanges) {
        if (one.done) continue;
        result = inner_->test(instance_, &one.op);
        if (result != WEIR_OK && result != WEIR_IN_PROGRESS) return give_up(result);
        one.done = result == WEIR_OK;
        if (!one.done) missing = &one;
      }
      if (missing == nullptr) return WEIR_OK;
      if (hook::monotonic_ns() >= deadline_ns) {
        return give_up(fail(WEIR_ERROR_TIMEOUT,
                            "hosts: rank %u, on the host of rank %u, did not say in time where its "
                            "shared memory is",
                            missing->peer, rank_));
      }
      result = inner_->progress(instance_);
      if (result != WEIR_OK) return give_up(result);
    }
  }

  const weir_transport_functions_t* const local_functions_ = local_transport;
  std::vector<unsigned char> secret_;
  weir_transport_config_t local_config_;
  weir_host_t local_host_{};
  const net::HostIdentity identity_;
  const uint32_t lane_count_;
  weir_transport_t* local_ = nullptr;
  std::vector<uint32_t> local_of_;  // by rank: its number on this host
  std::vector<uint32_t> members_;   // ranks of this host
};

}  // namespace

const weir_transport_functions_t* wrap(const weir_transport_functions_t* inner,
                                       const weir_transport_functions_t* local) {
  local_transport = local;
  return hook::Pool<Hosts>::wrap(inner);
}

}  // namespace weir::plugins::hook_hosts
