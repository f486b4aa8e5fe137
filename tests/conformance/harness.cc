// SPDX-License-Identifier: Apache-2.0
#include "conformance/harness.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "conformance/two_hosts.h"

namespace weir::conformance {
namespace {

constexpr uint64_t kPatienceNs = 90'000'000'000;  // of a test that hangs
constexpr uint32_t kRanksMax = 16;

}  // namespace

struct Board {
  std::atomic<uint32_t> in_barrier;
  std::atomic<uint32_t> barrier_round;
  std::atomic<bool> failed;
  std::atomic<bool> done[kRanksMax];
  unsigned char addresses[kRanksMax][WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
  size_t address_bytes[kRanksMax];
  unsigned char control_addresses[kRanksMax][control::kAddressBytesMax];
  size_t control_address_bytes[kRanksMax];
  char failures[kRanksMax][1024];
  char skips[kRanksMax][256];
  std::atomic<uint64_t> numbers[64];
  uint64_t comm_id;
};

struct HostCalls {
  static void error(void* context, const char* text) {
    static_cast<Rank*>(context)->error_text_ = text;
  }
  static void log(void*, int, const char*) {}
  static const char* setting(void* context, const char* name) {
    const auto& settings = static_cast<Rank*>(context)->settings_;
    const auto found = settings.find(name);
    return found == settings.end() ? getenv(name) : found->second.c_str();
  }
  static weir_result_t look(void* context) {
    Rank& rank = *static_cast<Rank*>(context);
    if (rank.news != WEIR_OK) rank.error_text_ = "news from elsewhere";
    return rank.news;
  }
};

uint64_t monotonic_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

uint64_t test_seed() {
  static const uint64_t seed = [] {
    const char* text = getenv("WEIR_TEST_SEED");
    return text != nullptr ? strtoull(text, nullptr, 0) : std::random_device{}();
  }();
  return seed;
}

std::string Variant::name() const {
  return transport + (processes ? "_processes" : "_threads") + (hook.empty() ? "" : "_" + hook);
}

uint32_t Variant::rank_count(uint32_t wanted) const {
  return std::min(wanted, functions->caps.rank_count_max);
}

Rank::Rank(const Variant& variant, Board* board, uint32_t rank, uint32_t rank_count)
    : variant_(variant),
      board_(board),
      rank_(rank),
      rank_count_(rank_count),
      random_(test_seed() * 1000 + rank) {
  host_ = {sizeof host_, this, HostCalls::error, HostCalls::log, HostCalls::setting};
  host_.look = HostCalls::look;
  // Ranks in pairs, so that some properties meet one host and some several.
  if (variant.hook == "hosts") settings_["WEIR_HOST_ID"] = "host " + std::to_string(rank / 2);
  settings_["WEIR_FAULT"] = "delay_us=100,seed=" + std::to_string(test_seed() % 1000);
  for (size_t i = 0; i < sizeof secret; ++i) secret[i] = static_cast<unsigned char>(3 * i + 1);
  config = {sizeof config, rank, rank_count, board->comm_id, secret, sizeof secret, 100'000, 1};
}

Rank::~Rank() { close(); }

void Rank::require(bool condition, const std::string& text) {
  if (!condition) throw Failure{text};
}

void Rank::require_ok(weir_result_t result, const std::string& what) {
  if (result != WEIR_OK) {
    throw Failure{what + " gave " + std::to_string(result) + " (" + error_text_ + ")"};
  }
}

void Rank::require_error(weir_result_t result, std::initializer_list<weir_result_t> codes,
                         std::initializer_list<std::string> words) {
  require(std::find(codes.begin(), codes.end(), result) != codes.end(),
          "another error was expected than " + std::to_string(result) + " (" + error_text_ + ")");
  require(!error_text_.empty(), "error " + std::to_string(result) + " came without a text");
  for (const std::string& word : words) {
    require(error_text_.find(word) != std::string::npos,
            "the text of the error does not contain '" + word + "': " + error_text_);
  }
}

void Rank::open() {
  // Before the transport, so that it lives longer.
  control_ = std::make_unique<testing_support::ControlRank>(config);
  require(control_->functions() != nullptr, "no control network: " + control_->problem.text());
  const std::string own = control_->address();
  memcpy(board_->control_addresses[rank_], own.data(), own.size());
  board_->control_address_bytes[rank_] = own.size();
  control_->error_copy = &error_text_;
  host_.control = control_->functions();
  require_ok(f().open(f().context, &host_, &config, &instance_), "open");
  size_t bytes = 0;
  require_ok(f().address(instance_, board_->addresses[rank_], &bytes), "address");
  require(bytes <= WEIR_TRANSPORT_ADDRESS_BYTES_MAX, "the address is too long");
  board_->address_bytes[rank_] = bytes;
  barrier();
}

weir_result_t Rank::join_control(uint64_t timeout_ms) {
  std::vector<std::string> networks;
  for (uint32_t i = 0; i < rank_count_; ++i) {
    networks.emplace_back(reinterpret_cast<const char*>(board_->control_addresses[i]),
                          board_->control_address_bytes[i]);
  }
  const Status joined = control_->join(networks, monotonic_ns() + timeout_ms * 1'000'000);
  if (!joined.ok()) error_text_ = joined.text();
  return static_cast<weir_result_t>(joined.code());
}

weir_result_t Rank::connect(uint64_t timeout_ms) {
  const uint64_t deadline_ns = monotonic_ns() + timeout_ms * 1'000'000;
  if (const weir_result_t joined = join_control(timeout_ms); joined != WEIR_OK) return joined;
  std::vector<const unsigned char*> addresses(rank_count_);
  for (uint32_t i = 0; i < rank_count_; ++i) addresses[i] = board_->addresses[i];
  return f().connect(instance_, addresses.data(), board_->address_bytes, deadline_ns);
}

void Rank::join() {
  open();
  require_ok(connect(60'000), "connect");
}

void Rank::join_collectives() {
  open();
  const weir_collective_functions_t& whole = *f().collectives;
  size_t own_bytes = WEIR_TRANSPORT_ADDRESS_BYTES_MAX;
  require_ok(
      whole.introduce(instance_, static_cast<int>(rank_), board_->addresses[rank_], &own_bytes),
      "introduce");
  board_->address_bytes[rank_] = own_bytes;
  barrier();
  std::vector<const unsigned char*> texts(rank_count_);
  for (uint32_t i = 0; i < rank_count_; ++i) texts[i] = board_->addresses[i];
  weir_result_t result = whole.join(instance_, texts.data(), board_->address_bytes);
  const uint64_t end = monotonic_ns() + kPatienceNs;
  while (result == WEIR_IN_PROGRESS) {
    require(monotonic_ns() < end, "joined does not come to an end");
    check_others();
    usleep(50);
    result = whole.joined(instance_);
  }
  require_ok(result, "join");
}

void Rank::close() {
  if (instance_ != nullptr) f().close(instance_);
  instance_ = nullptr;
  control_.reset();
}

weir_result_t Rank::wait_result(weir_transport_op_t* op, weir_result_t posted) {
  const uint64_t end = monotonic_ns() + kPatienceNs;
  for (uint32_t spins = 0; posted == WEIR_IN_PROGRESS; ++spins) {
    posted = f().test(instance_, op);
    if (posted != WEIR_IN_PROGRESS) break;
    // An error of progress may be this operation's: then the next test tells it.
    const weir_result_t moved = f().progress(instance_);
    if (moved != WEIR_OK) {
      posted = f().test(instance_, op);
      return posted == WEIR_IN_PROGRESS ? moved : posted;
    }
    if (spins % 64 == 63) sched_yield();
    if (spins % 1024 == 1023) {
      require(monotonic_ns() < end, "an operation did not complete");
      require(!board_->failed, "another rank failed first");
    }
  }
  return posted;
}

void Rank::wait(weir_transport_op_t* op, weir_result_t posted, const std::string& what) {
  require_ok(wait_result(op, posted), what);
}

void Rank::send(uint32_t peer, uint32_t lane, const void* data, uint64_t bytes) {
  weir_transport_op_t op{};
  wait(&op, f().send(instance_, peer, lane, data, bytes, &op), "send");
}

void Rank::recv(uint32_t peer, uint32_t lane, void* data, uint64_t bytes) {
  weir_transport_op_t op{};
  wait(&op, f().recv(instance_, peer, lane, data, bytes, &op), "recv");
}

void Rank::progress() { require_ok(f().progress(instance_), "progress"); }

void Rank::barrier() {
  const uint32_t round = board_->barrier_round;
  if (board_->in_barrier.fetch_add(1) + 1 == rank_count_) {
    board_->in_barrier = 0;
    board_->barrier_round = round + 1;
    return;
  }
  const uint64_t end = monotonic_ns() + kPatienceNs;
  while (board_->barrier_round == round) {
    require(!board_->failed, "another rank failed first");
    require(monotonic_ns() < end, "the other ranks did not come to the barrier");
    usleep(20);
  }
}

void Rank::publish(uint32_t index, uint64_t value) { board_->numbers[index] = value; }

void Rank::await(uint32_t index) {
  const uint64_t end = monotonic_ns() + kPatienceNs;
  while (read(index) == 0) {
    require(!board_->failed, "another rank failed first");
    require(monotonic_ns() < end, "another rank did not come so far");
    if (instance_ != nullptr) (void)f().progress(instance_);
    usleep(50);
  }
}

void Rank::check_others() { require(!board_->failed, "another rank failed first"); }

uint64_t Rank::read(uint32_t index) const { return board_->numbers[index]; }

namespace {

void play(const Variant& variant, Board* board, uint32_t rank, uint32_t rank_count,
          const std::function<void(Rank&)>& body) {
  std::string failure;
  try {
    Rank self(variant, board, rank, rank_count);
    body(self);
  } catch (const Rank::Skipped& caught) {
    snprintf(board->skips[rank], sizeof board->skips[rank], "%s", caught.text.c_str());
  } catch (const Rank::Failure& caught) {
    failure = caught.text.empty() ? "failed" : caught.text;
  } catch (const std::exception& caught) {
    failure = caught.what();
  }
  if (!failure.empty()) {
    snprintf(board->failures[rank], sizeof board->failures[rank], "%s", failure.c_str());
    board->failed = true;
  }
  board->done[rank] = true;
}

void reap(const std::vector<pid_t>& children, Board* board, const RunOptions& options) {
  const uint64_t end = monotonic_ns() + 2 * kPatienceNs;
  for (uint32_t i = 0; i < children.size(); ++i) {
    int status = 0;
    while (waitpid(children[i], &status, WNOHANG) == 0) {
      if (monotonic_ns() > end) kill(children[i], SIGKILL);
      usleep(100);
    }
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    const bool expected =
        std::find(options.killed.begin(), options.killed.end(), i) != options.killed.end();
    if (board->skips[i][0] != 0) {
      EXPECT_TRUE(WIFEXITED(status)) << "rank " << i << " has skipped what kills it";
    } else if (expected) {
      EXPECT_TRUE(killed) << "rank " << i << " was to be killed";
    } else {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
          << "rank " << i << " ended with status " << status;
      EXPECT_TRUE(board->done[i]) << "rank " << i << " did not finish";
    }
  }
}

}  // namespace

void run_ranks(const Variant& variant, uint32_t rank_count, const std::function<void(Rank&)>& body,
               const RunOptions& options) {
  void* memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_LE(rank_count, kRanksMax);
  auto* board = static_cast<Board*>(memory);
  board->comm_id = test_seed() + 77;
  if (variant.processes) {
    fflush(nullptr);
    std::vector<pid_t> children;
    for (uint32_t i = 0; i < rank_count; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        if (two_hosts().are_there() && !two_hosts().enter(i)) _exit(99);
        play(variant, board, i, rank_count, body);
        _exit(0);
      }
      children.push_back(child);
    }
    reap(children, board, options);
  } else {
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < rank_count; ++i) {
      threads.emplace_back([&, i] { play(variant, board, i, rank_count, body); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  for (uint32_t i = 0; i < rank_count; ++i) {
    if (board->failures[i][0] != 0) ADD_FAILURE() << "rank " << i << ": " << board->failures[i];
  }
  const std::string skipped = board->skips[0];
  munmap(memory, sizeof(Board));
  if (!skipped.empty()) GTEST_SKIP() << skipped;
}

}  // namespace weir::conformance
