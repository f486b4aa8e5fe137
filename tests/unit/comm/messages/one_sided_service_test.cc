// SPDX-License-Identifier: Apache-2.0
// OneSidedService over a network with puts of its own: which messages keep a target awake.
#include "core/comm/messages/one_sided_service.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "support/scripted_transport.h"

namespace weir::comm {
namespace {

// Puts stay under way until a test ends them.
bool g_puts_end = false;

const weir_transport_functions_t& transport_with_puts() {
  static const weir_transport_functions_t functions = [] {
    weir_transport_functions_t f = test::scripted_transport();
    f.caps.bits |= WEIR_CAP_PUT;
    f.remote_open = [](weir_transport_t*, uint32_t, const unsigned char*, size_t,
                       weir_transport_remote_t** remote) {
      *remote = reinterpret_cast<weir_transport_remote_t*>(1);
      return WEIR_OK;
    };
    f.put = [](weir_transport_t*, const weir_transport_remote_t*, uint64_t, const void*, uint64_t,
               weir_transport_op_t* op) {
      op->word[0] = 1;
      return WEIR_IN_PROGRESS;
    };
    f.test = [](weir_transport_t* instance, weir_transport_op_t* op) {
      if (op->word[0] == 1) return g_puts_end ? WEIR_OK : WEIR_IN_PROGRESS;
      return test::scripted::test(instance, op);
    };
    return f;
  }();
  return functions;
}

class Side {
 public:
  Side(test::Wire* wire, Rank rank)
      : end_(make_end(wire, rank)),
        service_(context_, [this](Request&, const Status&) { ++completed_; }) {
    window_.number = 1;
    window_.own = memory_.data();
    window_.own_bytes = memory_.size();
    window_.parts = std::vector<OneSidedWindow::Part>(2);
    window_.parts[1 - rank].bytes = memory_.size();
    window_.parts[1 - rank].key = {1};
    service_.add_window(&window_);
    service_.serve(window_);
  }

  void put(uint64_t bytes) {
    request_.peer = 1 - context_.rank;
    request_.one_sided = std::make_unique<OneSidedCall>();
    request_.one_sided->kind = OneSidedKind::kPut;
    request_.one_sided->window = &window_;
    request_.one_sided->source = memory_.data();
    request_.one_sided->bytes = bytes;
    OneSidedService::Failure failure;
    ASSERT_TRUE(service_.start(request_, &failure));
  }
  // Whether something moved.
  bool poll() {
    OneSidedService::Failure failure;
    const bool moved = service_.poll(&failure);
    EXPECT_EQ(failure.result, WEIR_OK) << failure.text;
    return moved;
  }
  int completed() const { return completed_; }
  const std::vector<unsigned char>& memory() const { return memory_; }

 private:
  static test::End make_end(test::Wire* wire, Rank rank) {
    test::End end;
    end.wire = wire;
    end.rank = rank;
    return end;
  }
  engine::Context make_context() {
    engine::Context context;
    context.rank = end_.rank;
    context.rank_count = 2;
    context.transport = &transport_with_puts();
    context.instance = reinterpret_cast<weir_transport_t*>(&end_);
    return context;
  }

  test::End end_;
  engine::Context context_ = make_context();
  std::vector<unsigned char> memory_ = std::vector<unsigned char>(1 << 20);
  OneSidedWindow window_;
  Request request_;
  int completed_ = 0;
  OneSidedService service_;
};

class OneSidedWake : public ::testing::Test {
 protected:
  OneSidedWake() { g_puts_end = false; }
  test::Wire wire_;
  Side origin_{&wire_, 0};
  Side target_{&wire_, 1};
};

TEST_F(OneSidedWake, ATargetHearsOfAPutThatTheNetworkIsSlowFor) {
  origin_.put(8);
  usleep(1000);
  EXPECT_FALSE(origin_.poll());
  EXPECT_TRUE(target_.poll());
  EXPECT_FALSE(target_.poll());
  // It is told again while the put is under way, but not at every poll.
  EXPECT_FALSE(origin_.poll());
  usleep(1000);
  EXPECT_FALSE(origin_.poll());
  EXPECT_TRUE(target_.poll());
  EXPECT_EQ(target_.memory(), std::vector<unsigned char>(1 << 20));
  g_puts_end = true;
  EXPECT_TRUE(origin_.poll());
  EXPECT_EQ(origin_.completed(), 1);
  usleep(1000);
  origin_.poll();
  EXPECT_FALSE(target_.poll());
}

TEST_F(OneSidedWake, ATargetHearsNothingOfAPutThatTheNetworkIsFastFor) {
  // A millisecond is not long for a gibibyte.
  origin_.put(1 << 30);
  usleep(1000);
  origin_.poll();
  g_puts_end = true;
  EXPECT_TRUE(origin_.poll());
  EXPECT_EQ(origin_.completed(), 1);
  EXPECT_FALSE(target_.poll());
}

}  // namespace
}  // namespace weir::comm
