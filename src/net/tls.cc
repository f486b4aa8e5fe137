// SPDX-License-Identifier: Apache-2.0
#include "net/tls.h"

#include <openssl/crypto.h>
#include <openssl/err.h>

#include <cstring>

#include "net/hkdf.h"

namespace weir::net {
namespace {

constexpr char kSalt[] = "weir tls 1.3";
// TLS_AES_128_GCM_SHA256, as encoded on the network.
constexpr unsigned char kSuite[2] = {0x13, 0x01};
constexpr const char* kSuiteName = "TLS_AES_128_GCM_SHA256";

std::string last_error(const char* what) {
  char text[256] = "";
  ERR_error_string_n(ERR_get_error(), text, sizeof text);
  return std::string(what) + ": " + text;
}

const TlsContext* context_of(SSL* ssl) {
  return static_cast<const TlsContext*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
}

// The client's end: which key it offers.
int use_psk(SSL* ssl, const EVP_MD* digest, const unsigned char** identity, size_t* identity_bytes,
            SSL_SESSION** session) {
  *session = nullptr;
  *identity = nullptr;
  *identity_bytes = 0;
  // A digest is given when the server has chosen a suite already.
  if (digest != nullptr && EVP_MD_get_type(digest) != NID_sha256) return 1;
  const TlsContext* context = context_of(ssl);
  *session = context->make_psk(ssl);
  if (*session == nullptr) return 0;
  *identity = reinterpret_cast<const unsigned char*>(context->identity().data());
  *identity_bytes = context->identity().size();
  return 1;
}

// The server's end: whether it has the key that is offered.
int find_psk(SSL* ssl, const unsigned char* identity, size_t identity_bytes,
             SSL_SESSION** session) {
  const TlsContext* context = context_of(ssl);
  *session = nullptr;
  const std::string& own = context->identity();
  if (identity_bytes != own.size() || std::memcmp(identity, own.data(), own.size()) != 0) return 1;
  *session = context->make_psk(ssl);
  return *session != nullptr ? 1 : 0;
}

}  // namespace

const char* name_of(TlsMode mode) {
  switch (mode) {
    case TlsMode::kOff:
      return "off";
    case TlsMode::kControl:
      return "control";
    case TlsMode::kAll:
      return "all";
  }
  return "unknown";
}

bool parse_tls_mode(const char* text, TlsMode* mode) {
  *mode = TlsMode::kOff;
  if (text == nullptr || *text == 0) return true;
  for (const TlsMode one : {TlsMode::kOff, TlsMode::kControl, TlsMode::kAll}) {
    if (std::strcmp(text, name_of(one)) != 0) continue;
    *mode = one;
    return true;
  }
  return false;
}

bool tls_mode_of(const char* weir_tls, TlsMode most, TlsMode* mode, std::string* reason) {
  if (!parse_tls_mode(weir_tls, mode)) {
    *reason = std::string("WEIR_TLS=") + weir_tls + " must be off, control or all";
    return false;
  }
  if (*mode <= most) return true;
  *reason = std::string("WEIR_TLS=") + name_of(*mode) +
            (most == TlsMode::kOff
                 ? " asks for TLS, which this transport does not support"
                 : " asks for encrypted messages, which this transport does not support; with "
                   "WEIR_TLS=control its control connections are inside TLS");
  return false;
}

FirstFlight judge_first_flight(const unsigned char* bytes, size_t count) {
  // A record (type, version, length), and in it a message (type, length).
  constexpr unsigned char kHandshakeRecord = 22;
  constexpr unsigned char kClientHello = 1;
  if (count > 0 && bytes[0] != kHandshakeRecord) return FirstFlight::kNotTls;
  if (count > 1 && bytes[1] != 3) return FirstFlight::kNotTls;
  if (count > 5 && bytes[5] != kClientHello) return FirstFlight::kNotTls;
  if (count < 5) return FirstFlight::kMore;
  const size_t record_bytes = size_t{bytes[3]} << 8 | bytes[4];
  if (record_bytes > kFirstFlightBytesMax) return FirstFlight::kOversized;
  if (count < kFirstFlightHeaderBytes) return FirstFlight::kMore;
  const size_t message_bytes = size_t{bytes[6]} << 16 | size_t{bytes[7]} << 8 | bytes[8];
  return message_bytes + 4 == record_bytes ? FirstFlight::kGood : FirstFlight::kOversized;
}

std::unique_ptr<const TlsContext> TlsContext::make(const void* secret, size_t secret_bytes,
                                                   std::string_view context, std::string* reason) {
  std::unique_ptr<TlsContext> made(new TlsContext());
  made->identity_ = "weir " + std::string(context);
  ERR_clear_error();
  if (!hkdf_sha256(secret, secret_bytes, kSalt, context, made->key_, sizeof made->key_)) {
    *reason = last_error("OpenSSL cannot derive the key for TLS (HKDF)");
    return nullptr;
  }
  SSL_CTX* ssl = SSL_CTX_new(TLS_method());
  made->context_ = ssl;
  if (ssl == nullptr || SSL_CTX_set_min_proto_version(ssl, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(ssl, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(ssl, kSuiteName) != 1 ||
      SSL_CTX_set1_groups_list(ssl, "X25519:P-256") != 1 || SSL_CTX_set_num_tickets(ssl, 0) != 1 ||
      SSL_CTX_set_session_id_context(ssl, kSuite, sizeof kSuite) != 1) {
    *reason = last_error("OpenSSL cannot do TLS 1.3");
    return nullptr;
  }
  SSL_CTX_set_options(ssl, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
  SSL_CTX_clear_options(ssl, SSL_OP_ENABLE_MIDDLEBOX_COMPAT | SSL_OP_ALLOW_NO_DHE_KEX);
  SSL_CTX_set_mode(ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
  // No certificate is accepted: without the key there is no handshake.
  SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_app_data(ssl, made.get());
  SSL_CTX_set_psk_use_session_callback(ssl, use_psk);
  SSL_CTX_set_psk_find_session_callback(ssl, find_psk);
  return made;
}

TlsContext::~TlsContext() {
  SSL_CTX_free(context_);
  OPENSSL_cleanse(key_, sizeof key_);
}

SSL* TlsContext::make_session() const { return SSL_new(context_); }

SSL_SESSION* TlsContext::make_psk(SSL* ssl) const {
  SSL_SESSION* session = SSL_SESSION_new();
  const SSL_CIPHER* suite = SSL_CIPHER_find(ssl, kSuite);
  if (session != nullptr && suite != nullptr &&
      SSL_SESSION_set1_master_key(session, key_, sizeof key_) == 1 &&
      SSL_SESSION_set_cipher(session, suite) == 1 &&
      SSL_SESSION_set1_id_context(session, kSuite, sizeof kSuite) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  SSL_SESSION_free(session);
  return nullptr;
}

}  // namespace weir::net
