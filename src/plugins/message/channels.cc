// SPDX-License-Identifier: Apache-2.0
#include "plugins/message/channels.h"

#include <string.h>
#include <unistd.h>

#include <string_view>
#include <utility>

namespace weir::plugins::message {
namespace {

// The position of the channel in a subject.
constexpr uint32_t kSubjectShift = 56;
constexpr uint64_t kSubjectMask = 0x7f;

weir_result_t hand_over(std::string_view text, void* message, size_t* bytes) {
  const bool fits = text.size() <= *bytes;
  *bytes = text.size();
  if (!fits) return WEIR_ERROR_INVALID_ARGUMENT;
  memcpy(message, text.data(), text.size());
  return WEIR_OK;
}

}  // namespace

const weir_control_t& Channels::outer(void* channel) {
  return *static_cast<const Channel*>(channel)->self->control_;
}

Channels::Channels(const weir_control_t* control, uint8_t count) : control_(control) {
  for (uint8_t i = 0; i < count; ++i) {
    channels_.push_back(std::make_unique<Channel>());
    Channel& one = *channels_.back();
    one.self = this;
    one.number = i;
    weir_control_t& f = one.functions;
    f.struct_bytes = sizeof f;
    f.context = &one;
    f.life = [](void* self, uint32_t peer) {
      const weir_control_t& to = outer(self);
      return to.life(to.context, peer);
    };
    f.shares_host = [](void* self, uint32_t peer) {
      const weir_control_t& to = outer(self);
      return to.shares_host(to.context, peer);
    };
    f.send = [](void* self, uint32_t peer, const void* message, size_t bytes) {
      const auto* channel = static_cast<Channel*>(self);
      return channel->self->send(channel->number, peer, message, bytes);
    };
    f.receive = [](void* self, uint32_t peer, void* message, size_t* bytes) {
      auto* channel = static_cast<Channel*>(self);
      return channel->self->receive(channel, peer, message, bytes);
    };
    f.flush = [](void* self, uint32_t peer, uint64_t deadline_ns) {
      const weir_control_t& to = outer(self);
      return to.flush(to.context, peer, deadline_ns);
    };
    f.offer = [](void* self, const unsigned char* key, int fd) {
      const weir_control_t& to = outer(self);
      return to.offer(to.context, key, fd);
    };
    f.withdraw = [](void* self, const unsigned char* key) {
      const weir_control_t& to = outer(self);
      to.withdraw(to.context, key);
    };
    f.fetch = [](void* self, uint32_t peer, const unsigned char* key, uint64_t deadline_ns,
                 int* fd) {
      const weir_control_t& to = outer(self);
      return to.fetch(to.context, peer, key, deadline_ns, fd);
    };
    f.pair_key = [](void* self, uint32_t peer, const char* purpose, unsigned char* key) {
      const auto* channel = static_cast<Channel*>(self);
      const weir_control_t& to = *channel->self->control_;
      const std::string own = std::to_string(channel->number) + " " + purpose;
      to.pair_key(to.context, peer, own.c_str(), key);
    };
    f.describe = [](void* self, uint32_t peer, char* text, size_t text_bytes) {
      const weir_control_t& to = outer(self);
      to.describe(to.context, peer, text, text_bytes);
    };
    f.own_address = [](void* self, uint32_t peer, char* text, size_t text_bytes) {
      const weir_control_t& to = outer(self);
      to.own_address(to.context, peer, text, text_bytes);
    };
    f.listen = [](void* self, int fd) {
      const weir_control_t& to = outer(self);
      return to.listen(to.context, fd);
    };
    f.connect = [](void* self, uint32_t peer, uint64_t subject, const weir_control_way_t* ways,
                   size_t way_count, uint64_t deadline_ns) {
      const auto* channel = static_cast<Channel*>(self);
      const weir_control_t& to = outer(self);
      to.connect(to.context, peer, subject | uint64_t{channel->number} << kSubjectShift, ways,
                 way_count, deadline_ns);
    };
    f.connected = [](void* self, weir_control_connection_t* connection) {
      auto* channel = static_cast<Channel*>(self);
      return channel->self->connected(channel, connection);
    };
    if (control != nullptr) {
      f.session_send = control->session_send;
      f.session_receive = control->session_receive;
      f.session_events = control->session_events;
      f.session_has_unread = control->session_has_unread;
      f.session_shut = control->session_shut;
      f.session_close = control->session_close;
    }
  }
}

Channels::~Channels() {
  for (const auto& channel : channels_) {
    for (const auto& [result, connection] : channel->connections) {
      if (connection.session != nullptr) {
        control_->session_close(connection.session);
      } else if (connection.fd >= 0) {
        close(connection.fd);
      }
    }
  }
}

weir_result_t Channels::connected(Channel* channel, weir_control_connection_t* connection) {
  const auto hand_over = [&](const std::pair<weir_result_t, weir_control_connection_t>& one) {
    *connection = one.second;
    connection->subject &= ~(kSubjectMask << kSubjectShift);
    return one.first;
  };
  if (!channel->connections.empty()) {
    const auto oldest = channel->connections.front();
    channel->connections.pop_front();
    return hand_over(oldest);
  }
  for (;;) {
    weir_control_connection_t one{};
    one.struct_bytes = sizeof one;
    const weir_result_t result = control_->connected(control_->context, &one);
    if (result == WEIR_IN_PROGRESS) return result;
    const size_t number = one.subject >> kSubjectShift & kSubjectMask;
    if (number == channel->number) return hand_over({result, one});
    // Both ends have the same channels; a connection of another one would never be asked for.
    if (number < channels_.size()) channels_[number]->connections.emplace_back(result, one);
  }
}

weir_result_t Channels::send(uint8_t channel, uint32_t peer, const void* message, size_t bytes) {
  if (bytes >= WEIR_CONTROL_MESSAGE_BYTES_MAX) return WEIR_ERROR_INVALID_ARGUMENT;
  std::string whole(1, static_cast<char>(channel));
  whole.append(static_cast<const char*>(message), bytes);
  return control_->send(control_->context, peer, whole.data(), whole.size());
}

weir_result_t Channels::receive(Channel* channel, uint32_t peer, void* message, size_t* bytes) {
  const auto at = channel->waiting.find(peer);
  if (at != channel->waiting.end() && !at->second.empty()) {
    const std::string oldest = std::move(at->second.front());
    at->second.pop_front();
    return hand_over(oldest, message, bytes);
  }
  if (room_ == nullptr) room_.reset(new char[WEIR_CONTROL_MESSAGE_BYTES_MAX]);
  for (;;) {
    size_t got = WEIR_CONTROL_MESSAGE_BYTES_MAX;
    const weir_result_t result = control_->receive(control_->context, peer, room_.get(), &got);
    if (result != WEIR_OK) return result;
    const size_t number = got == 0 ? channels_.size() : static_cast<unsigned char>(room_[0]);
    // This end has no such channel, so the message would never be asked for.
    if (number >= channels_.size()) continue;
    const std::string_view text(room_.get() + 1, got - 1);
    if (number == channel->number) return hand_over(text, message, bytes);
    channels_[number]->waiting[peer].emplace_back(text);
  }
}

}  // namespace weir::plugins::message
