// SPDX-License-Identifier: Apache-2.0
#include "net/stream.h"

#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace weir::net {

// The layer through which OpenSSL uses the socket: without signals, and with a limit before the
// proof.
struct Stream::Session {
  static constexpr size_t kGatheredBytes = 16384;  // a record of TLS

  SSL* ssl = nullptr;
  int fd = -1;
  bool judges = false;  // the other end's first bytes: of a server
  unsigned char head[kFirstFlightHeaderBytes] = {};
  size_t head_bytes = 0;
  size_t handshake_bytes = 0;
  FirstFlight flight = FirstFlight::kMore;
  bool oversized = false;
  bool ended = false;    // the other end's direction
  int error_number = 0;  // of the socket
  unsigned char gathered[kGatheredBytes];

  Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() { SSL_free(ssl); }

  static BIO_METHOD* method();
  static Session* of(BIO* bio) { return static_cast<Session*>(BIO_get_data(bio)); }
  static int write_bytes(BIO* bio, const char* data, int bytes);
  static int read_bytes(BIO* bio, char* data, int bytes);
  static long control(BIO* bio, int command, long, void*);
  bool judge(const char* data, size_t bytes);
  size_t gather(const iovec* pieces, size_t count, size_t offset);
};

namespace {

bool is_temporary(int error_number) {
  return error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == ENOBUFS ||
         error_number == ENOMEM;
}

ssize_t send_plain(int fd, const void* data, size_t bytes) {
  for (;;) {
    const ssize_t sent = ::send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0 || errno != EINTR) return sent;
  }
}

ssize_t recv_plain(int fd, void* data, size_t bytes) {
  for (;;) {
    const ssize_t got = ::recv(fd, data, bytes, MSG_DONTWAIT);
    if (got >= 0 || errno != EINTR) return got;
  }
}

// The failure of the other end that the first error of OpenSSL's queue means, during the handshake
// or after it.
Stream::Failure judge_error(unsigned long error, bool in_handshake) {
  using Failure = Stream::Failure;
  if (ERR_GET_LIB(error) != ERR_LIB_SSL) return in_handshake ? Failure::kRefused : Failure::kBroken;
  switch (ERR_GET_REASON(error)) {
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_HTTPS_PROXY_REQUEST:
    case SSL_R_BAD_PACKET_LENGTH:
    case SSL_R_RECORD_LENGTH_MISMATCH:
      return Failure::kNotTls;
    case SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC:
    case SSL_R_SSLV3_ALERT_BAD_RECORD_MAC:
    case SSL_R_UNEXPECTED_MESSAGE:
    case SSL_R_DATA_LENGTH_TOO_LONG:
    case SSL_R_ENCRYPTED_LENGTH_TOO_LONG:
      return Failure::kDamaged;
    default:
      break;
  }
  // Without the key a handshake ends in one of many ways, all of which are refusals.
  return in_handshake ? Failure::kRefused : Failure::kBroken;
}

}  // namespace

BIO_METHOD* Stream::Session::method() {
  static BIO_METHOD* const made = [] {
    BIO_METHOD* one = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "weir stream");
    if (one == nullptr) return one;
    BIO_meth_set_write(one, write_bytes);
    BIO_meth_set_read(one, read_bytes);
    BIO_meth_set_ctrl(one, control);
    return one;
  }();
  return made;
}

int Stream::Session::write_bytes(BIO* bio, const char* data, int bytes) {
  Session* self = of(bio);
  BIO_clear_retry_flags(bio);
  const ssize_t sent = send_plain(self->fd, data, static_cast<size_t>(bytes));
  if (sent >= 0) return static_cast<int>(sent);
  if (is_temporary(errno)) {
    BIO_set_retry_write(bio);
  } else {
    self->error_number = errno;
  }
  return -1;
}

bool Stream::Session::judge(const char* data, size_t bytes) {
  if (!judges || flight != FirstFlight::kMore) return true;
  const size_t part = std::min(bytes, sizeof head - head_bytes);
  std::memcpy(head + head_bytes, data, part);
  head_bytes += part;
  flight = judge_first_flight(head, head_bytes);
  return flight == FirstFlight::kMore || flight == FirstFlight::kGood;
}

// Fills `gathered` from the pieces, behind `offset` bytes of the first; how many bytes that are.
size_t Stream::Session::gather(const iovec* pieces, size_t count, size_t offset) {
  size_t bytes = 0;
  for (size_t i = 0; i < count && bytes < sizeof gathered; ++i, offset = 0) {
    const size_t part = std::min(pieces[i].iov_len - offset, sizeof gathered - bytes);
    if (part == 0) continue;
    std::memcpy(gathered + bytes, static_cast<const unsigned char*>(pieces[i].iov_base) + offset,
                part);
    bytes += part;
  }
  return bytes;
}

int Stream::Session::read_bytes(BIO* bio, char* data, int bytes) {
  Session* self = of(bio);
  BIO_clear_retry_flags(bio);
  auto wanted = static_cast<size_t>(bytes);
  const bool limited = SSL_is_init_finished(self->ssl) == 0;
  if (limited) {
    wanted = std::min(wanted, kHandshakeBytesMax - self->handshake_bytes);
    self->oversized = wanted == 0;
    if (self->oversized) return -1;
  }
  const ssize_t got = recv_plain(self->fd, data, wanted);
  if (got > 0) {
    self->handshake_bytes += limited ? static_cast<size_t>(got) : 0;
    return self->judge(data, static_cast<size_t>(got)) ? static_cast<int>(got) : -1;
  }
  if (got == 0) {
    self->ended = true;
  } else if (is_temporary(errno)) {
    BIO_set_retry_read(bio);
  } else {
    self->error_number = errno;
  }
  return static_cast<int>(got);
}

long Stream::Session::control(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_FLUSH) return 1;
  return command == BIO_CTRL_EOF && of(bio)->ended ? 1 : 0;
}

Stream::Stream() = default;
Stream::Stream(int fd) : fd_(fd) {}
Stream::~Stream() { close(); }

Stream::Stream(Stream&& other) noexcept { *this = std::move(other); }

Stream& Stream::operator=(Stream&& other) noexcept {
  if (this == &other) return *this;
  close();
  fd_ = std::exchange(other.fd_, -1);
  is_ready_ = other.is_ready_;
  failure_ = other.failure_;
  session_ = std::move(other.session_);
  rekey_bytes_ = other.rekey_bytes_;
  sent_bytes_ = other.sent_bytes_;
  unfinished_bytes_ = other.unfinished_bytes_;
  reason_ = std::move(other.reason_);
  return *this;
}

void Stream::close() {
  session_.reset();
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

bool Stream::secure(const TlsContext& context, Role role) {
  auto made = std::make_unique<Session>();
  made->fd = fd_;
  made->judges = role == Role::kServer;
  made->ssl = context.make_session();
  BIO* bio = made->ssl == nullptr ? nullptr : BIO_new(Session::method());
  if (bio == nullptr) return false;
  BIO_set_data(bio, made.get());
  BIO_set_init(bio, 1);
  SSL_set_bio(made->ssl, bio, bio);
  if (role == Role::kServer) {
    SSL_set_accept_state(made->ssl);
  } else {
    SSL_set_connect_state(made->ssl);
  }
  session_ = std::move(made);
  is_ready_ = false;
  return true;
}

// False: the other end succeeded without the key, which OpenSSL does not allow with these settings.
bool Stream::after_handshake() {
  if (is_ready_ || SSL_is_init_finished(session_->ssl) == 0) return true;
  if (SSL_session_reused(session_->ssl) != 1 || SSL_version(session_->ssl) != TLS1_3_VERSION) {
    failure_ = Failure::kRefused;
    reason_ = "did not use the key that is derived from the secret";
    errno = EPROTO;
    return false;
  }
  is_ready_ = true;
  return true;
}

ssize_t Stream::fail(int result) {
  Session& session = *session_;
  const int error = SSL_get_error(session.ssl, result);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
    if (!after_handshake()) return -1;
    errno = EAGAIN;
    return -1;
  }
  if (error == SSL_ERROR_ZERO_RETURN) return 0;
  const unsigned long first = ERR_peek_error();
  ERR_clear_error();
  if (session.oversized || session.flight == FirstFlight::kOversized) {
    failure_ = Failure::kOversized;
    reason_ = "sent more data than a handshake has";
  } else if (session.flight == FirstFlight::kNotTls) {
    failure_ = Failure::kNotTls;
    reason_ = "does not speak TLS";
  } else if (session.error_number != 0 || session.ended) {
    // OpenSSL can use this session no more.
    failure_ = Failure::kBroken;
    errno = session.error_number != 0 ? session.error_number : ECONNRESET;
    return -1;
  } else {
    failure_ = judge_error(first, !is_ready_);
    const char* text = ERR_reason_error_string(first);
    reason_ = std::string("TLS: ") + (text != nullptr ? text : "unknown error");
  }
  errno = EPROTO;
  return -1;
}

// False with errno: TLS has ended the stream, or its connection has ended, which has no reason.
bool Stream::may_go_on() const {
  if (failure_ == Failure::kNone) return true;
  errno = failure_ == Failure::kBroken && reason_.empty() ? ECONNRESET : EPROTO;
  return false;
}

ssize_t Stream::send(const void* data, size_t bytes) {
  return session_ == nullptr ? send_plain(fd_, data, bytes) : send_secured(data, bytes);
}

ssize_t Stream::send_secured(const void* data, size_t bytes) {
  if (bytes == 0) return 0;
  if (!may_go_on()) return -1;
  ERR_clear_error();
  if (sent_bytes_ >= rekey_bytes_ && unfinished_bytes_ == 0 && is_ready_) {
    // It is sent with the next bytes.
    if (SSL_key_update(session_->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1) sent_bytes_ = 0;
  }
  size_t done = 0;
  const int result = SSL_write_ex(session_->ssl, data, bytes, &done);
  if (result == 1) {
    unfinished_bytes_ = 0;
    sent_bytes_ += done;
    return after_handshake() ? static_cast<ssize_t>(done) : -1;
  }
  if (is_ready_) unfinished_bytes_ = bytes;
  if (fail(result) == 0) errno = EPIPE;
  return -1;
}

ssize_t Stream::send(const iovec* pieces, size_t count) {
  if (session_ == nullptr) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces);
    message.msg_iovlen = count;
    for (;;) {
      const ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent >= 0 || errno != EINTR) return sent;
    }
  }
  size_t total = 0;
  size_t at = 0;
  size_t offset = 0;  // in pieces[at]
  while (at < count) {
    const auto* data = static_cast<const unsigned char*>(pieces[at].iov_base) + offset;
    size_t bytes = pieces[at].iov_len - offset;
    // A record is filled, so that a repeated send is never shorter than the one that was begun.
    if (bytes < Session::kGatheredBytes && at + 1 < count) {
      bytes = session_->gather(pieces + at, count - at, offset);
      data = session_->gathered;
    }
    if (bytes == 0) break;
    const ssize_t sent = send_secured(data, bytes);
    if (sent < 0) return total != 0 && errno == EAGAIN ? static_cast<ssize_t>(total) : -1;
    total += static_cast<size_t>(sent);
    if (static_cast<size_t>(sent) < bytes) break;
    for (offset += bytes; at < count && offset >= pieces[at].iov_len; ++at) {
      offset -= pieces[at].iov_len;
    }
  }
  return static_cast<ssize_t>(total);
}

ssize_t Stream::recv(void* data, size_t bytes) {
  if (session_ == nullptr) return recv_plain(fd_, data, bytes);
  if (bytes == 0) return 0;
  if (!may_go_on()) return -1;
  ERR_clear_error();
  size_t done = 0;
  const int result = SSL_read_ex(session_->ssl, data, bytes, &done);
  if (result != 1) return fail(result);
  return after_handshake() ? static_cast<ssize_t>(done) : -1;
}

ssize_t Stream::recv(const iovec* pieces, size_t count) {
  if (session_ == nullptr) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces);
    message.msg_iovlen = count;
    for (;;) {
      const ssize_t got = recvmsg(fd_, &message, MSG_DONTWAIT);
      if (got >= 0 || errno != EINTR) return got;
    }
  }
  size_t total = 0;
  for (size_t at = 0; at < count; ++at) {
    auto* out = static_cast<unsigned char*>(pieces[at].iov_base);
    for (size_t filled = 0; filled < pieces[at].iov_len;) {
      const ssize_t got = recv(out + filled, pieces[at].iov_len - filled);
      // The next call reports the end of the stream.
      if (got <= 0) return total != 0 ? static_cast<ssize_t>(total) : got;
      filled += static_cast<size_t>(got);
      total += static_cast<size_t>(got);
    }
  }
  return static_cast<ssize_t>(total);
}

short Stream::events(bool writes) const {
  if (is_ready()) return static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN);
  switch (SSL_want(session_->ssl)) {
    case SSL_WRITING:
      return POLLOUT;
    case SSL_READING:
      return POLLIN;
    default:  // nothing was tried yet
      return SSL_is_server(session_->ssl) != 0 ? POLLIN : POLLOUT;
  }
}

bool Stream::has_unread() const { return session_ != nullptr && SSL_pending(session_->ssl) > 0; }

int Stream::release() {
  session_.reset();
  return std::exchange(fd_, -1);
}

void Stream::shut() {
  if (fd_ < 0) return;
  if (session_ != nullptr && is_ready_ && failure_ == Failure::kNone) {
    ERR_clear_error();
    (void)SSL_shutdown(session_->ssl);
    ERR_clear_error();
  }
  (void)shutdown(fd_, SHUT_WR);
}

}  // namespace weir::net
