// SPDX-License-Identifier: Apache-2.0
// Pair: two ranks of a transport in one thread's hands, for tests that step through operations.
// connect needs both at once, so rank 1 is connected by a helper thread.
#pragma once

#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "support/control_networks.h"
#include "weir/plugin.h"

namespace weir::plugins {

inline uint64_t monotonic_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

class Pair {
 public:
  struct End {
    weir_host_t host{};
    weir_transport_config_t config{};
    weir_transport_t* instance = nullptr;
    unsigned char address[WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
    size_t address_bytes = 0;
    std::map<std::string, std::string> settings;
    std::string error;
    std::string warning;
    std::string log;  // all of them, a line each
    std::unique_ptr<testing_support::ControlRank> control;
    std::string network_address;  // of `control`, as both are told it
  };

  explicit Pair(const weir_transport_functions_t* functions) : f(*functions) {
    for (uint32_t i = 0; i < 2; ++i) {
      end[i].host = {sizeof end[i].host, &end[i], error, log, setting};
      end[i].config = {sizeof end[i].config, i, 2, 5, secret, sizeof secret, 4096, 0};
    }
  }
  ~Pair() { close(); }

  weir_result_t open(uint32_t i) {
    end[i].control = std::make_unique<testing_support::ControlRank>(end[i].config, true,
                                                                    setting(&end[i], "WEIR_TLS"));
    end[i].control->error_copy = &end[i].error;
    end[i].network_address = end[i].control->address();
    end[i].host.control = end[i].control->functions();
    const weir_result_t result = f.open(f.context, &end[i].host, &end[i].config, &end[i].instance);
    return result != WEIR_OK ? result
                             : f.address(end[i].instance, end[i].address, &end[i].address_bytes);
  }
  weir_result_t connect(uint32_t i, uint64_t timeout_ms = 5000) {
    const unsigned char* addresses[] = {end[0].address, end[1].address};
    const size_t bytes[] = {end[0].address_bytes, end[1].address_bytes};
    const uint64_t deadline_ns = monotonic_ns() + timeout_ms * 1'000'000;
    if (!joins_apart && end[0].control != nullptr && end[1].control != nullptr) {
      const std::lock_guard guard(joining_);
      if (!joined_) join_networks(deadline_ns);
    } else if (!end[1 - i].network_address.empty()) {
      const Status joined =
          end[i].control->join({end[0].network_address, end[1].network_address}, deadline_ns);
      if (!joined.ok()) {
        end[i].error = joined.text();
        return static_cast<weir_result_t>(joined.code());
      }
    }
    return f.connect(end[i].instance, addresses, bytes, deadline_ns);
  }
  void join() {
    ASSERT_EQ(open(0), WEIR_OK) << end[0].error;
    ASSERT_EQ(open(1), WEIR_OK) << end[1].error;
    weir_result_t other = WEIR_OK;
    std::thread helper([&] { other = connect(1); });
    const weir_result_t mine = connect(0);
    helper.join();
    ASSERT_EQ(mine, WEIR_OK) << end[0].error;
    ASSERT_EQ(other, WEIR_OK) << end[1].error;
  }
  // Of both ends, that were opened here.
  void join_networks(uint64_t deadline_ns) {
    const std::vector<std::string> both = {end[0].network_address, end[1].network_address};
    std::atomic<bool> failed{false};
    const auto join = [&](uint32_t i) {
      const Status joined = end[i].control->network->join(both, deadline_ns, [&] {
        return failed ? Status(Code::kAborted, "the other end has failed") : Status();
      });
      if (joined.ok()) return;
      failed = true;
      end[i].error = joined.text();
    };
    std::thread helper([&] { join(1); });
    join(0);
    helper.join();
    joined_ = true;
  }
  void close() {
    for (End& e : end) {
      if (e.instance != nullptr) f.close(e.instance);
      e.instance = nullptr;
    }
    for (End& e : end) {
      e.control.reset();
      e.network_address.clear();
    }
    joined_ = false;
  }
  // As ranks do, for transports whose close waits for the peer's.
  void close_together() {
    std::thread other([&] {
      f.close(end[1].instance);
      end[1].instance = nullptr;
    });
    f.close(end[0].instance);
    end[0].instance = nullptr;
    other.join();
  }

  weir_result_t send(uint32_t from, const void* data, uint64_t bytes, weir_transport_op_t* op) {
    return f.send(end[from].instance, 1 - from, 0, data, bytes, op);
  }
  weir_result_t recv(uint32_t to, void* data, uint64_t bytes, weir_transport_op_t* op) {
    return f.recv(end[to].instance, 1 - to, 0, data, bytes, op);
  }
  // Until complete, at most two seconds; both ends make progress.
  weir_result_t wait(uint32_t i, weir_transport_op_t* op, weir_result_t posted) {
    const uint64_t deadline = monotonic_ns() + 2'000'000'000;
    while (posted == WEIR_IN_PROGRESS && monotonic_ns() < deadline) {
      (void)f.progress(end[0].instance);
      (void)f.progress(end[1].instance);
      posted = f.test(end[i].instance, op);
    }
    return posted;
  }

  const weir_transport_functions_t& f;
  End end[2];
  bool joins_apart = false;  // each end joins the control network by itself, in `connect`
  unsigned char secret[32] = {1, 2, 3, 4};

 private:
  std::mutex joining_;
  bool joined_ = false;  // the control network, of ends that were opened here

  static void error(void* context, const char* text) { static_cast<End*>(context)->error = text; }
  static void log(void* context, int, const char* text) {
    auto* end = static_cast<End*>(context);
    end->warning = text;
    end->log.append(text).append("\n");
  }
  static const char* setting(void* context, const char* name) {
    const auto& settings = static_cast<End*>(context)->settings;
    const auto found = settings.find(name);
    return found == settings.end() ? nullptr : found->second.c_str();
  }
};

}  // namespace weir::plugins
