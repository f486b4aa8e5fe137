// SPDX-License-Identifier: Apache-2.0
// Both ends of a link, with the test on the wire between them: frames that were changed, repeated,
// left out or made up end it, and under TLS nothing of them can be read.
#include "core/control/link.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/secret.h"
#include "net/tls.h"

namespace weir::control {
namespace {

net::Identity identity(Rank rank) {
  const Secret secret = secret_from_text("link test");
  net::Identity made;
  made.key = net::key_for(secret.bytes.data(), secret.bytes.size(), "test");
  made.comm_id = 7;
  made.rank = rank;
  made.rank_count = 4;
  return made;
}

net::Handshake::Nonce nonce(unsigned char first) {
  net::Handshake::Nonce made{};
  made[0] = first;
  return made;
}

struct Received {
  Frame::Kind kind;
  std::string payload;
};

// An end of a link, and the test's end of its socket.
struct End {
  std::unique_ptr<Link> link;
  int wire = -1;
  std::vector<Received> frames;

  ~End() { close(wire); }
  int open() {
    link.reset();
    if (wire >= 0) close(wire);
    frames.clear();
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    wire = fds[1];
    return fds[0];
  }
  // What it has sent.
  std::string take() const {
    std::string bytes;
    char room[65536];
    for (ssize_t got; (got = recv(wire, room, sizeof room, 0)) > 0;) {
      bytes.append(room, static_cast<size_t>(got));
    }
    return bytes;
  }
  void give(const std::string& bytes) const {
    ASSERT_EQ(send(wire, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  bool receive() {
    return link->receive([this](const Frame& frame) {
      frames.push_back({frame.kind, std::string(frame.payload)});
      return true;
    });
  }
};

class Links : public testing::Test {
 protected:
  // A new link.
  void make(bool is_local, bool tls = false) {
    net::Stream client(client_.open());
    net::Stream server(server_.open());
    if (tls) {
      std::string reason;
      context_ = net::TlsContext::make("a secret", 8, "link test", &reason);
      ASSERT_NE(context_, nullptr) << reason;
      ASSERT_TRUE(client.secure(*context_, net::Stream::Role::kClient));
      ASSERT_TRUE(server.secure(*context_, net::Stream::Role::kServer));
    }
    client_.link = std::make_unique<Link>(std::move(client), is_local,
                                          net::Handshake(identity(3), nonce(1), 1, {}));
    server_.link =
        std::make_unique<Link>(std::move(server), is_local, net::Handshake(identity(1), nonce(2)));
    for (int i = 0; i < 50 && !(client_.link->is_proven() && server_.link->is_proven()); ++i) {
      for (End* end : {&client_, &server_}) {
        Link& link = *end->link;
        int error_number = 0;
        if (link.is_proven()) continue;
        ASSERT_EQ(link.advance(&error_number), Link::Step::kGoesOn) << error_number;
        if (link.handshake().state() == net::Handshake::State::kChallenged) {
          link.handshake().prove();
        } else if (link.handshake().state() == net::Handshake::State::kClaimed) {
          link.handshake().welcome();
        }
        (void)link.advance(&error_number);
      }
      relay();
    }
    ASSERT_TRUE(client_.link->is_proven() && server_.link->is_proven());
  }
  // Both ways; what has passed is added to seen_.
  void relay() {
    const std::string from_client = client_.take(), from_server = server_.take();
    seen_ += from_client + from_server;
    server_.give(from_client);
    client_.give(from_server);
  }
  // The bytes of one frame from the client, which have not arrived yet.
  std::string frame_of(const std::string& text) {
    client_.link->queue({Frame::Kind::kMessage, 0, 0, 0, text});
    EXPECT_TRUE(client_.link->flush());
    return client_.take();
  }

  std::unique_ptr<const net::TlsContext> context_;
  End client_;
  End server_;
  std::string seen_;
};

TEST_F(Links, FramesOfEveryKindArriveInOrderAndWhole) {
  for (const bool is_local : {true, false}) {
    make(is_local);
    if (HasFatalFailure()) return;
    const std::string key(kDescriptorKeyBytes, 'k');
    const std::vector<Frame> frames = {
        {Frame::Kind::kState, 1, 2, 3, "notice"},
        {Frame::Kind::kMessage, 4, 0, 0, std::string_view()},
        {Frame::Kind::kWantDescriptor, 0, 0, 0, key},
        {Frame::Kind::kBye, 0, 0, 0, std::string_view()},
        {Frame::Kind::kStart, 4, 5, 6, "a message of the start"},
        {Frame::Kind::kReceived, 0, 0, 7, std::string_view()},
    };
    for (const Frame& frame : frames) client_.link->queue(frame);
    ASSERT_TRUE(client_.link->flush());
    // In pieces of any size.
    const std::string bytes = client_.take();
    for (const char byte : bytes) {
      server_.give(std::string(1, byte));
      ASSERT_TRUE(server_.receive());
    }
    ASSERT_EQ(server_.frames.size(), frames.size());
    for (size_t i = 0; i < frames.size(); ++i) {
      EXPECT_EQ(server_.frames[i].kind, frames[i].kind);
      EXPECT_EQ(server_.frames[i].payload, frames[i].payload);
    }
  }
}

TEST_F(Links, ALongMessageArrives) {
  make(false);
  if (HasFatalFailure()) return;
  const std::string text(kMessageBytesMax, 'm');
  client_.link->queue({Frame::Kind::kMessage, 0, 0, 0, text});
  for (int i = 0; i < 100 && server_.frames.empty(); ++i) {
    ASSERT_TRUE(client_.link->flush());
    std::string bytes = client_.take();
    while (!bytes.empty()) {
      server_.give(bytes.substr(0, 10'000));
      bytes.erase(0, 10'000);
      ASSERT_TRUE(server_.receive());
    }
  }
  ASSERT_EQ(server_.frames.size(), 1u);
  EXPECT_EQ(server_.frames[0].payload, text);
}

TEST_F(Links, AFrameThatWasChangedEndsTheLink) {
  const std::string text = "a message";
  const size_t frame_bytes = 16 + text.size() + net::kMacBytes;
  for (size_t at = 0; at < frame_bytes; ++at) {
    make(false);
    if (HasFatalFailure()) return;
    std::string bytes = frame_of(text);
    ASSERT_EQ(bytes.size(), frame_bytes);
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    server_.give(bytes);
    // What claims to be longer is waited for, and does not match when it has come.
    server_.give(std::string(4096, 'x'));
    EXPECT_TRUE(!server_.receive() || server_.frames.empty()) << at;
    EXPECT_TRUE(server_.frames.empty()) << at;
  }
}

TEST_F(Links, AFrameThatIsRepeatedOrLeftOutEndsTheLink) {
  make(false);
  if (HasFatalFailure()) return;
  const std::string first = frame_of("first"), second = frame_of("second"),
                    third = frame_of("third");
  server_.give(first);
  ASSERT_TRUE(server_.receive());
  EXPECT_EQ(server_.frames.size(), 1u);
  server_.give(first);
  EXPECT_FALSE(server_.receive()) << "repeated";
  EXPECT_EQ(server_.frames.size(), 1u);
}

TEST_F(Links, AFrameThatWasLeftOutEndsTheLink) {
  make(false);
  if (HasFatalFailure()) return;
  (void)frame_of("first");
  server_.give(frame_of("second"));
  EXPECT_FALSE(server_.receive());
  EXPECT_TRUE(server_.frames.empty());
}

TEST_F(Links, AFrameIsNotTakenForOneOfTheOtherDirection) {
  make(false);
  if (HasFatalFailure()) return;
  client_.give(frame_of("reflected"));
  EXPECT_FALSE(client_.receive());
  EXPECT_TRUE(client_.frames.empty());
}

std::string header(unsigned char kind, uint32_t payload_bytes) {
  std::string bytes(16, '\0');
  bytes[0] = 'W';
  bytes[1] = 'C';
  bytes[2] = static_cast<char>(kind);
  for (size_t i = 0; i < 4; ++i) bytes[4 + i] = static_cast<char>(payload_bytes >> (8 * i));
  return bytes;
}

TEST_F(Links, OversizedAndUnknownFramesEndTheLinkBeforeTheirPayload) {
  const std::pair<unsigned char, uint32_t> bad[] = {
      {0, 0},
      {6, kStartBytesMax + 1},
      {7, 1},
      {8, 0},
      {255, 0},
      {1, kNoticeBytesMax + 1},
      {2, kMessageBytesMax + 1},
      {2, ~0u},
      {3, 1},
      {4, 15},
      {4, 17},
      {5, 0},
  };
  for (const bool is_local : {true, false}) {
    for (const auto& [kind, bytes] : bad) {
      make(is_local);
      if (HasFatalFailure()) return;
      server_.give(header(kind, bytes));
      EXPECT_FALSE(server_.receive()) << int{kind} << " of " << bytes;
      EXPECT_TRUE(server_.frames.empty());
    }
  }
}

TEST_F(Links, WhatTheTakerDoesNotWantEndsTheLink) {
  make(true);
  if (HasFatalFailure()) return;
  server_.give(frame_of("one") + frame_of("two"));
  int count = 0;
  EXPECT_FALSE(server_.link->receive([&](const Frame&) { return ++count < 1; }));
  EXPECT_EQ(count, 1);
}

TEST_F(Links, UnderTlsNothingThatIsSaidCanBeReadAndWhatWasChangedEndsTheLink) {
  const std::string text = "nobody but the peer may read this";
  make(false);
  if (HasFatalFailure()) return;
  client_.link->queue({Frame::Kind::kMessage, 0, 0, 0, text});
  client_.link->queue({Frame::Kind::kState, 0, 2, 1, text});
  ASSERT_TRUE(client_.link->flush());
  relay();
  EXPECT_NE(seen_.find(text), std::string::npos) << "the test sees what is sent";
  seen_.clear();
  make(false, true);
  if (HasFatalFailure()) return;
  client_.link->queue({Frame::Kind::kMessage, 0, 0, 0, text});
  client_.link->queue({Frame::Kind::kState, 0, 2, 1, text});
  ASSERT_TRUE(client_.link->flush());
  relay();
  ASSERT_TRUE(server_.receive());
  ASSERT_EQ(server_.frames.size(), 2u);
  EXPECT_EQ(server_.frames[0].payload, text);
  EXPECT_EQ(seen_.find(text), std::string::npos);
  EXPECT_EQ(seen_.find("nobody but"), std::string::npos);
  std::string bytes = frame_of(text);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  server_.give(bytes);
  EXPECT_FALSE(server_.receive());
  EXPECT_EQ(server_.frames.size(), 2u);
}

TEST_F(Links, RandomBytesAfterTheProofAreNeverTakenOutsideOfAHost) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    make(false);
    if (HasFatalFailure()) return;
    std::string bytes = header(static_cast<unsigned char>(1 + random() % 5), random() % 64);
    const size_t more = random() % 200;
    for (size_t i = 0; i < more; ++i) bytes += static_cast<char>(random());
    server_.give(bytes);
    (void)server_.receive();
    EXPECT_TRUE(server_.frames.empty());
  }
}

}  // namespace
}  // namespace weir::control
