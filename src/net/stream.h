// SPDX-License-Identifier: Apache-2.0
// Stream: a connected, nonblocking stream socket, plain or inside TLS (tls.h), with the same two
// calls for both. It never waits. TLS's handshake is part of the first calls; until it is over no
// received bytes are handed out, and the other end may send a bounded number of bytes, the first of
// which are judged before memory is taken for what they announce. One thread at a time per object.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "net/tls.h"

namespace weir::net {

class Stream {
 public:
  enum class Role : uint8_t { kClient, kServer };
  // Why TLS has ended a stream; errno is EPROTO then.
  enum class Failure : uint8_t {
    kNone,
    kRefused,    // the other end does not hold the secret, or says that this one does not
    kNotTls,     // it speaks something else
    kOversized,  // its part of the handshake is longer than that of an honest end
    kDamaged,    // received bytes were changed, repeated or left out on their way
    kBroken,     // any other error of OpenSSL: reason()
  };

  // Bytes of the other end's part of the handshake.
  static constexpr size_t kHandshakeBytesMax = 4096;
  // Sent under one key: far below what AES-GCM allows.
  static constexpr uint64_t kRekeyBytes = uint64_t{1} << 36;

  Stream();
  // Owns `fd`.
  explicit Stream(int fd);
  ~Stream();
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void close();

  // Before the first byte. False: no memory. `context` outlives the stream.
  bool secure(const TlsContext& context, Role role);
  bool is_secured() const { return session_ != nullptr; }
  // The handshake is over, or there is none.
  bool is_ready() const { return session_ == nullptr || is_ready_; }

  // As send(2) and recv(2) with MSG_DONTWAIT and MSG_NOSIGNAL: the count, or -1 with errno, or 0
  // when the other end has ended its direction. EAGAIN: call again when poll sees one of `events`;
  // the bytes to send are then given again, at least as many of them, before any others. An end of
  // the connection without TLS's notification is ECONNRESET.
  ssize_t send(const void* data, size_t bytes);
  ssize_t recv(void* data, size_t bytes);
  // The same from and into several pieces, of which the first bytes are taken, as sendmsg and
  // recvmsg do. Inside TLS small pieces share a record.
  ssize_t send(const iovec* pieces, size_t count);
  ssize_t recv(const iovec* pieces, size_t count);
  // The events to poll for when waiting to read and, with `writes`, to send.
  short events(bool writes) const;
  // There are bytes that have arrived and been decrypted, but not been read: poll does not report
  // them.
  bool has_unread() const;
  // Tells the other end that nothing more is sent, as far as this is possible without waiting.
  void shut();
  // Gives the descriptor, without TLS from here on, to the caller. All sent bytes must have left,
  // and the other end must leave TLS at the same byte; see has_unread().
  int release();

  Failure failure() const { return failure_; }
  // "" or a sentence for kNotTls, kBroken and the like, without a stop.
  const std::string& reason() const { return reason_; }

  // For tests.
  void set_rekey_bytes(uint64_t bytes) { rekey_bytes_ = bytes; }

 private:
  struct Session;

  // -1 with errno.
  ssize_t fail(int result);
  bool after_handshake();
  bool may_go_on() const;
  ssize_t send_secured(const void* data, size_t bytes);

  int fd_ = -1;
  bool is_ready_ = false;
  Failure failure_ = Failure::kNone;
  std::unique_ptr<Session> session_;
  uint64_t rekey_bytes_ = kRekeyBytes;
  uint64_t sent_bytes_ = 0;      // under the present key
  size_t unfinished_bytes_ = 0;  // of a send that must be given again
  std::string reason_;
};

}  // namespace weir::net
