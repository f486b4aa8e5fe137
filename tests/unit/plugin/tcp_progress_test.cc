// SPDX-License-Identifier: Apache-2.0
// Two bundles joined by connections of which the test carries every byte, with a clock of its own:
// bytes of one connection stay in order and are late by chance, those of different ones overtake
// each other, and those of a rail that is cut are lost. So a seed repeats a run.
//
// The property: when no byte is left to be carried, no receive that was posted waits for a message
// that was posted.
//
// Connections may also have rates, so that the times of messages over rails of different speeds can
// be compared, exactly and whatever else the machine does.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "plugins/tcp/bundle.h"

namespace weir::plugins::tcp {
namespace {

constexpr uint64_t kStepNs = 10'000;
constexpr uint32_t kCredit = 8;
constexpr uint64_t kCreditBytes = 1024;

uint64_t virtual_ns = 0;
uint64_t virtual_clock() { return virtual_ns; }

uint64_t first_seed() {
  const char* text = getenv("WEIR_TEST_SEED");
  const uint64_t value = text != nullptr ? strtoull(text, nullptr, 0) : std::random_device{}();
  printf("WEIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(value));
  return value;
}

// A connection between the ends 0 and 1.
class Wire {
 public:
  Wire() {
    for (int end = 0; end < 2; ++end) {
      int fds[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
      given_[end] = fds[0];
      fds_[end] = fds[1];
    }
  }
  ~Wire() { cut(); }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  Stream stream(int end) const { return Stream(given_[end]); }
  // Takes what `from` has sent, and carries at most so many bytes to the other end. Returns whether
  // anything moved.
  bool carry(int from, size_t bytes_max) {
    if (fds_[0] < 0) return false;
    const bool took = take(from);
    std::string& bytes = bytes_[from];
    const size_t part = std::min(bytes.size(), bytes_max);
    const ssize_t sent = part == 0 ? 0 : send(fds_[1 - from], bytes.data(), part, MSG_NOSIGNAL);
    if (sent > 0) bytes.erase(0, static_cast<size_t>(sent));
    if (sent > 0) carried_[from] += static_cast<uint64_t>(sent);
    if (bytes.empty() && ended_[from]) shutdown(fds_[1 - from], SHUT_WR);
    return took || sent > 0;
  }
  uint64_t carried(int from) const { return carried_[from]; }
  // From now on it carries so many bytes per ns each way, and keeps none; infinity: all there are.
  // After a pause a burst of so many bytes passes at once, as a token bucket lets it.
  void shape(double rate, double burst_bytes = 0) {
    rate_ = rate;
    burst_ns_ = burst_bytes / rate;
  }
  double rate() const { return rate_; }
  // What is on its way is lost.
  void cut() {
    for (int end = 0; end < 2; ++end) {
      if (fds_[end] >= 0) close(fds_[end]);
      fds_[end] = -1;
    }
  }

 private:
  static constexpr size_t kRoomBytes = 64 * 1024;
  bool take(int from) {
    char piece[16 * 1024];
    if (ended_[from] || bytes_[from].size() >= kRoomBytes) return false;
    const auto now_ns = static_cast<double>(virtual_ns);
    if (free_ns_[from] > now_ns) return false;
    const double from_ns = std::max(free_ns_[from], now_ns - std::max<double>(kStepNs, burst_ns_));
    const double room_ns = std::max<double>(kStepNs, now_ns - from_ns);
    const double room = std::clamp(rate_ * room_ns, 1.0, static_cast<double>(sizeof piece));
    const ssize_t got = recv(fds_[from], piece, static_cast<size_t>(room), MSG_DONTWAIT);
    if (got > 0) free_ns_[from] = from_ns + static_cast<double>(got) / rate_;
    ended_[from] = got == 0 || (got < 0 && errno != EAGAIN);
    if (got > 0) bytes_[from].append(piece, static_cast<size_t>(got));
    return got > 0;
  }

  int given_[2];
  int fds_[2];
  std::string bytes_[2];
  bool ended_[2] = {};
  uint64_t carried_[2] = {};
  double rate_ = std::numeric_limits<double>::infinity();
  double burst_ns_ = 0;
  double free_ns_[2] = {};
};

struct Message {
  std::vector<unsigned char> data;
  Op op{};
};

// The messages of one lane in one direction, in order; those that are complete at both ends are
// dropped.
struct Flow {
  uint32_t lane = 0;
  int from = 0;
  uint64_t first = 0;  // number of the front of both
  std::deque<std::unique_ptr<Message>> sends;
  std::deque<std::unique_ptr<Message>> recvs;

  uint64_t sent_count() const { return first + sends.size(); }
  uint64_t posted_count() const { return first + recvs.size(); }
};

class Net {
 public:
  Net(uint64_t seed, uint32_t rail_count)
      : random_(seed), data_(rail_count), control_(rail_count), hold_(rail_count * 4) {
    for (auto& end : ends_) end = std::make_unique<Bundle>(rail_count, virtual_clock);
    for (uint32_t rail = 0; rail < rail_count; ++rail) connect(rail, 0);
    for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
      for (int from = 0; from < 2; ++from) {
        flow(lane, from).lane = lane;
        flow(lane, from).from = from;
      }
    }
    kept_rail_ = chance(rail_count);
    for (uint32_t way = 0; way < hold_.size(); ++way) width_.push_back(4 + chance(13));
  }

  uint32_t rail_count() const { return static_cast<uint32_t>(data_.size()); }
  uint32_t chance(uint64_t limit) { return static_cast<uint32_t>(random_() % limit); }
  Flow& flow(uint32_t lane, int from) { return flows_[lane * 2 + static_cast<uint32_t>(from)]; }
  Bundle& end(int i) { return *ends_[i]; }

  void post_send(Flow* flow, size_t bytes) {
    const uint64_t number = flow->sent_count();
    Message& m = *flow->sends.emplace_back(std::make_unique<Message>());
    m.data.resize(bytes);
    for (size_t i = 0; i < bytes; ++i) m.data[i] = byte_at(*flow, number, i);
    EXPECT_LE(ends_[flow->from]->post_send(flow->lane, m.data.data(), bytes, &m.op),
              WEIR_IN_PROGRESS);
  }
  void post_recv(Flow* flow, size_t bytes) {
    Message& m = *flow->recvs.emplace_back(std::make_unique<Message>());
    m.data.assign(bytes, 0x5a);
    EXPECT_LE(ends_[1 - flow->from]->post_recv(flow->lane, m.data.data(), bytes, &m.op),
              WEIR_IN_PROGRESS);
  }

  // As an instance does: a bundle that has nothing is left alone but for a look now and then.
  void drive(int end) {
    const bool looks = virtual_ns - looked_ns_[end] >= Bundle::kLookNs;
    if (looks) looked_ns_[end] = virtual_ns;
    if (looks || !ends_[end]->idle()) ends_[end]->drive();
  }
  // Something happens somewhere.
  void step() {
    virtual_ns += kStepNs;
    drive(static_cast<int>(chance(2)));
    for (uint32_t k = 0; k < 4; ++k) {
      const uint32_t way = chance(hold_.size());
      if (hold_[way] > 0) {
        --hold_[way];
      } else if (chance(40) == 0) {
        hold_[way] = chance(100);
      } else {
        carry(way, size_t{1} << chance(width_[way]));
      }
    }
  }
  // Rails are cut and given back. One stays: it is the one on which both ends agree.
  void trouble() {
    if (rail_count() == 1) return;
    const uint32_t rail = chance(rail_count());
    const bool is_up = !ends_[0]->is_down(rail) && !ends_[1]->is_down(rail);
    if (is_up && rail != kept_rail_ && chance(20) == 0) {
      data_[rail]->cut();
      control_[rail]->cut();
    }
    if (ends_[0]->may_return(rail) && ends_[1]->may_return(rail) && chance(4) == 0) {
      connect(rail, std::max(ends_[0]->returns(rail), ends_[1]->returns(rail)) + 1);
    }
  }
  // Until nothing moves any more: for 2 ms, which are a look at the rails in 25 at most; where a
  // rail is lost for several looks.
  void settle() {
    std::fill(hold_.begin(), hold_.end(), 0);
    for (uint32_t quiet = 0; quiet < 40;) {
      virtual_ns += any_down() ? Bundle::kLookNs / 10 : 4 * kStepNs;
      quiet = step_evenly() ? 0 : quiet + 1;
    }
  }
  // Carries all there is, and drives both; returns whether anything moved.
  bool step_evenly() {
    virtual_ns += kStepNs;
    bool moved = false;
    for (uint32_t way = 0; way < hold_.size(); ++way) moved = carry(way, SIZE_MAX) || moved;
    for (int i = 0; i < 2; ++i) drive(i);
    return moved;
  }

  // What is posted at both ends is complete and right; and what the credit covers has left.
  void check() {
    for (Flow& flow : flows_) {
      SCOPED_TRACE("lane " + std::to_string(flow.lane) + " from " + std::to_string(flow.from));
      const uint64_t both = std::min(flow.sent_count(), flow.posted_count());
      for (; flow.first < both; ++flow.first) {
        SCOPED_TRACE("message " + std::to_string(flow.first));
        ASSERT_EQ(flow.recvs.front()->op.state, kOpDone) << "a receive waits: " << describe(flow);
        ASSERT_EQ(flow.sends.front()->op.state, kOpDone) << "a send waits: " << describe(flow);
        ASSERT_EQ(flow.recvs.front()->data, flow.sends.front()->data);
        flow.sends.pop_front();
        flow.recvs.pop_front();
      }
      for (size_t k = 0; k < std::min<size_t>(flow.sends.size(), kCredit); ++k) {
        if (flow.sends[k]->data.size() > kCreditBytes) break;
        ASSERT_EQ(flow.sends[k]->op.state, kOpDone)
            << "the credit is not there: " << describe(flow);
      }
    }
  }
  uint64_t control_bytes() const { return bytes_of(control_); }
  void shape(uint32_t rail, double rate, double burst_bytes = 0) {
    data_[rail]->shape(rate, burst_bytes);
    control_[rail]->shape(rate);
  }
  // One that was taken out is connected again, as fast as it was, when both ends know of it.
  void give_back(uint32_t rail) {
    if (!ends_[0]->is_down(rail) && !ends_[1]->is_down(rail)) return;
    while (!ends_[0]->may_return(rail) || !ends_[1]->may_return(rail)) (void)step_evenly();
    const double rate = data_[rail]->rate();
    connect(rail, std::max(ends_[0]->returns(rail), ends_[1]->returns(rail)) + 1);
    shape(rail, rate);
  }
  // A message of so many bytes from end 0 to end 1; until both have it. Returns how long that took.
  uint64_t exchange(size_t bytes) {
    const uint64_t began_ns = virtual_ns;
    Flow& one = flow(0, 0);
    post_recv(&one, bytes);
    post_send(&one, bytes);
    while (one.sends.back()->op.state == kOpPending || one.recvs.back()->op.state == kOpPending) {
      (void)step_evenly();
    }
    const uint64_t took_ns = virtual_ns - began_ns;
    check();
    return took_ns;
  }

 private:
  using Wires = std::vector<std::unique_ptr<Wire>>;

  static unsigned char byte_at(const Flow& flow, uint64_t number, size_t i) {
    return static_cast<unsigned char>(number * 31 + flow.lane * 7 +
                                      static_cast<uint64_t>(flow.from) * 3 + i * 5 + i / 253);
  }
  static std::string describe(const Flow& flow) {
    return std::to_string(flow.sent_count()) + " sends, " + std::to_string(flow.posted_count()) +
           " receives, of " + std::to_string(flow.sends.front()->data.size()) + " bytes";
  }
  static uint64_t bytes_of(const Wires& wires) {
    uint64_t sum = 0;
    for (const auto& wire : wires) sum += wire->carried(0) + wire->carried(1);
    return sum;
  }
  void connect(uint32_t rail, uint32_t returns) {
    data_[rail] = std::make_unique<Wire>();
    control_[rail] = std::make_unique<Wire>();
    for (int i = 0; i < 2; ++i) {
      ends_[i]->attach(rail, data_[rail]->stream(i), control_[rail]->stream(i), returns);
    }
  }
  bool carry(uint32_t way, size_t bytes_max) {
    const Wires& wires = (way & 1) == 0 ? data_ : control_;
    return wires[way / 4]->carry((way >> 1) & 1, bytes_max);
  }
  bool any_down() const { return ends_[0]->any_down() || ends_[1]->any_down(); }

  std::mt19937_64 random_;
  std::unique_ptr<Bundle> ends_[2];
  Wires data_;
  Wires control_;
  std::vector<uint32_t> hold_;   // steps for which a connection, or half of one, is late
  std::vector<uint32_t> width_;  // how fast each is
  Flow flows_[2 * kLaneCount];
  uint32_t kept_rail_ = 0;
  uint64_t looked_ns_[2] = {};
};

size_t size_at_random(Net* net) {
  constexpr size_t kSizes[] = {0, 8, 8, 8, 8, 100, 1024, 8192, 8193, 70'000, 262'144, 300'000};
  return kSizes[net->chance(net->chance(3) == 0 ? std::size(kSizes) : 6)];
}

// Some messages of one flow or several, posted at both ends in any order; some may be left to the
// next round.
void play_round(Net* net, bool with_trouble) {
  struct Part {
    Flow* flow;
    std::vector<size_t> sizes;  // of messages that are not posted at both ends yet
    size_t sends, recvs;        // of these
  };
  std::vector<Part> parts;
  const uint32_t lane_count = net->chance(3) == 0 ? 1 + net->chance(kLaneCount) : 1;
  for (uint32_t i = 0; i < lane_count; ++i) {
    for (int from = 0; from < 2; ++from) {
      Part part = {&net->flow((i + 2) % kLaneCount, from), {}, 0, 0};
      for (const auto* posted : {&part.flow->sends, &part.flow->recvs}) {
        if (posted->size() <= part.sizes.size()) continue;
        part.sizes.clear();
        for (const auto& message : *posted) part.sizes.push_back(message->data.size());
      }
      part.sends = part.flow->sends.size();
      part.recvs = part.flow->recvs.size();
      const size_t size = size_at_random(net);
      const bool mixed = net->chance(4) == 0;
      for (uint32_t k = 1 + net->chance(net->chance(4) == 0 ? 40 : 7); k > 0; --k) {
        part.sizes.push_back(mixed ? size_at_random(net) : size);
      }
      // More than may be on its way on a rail.
      if (net->chance(30) == 0) part.sizes.push_back(1'500'000);
      parts.push_back(std::move(part));
    }
  }
  const bool leaves_some = net->chance(3) == 0;
  const uint32_t pace = 1 + net->chance(20);
  for (bool any = true; any;) {
    any = false;
    for (Part& part : parts) {
      const bool sends = net->chance(2) == 0;
      size_t& count = sends ? part.sends : part.recvs;
      if (count < part.sizes.size() && !(leaves_some && net->chance(30) == 0)) {
        const size_t bytes = part.sizes[count++];
        sends ? net->post_send(part.flow, bytes) : net->post_recv(part.flow, bytes);
      }
      any = any || part.sends < part.sizes.size() || part.recvs < part.sizes.size();
      for (uint32_t k = net->chance(pace); k > 0; --k) net->step();
      if (with_trouble) net->trouble();
    }
    if (leaves_some && net->chance(20) == 0) break;
  }
  net->settle();
  net->check();
}

void play(uint64_t seed) {
  SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
  virtual_ns = 1'000'000'000;
  std::mt19937_64 shape(seed);
  Net net(shape(), 1 + shape() % 4);
  const bool with_trouble = shape() % 3 == 0;
  for (int round = 0; round < 60 && !testing::Test::HasFatalFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    play_round(&net, with_trouble);
  }
}

TEST(TcpProgress, ASenderWhoseReceiverHasPostedMovesWhateverIsAcknowledgedOnWhicheverRail) {
  const uint64_t seed = first_seed();
  const char* text = getenv("WEIR_TEST_ROUNDS");
  const uint64_t count = text != nullptr ? strtoull(text, nullptr, 0) : 20;
  for (uint64_t i = 0; i < count && !testing::Test::HasFailure(); ++i) play(seed + i);
}

// What one end does on a lane: `count` messages one way and an answer, again and again, each
// waited for.
class Pinger {
 public:
  Pinger(Net* net, uint32_t lane, int end, int first, uint32_t count, size_t bytes)
      : net_(net), lane_(lane), end_(end), first_(first), count_(count), bytes_(bytes) {}

  // Posts what comes next when the latest is complete; returns whether it has.
  bool step() {
    if (op_ != nullptr && op_->state != kOpDone) return false;
    const bool is_answer = posted_ % (count_ + 1) == count_;
    const int from = is_answer ? 1 - first_ : first_;
    Flow& flow = net_->flow(lane_, from);
    ++posted_;
    if (from == end_) {
      net_->post_send(&flow, bytes_);
      op_ = &flow.sends.back()->op;
    } else {
      net_->post_recv(&flow, bytes_);
      op_ = &flow.recvs.back()->op;
    }
    return true;
  }
  bool has_done(uint32_t rounds) const { return posted_ > uint64_t{rounds} * (count_ + 1); }

 private:
  Net* net_;
  uint32_t lane_;
  int end_;
  int first_;  // the end that sends the many
  uint32_t count_;
  size_t bytes_;
  uint64_t posted_ = 0;
  const Op* op_ = nullptr;
};

void ping(uint32_t rails, uint32_t lanes, int first, uint32_t count, size_t bytes) {
  SCOPED_TRACE(std::to_string(count) + " messages of " + std::to_string(bytes) + " bytes from " +
               std::to_string(first) + " on " + std::to_string(lanes) + " lanes over " +
               std::to_string(rails) + " rails");
  constexpr uint32_t kRounds = 16;
  Net net(1, rails);
  std::vector<Pinger> pingers;
  for (uint32_t lane = 0; lane < lanes; ++lane) {
    for (int end = 0; end < 2; ++end) pingers.emplace_back(&net, lane, end, first, count, bytes);
  }
  const auto has_done = [](const Pinger& pinger) { return pinger.has_done(kRounds); };
  for (uint32_t quiet = 0; !std::all_of(pingers.begin(), pingers.end(), has_done); ++quiet) {
    ASSERT_LT(quiet, 100u) << "nothing moves any more";
    if (net.step_evenly()) quiet = 0;
    for (Pinger& pinger : pingers) {
      if (!has_done(pinger) && pinger.step()) quiet = 0;
    }
  }
  net.settle();
  net.check();
}

TEST(TcpProgress, AnyNumberOfMessagesMayBeAnsweredByOne) {
  for (const uint32_t rails : {1u, 2u, 3u, 4u}) {
    for (const size_t bytes : {size_t{8}, size_t{0}, size_t{8192}}) {
      for (uint32_t count = 1; count <= 17; ++count) {
        ping(rails, bytes == 8 ? 1 : 3, static_cast<int>(count % 2), count, bytes);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// What has come of it is moved out of the place that the next message takes.
TEST(TcpProgress, AMessageThatIsArrivingWhenItsReceiveIsPostedLeavesItsPlaceToTheNext) {
  for (const size_t bytes : {size_t{Bundle::kEagerBytes}, size_t{Bundle::kLargeBytes}}) {
    SCOPED_TRACE(bytes);
    const uint32_t places =
        bytes == Bundle::kEagerBytes ? Bundle::kAheadCount : Bundle::kLargeAheadCount;
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      Net net(seed, 3);
      Flow& flow = net.flow(1, 0);
      Flow& back = net.flow(1, 1);
      for (uint32_t k = 0; k < 2 * places; ++k) net.post_send(&flow, bytes);
      for (uint32_t k = net.chance(60); k > 0; --k) net.step();
      for (uint32_t k = 0; k < places; ++k) net.post_recv(&flow, bytes);
      // The answer tells of them, however late the others are.
      net.post_send(&back, 8);
      for (uint32_t k = net.chance(200); k > 0; --k) net.step();
      for (uint32_t k = 0; k < places; ++k) net.post_recv(&flow, bytes);
      net.post_recv(&back, 8);
      net.settle();
      net.check();
      if (HasFatalFailure()) return;
    }
  }
}

TEST(TcpProgress, MessagesOfAnotherLengthAreAMismatchHoweverFarAheadTheyAre) {
  for (const size_t sent_bytes : {size_t{20'000}, size_t{300'000}}) {
    SCOPED_TRACE(sent_bytes);
    Net net(1, 2);
    Flow& flow = net.flow(0, 0);
    for (int k = 0; k < 6; ++k) net.post_recv(&flow, 8);
    for (int k = 0; k < 5; ++k) net.post_send(&flow, 8);
    net.post_send(&flow, sent_bytes);
    for (int k = 0; k < 20; ++k) {
      virtual_ns += 10'000'000;
      net.settle();
    }
    EXPECT_EQ(flow.recvs.back()->op.state, kOpFailed + WEIR_ERROR_MISMATCH);
  }
}

constexpr double kFast = 0.1;  // 100 MB/s
constexpr size_t kUsualBytes = 400'000;

// How long messages over rails of these rates take, one after the other.
uint64_t time_of(const std::vector<double>& rates, uint32_t count) {
  Net net(1, static_cast<uint32_t>(rates.size()));
  for (uint32_t rail = 0; rail < rates.size(); ++rail) net.shape(rail, rates[rail]);
  uint64_t sum = 0;
  for (uint32_t k = 0; k < count; ++k) sum += net.exchange(kUsualBytes);
  return sum;
}

TEST(TcpRates, ASlowRailMakesMessagesHardlySlowerAndAnyOtherMakesThemFaster) {
  constexpr uint32_t kCount = 50;
  const auto alone = static_cast<double>(time_of({kFast}, kCount));
  for (const double times_slower : {1.0, 2.0, 10.0, 100.0, 390.0, 1000.0}) {
    for (const bool slow_first : {false, true}) {
      std::vector<double> rates = {kFast, kFast / times_slower};
      if (slow_first) std::swap(rates[0], rates[1]);
      const auto both = static_cast<double>(time_of(rates, kCount));
      const double share = times_slower / (times_slower + 1);
      EXPECT_LE(both, alone * (share + 0.25))
          << times_slower << " times slower, rail " << (slow_first ? 0 : 1);
    }
  }
}

// A bucket that had no time to become empty makes its rail seem faster than it is.
TEST(TcpRates, TokenBucketsDoNotMakeMessagesSlower) {
  constexpr double kRates[] = {0.05, 0.025};
  constexpr double kBurstBytes = 32 * 1024;
  for (const size_t bytes : {size_t{20'000}, size_t{32'768}, size_t{65'536}, size_t{131'072}}) {
    Net net(1, 2);
    for (uint32_t rail = 0; rail < 2; ++rail) net.shape(rail, kRates[rail], kBurstBytes);
    for (uint32_t k = 0; k < 100; ++k) net.exchange(bytes);
    uint64_t sum_ns = 0;
    for (uint32_t k = 0; k < 200; ++k) sum_ns += net.exchange(bytes);
    const double bound_ns = 200 * static_cast<double>(bytes) / (kRates[0] + kRates[1]);
    EXPECT_LE(static_cast<double>(sum_ns), 1.1 * bound_ns) << bytes;
  }
}

TEST(TcpRates, ARailThatBecomesSlowIsGivenLessAndMoreWhenItIsFastAgain) {
  const auto alone_ns = static_cast<uint64_t>(kUsualBytes / kFast);
  for (const double times_slower : {20.0, 400.0, 2000.0}) {
    SCOPED_TRACE(times_slower);
    Net net(1, 2);
    const auto exchange = [&net](uint32_t count) {
      uint64_t sum = 0;
      for (uint32_t k = 0; k < count; ++k) sum += net.exchange(kUsualBytes);
      return sum;
    };
    for (uint32_t rail = 0; rail < 2; ++rail) net.shape(rail, kFast);
    exchange(20);
    EXPECT_LE(exchange(10), 6 * alone_ns);
    net.shape(1, kFast / times_slower);
    // One message waits for what has been given to the rail, but for so long only.
    EXPECT_LE(exchange(1), 1'200'000'000u);
    net.give_back(1);
    EXPECT_LE(exchange(50), 65 * alone_ns);
    net.shape(1, kFast);
    virtual_ns += 60'000'000'000;
    exchange(20);
    EXPECT_LE(exchange(10), 6 * alone_ns);
  }
}

// States are told of beside the messages when nothing rides on these.
uint64_t states_of_pings(uint32_t rails, uint32_t count, uint32_t rounds) {
  Net net(1, rails);
  const auto exchange = [&](int from, uint32_t messages) {
    for (uint32_t k = 0; k < messages; ++k) net.post_recv(&net.flow(0, from), 8);
    for (uint32_t k = 0; k < messages; ++k) net.post_send(&net.flow(0, from), 8);
    net.settle();
  };
  exchange(0, 1);
  const uint64_t before = net.control_bytes();
  for (uint32_t i = 0; i < rounds; ++i) {
    exchange(0, count);
    exchange(1, 1);
  }
  net.check();
  wire::PeerState state;
  state.rail_count = rails;
  unsigned char bytes[wire::kStateBytesMax];
  return (net.control_bytes() - before) / (wire::kHeaderBytes + wire::encode(state, bytes));
}

TEST(TcpProgress, APingNeedsNoMessagesBesideItOnOneRailAndFewOnSeveral) {
  EXPECT_EQ(states_of_pings(1, 1, 200), 0u);
  EXPECT_EQ(states_of_pings(1, 7, 200), 0u);
  for (const uint32_t rails : {2u, 3u, 4u}) {
    for (const uint32_t count : {1u, 7u}) {
      // At most one for every sixteen messages each way.
      EXPECT_LE(states_of_pings(rails, count, 200), 200 * (count + 1) / 16 + 2)
          << rails << " rails";
    }
  }
}

}  // namespace
}  // namespace weir::plugins::tcp
