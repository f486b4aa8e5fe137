// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/bootstrap_connection.h"

#include <utility>

#include "net/little_endian.h"

namespace weir::comm {

std::string pack_count(uint32_t count) {
  std::string bytes(sizeof count, '\0');
  net::put(reinterpret_cast<unsigned char*>(bytes.data()), count);
  return bytes;
}

bool unpack_count(std::string_view payload, uint32_t* count) {
  if (payload.size() != sizeof *count) return false;
  *count = net::get<uint32_t>(reinterpret_cast<const unsigned char*>(payload.data()));
  return true;
}

void Connection::send(Node::Send message) {
  if (link_ == nullptr) return;
  if (!waits_for_child_) link_->queue(message.frame());
  if (is_local()) return;
  kept_.push_back(std::move(message));
  ++sent_count_;
}

bool Connection::receive(const std::function<void(const control::Frame&)>& take) {
  return link_->receive([&](const control::Frame& frame) {
    const bool is_start = frame.kind == control::Frame::Kind::kStart;
    const auto message = static_cast<Message>(frame.detail);
    if (is_start && message == Message::kHere) return true;
    if (is_start && message == Message::kAgain) {
      uint32_t count = 0;
      malformed_ = !(std::exchange(waits_for_child_, false) &&
                     unpack_count(frame.payload, &count) && send_again_from(count));
      return !malformed_;
    }
    ++received_count_;
    if (is_start && message == Message::kGive) forget_before(frame.version);
    take(frame);
    return true;
  });
}

void Connection::forget_before(uint32_t round) {
  while (!kept_.empty() && kept_.front().round < round) kept_.pop_front();
}

void Connection::go_on_over(std::unique_ptr<control::Link> link) {
  link_ = std::move(link);
  waits_for_child_ = true;
}

bool Connection::go_on_over(std::unique_ptr<control::Link> link, uint32_t count) {
  link_ = std::move(link);
  const std::string payload = pack_count(received_count_);
  link_->queue(
      {control::Frame::Kind::kStart, static_cast<uint8_t>(Message::kAgain), 0, 0, payload});
  return send_again_from(count);
}

bool Connection::send_again_from(uint32_t count) {
  const auto kept_count = static_cast<uint32_t>(kept_.size());
  // Both wrap alike.
  const uint32_t lost_count = sent_count_ - count;
  if (lost_count > kept_count) return false;
  for (uint32_t i = kept_count - lost_count; i < kept_count; ++i) link_->queue(kept_[i].frame());
  return true;
}

}  // namespace weir::comm
