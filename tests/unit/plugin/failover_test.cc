// SPDX-License-Identifier: Apache-2.0
// The frames of failover, and what a stream keeps of what it has sent.
#include <gtest/gtest.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "core/plugin/registry.h"
#include "plugins/hook_failover/frame.h"
#include "plugins/hook_failover/stream.h"
#include "unit/plugin/pair.h"

namespace weir::plugins::hook_failover {
namespace {

Frame sample() {
  Frame frame;
  frame.lane_count = 4;
  frame.level = 1;
  frame.ping = 7;
  frame.pong = 0xfffffffe;
  frame.rank = 3;
  for (uint32_t i = 0; i < 4; ++i) frame.received[i] = (uint64_t{1} << 40) + i;
  return frame;
}

TEST(FailoverFrame, IsReadAsItWasWritten) {
  unsigned char bytes[kFrameBytes];
  encode(sample(), bytes);
  Frame read;
  ASSERT_TRUE(decode(bytes, &read));
  EXPECT_EQ(read, sample());
}

TEST(FailoverFrame, BytesThatAreNoFrameAreRefused) {
  unsigned char bytes[kFrameBytes];
  Frame read;
  for (const size_t at : {0u, 1u, 2u, 3u, 4u, 7u, 20u, 23u, 24u + 8 * 4, 24u + 8 * 8 - 1}) {
    encode(sample(), bytes);
    bytes[at] ^= 0x40;
    EXPECT_FALSE(decode(bytes, &read)) << at;
  }
  for (const unsigned char lanes : {0, 9, 255}) {
    encode(sample(), bytes);
    bytes[5] = lanes;
    EXPECT_FALSE(decode(bytes, &read)) << static_cast<int>(lanes);
  }
}

// A transport of one direction whose messages a test delivers or loses.
struct Wire {
  struct Message {
    std::vector<unsigned char> data;
    weir_transport_op_t* op;
  };
  std::deque<Message> sent;
  bool at_once = true;  // a send is complete when it is posted

  static Wire* from(weir_transport_t* t) { return reinterpret_cast<Wire*>(t); }
  Route route() {
    static weir_transport_functions_t functions = [] {
      weir_transport_functions_t f = {};
      f.send = [](weir_transport_t* t, uint32_t, uint32_t, const void* data, uint64_t bytes,
                  weir_transport_op_t* op) {
        const auto* begin = static_cast<const unsigned char*>(data);
        from(t)->sent.push_back({{begin, begin + bytes}, op});
        return from(t)->at_once ? WEIR_OK : WEIR_IN_PROGRESS;
      };
      f.test = [](weir_transport_t* t, weir_transport_op_t*) {
        return from(t)->at_once ? WEIR_OK : WEIR_IN_PROGRESS;
      };
      return f;
    }();
    return {&functions, reinterpret_cast<weir_transport_t*>(this), 1, 0};
  }
};

struct Sender {
  std::vector<unsigned char> memory = std::vector<unsigned char>(kCopyMemoryBytes);
  SendStream stream;
  Sender() { stream.attach(memory.data(), false); }
};

TEST(FailoverStream, AShortSendIsCompleteAtOnceAndALongOneWhenTheReceiverHasIt) {
  Wire wire;
  Sender sender;
  std::vector<unsigned char> data(kCopyBytesMax + 1);
  Op brief{}, extended{}, behind{};
  sender.stream.post(data.data(), kCopyBytesMax, &brief);
  sender.stream.post(data.data(), data.size(), &extended);
  sender.stream.post(data.data(), 1, &behind);
  ASSERT_EQ(sender.stream.advance(wire.route()), WEIR_OK);
  EXPECT_EQ(brief.state, kOpDone);
  EXPECT_EQ(extended.state, kOpPending);
  EXPECT_EQ(behind.state, kOpPending);
  EXPECT_TRUE(sender.stream.acknowledge(1));
  EXPECT_EQ(extended.state, kOpPending);
  EXPECT_TRUE(sender.stream.acknowledge(2));
  EXPECT_EQ(extended.state, kOpDone);
  EXPECT_EQ(behind.state, kOpDone);
  EXPECT_FALSE(sender.stream.acknowledge(4)) << "more than was sent";
}

TEST(FailoverStream, WhatTheReceiverLacksIsSentAgainAsItWasThoughTheBuffersHaveChanged) {
  const uint64_t seed = std::random_device{}();
  printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    Wire wires[3];
    Sender sender;
    std::vector<std::vector<unsigned char>> originals;
    std::vector<std::vector<unsigned char>> buffers;
    std::deque<Op> ops;
    uint64_t received = 0;
    buffers.reserve(300);
    for (int level = 0; level < 3; ++level) {
      Wire& wire = wires[level];
      wire.at_once = random() % 3 != 0;
      const uint64_t begin = received;
      for (int i = 0; i < 80; ++i) {
        std::vector<unsigned char> data(random() % 8 == 0 ? kCopyBytesMax + random() % 5000
                                                          : random() % 3000);
        for (unsigned char& c : data) c = static_cast<unsigned char>(random());
        originals.push_back(data);
        buffers.push_back(data);
        ops.emplace_back();
        sender.stream.post(buffers.back().data(), data.size(), &ops.back());
        ASSERT_EQ(sender.stream.advance(wire.route()), WEIR_OK);
        for (size_t k = 0; k < ops.size(); ++k) {
          if (ops[k].state != kOpDone || buffers[k].empty()) continue;
          memset(buffers[k].data(), 0xee, buffers[k].size());
        }
        // Some arrive, and now and then the receiver says so.
        received = std::min<uint64_t>(received + random() % 3, begin + wire.sent.size());
        if (random() % 4 != 0) continue;
        ASSERT_TRUE(sender.stream.acknowledge(received));
      }
      for (uint64_t k = begin; k < begin + wire.sent.size(); ++k) {
        ASSERT_EQ(wire.sent[k - begin].data.size(), originals[k].size());
        // What is complete has been written over meanwhile; the wire has a copy.
        ASSERT_EQ(wire.sent[k - begin].data, originals[k]) << "message " << k;
      }
      ASSERT_TRUE(sender.stream.resume(received));
    }
  }
}

TEST(FailoverStream, AReceiverThatTakesBackItsWordOrClaimsTooMuchIsRefused) {
  Wire wire;
  Sender sender;
  uint64_t value = 0;
  Op ops[3] = {};
  for (Op& op : ops) sender.stream.post(&value, sizeof value, &op);
  ASSERT_EQ(sender.stream.advance(wire.route()), WEIR_OK);
  ASSERT_TRUE(sender.stream.acknowledge(2));
  EXPECT_FALSE(sender.stream.resume(1));
  EXPECT_FALSE(sender.stream.resume(4));
  EXPECT_TRUE(sender.stream.resume(2));
}

TEST(Failover, IsMadeOnceForEachListAndOnlyOfTransportsThatCanTakePart) {
  const auto* tcp = plugin::find_transport("tcp").value();
  const auto* shm = plugin::find_transport("shm").value();
  auto made = plugin::make_failover({tcp, tcp});
  ASSERT_TRUE(made.ok());
  EXPECT_STREQ(made.value()->name, "failover(tcp,tcp)");
  EXPECT_EQ(made.value()->caps.lane_count, tcp->caps.lane_count - 1);
  EXPECT_EQ(plugin::make_failover({tcp, tcp}).value(), made.value());
  EXPECT_FALSE(plugin::make_failover({tcp}).ok());
  EXPECT_FALSE(plugin::make_failover({tcp, shm}).ok());
  EXPECT_FALSE(plugin::make_failover({tcp, tcp, tcp, tcp, tcp}).ok());
}

TEST(Failover, HasNoOneSidedOperationsWhateverItsTransportsHave) {
  weir_transport_functions_t able = *plugin::find_transport("tcp").value();
  able.name = "able";
  able.caps.bits |= WEIR_CAP_PUT | WEIR_CAP_GET | WEIR_CAP_SIGNAL;
  // Lists of transports are remembered.
  static const weir_transport_functions_t kept = able;
  const auto* chain = plugin::make_failover({&kept, &kept}).value();
  EXPECT_EQ(chain->caps.bits & (WEIR_CAP_PUT | WEIR_CAP_GET | WEIR_CAP_SIGNAL), 0u);
  EXPECT_EQ(chain->put, nullptr);
  EXPECT_EQ(chain->put_signal, nullptr);
}

// tcp, until an instance is told to fail.
std::atomic<weir_transport_t*> failing = nullptr;

const weir_transport_functions_t* tcp_that_fails() {
  static const weir_transport_functions_t* tcp = plugin::find_transport("tcp").value();
  static const weir_transport_functions_t table = [] {
    weir_transport_functions_t f = *tcp;
    f.name = "fails";
    f.send = [](weir_transport_t* t, uint32_t peer, uint32_t lane, const void* data, uint64_t bytes,
                weir_transport_op_t* op) {
      // The first one of the chain: the second one is tcp itself.
      weir_transport_t* none = nullptr;
      (void)failing.compare_exchange_strong(none, t);
      if (t == failing) return WEIR_ERROR_SYSTEM;
      return tcp->send(t, peer, lane, data, bytes, op);
    };
    return f;
  }();
  return &table;
}

// The receiver has had no message with the sender before: it learns of the change without one.
TEST(Failover, WhatWasSentBeforeATakeoverArrivesThoughItsSenderLeavesBeforeTheFirstReceive) {
  for (const char* rails : {"1", "3"}) {
    SCOPED_TRACE(rails);
    failing = nullptr;
    Pair pair(
        plugin::make_failover({tcp_that_fails(), plugin::find_transport("tcp").value()}).value());
    for (Pair::End& end : pair.end) {
      end.settings = {
          {"WEIR_TCP_LAZY", "1"}, {"WEIR_TCP_CONNECTIONS", rails}, {"WEIR_FAILOVER_MS", "20000"}};
    }
    ASSERT_NO_FATAL_FAILURE(pair.join());
    std::atomic<bool> over = false;
    std::thread other([&] {
      while (!over) (void)pair.f.progress(pair.end[1].instance);
    });
    const uint64_t sent[2] = {7, 8};
    weir_transport_op_t out[2] = {};
    for (int i = 0; i < 2; ++i) {
      weir_result_t result = pair.send(0, &sent[i], sizeof sent[i], &out[i]);
      const uint64_t end_ns = plugins::monotonic_ns() + 20'000'000'000;
      while (result == WEIR_IN_PROGRESS && plugins::monotonic_ns() < end_ns) {
        (void)pair.f.progress(pair.end[0].instance);
        result = pair.f.test(pair.end[0].instance, &out[i]);
      }
      EXPECT_EQ(result, WEIR_OK) << pair.end[0].error;
    }
    pair.f.close(pair.end[0].instance);
    pair.end[0].instance = nullptr;
    over = true;
    other.join();
    for (const uint64_t value : sent) {
      uint64_t got = 0;
      weir_transport_op_t in{};
      weir_result_t result = pair.recv(1, &got, sizeof got, &in);
      const uint64_t end_ns = plugins::monotonic_ns() + 20'000'000'000;
      while (result == WEIR_IN_PROGRESS && plugins::monotonic_ns() < end_ns) {
        (void)pair.f.progress(pair.end[1].instance);
        result = pair.f.test(pair.end[1].instance, &in);
      }
      EXPECT_EQ(result, WEIR_OK) << pair.end[1].error;
      EXPECT_EQ(got, value);
    }
  }
}

// tcp in both places of a chain. Rank 0's instances know which operations they were given, fail
// when a test says so, and the first one moves no message.
struct Place {
  weir_transport_t* instance = nullptr;  // of rank 0
  std::set<const weir_transport_op_t*> given;
  int foreign = 0;  // operations that it was asked about, and that it was not given
  bool fails = false;
};
Place places[2];

template <int kPlace>
const weir_transport_functions_t* watched_tcp() {
  static const weir_transport_functions_t* tcp = plugin::find_transport("tcp").value();
  static Place& place = places[kPlace];
  static const weir_transport_functions_t table = [] {
    weir_transport_functions_t f = *tcp;
    f.name = kPlace == 0 ? "begins" : "follows";
    f.open = [](void* context, const weir_host_t* host, const weir_transport_config_t* config,
                weir_transport_t** instance) {
      const weir_result_t result = tcp->open(context, host, config, instance);
      if (config->rank == 0) place.instance = *instance;
      return result;
    };
    f.send = [](weir_transport_t* t, uint32_t peer, uint32_t lane, const void* data, uint64_t bytes,
                weir_transport_op_t* op) {
      if (t != place.instance) return tcp->send(t, peer, lane, data, bytes, op);
      if (place.fails) return WEIR_ERROR_PEER_LOST;
      place.given.insert(op);
      return kPlace == 0 ? WEIR_IN_PROGRESS : tcp->send(t, peer, lane, data, bytes, op);
    };
    f.recv = [](weir_transport_t* t, uint32_t peer, uint32_t lane, void* data, uint64_t bytes,
                weir_transport_op_t* op) {
      if (t == place.instance) {
        if (place.fails) return WEIR_ERROR_PEER_LOST;
        place.given.insert(op);
      }
      return tcp->recv(t, peer, lane, data, bytes, op);
    };
    f.test = [](weir_transport_t* t, weir_transport_op_t* op) {
      if (t != place.instance) return tcp->test(t, op);
      if (place.given.count(op) == 0) ++place.foreign;
      if (place.fails || place.foreign != 0) return WEIR_ERROR_PEER_LOST;
      return kPlace == 0 ? WEIR_IN_PROGRESS : tcp->test(t, op);
    };
    return f;
  }();
  return &table;
}

TEST(Failover, APeerThatIsLostDuringATakeoverEndsOperationsOfTheTransportThatWasLeft) {
  places[0] = places[1] = {};
  Pair pair(plugin::make_failover({watched_tcp<0>(), watched_tcp<1>()}).value());
  ASSERT_NO_FATAL_FAILURE(pair.join());
  const uint64_t value = 7;
  weir_transport_op_t op{};
  weir_result_t result = pair.send(0, &value, sizeof value, &op);
  ASSERT_EQ(result, WEIR_IN_PROGRESS);
  places[0].fails = true;
  const uint64_t end_ns = plugins::monotonic_ns() + 20'000'000'000;
  while (result == WEIR_IN_PROGRESS && plugins::monotonic_ns() < end_ns) {
    places[1].fails = pair.end[0].log.find("continues with rank 1") != std::string::npos;
    (void)pair.f.progress(pair.end[0].instance);
    result = pair.f.test(pair.end[0].instance, &op);
    (void)pair.f.progress(pair.end[1].instance);
  }
  EXPECT_TRUE(places[1].fails) << "the takeover has not begun";
  EXPECT_EQ(result, WEIR_ERROR_PEER_LOST) << pair.end[0].error;
  EXPECT_EQ(places[1].foreign, 0) << "asked about an operation that the first transport was given";
}

TEST(Failover, ABoundThatIsNoNumberIsRefused) {
  const auto* tcp = plugin::find_transport("tcp").value();
  for (const char* text : {"x", "99", "600001", "1s"}) {
    Pair pair(plugin::make_failover({tcp, tcp}).value());
    pair.end[0].settings["WEIR_FAILOVER_MS"] = text;
    EXPECT_EQ(pair.open(0), WEIR_ERROR_INVALID_ARGUMENT) << text;
    EXPECT_NE(pair.end[0].error.find(text), std::string::npos) << pair.end[0].error;
  }
}

}  // namespace
}  // namespace weir::plugins::hook_failover
