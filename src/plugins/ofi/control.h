// SPDX-License-Identifier: Apache-2.0
// Control: one end of the connection between two ranks that carries no messages (wire.h): it carries
// the endpoint's name before there are any, notices beside them, and its end tells that the peer has
// ended. A notice that cannot leave waits for the next call, and what it says by then is what leaves.
// Never blocks, never allocates after the card. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugins/ofi/wire.h"

namespace weir::plugins::ofi {

class Control {
 public:
  Control() = default;
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  void attach(int fd) { fd_ = fd; }
  int fd() const { return fd_; }
  bool attached() const { return fd_ >= 0; }

  // Each queues a frame and sends what can be sent.
  void say_card(const Card& card);
  void say(Kind kind);
  void say_goodbye(const Goodbye& goodbye);

  // Sends the notice if the peer has not been sent that version of it; not after our goodbye. Versions
  // count from 1; 0: there is none. At most kNoticeBytesMax bytes. False: something could not leave yet.
  bool send_notice(const unsigned char* notice, size_t bytes, uint32_t version);
  // Whether what was sent has come to the peer's host, or never will.
  bool arrived();

  // Sends and reads what can be without waiting; true when something was read.
  bool drive();
  bool sending() const { return out_begin_ < out_end_; }

  // What has been read.
  bool has_card() const { return has_card_; }
  const Card& card() const { return card_; }
  bool ready() const { return ready_; }
  bool left() const { return left_; }  // it has said goodbye
  const Goodbye& goodbye() const { return goodbye_; }
  bool taken() const { return taken_; }
  // The latest one; kept beyond the end.
  const unsigned char* notice() const { return notice_; }
  size_t notice_bytes() const { return notice_bytes_; }
  // The connection has ended, or something was read that is no frame.
  bool ended() const { return ended_; }
  // The peer ended without a goodbye.
  bool lost() const { return ended_ && !left_; }

  // Ends this direction; what was said still arrives, what the peer says is thrown away.
  void shut();

 private:
  void flush();
  bool take_frame(Kind kind, const unsigned char* payload, size_t bytes);

  int fd_ = -1;
  bool has_card_ = false;
  bool ready_ = false;
  bool left_ = false;
  bool taken_ = false;
  bool ended_ = false;
  Card card_;
  Goodbye goodbye_;
  unsigned char in_[kHeaderBytes + kPayloadBytesMax];
  size_t in_bytes_ = 0;
  // One of each kind at most is ever under way: a notice begins when nothing else is.
  unsigned char out_[5 * kHeaderBytes + 8 + kNameBytesMax + 4 + kNoticeBytesMax + 16 * kLaneCount];
  size_t out_begin_ = 0;
  size_t out_end_ = 0;
  bool deaf_ = false;  // nothing can be sent any more
  unsigned char notice_[kNoticeBytesMax];
  size_t notice_bytes_ = 0;
  uint32_t notices_got_ = 0;
  uint32_t notices_said_ = 0;
  uint32_t sent_version_ = 0;
  uint32_t arrived_version_ = 0;
};

}  // namespace weir::plugins::ofi
