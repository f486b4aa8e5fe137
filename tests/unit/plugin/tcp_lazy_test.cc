// SPDX-License-Identifier: Apache-2.0
// Connections of lanes that are made when the first operation needs them: what holds before they
// are there, while they are being made and afterwards.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/plugin/registry.h"
#include "net/handshake.h"
#include "net/ip_socket.h"
#include "plugins/tcp/address.h"
#include "plugins/tcp/wire.h"
#include "unit/plugin/pair.h"

namespace weir::plugins::tcp {
namespace {

constexpr uint32_t kCredit = 8;
constexpr size_t kLarge = 100'000;
constexpr uint64_t kPatienceNs = 60'000'000'000;

const weir_transport_functions_t* tcp() { return plugin::find_transport("tcp").value(); }

uint64_t seed() {
  const char* text = getenv("WEIR_TEST_SEED");
  const uint64_t value = text != nullptr ? strtoull(text, nullptr, 0) : std::random_device{}();
  printf("WEIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(value));
  return value;
}

std::vector<unsigned char> message(size_t bytes, uint64_t number) {
  std::vector<unsigned char> data(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<unsigned char>(number * 31 + i * 7 + i / 251);
  }
  return data;
}

class TcpLazy : public testing::Test {
 protected:
  void open(const char* tls = "off", const char* rails = "1") {
    for (uint32_t i = 0; i < 2; ++i) {
      pair_.end[i].settings["WEIR_TCP_LAZY"] = "1";
      pair_.end[i].settings["WEIR_TCP_CONNECTIONS"] = rails;
      pair_.end[i].settings["WEIR_TLS"] = tls;
    }
    pair_.join();
  }
  weir_result_t send(uint32_t from, uint32_t lane, const void* data, uint64_t bytes,
                     weir_transport_op_t* op) {
    return pair_.f.send(pair_.end[from].instance, 1 - from, lane, data, bytes, op);
  }
  weir_result_t recv(uint32_t to, uint32_t lane, void* data, uint64_t bytes,
                     weir_transport_op_t* op) {
    return pair_.f.recv(pair_.end[to].instance, 1 - to, lane, data, bytes, op);
  }
  // Only the rank of the operation makes calls.
  weir_result_t finish_alone(uint32_t rank, weir_transport_op_t* op, weir_result_t posted) {
    for (const uint64_t end = monotonic_ns() + kPatienceNs;
         posted == WEIR_IN_PROGRESS && monotonic_ns() < end;) {
      posted = pair_.f.test(pair_.end[rank].instance, op);
    }
    return posted;
  }
  weir_result_t finish(uint32_t rank, weir_transport_op_t* op, weir_result_t posted) {
    for (const uint64_t end = monotonic_ns() + kPatienceNs;
         posted == WEIR_IN_PROGRESS && monotonic_ns() < end;) {
      for (Pair::End& end_of : pair_.end) (void)pair_.f.progress(end_of.instance);
      posted = pair_.f.test(pair_.end[rank].instance, op);
    }
    return posted;
  }
  void carry(uint32_t from, uint32_t lane, size_t bytes) {
    const std::vector<unsigned char> out = message(bytes, ++carried_);
    std::vector<unsigned char> in(bytes);
    weir_transport_op_t send_op{}, recv_op{};
    const weir_result_t sent = send(from, lane, out.data(), bytes, &send_op);
    const weir_result_t received = recv(1 - from, lane, in.data(), bytes, &recv_op);
    ASSERT_EQ(finish(1 - from, &recv_op, received), WEIR_OK) << pair_.end[1 - from].error;
    ASSERT_EQ(finish(from, &send_op, sent), WEIR_OK) << pair_.end[from].error;
    EXPECT_TRUE(in == out);
  }
  std::string describe(uint32_t rank) {
    char text[512];
    pair_.f.describe_peer(pair_.end[rank].instance, 1 - rank, text, sizeof text);
    return text;
  }

  Pair pair_{tcp()};
  uint64_t carried_ = 0;
};

TEST_F(TcpLazy, NoLaneHasAConnectionBeforeItIsUsedAndOnlyThatOneAfterwards) {
  open();
  EXPECT_NE(describe(0).find("to be connected at the first operation"), std::string::npos)
      << describe(0);
  carry(0, 3, kLarge);
  carry(1, 3, kLarge);
  for (const uint32_t rank : {0u, 1u}) {
    EXPECT_NE(describe(rank).find("1 of 6 lanes"), std::string::npos) << describe(rank);
  }
}

constexpr uint64_t kSettledNs = 60'000'000;

int count_sockets() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string what = std::filesystem::read_symlink(entry.path(), gone).string();
    count += what.rfind("socket:", 0) == 0 ? 1 : 0;
  }
  return count;
}

TEST_F(TcpLazy, ThereIsNoConnectionBeforeThePairIsUsed) {
  for (const char* tls : {"off", "control", "all"}) {
    for (const int rails : {1, 3}) {
      for (const uint32_t from : {0u, 1u}) {
        SCOPED_TRACE(std::string(tls) + ", rails: " + std::to_string(rails));
        open(tls, std::to_string(rails).c_str());
        const int before = count_sockets();
        for (const uint32_t rank : {0u, 1u}) {
          EXPECT_NE(describe(rank).find("to be connected at the first operation"),
                    std::string::npos)
              << describe(rank);
        }
        carry(from, 2, 1000);
        // Both ends are here. A lane has one connection, a rail two.
        const int made = 2 * (rails == 1 ? 1 : 2 * rails);
        // While they are made their number goes up and down.
        const uint64_t begin = monotonic_ns();
        for (uint64_t since = begin; monotonic_ns() - since < kSettledNs;) {
          for (Pair::End& one : pair_.end) (void)pair_.f.progress(one.instance);
          const bool waits = monotonic_ns() - begin < kPatienceNs;
          if (waits && count_sockets() != before + made) since = monotonic_ns();
        }
        EXPECT_EQ(count_sockets(), before + made);
        carry(1 - from, 2, 4'000'000);
        EXPECT_EQ(count_sockets(), before + made);
        pair_.close();
      }
    }
  }
}

TEST_F(TcpLazy, SendsWithinCreditCompleteWhileTheReceiverMakesNoCalls) {
  for (const uint32_t way : {0u, 1u, 2u, 3u}) {
    const uint32_t from = way % 2;
    open("off", way < 2 ? "1" : "3");
    uint64_t number = 0;
    for (int round = 0; round < 12; ++round) {
      for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
        for (uint32_t k = 0; k < kCredit; ++k) {
          const std::vector<unsigned char> out = message(1024, number + lane * kCredit + k);
          weir_transport_op_t op{};
          ASSERT_EQ(finish_alone(from, &op, send(from, lane, out.data(), out.size(), &op)), WEIR_OK)
              << "round " << round << ", lane " << lane << ", message " << k;
        }
      }
      // All of it is there: the sender makes no calls any more.
      for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
        for (uint32_t k = 0; k < kCredit; ++k) {
          std::vector<unsigned char> in(1024);
          weir_transport_op_t op{};
          ASSERT_EQ(finish_alone(1 - from, &op, recv(1 - from, lane, in.data(), in.size(), &op)),
                    WEIR_OK)
              << "round " << round << ", lane " << lane << ", message " << k;
          EXPECT_TRUE(in == message(1024, number + lane * kCredit + k));
        }
      }
      number += kLaneCount * kCredit;
    }
    pair_.close();
  }
}

TEST_F(TcpLazy, WhateverIsPostedWheneverArrivesOnceAndInOrder) {
  std::mt19937_64 random(seed());
  constexpr size_t kSizes[] = {0, 1, 64, 1000, 1024, 1025, 5000, 70'000, 1'000'000};
  for (const auto& [tls, rails] : std::initializer_list<std::pair<const char*, const char*>>{
           {"off", "1"}, {"control", "1"}, {"all", "1"}, {"off", "3"}, {"all", "3"}}) {
    SCOPED_TRACE(std::string(tls) + ", rails: " + rails);
    open(tls, rails);
    struct Message {
      std::vector<unsigned char> out, in;
      weir_transport_op_t send_op{}, recv_op{};
      weir_result_t sent = WEIR_ERROR_INTERNAL, received = WEIR_ERROR_INTERNAL;
    };
    // By sender and lane.
    std::vector<std::unique_ptr<Message>> all[2][kLaneCount];
    size_t sends[2][kLaneCount] = {}, recvs[2][kLaneCount] = {};
    for (auto& of_rank : all) {
      for (auto& of_lane : of_rank) {
        const size_t size_count = 1 + random() % std::size(kSizes);
        for (uint64_t k = 0; k < 40; ++k) {
          const size_t bytes = kSizes[random() % size_count];
          of_lane.push_back(std::make_unique<Message>());
          of_lane.back()->out = message(bytes, k);
          of_lane.back()->in.resize(bytes);
        }
      }
    }
    const uint64_t end = monotonic_ns() + kPatienceNs;
    for (bool done = false; !done;) {
      ASSERT_LT(monotonic_ns(), end) << "a message does not arrive";
      const auto from = static_cast<uint32_t>(random() % 2);
      const auto lane = static_cast<uint32_t>(random() % kLaneCount);
      auto& messages = all[from][lane];
      if (random() % 2 == 0 && sends[from][lane] < messages.size()) {
        Message& m = *messages[sends[from][lane]++];
        m.sent = send(from, lane, m.out.data(), m.out.size(), &m.send_op);
      }
      if (random() % 2 == 0 && recvs[from][lane] < messages.size()) {
        Message& m = *messages[recvs[from][lane]++];
        m.received = recv(1 - from, lane, m.in.data(), m.in.size(), &m.recv_op);
      }
      const auto moved = static_cast<uint32_t>(random() % 2);
      if (random() % 3 == 0) (void)pair_.f.progress(pair_.end[moved].instance);
      if (random() % 16 != 0) continue;
      done = true;
      for (uint32_t rank = 0; rank < 2; ++rank) {
        for (uint32_t i = 0; i < kLaneCount; ++i) {
          done = done && sends[rank][i] == 40 && recvs[rank][i] == 40;
          for (auto& m : all[rank][i]) {
            if (m->sent == WEIR_IN_PROGRESS) {
              m->sent = pair_.f.test(pair_.end[rank].instance, &m->send_op);
            }
            if (m->received == WEIR_IN_PROGRESS) {
              m->received = pair_.f.test(pair_.end[1 - rank].instance, &m->recv_op);
            }
            done = done && m->sent == WEIR_OK && m->received == WEIR_OK;
          }
        }
      }
    }
    for (auto& of_rank : all) {
      for (auto& of_lane : of_rank) {
        for (size_t k = 0; k < of_lane.size(); ++k) {
          ASSERT_TRUE(of_lane[k]->in == of_lane[k]->out) << "message " << k;
        }
      }
    }
    pair_.close();
  }
}

TEST_F(TcpLazy, AMessageOfAnotherLengthIsTold) {
  for (const size_t bytes : {size_t{24}, kLarge}) {
    for (const uint32_t from : {0u, 1u}) {
      open();
      const std::vector<unsigned char> out = message(bytes, 1);
      std::vector<unsigned char> in(bytes + 8, 0x55);
      weir_transport_op_t send_op{}, recv_op{};
      (void)send(from, 2, out.data(), bytes, &send_op);
      const weir_result_t received = recv(1 - from, 2, in.data(), bytes - 8, &recv_op);
      EXPECT_EQ(finish(1 - from, &recv_op, received), WEIR_ERROR_MISMATCH);
      const std::string& error = pair_.end[1 - from].error;
      EXPECT_NE(error.find("rank " + std::to_string(from) + " sent a message of " +
                           std::to_string(bytes) + " bytes"),
                std::string::npos)
          << error;
      for (size_t i = bytes - 8; i < in.size(); ++i) ASSERT_EQ(in[i], 0x55);
      pair_.close();
    }
  }
}

TEST_F(TcpLazy, WhatWasCompleteWhenItsSenderLeftIsStillReceived) {
  for (const uint32_t from : {0u, 1u}) {
    open();
    carry(from, 0, kLarge);
    std::vector<std::vector<unsigned char>> out;
    for (uint32_t k = 0; k < kCredit; ++k) {
      out.push_back(message(500 + k, k));
      for (const uint32_t lane : {0u, 1u}) {
        weir_transport_op_t op{};
        ASSERT_EQ(finish_alone(from, &op, send(from, lane, out[k].data(), out[k].size(), &op)),
                  WEIR_OK);
      }
    }
    pair_.f.close(pair_.end[from].instance);
    pair_.end[from].instance = nullptr;
    for (const uint32_t lane : {0u, 1u}) {
      for (uint32_t k = 0; k < kCredit; ++k) {
        std::vector<unsigned char> in(out[k].size());
        weir_transport_op_t op{};
        EXPECT_EQ(finish_alone(1 - from, &op, recv(1 - from, lane, in.data(), in.size(), &op)),
                  WEIR_OK)
            << pair_.end[1 - from].error;
        EXPECT_TRUE(in == out[k]);
      }
      uint64_t more = 0;
      weir_transport_op_t op{};
      EXPECT_EQ(finish_alone(1 - from, &op, recv(1 - from, lane, &more, sizeof more, &op)),
                WEIR_ERROR_PEER_LOST);
      const std::string& error = pair_.end[1 - from].error;
      EXPECT_NE(error.find("rank " + std::to_string(from) + " has closed the communicator"),
                std::string::npos)
          << error;
      EXPECT_EQ(pair_.f.peer_alive(pair_.end[1 - from].instance, from), WEIR_OK);
    }
    pair_.close();
  }
}

// The process of a rank in its own: it joins, does `act`, and is killed.
class Victim {
 public:
  Victim(Pair* pair, uint32_t rank, const std::function<void(Pair*)>& act) : pair_(pair) {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds_), 0);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (pair->open(rank) == WEIR_OK && exchange(fds_[1], rank) &&
          pair->connect(rank, 20'000) == WEIR_OK) {
        act(pair);
        (void)::send(fds_[1], "!", 1, 0);
        raise(SIGSTOP);
      }
      _exit(1);
    }
    EXPECT_EQ(pair->open(1 - rank), WEIR_OK);
    EXPECT_TRUE(exchange(fds_[0], 1 - rank));
    EXPECT_EQ(pair->connect(1 - rank, 20'000), WEIR_OK) << pair->end[1 - rank].error;
    char done = 0;
    EXPECT_EQ(::recv(fds_[0], &done, 1, 0), 1);
  }
  ~Victim() {
    kill();
    close(fds_[0]);
    close(fds_[1]);
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    EXPECT_EQ(waitpid(pid_, nullptr, 0), pid_);
    pid_ = 0;
  }

 private:
  bool exchange(int fd, uint32_t own) {
    Pair::End& mine = pair_->end[own];
    Pair::End& other = pair_->end[1 - own];
    if (::send(fd, mine.address, mine.address_bytes, 0) < 0) return false;
    const ssize_t got = ::recv(fd, other.address, sizeof other.address, 0);
    other.address_bytes = got > 0 ? static_cast<size_t>(got) : 0;
    char network[control::kAddressBytesMax];
    if (::send(fd, mine.network_address.data(), mine.network_address.size(), 0) < 0) return false;
    const ssize_t came = ::recv(fd, network, sizeof network, 0);
    if (came > 0) other.network_address.assign(network, static_cast<size_t>(came));
    return got > 0 && came > 0;
  }
  Pair* pair_;
  int fds_[2];
  pid_t pid_;
};

TEST_F(TcpLazy, APeerThatDiesWhileItsConnectionIsBeingMadeIsNamed) {
  for (const char* tls : {"off", "all"}) {
    for (const uint32_t dying : {0u, 1u}) {
      SCOPED_TRACE(std::string(tls) + ", rank " + std::to_string(dying));
      for (Pair::End& end : pair_.end) end.settings = {{"WEIR_TCP_LAZY", "1"}, {"WEIR_TLS", tls}};
      const uint32_t living = 1 - dying;
      // When the sender dies its connection has come; when the receiver does it is being made.
      std::vector<unsigned char> data = message(kLarge, 1);
      Victim victim(&pair_, dying, [&](Pair* pair) {
        weir_transport_op_t op{};
        (void)pair->f.send(pair->end[dying].instance, living, 2, data.data(), data.size(), &op);
      });
      weir_transport_op_t op{};
      weir_result_t result =
          dying == 1 ? WEIR_IN_PROGRESS : send(living, 2, data.data(), data.size(), &op);
      ASSERT_EQ(result, WEIR_IN_PROGRESS);
      victim.kill();
      if (dying == 1) result = recv(living, 2, data.data(), data.size(), &op);
      result = finish_alone(living, &op, result);
      EXPECT_EQ(result, WEIR_ERROR_PEER_LOST);
      const std::string name = "rank " + std::to_string(dying);
      EXPECT_NE(pair_.end[living].error.find(name + " was lost"), std::string::npos)
          << pair_.end[living].error;
      // The control network may learn of it after the connection has ended.
      const auto is_dead = [&] {
        return pair_.f.peer_alive(pair_.end[living].instance, dying) == WEIR_ERROR_PEER_LOST;
      };
      for (int i = 0; i < 2'000 && !is_dead(); ++i) usleep(1'000);
      EXPECT_TRUE(is_dead());
      EXPECT_NE(pair_.end[living].error.find(name + " is dead"), std::string::npos)
          << pair_.end[living].error;
      pair_.close();
    }
  }
}

// While rank 0 makes progress.
class TcpLazyDoor : public TcpLazy {
 protected:
  TcpLazyDoor() {
    open();
    EXPECT_EQ(recv(0, 0, &word_, sizeof word_, &op_), WEIR_IN_PROGRESS);
    helper_ = std::thread([this] {
      while (!stops_) (void)pair_.f.progress(pair_.end[0].instance);
    });
  }
  ~TcpLazyDoor() override { stop(); }
  void stop() {
    stops_ = true;
    if (helper_.joinable()) helper_.join();
  }
  // As the control network's.
  net::Identity identity(uint32_t rank, unsigned char first_byte_of_secret = 1) {
    unsigned char secret[32] = {1, 2, 3, 4};
    secret[0] = first_byte_of_secret;
    return {net::key_for(secret, sizeof secret, "control"), 5, rank, 2};
  }
  // Plays the end that connects until it is over.
  net::Handshake::State attempt(const net::Identity& who, uint32_t lane, uint32_t rail_count = 1,
                                uint32_t returns = 0) {
    PeerAddress address;
    EXPECT_TRUE(decode(pair_.end[0].address, pair_.end[0].address_bytes, &address));
    sockaddr_storage name;
    socklen_t bytes = 0;
    for (const Offer& offer : address.offers) {
      if (offer.is_loopback && offer.address.family == 4) {
        bytes = net::to_sockaddr(offer.address, offer.port, &name);
      }
    }
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&name), bytes), 0);
    net::Handshake::Nonce nonce;
    EXPECT_TRUE(net::fill_random(nonce.data(), nonce.size()));
    const uint64_t subject = Subject{lane, 0, rail_count, returns}.pack();
    net::Handshake handshake(
        who, nonce, 0, {1, static_cast<uint32_t>(subject), static_cast<uint32_t>(subject >> 32)});
    for (;;) {
      if (handshake.state() == net::Handshake::State::kChallenged) handshake.prove();
      while (handshake.out_bytes() > 0) {
        const ssize_t sent = ::send(fd, handshake.out(), handshake.out_bytes(), MSG_NOSIGNAL);
        if (sent <= 0) break;
        handshake.sent(static_cast<size_t>(sent));
      }
      unsigned char part[64];
      pollfd entry = {fd, POLLIN, 0};
      if (handshake.wanted() == 0 || poll(&entry, 1, 60'000) <= 0) break;
      const ssize_t got = ::recv(fd, part, std::min(handshake.wanted(), sizeof part), 0);
      if (got <= 0) break;
      handshake.feed(part, static_cast<size_t>(got));
    }
    close(fd);
    return handshake.state();
  }

  std::thread helper_;
  std::atomic<bool> stops_ = false;
  uint64_t word_ = 0;
  weir_transport_op_t op_{};
};

TEST_F(TcpLazyDoor, AnIntruderIsRefusedAndTheRankIsNot) {
  EXPECT_EQ(attempt(identity(1, 99), 0), net::Handshake::State::kRefused) << "another secret";
  net::Identity other_comm = identity(1);
  other_comm.comm_id = 6;
  EXPECT_EQ(attempt(other_comm, 0), net::Handshake::State::kRefused) << "another communicator";
  EXPECT_EQ(attempt(identity(0), 0), net::Handshake::State::kRefused) << "says it is rank 0";
  EXPECT_EQ(attempt(identity(1), 99), net::Handshake::State::kProven)
      << "proven, but for a lane that is not";
  EXPECT_EQ(attempt(identity(1), kControlLane), net::Handshake::State::kProven)
      << "proven, but for what rank 1 has";
  EXPECT_EQ(attempt(identity(1), kRailLane, 2, 1), net::Handshake::State::kProven)
      << "proven, but for a rail, of which there are none";
  stop();
  const uint64_t word = 42;
  weir_transport_op_t op{};
  const weir_result_t sent = send(1, 0, &word, sizeof word, &op);
  EXPECT_EQ(finish(1, &op, sent), WEIR_OK) << pair_.end[1].error;
  EXPECT_EQ(finish(0, &op_, WEIR_IN_PROGRESS), WEIR_OK) << pair_.end[0].error;
  EXPECT_EQ(word_, 42u);
  carry(1, 0, kLarge);
  carry(0, 4, kLarge);
}

TEST_F(TcpLazy, WithoutFreeDescriptorsTheOperationFailsAndSaysWhatToDo) {
  open();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = dup(0);  // all below are open
  ASSERT_GE(next, 0);
  close(next);
  rlimit limit = before;
  limit.rlim_cur = static_cast<rlim_t>(next);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  const std::vector<unsigned char> out = message(kLarge, 1);
  weir_transport_op_t op{};
  const weir_result_t posted = send(1, 0, out.data(), out.size(), &op);
  const weir_result_t result = finish_alone(1, &op, posted);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(result, WEIR_ERROR_SYSTEM);
  EXPECT_NE(pair_.end[1].error.find("rank 1 cannot connect lane 0 to rank 0"), std::string::npos)
      << pair_.end[1].error;
  EXPECT_NE(pair_.end[1].error.find("ulimit -n"), std::string::npos) << pair_.end[1].error;
}

// Two ranks connect at the start unless they are told otherwise.
TEST_F(TcpLazy, RanksThatConnectAtTheStartSayBeforehandThatDescriptorsAreTooFew) {
  ASSERT_EQ(pair_.open(0), WEIR_OK) << pair_.end[0].error;
  ASSERT_EQ(pair_.open(1), WEIR_OK) << pair_.end[1].error;
  pair_.join_networks(monotonic_ns() + kPatienceNs);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = dup(0);  // all below are open
  ASSERT_GE(next, 0);
  close(next);
  rlimit limit = before;
  limit.rlim_cur = static_cast<rlim_t>(next) + 2;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  const weir_result_t result = pair_.connect(0);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(result, WEIR_ERROR_SYSTEM);
  for (const char* remedy : {"raise `ulimit -n`", "set WEIR_TCP_LAZY=1"}) {
    EXPECT_NE(pair_.end[0].error.find(remedy), std::string::npos) << pair_.end[0].error;
  }
}

TEST_F(TcpLazy, RanksThatDisagreeMakeTheConnectionsAtTheStart) {
  pair_.end[0].settings["WEIR_TCP_LAZY"] = "1";
  pair_.end[1].settings["WEIR_TCP_LAZY"] = "0";
  pair_.join();
  EXPECT_EQ(describe(0).find("lanes"), std::string::npos) << describe(0);
  carry(0, 0, kLarge);
  pair_.close();
  pair_.end[0].settings["WEIR_TCP_LAZY"] = "yes";
  EXPECT_EQ(pair_.open(0), WEIR_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(pair_.end[0].error.find("WEIR_TCP_LAZY"), std::string::npos);
}

}  // namespace
}  // namespace weir::plugins::tcp
