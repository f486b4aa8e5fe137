// SPDX-License-Identifier: Apache-2.0
// TLS over a socket: what passes between two ends that hold the secret, and that nothing passes
// otherwise. A wire in the test's hands lies between the two ends, which changes, repeats, keeps
// and reflects bytes.
#include "net/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "net/auth.h"

namespace weir::net {
namespace {

using Bytes = std::vector<unsigned char>;
using Failure = Stream::Failure;

std::unique_ptr<const TlsContext> context_of(const std::string& secret,
                                             const std::string& purpose = "test") {
  std::string reason;
  auto made = TlsContext::make(secret.data(), secret.size(), purpose, &reason);
  EXPECT_NE(made, nullptr) << reason;
  return made;
}

void make_pair(int* a, int* b) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  *a = fds[0];
  *b = fds[1];
}

Bytes read_all(int fd) {
  Bytes all;
  unsigned char bytes[4096];
  for (ssize_t got = 0; (got = read(fd, bytes, sizeof bytes)) > 0;) {
    all.insert(all.end(), bytes, bytes + got);
  }
  return all;
}

void write_all(int fd, const Bytes& bytes) {
  if (!bytes.empty()) {
    ASSERT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
}

// A client and a server, and the wire between them.
class Link {
 public:
  Link(const TlsContext* client, const TlsContext* server) {
    int fd = -1;
    make_pair(&fd, &client_side);
    a = Stream(fd);
    make_pair(&fd, &server_side);
    b = Stream(fd);
    EXPECT_TRUE(client == nullptr || a.secure(*client, Stream::Role::kClient));
    EXPECT_TRUE(server == nullptr || b.secure(*server, Stream::Role::kServer));
  }
  ~Link() {
    close(client_side);
    close(server_side);
  }

  // Moves what there is, through the two filters.
  void carry() {
    Bytes bytes = read_all(client_side);
    if (to_server) to_server(&bytes);
    from_client.insert(from_client.end(), bytes.begin(), bytes.end());
    write_all(server_side, bytes);
    bytes = read_all(server_side);
    if (to_client) to_client(&bytes);
    from_server.insert(from_server.end(), bytes.begin(), bytes.end());
    write_all(client_side, bytes);
  }
  // Lets both ends work until both are ready or have failed.
  void shake_hands() {
    unsigned char none[1];
    for (int i = 0; i < 20; ++i) {
      for (Stream* end : {&a, &b}) {
        if (!end->is_ready() && end->failure() == Failure::kNone) {
          const ssize_t got = end->recv(none, sizeof none);
          ASSERT_LT(got, 0);
        }
        carry();
      }
    }
  }
  // What of `bytes` comes out at `to`.
  Bytes pass(Stream* from, Stream* to, const Bytes& bytes) {
    Bytes out;
    size_t sent = 0;
    for (int idle = 0; idle < 10; ++idle) {
      while (sent < bytes.size()) {
        const ssize_t count = from->send(bytes.data() + sent, bytes.size() - sent);
        if (count < 0) break;
        sent += static_cast<size_t>(count);
        idle = 0;
      }
      carry();
      unsigned char part[5000];
      for (ssize_t got = 0; (got = to->recv(part, sizeof part)) > 0; idle = 0) {
        out.insert(out.end(), part, part + got);
      }
    }
    return out;
  }

  Stream a, b;
  int client_side = -1, server_side = -1;
  std::function<void(Bytes*)> to_server, to_client;
  Bytes from_client, from_server;
};

Bytes pattern(size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  Bytes made(bytes);
  for (unsigned char& one : made) one = static_cast<unsigned char>(random());
  return made;
}

bool contains(const Bytes& all, const Bytes& part) {
  return std::search(all.begin(), all.end(), part.begin(), part.end()) != all.end();
}

TEST(Stream, WhatIsSentArrivesAndIsNotToBeReadOnItsWay) {
  for (const bool tls : {false, true}) {
    const auto key = context_of("the secret");
    Link link(tls ? key.get() : nullptr, tls ? key.get() : nullptr);
    if (tls) link.shake_hands();
    ASSERT_TRUE(link.a.is_ready() && link.b.is_ready())
        << link.a.reason() << "; " << link.b.reason();
    for (const size_t bytes : {1u, 77u, 16384u, 100'000u}) {
      const Bytes out = pattern(bytes, 1), back = pattern(bytes, 2);
      EXPECT_EQ(link.pass(&link.a, &link.b, out), out);
      EXPECT_EQ(link.pass(&link.b, &link.a, back), back);
      if (bytes < 16) continue;
      const Bytes part(out.begin(), out.begin() + 16);
      EXPECT_EQ(contains(link.from_client, part), !tls);
    }
  }
}

TEST(Stream, OnlyTheSameSecretAndContextGetThroughTheHandshake) {
  const auto right = context_of("the secret");
  for (const auto& other : {context_of("the Secret"), context_of("the secret", "another")}) {
    for (const bool is_client : {false, true}) {
      Link link(is_client ? other.get() : right.get(), is_client ? right.get() : other.get());
      link.shake_hands();
      EXPECT_FALSE(link.a.is_ready());
      EXPECT_FALSE(link.b.is_ready());
      EXPECT_EQ(link.a.failure(), Failure::kRefused) << link.a.reason();
      EXPECT_EQ(link.b.failure(), Failure::kRefused) << link.b.reason();
    }
  }
}

TEST(Stream, NoTlsAndTlsDoNotMeet) {
  const auto key = context_of("the secret");
  {
    Link link(nullptr, key.get());
    const Bytes plain = {'W', 'E', 'I', 'M', 3, 0, 1, 0, 32, 0, 0, 0, 0, 0, 0, 0};
    EXPECT_TRUE(link.pass(&link.a, &link.b, plain).empty());
    EXPECT_EQ(link.b.failure(), Failure::kNotTls);
    EXPECT_EQ(link.b.reason(), "does not speak TLS");
  }
  {
    Link link(key.get(), nullptr);
    unsigned char none[1];
    EXPECT_LT(link.a.recv(none, 1), 0);
    const Bytes answer(64, 'W');
    EXPECT_EQ(link.b.send(answer.data(), answer.size()), 64);
    link.carry();
    EXPECT_LT(link.a.recv(none, 1), 0);
    EXPECT_EQ(errno, EPROTO);
    EXPECT_EQ(link.a.failure(), Failure::kNotTls) << link.a.reason();
  }
}

TEST(Stream, WhatAClientSaidBeforeOpensNothing) {
  const auto key = context_of("the secret");
  Link first(key.get(), key.get());
  first.shake_hands();
  ASSERT_TRUE(first.b.is_ready());
  const Bytes said = {'s', 'a', 'i', 'd'};
  ASSERT_EQ(first.pass(&first.a, &first.b, said), said);
  Link second(nullptr, key.get());
  EXPECT_TRUE(second.pass(&second.a, &second.b, first.from_client).empty());
  EXPECT_FALSE(second.b.is_ready());
  EXPECT_NE(second.b.failure(), Failure::kNone);
}

TEST(Stream, AClientIsNotItsOwnServer) {
  const auto key = context_of("the secret");
  Link link(key.get(), nullptr);
  unsigned char none[1];
  for (int i = 0; i < 4; ++i) {
    (void)link.a.recv(none, 1);
    write_all(link.client_side, read_all(link.client_side));
  }
  EXPECT_FALSE(link.a.is_ready());
  EXPECT_NE(link.a.failure(), Failure::kNone);
}

TEST(Stream, AFirstFlightThatEndsEarlyOpensNothing) {
  const auto key = context_of("the secret");
  Bytes flight;
  {
    Link link(key.get(), nullptr);
    unsigned char none[1];
    EXPECT_LT(link.a.recv(none, 1), 0);
    flight = read_all(link.client_side);
  }
  ASSERT_GT(flight.size(), 100u);
  EXPECT_LE(flight.size(), kFirstFlightBytesMax + 5);
  for (size_t cut = 0; cut < flight.size(); ++cut) {
    Link link(nullptr, key.get());
    const Bytes part(flight.begin(), flight.begin() + static_cast<std::ptrdiff_t>(cut));
    write_all(link.server_side, part);
    unsigned char none[1];
    ASSERT_LT(link.b.recv(none, 1), 0) << cut;
    ASSERT_EQ(errno, EAGAIN) << cut;
    shutdown(link.server_side, SHUT_WR);
    ASSERT_LE(link.b.recv(none, 1), 0) << cut;
    EXPECT_EQ(errno, ECONNRESET) << cut;
    EXPECT_FALSE(link.b.is_ready());
    EXPECT_TRUE(read_all(link.server_side).size() < 64) << "an alert at most";
  }
}

TEST(Stream, AnOversizedFirstFlightIsRefusedByItsHeader) {
  const auto key = context_of("the secret");
  const auto refused = [&](const Bytes& bytes) {
    Link link(nullptr, key.get());
    write_all(link.server_side, bytes);
    unsigned char none[1];
    EXPECT_LT(link.b.recv(none, 1), 0);
    return link.b.failure();
  };
  EXPECT_EQ(refused({22, 3, 1, 0x40, 0}), Failure::kOversized) << "a record of 16 KiB";
  EXPECT_EQ(refused({22, 3, 1, 4, 1, 1, 0, 3, 0xfd}), Failure::kOversized);
  EXPECT_EQ(refused({22, 3, 1, 0, 200, 1, 2, 0, 0}), Failure::kOversized) << "a message of 128 KiB";
  EXPECT_EQ(refused({22, 3, 1, 0, 200, 2, 0, 0, 196}), Failure::kNotTls) << "a ServerHello";
  EXPECT_EQ(refused({23, 3, 3, 0, 200}), Failure::kNotTls) << "data";
  EXPECT_EQ(refused({'G', 'E', 'T', ' '}), Failure::kNotTls);
  // A server that never comes to its end.
  Link link(key.get(), nullptr);
  unsigned char none[1];
  EXPECT_LT(link.a.recv(none, 1), 0);
  (void)read_all(link.client_side);
  Bytes endless = {22, 3, 3, 0x20, 0};
  endless.resize(20'000, 0);
  write_all(link.client_side, endless);
  for (int i = 0; i < 4; ++i) (void)link.a.recv(none, 1);
  EXPECT_NE(link.a.failure(), Failure::kNone);
  EXPECT_GE(read_all(link.a.fd()).size(), 20'000 - Stream::kHandshakeBytesMax)
      << "no more is read than an honest end sends";
}

TEST(FirstFlight, WhatItsBeginningRefusesTheRestDoesNotMend) {
  std::mt19937 random(5);
  const Bytes good = {22, 3, 1, 1, 0, 1, 0, 0, 252};
  EXPECT_EQ(judge_first_flight(good.data(), good.size()), FirstFlight::kGood);
  int good_count = 0;
  for (int round = 0; round < 20'000; ++round) {
    Bytes bytes = good;
    bytes[random() % bytes.size()] = static_cast<unsigned char>(random());
    bytes[random() % bytes.size()] = static_cast<unsigned char>(random());
    const FirstFlight whole = judge_first_flight(bytes.data(), bytes.size());
    good_count += whole == FirstFlight::kGood ? 1 : 0;
    ASSERT_NE(whole, FirstFlight::kMore);
    for (size_t cut = 0; cut < bytes.size(); ++cut) {
      const FirstFlight part = judge_first_flight(bytes.data(), cut);
      ASSERT_TRUE(part == FirstFlight::kMore || whole != FirstFlight::kGood);
      ASSERT_NE(part, FirstFlight::kGood);
    }
  }
  EXPECT_GT(good_count, 0);
}

TEST(Stream, ChangedRepeatedAndLostRecordsEndTheStream) {
  const auto key = context_of("the secret");
  enum Wrong { kChanged, kRepeated, kLost, kSwapped };
  for (const Wrong wrong : {kChanged, kRepeated, kLost, kSwapped}) {
    Link link(key.get(), key.get());
    link.shake_hands();
    ASSERT_TRUE(link.a.is_ready() && link.b.is_ready())
        << link.a.reason() << "; " << link.b.reason();
    const Bytes first = pattern(100, 1), second = pattern(100, 2);
    Bytes records[2];
    for (const Bytes* one : {&first, &second}) {
      ASSERT_EQ(link.a.send(one->data(), one->size()), 100);
      records[one == &second] = read_all(link.client_side);
    }
    if (wrong == kChanged) records[0][50] ^= 1;
    if (wrong == kRepeated) records[1] = records[0];
    if (wrong == kSwapped) std::swap(records[0], records[1]);
    if (wrong != kLost) write_all(link.server_side, records[0]);
    write_all(link.server_side, records[1]);
    Bytes got(200);
    ssize_t count = link.b.recv(got.data(), got.size());
    if (wrong == kRepeated) {
      EXPECT_EQ(count, 100);
      count = link.b.recv(got.data(), got.size());
    }
    EXPECT_EQ(count, -1) << wrong;
    EXPECT_EQ(errno, EPROTO) << wrong;
    EXPECT_EQ(link.b.failure(), Failure::kDamaged) << wrong << " " << link.b.reason();
    EXPECT_EQ(link.b.recv(got.data(), got.size()), -1) << "for good";
  }
}

TEST(Stream, AnEndThatWasNotSaidIsToldApartFromOneThatWas) {
  const auto key = context_of("the secret");
  for (const bool said : {false, true}) {
    Link link(key.get(), key.get());
    link.shake_hands();
    if (said) link.a.shut();
    link.carry();
    shutdown(link.server_side, SHUT_WR);
    unsigned char none[1];
    errno = 0;
    EXPECT_EQ(link.b.recv(none, 1), said ? 0 : -1);
    EXPECT_EQ(errno == ECONNRESET, !said);
    if (said) continue;
    // And it stays what it was.
    EXPECT_EQ(link.b.recv(none, 1), -1);
    EXPECT_EQ(errno, ECONNRESET);
  }
}

TEST(Stream, WhatDoesNotFitIsSentLater) {
  const auto key = context_of("the secret");
  Link link(key.get(), key.get());
  link.shake_hands();
  const Bytes out = pattern(4'000'000, 9);
  ASSERT_LT(link.a.send(out.data(), out.size()), static_cast<ssize_t>(out.size()));
  Link other(key.get(), key.get());
  other.shake_hands();
  EXPECT_EQ(other.pass(&other.a, &other.b, out), out);
  EXPECT_EQ(other.a.events(true), POLLIN | POLLOUT);
  EXPECT_EQ(other.a.events(false), POLLIN);
}

TEST(Stream, PiecesAreSentAndFilledInOrderAndShareRecords) {
  const auto key = context_of("the secret");
  std::mt19937 random(4);
  for (const bool tls : {false, true}) {
    Link link(tls ? key.get() : nullptr, tls ? key.get() : nullptr);
    if (tls) link.shake_hands();
    const size_t before = link.from_client.size();
    Bytes out = pattern(300'000, 6), in(out.size());
    size_t sent = 0, got = 0;
    const auto cut = [&](Bytes* bytes, size_t from, size_t longest) {
      std::vector<iovec> pieces;
      for (size_t at = from; at < bytes->size() && pieces.size() < 8;) {
        const size_t part = std::min<size_t>(random() % longest, bytes->size() - at);
        pieces.push_back({bytes->data() + at, part});
        at += part;
      }
      return pieces;
    };
    const auto all = [&](std::vector<iovec> pieces) {
      size_t bytes = sent;
      for (const iovec& piece : pieces) bytes += piece.iov_len;
      pieces.push_back({out.data() + bytes, out.size() - bytes});
      return pieces;
    };
    for (int idle = 0; got < out.size() && idle < 1000; ++idle) {
      // The same again after a pause, in other pieces: what was begun is finished first.
      const auto pieces = all(cut(&out, sent, idle % 2 == 0 ? 100 : 60'000));
      const ssize_t count = link.a.send(pieces.data(), pieces.size());
      ASSERT_TRUE(count >= 0 || errno == EAGAIN) << errno;
      if (count > 0) sent += static_cast<size_t>(count);
      link.carry();
      const auto rooms = cut(&in, got, 50'000);
      const ssize_t came = link.b.recv(rooms.data(), rooms.size());
      ASSERT_TRUE(came > 0 || (came < 0 && errno == EAGAIN) || rooms[0].iov_len == 0) << errno;
      if (came > 0) got += static_cast<size_t>(came);
    }
    EXPECT_EQ(in, out);
    if (!tls) continue;
    const iovec header_and_body[2] = {{out.data(), 16}, {out.data() + 16, 1000}};
    const size_t records = link.from_client.size();
    ASSERT_EQ(link.a.send(header_and_body, 2), 1016);
    link.carry();
    EXPECT_EQ(link.from_client.size() - records, 1016u + 22) << "one record";
    EXPECT_GT(records, before);
  }
}

TEST(Stream, KeysAreRenewedOnTheWay) {
  const auto key = context_of("the secret");
  size_t carried[2];
  for (const bool renews : {false, true}) {
    Link link(key.get(), key.get());
    link.shake_hands();
    if (renews) link.a.set_rekey_bytes(1000);
    for (unsigned i = 0; i < 20; ++i) {
      const Bytes out = pattern(900, i);
      ASSERT_EQ(link.pass(&link.a, &link.b, out), out);
      ASSERT_EQ(link.pass(&link.b, &link.a, out), out);
    }
    carried[renews] = link.from_client.size();
  }
  EXPECT_GT(carried[1], carried[0]) << "each renewal is a record";
}

// A server or client that OpenSSL makes without us.
class Foreign {
 public:
  Foreign(int fd, bool is_server, int version) : context_(SSL_CTX_new(TLS_method())) {
    SSL_CTX_set_max_proto_version(context_, version);
    SSL_CTX_set_verify(context_, SSL_VERIFY_NONE, nullptr);
    if (is_server) {
      EVP_PKEY* pair = EVP_EC_gen("P-256");
      X509* certificate = X509_new();
      ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
      X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
      X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
      X509_set_pubkey(certificate, pair);
      X509_sign(certificate, pair, EVP_sha256());
      EXPECT_EQ(SSL_CTX_use_certificate(context_, certificate), 1);
      EXPECT_EQ(SSL_CTX_use_PrivateKey(context_, pair), 1);
      X509_free(certificate);
      EVP_PKEY_free(pair);
    }
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, fd);
    if (is_server) {
      SSL_set_accept_state(ssl_);
    } else {
      SSL_set_connect_state(ssl_);
    }
  }
  ~Foreign() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  SSL_CTX* context() { return context_; }
  SSL* ssl() { return ssl_; }
  bool step() { return SSL_do_handshake(ssl_) == 1; }

 private:
  SSL_CTX* context_;
  SSL* ssl_ = nullptr;
};

TEST(Stream, ACertificateOpensNothing) {
  const auto key = context_of("the secret");
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    Link link(key.get(), key.get());
    Foreign server(link.client_side, true, version);
    Foreign client(link.server_side, false, version);
    unsigned char none[1];
    for (int i = 0; i < 6; ++i) {
      (void)link.a.recv(none, 1);
      EXPECT_FALSE(server.step() && link.a.is_ready());
      (void)client.step();
      (void)link.b.recv(none, 1);
    }
    EXPECT_FALSE(link.a.is_ready());
    EXPECT_FALSE(link.b.is_ready());
    EXPECT_EQ(link.a.failure(), Failure::kRefused) << link.a.reason();
    EXPECT_NE(link.b.failure(), Failure::kNone) << link.b.reason();
  }
}

// RFC 5869, of one block.
Mac hkdf(const std::string& secret, const std::string& salt, const std::string& info) {
  const Mac extracted = hmac_sha256(salt.data(), salt.size(), secret.data(), secret.size());
  const std::string block = info + '\1';
  return hmac_sha256(extracted.data(), extracted.size(), block.data(), block.size());
}

Mac foreign_key;

int find_foreign_key(SSL* ssl, const unsigned char* identity, size_t bytes, SSL_SESSION** session) {
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(identity), bytes), "weir purpose 7");
  *session = SSL_SESSION_new();
  const unsigned char suite[2] = {0x13, 0x01};
  SSL_SESSION_set1_master_key(*session, foreign_key.data(), foreign_key.size());
  SSL_SESSION_set_cipher(*session, SSL_CIPHER_find(ssl, suite));
  SSL_SESSION_set_protocol_version(*session, TLS1_3_VERSION);
  return 1;
}

TEST(Stream, TheKeyIsHkdfOfTheSecretAndTheExchangeIsDiffieHellman) {
  const auto key = context_of("the secret", "purpose 7");
  for (const char* info : {"purpose 7", "purpose 8"}) {
    foreign_key = hkdf("the secret", "weir tls 1.3", info);
    Link link(key.get(), nullptr);
    Foreign server(link.client_side, true, TLS1_3_VERSION);
    SSL_set_psk_find_session_callback(server.ssl(), find_foreign_key);
    unsigned char none[1];
    for (int i = 0; i < 4; ++i) {
      (void)link.a.recv(none, 1);
      (void)server.step();
    }
    const bool right = std::strcmp(info, "purpose 7") == 0;
    EXPECT_EQ(link.a.is_ready(), right) << link.a.reason();
    if (!right) continue;
    EXPECT_STREQ(SSL_get_cipher_name(server.ssl()), "TLS_AES_128_GCM_SHA256");
    EXPECT_GT(SSL_get_negotiated_group(server.ssl()), 0) << "psk_dhe_ke";
  }
}

TEST(TlsMode, HasThreeNamesAndNoOthers) {
  TlsMode mode = TlsMode::kAll;
  EXPECT_TRUE(parse_tls_mode(nullptr, &mode));
  EXPECT_EQ(mode, TlsMode::kOff);
  for (const TlsMode one : {TlsMode::kOff, TlsMode::kControl, TlsMode::kAll}) {
    EXPECT_TRUE(parse_tls_mode(name_of(one), &mode));
    EXPECT_EQ(mode, one);
  }
  for (const char* text : {"on", "1", "Control", "all "}) EXPECT_FALSE(parse_tls_mode(text, &mode));
}

TEST(TlsMode, WhatATransportCannotDoIsRefusedAndNamed) {
  TlsMode mode = TlsMode::kOff;
  std::string reason;
  for (const TlsMode most : {TlsMode::kOff, TlsMode::kControl, TlsMode::kAll}) {
    for (const TlsMode asked : {TlsMode::kOff, TlsMode::kControl, TlsMode::kAll}) {
      EXPECT_EQ(tls_mode_of(name_of(asked), most, &mode, &reason), asked <= most);
      EXPECT_TRUE(asked <= most || reason.find(name_of(asked)) != std::string::npos) << reason;
    }
  }
  EXPECT_FALSE(tls_mode_of("on", TlsMode::kAll, &mode, &reason));
  EXPECT_EQ(reason, "WEIR_TLS=on must be off, control or all");
}

}  // namespace
}  // namespace weir::net
