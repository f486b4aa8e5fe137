// SPDX-License-Identifier: Apache-2.0
// Pair: two ranks of a transport in one thread's hands, for tests that step through operations.
// connect needs both at once, so rank 1 is connected by a helper thread.
#pragma once

#include <gtest/gtest.h>
#include <time.h>

#include <map>
#include <string>
#include <thread>

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
  };

  explicit Pair(const weir_transport_functions_t* functions) : f(*functions) {
    for (uint32_t i = 0; i < 2; ++i) {
      end[i].host = {sizeof end[i].host, &end[i], error, log, setting};
      end[i].config = {sizeof end[i].config, i, 2, 5, secret, sizeof secret, 4096, 0};
    }
  }
  ~Pair() { close(); }

  weir_result_t open(uint32_t i) {
    const weir_result_t result = f.open(&end[i].host, &end[i].config, &end[i].instance);
    return result != WEIR_OK ? result
                             : f.address(end[i].instance, end[i].address, &end[i].address_bytes);
  }
  weir_result_t connect(uint32_t i, uint64_t timeout_ms = 5000) {
    const unsigned char* addresses[] = {end[0].address, end[1].address};
    const size_t bytes[] = {end[0].address_bytes, end[1].address_bytes};
    return f.connect(end[i].instance, addresses, bytes, monotonic_ns() + timeout_ms * 1'000'000);
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
  void close() {
    for (End& e : end) {
      if (e.instance != nullptr) f.close(e.instance);
      e.instance = nullptr;
    }
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
  unsigned char secret[32] = {1, 2, 3, 4};

 private:
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
