// SPDX-License-Identifier: Apache-2.0
// Properties of send, recv, test and progress.
#include <sched.h>

#include <algorithm>
#include <memory>

#include "conformance/harness.h"

namespace weir::conformance {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Every byte of every message is told by where it comes from, so that nothing can take another's
// place.
void fill(std::vector<unsigned char>* data, uint32_t from, uint32_t to, uint32_t lane,
          uint64_t index) {
  uint64_t x =
      (from * 131u + to * 31u + lane * 7u + 1) * 0x9e3779b97f4a7c15u + index * 0xc2b2ae3d27d4eb4fu;
  for (size_t i = 0; i < data->size(); ++i) {
    if (i % 8 == 0) x = x * 6364136223846793005u + 1442695040888963407u;
    (*data)[i] = static_cast<unsigned char>(x >> (8 * (i % 8)));
  }
}

struct Message {
  std::vector<unsigned char> data;
  std::vector<unsigned char> expected;  // of a recv
  weir_transport_op_t op{};
  bool complete = false;
};

// One direction of one (peer, lane): the messages to be posted in order.
struct Stream {
  uint32_t peer;
  uint32_t lane;
  bool sending;
  std::vector<std::unique_ptr<Message>> messages;
  size_t posted = 0;
  size_t complete = 0;
};

std::vector<uint64_t> sizes_of(uint32_t from, uint32_t to, uint32_t lane, uint64_t bytes_max) {
  std::vector<uint64_t> sizes = {0,     1,     7,     8,     47,     48,       49,   63,    64,
                                 65,    127,   128,   4095,  4096,   4097,     8191, 16383, 16385,
                                 32767, 32768, 32769, 65537, 262147, kMiB + 3, 0,    48};
  std::mt19937_64 random(test_seed() * 7919 + from * 1009 + to * 101 + lane);
  for (int i = 0; i < 20; ++i) sizes.push_back(random() % 200);
  std::shuffle(sizes.begin(), sizes.end(), random);
  for (uint64_t& size : sizes) size = std::min(size, bytes_max);
  return sizes;
}

Stream make_stream(const Rank& r, uint32_t peer, uint32_t lane, bool sending) {
  const uint32_t from = sending ? r.rank() : peer;
  const uint32_t to = sending ? peer : r.rank();
  Stream stream = {peer, lane, sending, {}, 0, 0};
  uint64_t index = 0;
  for (const uint64_t size : sizes_of(from, to, lane, r.f().caps.message_bytes_max)) {
    auto message = std::make_unique<Message>();
    message->data.resize(size);
    message->expected.resize(size);
    fill(sending ? &message->data : &message->expected, from, to, lane, index++);
    stream.messages.push_back(std::move(message));
  }
  return stream;
}

void completed(Rank& r, Stream* stream, Message* message) {
  message->complete = true;
  ++stream->complete;
  if (stream->sending) {
    // The buffer is ours again: what we write now must not arrive.
    std::fill(message->data.begin(), message->data.end(), static_cast<unsigned char>(0xee));
  } else {
    r.require(message->data == message->expected,
              "a message of " + std::to_string(message->data.size()) + " bytes from rank " +
                  std::to_string(stream->peer) + " on lane " + std::to_string(stream->lane) +
                  " arrived changed or out of order");
  }
}

void post_next(Rank& r, Stream* stream) {
  Message* m = stream->messages[stream->posted++].get();
  const weir_result_t result = stream->sending
                                   ? r.f().send(r.instance(), stream->peer, stream->lane,
                                                m->data.data(), m->data.size(), &m->op)
                                   : r.f().recv(r.instance(), stream->peer, stream->lane,
                                                m->data.data(), m->data.size(), &m->op);
  if (result == WEIR_IN_PROGRESS) return;
  r.require_ok(result, stream->sending ? "send" : "recv");
  completed(r, stream, m);
}

// Posts in random interleaving, tests in random order, until all is complete.
void run_streams(Rank& r, std::vector<Stream>* streams) {
  const uint64_t end = monotonic_ns() + 30'000'000'000;
  for (uint64_t step = 0;; ++step) {
    bool all = true;
    for (const Stream& stream : *streams) all = all && stream.complete == stream.messages.size();
    if (all) return;
    Stream& stream = (*streams)[r.random()() % streams->size()];
    if (stream.posted < stream.messages.size() && stream.posted - stream.complete < 6) {
      post_next(r, &stream);
    }
    Stream& other = (*streams)[r.random()() % streams->size()];
    for (size_t i = 0; i < other.posted; ++i) {
      Message& m = *other.messages[i];
      if (m.complete || r.random()() % 2 == 0) continue;
      const weir_result_t result = r.f().test(r.instance(), &m.op);
      if (result == WEIR_IN_PROGRESS) continue;
      r.require_ok(result, "test");
      completed(r, &other, &m);
    }
    if (step % 4 == 0) r.progress();
    if (step % 256 == 0) {
      r.require(monotonic_ns() < end, "the messages did not all arrive");
      sched_yield();
    }
  }
}

void every_size_in_order(const Variant& variant) {
  run_ranks(variant, variant.rank_count(3), [](Rank& r) {
    r.join();
    const uint32_t lanes = std::min<uint32_t>(r.f().caps.lane_count, 2);
    std::vector<Stream> streams;
    for (uint32_t peer = 0; peer < r.count(); ++peer) {
      if (peer == r.rank() && !r.variant().can(WEIR_CAP_SELF)) continue;
      for (uint32_t i = 0; i < lanes; ++i) {
        const uint32_t lane = i == 0 ? 0 : r.f().caps.lane_count - 1;
        streams.push_back(make_stream(r, peer, lane, true));
        streams.push_back(make_stream(r, peer, lane, false));
      }
    }
    run_streams(r, &streams);
    r.barrier();
  });
}

void both_directions(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    r.join();
    const uint64_t bytes = std::min(8 * kMiB + 5, r.f().caps.message_bytes_max);
    std::vector<unsigned char> out(bytes), in(bytes), expected(bytes);
    const uint32_t peer = 1 - r.rank();
    fill(&out, r.rank(), peer, 0, 9);
    fill(&expected, peer, r.rank(), 0, 9);
    weir_transport_op_t send_op{}, recv_op{};
    const weir_result_t sent = r.f().send(r.instance(), peer, 0, out.data(), bytes, &send_op);
    const weir_result_t received = r.f().recv(r.instance(), peer, 0, in.data(), bytes, &recv_op);
    r.wait(&recv_op, received, "recv");
    r.wait(&send_op, sent, "send");
    r.require(in == expected, "the message arrived changed");
    r.barrier();
  });
}

void lanes_are_independent(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    r.join();
    const uint64_t large = std::min(4 * kMiB, r.f().caps.message_bytes_max);
    constexpr int kLarge = 4;
    std::vector<unsigned char> data(large, 7);
    uint64_t small = 41;
    if (r.rank() == 0) {
      weir_transport_op_t ops[kLarge] = {};
      weir_result_t posted[kLarge];
      for (int i = 0; i < kLarge; ++i) {
        posted[i] = r.f().send(r.instance(), 1, 0, data.data(), large, &ops[i]);
      }
      r.send(1, 1, &small, sizeof small);  // lane 0 is full by now
      r.recv(1, 1, &small, sizeof small);
      r.require(small == 42, "the answer on the other lane is wrong");
      for (int i = 0; i < kLarge; ++i) r.wait(&ops[i], posted[i], "send");
    } else {
      r.recv(0, 1, &small, sizeof small);
      ++small;
      r.send(0, 1, &small, sizeof small);
      for (int i = 0; i < kLarge; ++i) r.recv(0, 0, data.data(), large);
    }
    r.barrier();
  });
}

void mismatch(const Variant& variant, uint64_t sent, uint64_t expected) {
  run_ranks(variant, 2, [=](Rank& r) {
    r.join();
    std::vector<unsigned char> data(std::max(sent, expected) + 1);
    weir_transport_op_t op{};
    if (r.rank() == 0) {
      const weir_result_t posted = r.f().send(r.instance(), 1, 0, data.data(), sent, &op);
      r.require(posted == WEIR_OK || posted == WEIR_IN_PROGRESS, "send failed");
      r.await(0);
    } else {
      const weir_result_t result =
          r.wait_result(&op, r.f().recv(r.instance(), 0, 0, data.data(), expected, &op));
      r.require_error(result, {WEIR_ERROR_MISMATCH},
                      {std::to_string(sent), std::to_string(expected)});
      r.publish(0, 1);
    }
    r.barrier();
  });
}

void mismatch_is_detected(const Variant& variant) {
  mismatch(variant, 17, 33);
  mismatch(variant, 100, 200);
  mismatch(variant, 70'000, 8);
  mismatch(variant, 8, 70'000);
  mismatch(variant, 0, 1);
}

// That nobody reads them is for tests that see the wire.
void all_is_sealed(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    r.set("WEIR_TLS", "all");
    r.join();
    std::vector<unsigned char> data, expected;
    for (const size_t bytes : {size_t{0}, size_t{8}, size_t{1000}, size_t{300'000}}) {
      for (uint32_t sender = 0; sender < 2; ++sender) {
        data.assign(bytes, 0);
        expected.assign(bytes, 0);
        fill(&expected, sender, 1 - sender, 0, static_cast<uint32_t>(bytes));
        if (r.rank() == sender) {
          r.send(1 - sender, 0, expected.data(), bytes);
        } else {
          r.recv(sender, 0, data.data(), bytes);
          r.require(data == expected, "a message arrived changed");
        }
      }
    }
    r.barrier();
  });
}

void credit_holds(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    r.join();
    const uint32_t credit = r.f().caps.credit;
    const uint64_t bytes = std::min<uint64_t>(1024, r.f().caps.message_bytes_max);
    std::vector<unsigned char> data(bytes), expected(bytes);
    for (uint32_t lane = 0; lane < r.f().caps.lane_count; ++lane) {
      if (r.rank() == 0) {
        for (uint32_t i = 0; i < credit; ++i) {
          fill(&data, 0, 1, lane, i);
          r.send(1, lane, data.data(), bytes);  // completes though nobody receives
        }
        r.barrier();
      } else {
        r.barrier();
        for (uint32_t i = 0; i < credit; ++i) {
          fill(&expected, 0, 1, lane, i);
          r.recv(0, lane, data.data(), bytes);
          r.require(data == expected, "a message arrived changed");
        }
      }
    }
    r.barrier();
  });
}

void many_posted_ahead(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    r.join();
    constexpr size_t kCount = 500;
    std::vector<uint64_t> values(kCount);
    std::vector<weir_transport_op_t> ops(kCount);
    std::vector<weir_result_t> posted(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      if (r.rank() == 0) values[i] = i * i;
      posted[i] = r.rank() == 0 ? r.f().send(r.instance(), 1, 0, &values[i], 8, &ops[i])
                                : r.f().recv(r.instance(), 0, 0, &values[i], 8, &ops[i]);
    }
    for (size_t i = 0; i < kCount; ++i) r.wait(&ops[i], posted[i], "an operation posted ahead");
    for (size_t i = 0; i < kCount; ++i) r.require(values[i] == i * i, "out of order");
    r.barrier();
  });
}

// Each is waited for before the next one, so that who receives is never told of more than that.
void many_answered_by_one(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    r.join();
    const uint32_t peer = 1 - r.rank();
    std::vector<unsigned char> data(4096), expected(4096);
    const auto move = [&](bool sends, uint32_t lane, size_t bytes, uint64_t index) {
      data.resize(bytes);
      expected.resize(bytes);
      std::vector<unsigned char>& sent = sends ? data : expected;
      fill(&sent, sends ? r.rank() : peer, sends ? peer : r.rank(), lane, index);
      if (sends) return r.send(peer, lane, data.data(), bytes);
      std::fill(data.begin(), data.end(), static_cast<unsigned char>(0xee));
      r.recv(peer, lane, data.data(), bytes);
      r.require(data == expected, "a message arrived changed or out of order");
    };
    for (const uint32_t lane : {0u, r.f().caps.lane_count - 1}) {
      for (const size_t bytes : {size_t{8}, size_t{4096}}) {
        for (uint32_t count = 1; count <= 17; ++count) {
          for (uint32_t round = 0; round < 8; ++round) {
            const bool sends = (round / 4 + r.rank()) % 2 == 0;
            for (uint32_t k = 0; k < count; ++k) move(sends, lane, bytes, round * 100 + k);
            move(!sends, lane, bytes, round);
          }
        }
      }
    }
    r.barrier();
  });
}

// Who has ended a collective may compute for long, and what it has sent may not wait for its next
// call.
void sent_arrives_by_itself(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    r.join();
    std::mt19937_64 shape(test_seed() * 31 + 5);  // the same on both ranks
    for (int burst = 0; burst < 30; ++burst) {
      std::vector<Message> messages(1 + shape() % 40);
      std::vector<weir_result_t> posted(messages.size());
      for (size_t i = 0; i < messages.size(); ++i) {
        Message& m = messages[i];
        const uint64_t size = shape() % 4 == 0 ? shape() % (300 << 10) : shape() % 200;
        m.data.resize(std::min<uint64_t>(size, r.f().caps.message_bytes_max));
        m.expected.resize(m.data.size());
        std::vector<unsigned char>& sent = r.rank() == 0 ? m.data : m.expected;
        fill(&sent, 0, 1, 0, static_cast<uint64_t>(burst) * 1000 + i);
        posted[i] = r.rank() == 0
                        ? r.f().send(r.instance(), 1, 0, m.data.data(), m.data.size(), &m.op)
                        : r.f().recv(r.instance(), 0, 0, m.data.data(), m.data.size(), &m.op);
      }
      for (size_t i = 0; i < messages.size(); ++i) {
        r.wait(&messages[i].op, posted[i], "a message of a burst");
        if (r.rank() == 1)
          r.require(messages[i].data == messages[i].expected, "it arrived changed");
      }
      r.barrier();  // makes no progress
    }
  });
}

void self_send(const Variant& variant) {
  run_ranks(variant, variant.rank_count(2), [](Rank& r) {
    r.join();
    const uint64_t bytes = std::min(2 * kMiB + 1, r.f().caps.message_bytes_max);
    for (uint32_t lane = 0; lane < r.f().caps.lane_count; lane += 5) {
      for (const bool send_first : {true, false}) {
        std::vector<unsigned char> out(bytes), in(bytes);
        fill(&out, r.rank(), r.rank(), lane, send_first ? 1 : 2);
        weir_transport_op_t send_op{}, recv_op{};
        weir_result_t sent = WEIR_OK, received = WEIR_OK;
        for (const bool send_now : {send_first, !send_first}) {
          if (send_now) {
            sent = r.f().send(r.instance(), r.rank(), lane, out.data(), bytes, &send_op);
          } else {
            received = r.f().recv(r.instance(), r.rank(), lane, in.data(), bytes, &recv_op);
          }
        }
        r.wait(&recv_op, received, "recv from itself");
        r.wait(&send_op, sent, "send to itself");
        r.require(in == out, "the message to itself arrived changed");
      }
    }
    r.barrier();
  });
}

void bad_arguments(const Variant& variant) {
  run_ranks(variant, variant.rank_count(2), [](Rank& r) {
    r.join();
    const auto bad = {WEIR_ERROR_INVALID_ARGUMENT, WEIR_ERROR_INVALID_USAGE};
    uint64_t value = 0;
    weir_transport_op_t op{};
    r.require_error(r.f().send(r.instance(), r.count(), 0, &value, 8, &op), bad);
    op = {};
    r.require_error(r.f().recv(r.instance(), ~0u, 0, &value, 8, &op), bad);
    op = {};
    r.require_error(r.f().send(r.instance(), 0, r.f().caps.lane_count, &value, 8, &op), bad);
    op = {};
    r.require_error(r.f().test(r.instance(), &op), bad);
    r.barrier();
  });
}

void close_in_flight(const Variant& variant) {
  run_ranks(variant, variant.rank_count(2), [](Rank& r) {
    r.join();
    const uint32_t peer = (r.rank() + 1) % r.count();
    std::vector<unsigned char> data(std::min(4 * kMiB, r.f().caps.message_bytes_max));
    uint64_t never = 5;
    weir_transport_op_t ops[2] = {};
    (void)r.f().send(r.instance(), peer, 0, data.data(), data.size(), &ops[0]);
    (void)r.f().recv(r.instance(), peer, 1 % r.f().caps.lane_count, &never, 8, &ops[1]);
    const uint64_t start = monotonic_ns();
    r.close();
    r.require(monotonic_ns() - start < 1'000'000'000, "close took a second");
    r.barrier();
  });
}

}  // namespace

const std::vector<Property>& message_properties() {
  static const std::vector<Property> properties = {
      {"MessagesOfEverySizeArriveIntactAndInOrder", WEIR_CAP_SEND_RECV, 1, every_size_in_order},
      {"BothDirectionsAtOnceDoNotDeadlock", WEIR_CAP_SEND_RECV, 2, both_directions},
      {"AFullLaneDoesNotBlockAnother", WEIR_CAP_SEND_RECV, 2, lanes_are_independent,
       [](const Variant& v) { return v.functions->caps.lane_count > 1; }},
      {"DifferentLengthsAreReportedWithBoth", WEIR_CAP_SEND_RECV, 2, mismatch_is_detected},
      {"MessagesArriveThatAreEncrypted", WEIR_CAP_SEND_RECV | WEIR_CAP_SEALED, 2, all_is_sealed},
      {"AsManySendsAsTheCreditCompleteBeforeARecv", WEIR_CAP_SEND_RECV, 2, credit_holds},
      {"OperationsMayBePostedFarAhead", WEIR_CAP_SEND_RECV, 2, many_posted_ahead},
      {"AnyNumberOfMessagesMayBeAnsweredByOne", WEIR_CAP_SEND_RECV, 2, many_answered_by_one},
      {"WhatIsSentArrivesWhileItsSenderMakesNoCalls", WEIR_CAP_SEND_RECV, 2,
       sent_arrives_by_itself},
      {"ARankSendsToItself", WEIR_CAP_SEND_RECV | WEIR_CAP_SELF, 1, self_send},
      {"BadArgumentsAreErrorsWithAText", WEIR_CAP_SEND_RECV, 1, bad_arguments},
      {"CloseEndsOperationsInFlight", WEIR_CAP_SEND_RECV, 1, close_in_flight},
  };
  return properties;
}

}  // namespace weir::conformance
