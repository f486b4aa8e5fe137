// SPDX-License-Identifier: Apache-2.0
#include "core/control/host_control.h"

#include <cstdio>
#include <cstring>
#include <utility>

namespace weir::control {
namespace {

HostControl* from(void* context) { return static_cast<HostControl*>(context); }

Network::Key key_of(const unsigned char* bytes) {
  static_assert(WEIR_CONTROL_KEY_BYTES == kDescriptorKeyBytes);
  Network::Key key;
  std::memcpy(key.data(), bytes, key.size());
  return key;
}

}  // namespace

static_assert(WEIR_CONTROL_MESSAGE_BYTES_MAX == kMessageBytesMax);
static_assert(WEIR_LIFE_HERE == static_cast<int>(Life::kHere));
static_assert(WEIR_LIFE_LEFT == static_cast<int>(Life::kLeft));
static_assert(WEIR_LIFE_LOST == static_cast<int>(Life::kLost));

namespace {

net::Stream* stream_of(weir_control_session_t* session) {
  return reinterpret_cast<net::Stream*>(session);
}

const net::Stream* stream_of(const weir_control_session_t* session) {
  return reinterpret_cast<const net::Stream*>(session);
}

net::IpAddress address_of(uint8_t family, const unsigned char* bytes) {
  net::IpAddress address;
  address.family = family;
  std::memcpy(address.bytes.data(), bytes, address.bytes.size());
  return address;
}

}  // namespace

void HostControl::connect(uint32_t peer, uint64_t subject, const weir_control_way_t* ways,
                          size_t way_count, uint64_t deadline_ns) {
  std::vector<Path> paths;
  for (const weir_control_way_t* way = ways; way < ways + way_count; ++way) {
    paths.push_back({address_of(way->address_family, way->address), way->port,
                     address_of(way->source_family, way->source), way->device});
  }
  network_->connect(peer, purpose_of(subject), std::move(paths), deadline_ns);
}

weir_result_t HostControl::connected(weir_control_connection_t* connection) {
  Connected made;
  if (!network_->connected(channel_, &made)) return WEIR_IN_PROGRESS;
  connection->peer = made.peer;
  connection->way = made.path;
  connection->subject =
      made.purpose.number | (made.purpose.stays_secure ? WEIR_CONTROL_STAYS_SECURE : 0);
  connection->fd = -1;
  connection->session = nullptr;
  const std::string& reason = made.status.ok() ? made.passed_over : made.status.text();
  (void)snprintf(connection->reason, sizeof connection->reason, "%s", reason.c_str());
  if (!made.status.ok()) return static_cast<weir_result_t>(made.status.code());
  connection->fd = made.stream.fd();
  if (made.stream.is_secured()) {
    auto* const stream = new net::Stream(std::move(made.stream));
    connection->session = reinterpret_cast<weir_control_session_t*>(stream);
  } else {
    (void)made.stream.release();
  }
  return WEIR_OK;
}

Purpose HostControl::purpose_of(uint64_t subject) const {
  return {channel_, (subject & WEIR_CONTROL_STAYS_SECURE) != 0,
          subject & ~WEIR_CONTROL_STAYS_SECURE};
}

weir_result_t HostControl::give(const Status& status) {
  if (!status.ok()) tell_(status.text());
  return static_cast<weir_result_t>(status.code());
}

HostControl::HostControl(Network* network, uint8_t channel,
                         std::function<void(const std::string&)> tell,
                         Network::StillPossible still_possible)
    : network_(network),
      channel_(channel),
      tell_(std::move(tell)),
      still_possible_(std::move(still_possible)) {
  functions_.struct_bytes = sizeof functions_;
  functions_.context = this;
  functions_.life = [](void* self, uint32_t peer) {
    return static_cast<int>(from(self)->network_->life(peer));
  };
  functions_.shares_host = [](void* self, uint32_t peer) {
    return from(self)->network_->shares_host(peer) ? 1 : 0;
  };
  functions_.send = [](void* self, uint32_t peer, const void* message, size_t bytes) {
    HostControl* const it = from(self);
    const std::string_view text(static_cast<const char*>(message), bytes);
    return it->give(it->network_->send(peer, it->channel_, text));
  };
  functions_.receive = [](void* self, uint32_t peer, void* message, size_t* bytes) {
    HostControl* const it = from(self);
    std::string text;
    if (!it->network_->receive(peer, it->channel_, &text)) return WEIR_IN_PROGRESS;
    const bool fits = text.size() <= *bytes;
    *bytes = text.size();
    if (!fits) return WEIR_ERROR_INVALID_ARGUMENT;
    std::memcpy(message, text.data(), text.size());
    return WEIR_OK;
  };
  functions_.flush = [](void* self, uint32_t peer, uint64_t deadline_ns) {
    return from(self)->give(from(self)->network_->flush(peer, deadline_ns));
  };
  functions_.offer = [](void* self, const unsigned char* key, int fd) {
    return from(self)->give(from(self)->network_->offer(key_of(key), fd));
  };
  functions_.withdraw = [](void* self, const unsigned char* key) {
    from(self)->network_->withdraw(key_of(key));
  };
  functions_.fetch = [](void* self, uint32_t peer, const unsigned char* key, uint64_t deadline_ns,
                        int* fd) {
    HostControl* const it = from(self);
    auto got = it->network_->fetch(peer, key_of(key), deadline_ns, it->still_possible_);
    if (!got.ok()) return it->give(got.status());
    *fd = got.value();
    return WEIR_OK;
  };
  functions_.pair_key = [](void* self, uint32_t peer, const char* purpose, unsigned char* key) {
    static_assert(WEIR_PAIR_KEY_BYTES == net::kMacBytes);
    const net::Mac mac = from(self)->network_->pair_key(peer, purpose);
    std::memcpy(key, mac.data(), mac.size());
  };
  functions_.describe = [](void* self, uint32_t peer, char* text, size_t text_bytes) {
    const std::string way = from(self)->network_->describe(peer);
    (void)snprintf(text, text_bytes, "%s", way.c_str());
  };
  functions_.own_address = [](void* self, uint32_t peer, char* text, size_t text_bytes) {
    const net::IpAddress address = from(self)->network_->own_address(peer);
    (void)snprintf(text, text_bytes, "%s", address.valid() ? net::to_string(address).c_str() : "");
  };
  functions_.listen = [](void* self, int fd) {
    return from(self)->give(from(self)->network_->listen(fd));
  };
  functions_.connect = [](void* self, uint32_t peer, uint64_t subject,
                          const weir_control_way_t* ways, size_t way_count, uint64_t deadline_ns) {
    from(self)->connect(peer, subject, ways, way_count, deadline_ns);
  };
  functions_.connected = [](void* self, weir_control_connection_t* connection) {
    return from(self)->connected(connection);
  };
  functions_.session_send = [](weir_control_session_t* session, const iovec* pieces, size_t count) {
    return stream_of(session)->send(pieces, count);
  };
  functions_.session_receive = [](weir_control_session_t* session, const iovec* pieces,
                                  size_t count) { return stream_of(session)->recv(pieces, count); };
  functions_.session_events = [](const weir_control_session_t* session, int sends) {
    return stream_of(session)->events(sends != 0);
  };
  functions_.session_has_unread = [](const weir_control_session_t* session) {
    return stream_of(session)->has_unread() ? 1 : 0;
  };
  functions_.session_shut = [](weir_control_session_t* session) { stream_of(session)->shut(); };
  functions_.session_close = [](weir_control_session_t* session) { delete stream_of(session); };
}

}  // namespace weir::control
