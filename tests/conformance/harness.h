// SPDX-License-Identifier: Apache-2.0
// The conformance suite's stage: a Variant is a transport, how its ranks live (threads or
// processes) and which hook lies around it; run_ranks plays a function as every rank; a Property is
// a test with the capabilities that it needs. Ranks meet on a Board in memory that forked processes
// share.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "support/control_networks.h"
#include "weir/plugin.h"

namespace weir::conformance {

struct Variant {
  const weir_transport_functions_t* functions;
  std::string transport;
  bool processes;
  std::string hook;  // "" for none

  std::string name() const;
  uint32_t rank_count(uint32_t wanted) const;
  bool can(uint64_t caps) const { return (functions->caps.bits & caps) == caps; }
};

// WEIR_TEST_SEED, or a random number that main prints.
uint64_t test_seed();

struct Board;

// One rank at work. Its functions throw Failure when something is not as it must be: the rank's
// function ends, the other ranks are released, and the text becomes the test's failure.
class Rank {
 public:
  struct Failure {
    std::string text;
  };

  Rank(const Variant& variant, Board* board, uint32_t rank, uint32_t rank_count);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  uint32_t rank() const { return rank_; }
  uint32_t count() const { return rank_count_; }
  const Variant& variant() const { return variant_; }
  const weir_transport_functions_t& f() const { return *variant_.functions; }
  weir_transport_t* instance() const { return instance_; }
  std::mt19937_64& random() { return random_; }

  struct Skipped {
    std::string text;
  };
  // The transport declares what the property needs, but what it found here has it not: `text` tells
  // why, and the test is skipped with it. On all ranks or on none.
  [[noreturn]] void skip(const std::string& text) { throw Skipped{text}; }

  // What open is told; change it before joining.
  weir_transport_config_t config{};
  unsigned char secret[32];
  // What the host answers to a transport that asks, while it waits, whether it should go on.
  weir_result_t news = WEIR_OK;
  // A variable of the environment, for this rank; before opening.
  void set(const std::string& name, const std::string& value) { settings_[name] = value; }

  void require(bool condition, const std::string& text);
  // The call failed with one of `codes` and told the host why; the text contains every one of
  // `words`.
  void require_error(weir_result_t result, std::initializer_list<weir_result_t> codes,
                     std::initializer_list<std::string> words = {});
  void require_ok(weir_result_t result, const std::string& what);
  const std::string& error_text() const { return error_text_; }

  // open, address and the exchange of addresses; every rank of the Board takes part.
  void open();
  weir_result_t connect(uint64_t timeout_ms);
  // What connect begins with: the control network. A rank that does no more is missed by the
  // transport.
  weir_result_t join_control(uint64_t timeout_ms);
  // open and connect.
  void join();
  // WEIR_CAP_COLLECTIVES: open, introduce on the device of the rank's number, and join to its end.
  void join_collectives();
  void close();

  void send(uint32_t peer, uint32_t lane, const void* data, uint64_t bytes);
  void recv(uint32_t peer, uint32_t lane, void* data, uint64_t bytes);
  // Tests and progresses until the operation that was posted with `posted` is complete.
  void wait(weir_transport_op_t* op, weir_result_t posted, const std::string& what);
  // The same, giving back how it ended.
  weir_result_t wait_result(weir_transport_op_t* op, weir_result_t posted);
  void progress();

  // All ranks; fails when one of them failed or did not come in time.
  void barrier();
  // Numbers that all ranks share; zero at the start.
  void publish(uint32_t index, uint64_t value);
  // Waits until the number is not zero, making progress; fails like barrier.
  void await(uint32_t index);
  uint64_t read(uint32_t index) const;
  // Fails when another rank has failed.
  void check_others();

 private:
  friend struct HostCalls;
  const Variant& variant_;
  Board* board_;
  uint32_t rank_;
  uint32_t rank_count_;
  weir_host_t host_{};
  std::unique_ptr<testing_support::ControlRank> control_;
  weir_transport_t* instance_ = nullptr;
  std::mt19937_64 random_;
  std::string error_text_;
  std::map<std::string, std::string> settings_;
};

struct RunOptions {
  std::vector<uint32_t> killed;  // ranks that are expected to end by SIGKILL (processes only)
};

// Plays `body` as `rank_count` ranks and turns what goes wrong into failures of the running test.
void run_ranks(const Variant& variant, uint32_t rank_count, const std::function<void(Rank&)>& body,
               const RunOptions& options = {});

struct Property {
  const char* name;
  uint64_t caps;
  uint32_t rank_count_min;
  void (*run)(const Variant& variant);
  bool (*applies)(const Variant& variant) = nullptr;  // null: wherever the capabilities are
  const char* prefix = "";                            // of the suite's name
};

const std::vector<Property>& message_properties();
const std::vector<Property>& memory_properties();
const std::vector<Property>& membership_properties();
const std::vector<Property>& quiesce_properties();
const std::vector<Property>& remote_properties();
const std::vector<Property>& remote_end_properties();
const std::vector<Property>& whole_properties();
const std::vector<Property>& device_properties();
const std::vector<Property>& one_sided_properties();

uint64_t monotonic_ns();

}  // namespace weir::conformance
