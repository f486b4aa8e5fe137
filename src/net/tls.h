// SPDX-License-Identifier: Apache-2.0
// TLS 1.3 for connections whose two ends hold a secret already, by OpenSSL. There are no
// certificates: a pre-shared key is derived from the secret, so that only a holder of the secret
// passes the handshake, and a fresh Diffie-Hellman exchange goes into the keys, so that a secret
// that leaks later decrypts no recording.
//
//   key       HKDF-SHA256 (extract and expand, RFC 5869) of the secret, salt "weir tls 1.3",
//             info: the context
//   identity  "weir " + the context; it goes over the network in the clear
//   suite     TLS_AES_128_GCM_SHA256, psk_dhe_ke with X25519 or P-256; no tickets, no early data
//
// The key is the same in both directions: a handshake proves that the other end holds the secret,
// but not which rank it is. Weir's handshake inside TLS proves that (handshake.h), and refuses a
// connection that was redirected to its own maker.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace weir::net {

// Which connections are inside TLS.
enum class TlsMode : unsigned char {
  kOff = 0,
  kControl = 1,  // those that carry no messages of users
  kAll = 2,      // those, and messages between hosts
};
inline constexpr unsigned char kTlsModeCount = 3;
const char* name_of(TlsMode mode);
// "off", "control", "all"; null and "" are kOff. False: the text is none of them.
bool parse_tls_mode(const char* text, TlsMode* mode);
// The mode that WEIR_TLS (null: not set) asks of a transport that can do `most`. False: `reason`
// tells what it cannot do.
bool tls_mode_of(const char* weir_tls, TlsMode most, TlsMode* mode, std::string* reason);

// The verdict on the first bytes of a connection, which should begin with a client's first message.
enum class FirstFlight : unsigned char {
  kMore,       // too few bytes to tell
  kGood,       // a ClientHello, whole in one record of at most kFirstFlightBytesMax bytes
  kOversized,  // a ClientHello that is longer, or in pieces
  kNotTls,
};
inline constexpr size_t kFirstFlightBytesMax = 1024;
// The number of bytes needed for a verdict.
inline constexpr size_t kFirstFlightHeaderBytes = 9;
// Judged before OpenSSL takes memory for what the bytes announce. Pure; thread-safe.
FirstFlight judge_first_flight(const unsigned char* bytes, size_t count);

// The common state of the sessions of one secret and context. Made once and not changed;
// thread-safe.
class TlsContext {
 public:
  // `context` says what the connections are for. Null: `reason` tells why.
  static std::unique_ptr<const TlsContext> make(const void* secret, size_t secret_bytes,
                                                std::string_view context, std::string* reason);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // A new session; null when there is no memory.
  SSL* make_session() const;

  // For OpenSSL's callbacks: the session that represents the key; null when there is no memory.
  SSL_SESSION* make_psk(SSL* ssl) const;
  const std::string& identity() const { return identity_; }

 private:
  TlsContext() = default;

  SSL_CTX* context_ = nullptr;
  unsigned char key_[32] = {};
  std::string identity_;
};

}  // namespace weir::net
