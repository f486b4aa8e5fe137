// SPDX-License-Identifier: Apache-2.0
// What the conformance suite cannot ask of the transport ucx: UCX's manners in somebody
// else's process, settings, forks.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <vector>

#include "core/control/network_address.h"
#include "core/plugin/registry.h"
#include "unit/plugin/pair.h"

namespace weir::plugins {
namespace {

const weir_transport_functions_t* ucx() { return plugin::find_transport("ucx").value(); }

class Ucx : public testing::Test {
 protected:
  void SetUp() override {
    const auto found = plugin::find_transport("ucx");
    ASSERT_TRUE(found.ok()) << found.status().text();
    char reason[512] = "";
    weir_host_t host = {sizeof host, nullptr, [](void*, const char*) {},
                        [](void*, int, const char*) {},
                        [](void*, const char*) -> const char* { return nullptr; }};
    if (found.value()->viable(found.value()->context, &host, reason, sizeof reason) != WEIR_OK)
      GTEST_SKIP() << reason;
  }
};

bool only_tcp() {
  const char* transports = getenv("UCX_TLS");
  return transports != nullptr && std::string(transports) == "tcp";
}

void expect_exchange(Pair* pair) {
  for (const uint64_t bytes :
       {uint64_t{8}, uint64_t{1024}, uint64_t{300'000}, uint64_t{5'000'001}}) {
    std::vector<unsigned char> out(bytes, 3), in(bytes, 0);
    weir_transport_op_t send_op{}, recv_op{};
    const weir_result_t received = pair->recv(1, in.data(), bytes, &recv_op);
    const weir_result_t sent = pair->send(0, out.data(), bytes, &send_op);
    ASSERT_EQ(pair->wait(1, &recv_op, received), WEIR_OK) << pair->end[1].error;
    ASSERT_EQ(pair->wait(0, &send_op, sent), WEIR_OK) << pair->end[0].error;
    EXPECT_EQ(in, out);
  }
}

// Runs in a process of its own and gives what that wrote to stderr; the exit status must be 0.
std::string stderr_of(const std::function<void()>& body) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    body();
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  close(ends[1]);
  std::string text;
  char bytes[4096];
  for (ssize_t got; (got = read(ends[0], bytes, sizeof bytes)) > 0;) {
    text.append(bytes, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << text;
  return text;
}

TEST_F(Ucx, ItsHandlersOfFatalSignalsAreTakenOut) {
  if (getenv("UCX_HANDLE_ERRORS") != nullptr || getenv("UCX_ERROR_SIGNALS") != nullptr) {
    GTEST_SKIP() << "the environment asks for UCX's handlers";
  }
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer has handlers of its own";
#endif
  ASSERT_NE(ucx(), nullptr);
  std::ifstream status("/proc/self/status");
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    struct sigaction action;
    ASSERT_EQ(sigaction(number, nullptr, &action), 0);
    EXPECT_EQ(action.sa_handler, SIG_DFL) << "signal " << number;
  }
}

TEST_F(Ucx, NothingIsPrintedThoughAPeerDies) {
  const std::string text = stderr_of([] {
    Pair pair(ucx());
    int to_child[2], to_parent[2];
    ASSERT_EQ(pipe(to_child), 0);
    ASSERT_EQ(pipe(to_parent), 0);
    const pid_t peer = fork();
    const uint32_t me = peer == 0 ? 1 : 0;
    const int out = peer == 0 ? to_parent[1] : to_child[1];
    const int in = peer == 0 ? to_child[0] : to_parent[0];
    Pair::End& mine = pair.end[me];
    if (pair.open(me) != WEIR_OK) _exit(3);
    struct Addresses {
      unsigned char transport[WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
      size_t transport_bytes;
      char network[control::kAddressBytesMax];
      size_t network_bytes;
    } told[2] = {};
    memcpy(told[me].transport, mine.address, mine.address_bytes);
    told[me].transport_bytes = mine.address_bytes;
    const std::string network = mine.control->address();
    memcpy(told[me].network, network.data(), network.size());
    told[me].network_bytes = network.size();
    if (write(out, &told[me], sizeof(Addresses)) < 0 ||
        read(in, &told[1 - me], sizeof(Addresses)) <= 0) {
      _exit(4);
    }
    std::vector<std::string> networks;
    for (const Addresses& one : told) networks.emplace_back(one.network, one.network_bytes);
    const uint64_t deadline_ns = monotonic_ns() + 5'000'000'000;
    const Status met = mine.control->join(networks, deadline_ns);
    ASSERT_TRUE(met.ok()) << met.text();
    const unsigned char* const addresses[] = {told[0].transport, told[1].transport};
    const size_t sizes[] = {told[0].transport_bytes, told[1].transport_bytes};
    ASSERT_EQ(pair.f.connect(mine.instance, addresses, sizes, deadline_ns), WEIR_OK) << mine.error;
    std::vector<unsigned char> data(4'000'000, 1);
    weir_transport_op_t op{}, recv_op{};
    if (peer == 0) {
      (void)pair.send(1, data.data(), data.size(), &op);
      usleep(20'000);
      kill(getpid(), SIGKILL);
    }
    std::vector<unsigned char> more(4'000'000, 1);
    weir_result_t sent = pair.send(0, more.data(), more.size(), &op);
    weir_result_t received = pair.recv(0, data.data(), 8, &recv_op);  // of another length, too
    const uint64_t end = monotonic_ns() + 5'000'000'000;
    weir_result_t alive = WEIR_OK;
    while (alive == WEIR_OK && monotonic_ns() < end) {
      if (sent == WEIR_IN_PROGRESS) sent = pair.f.test(mine.instance, &op);
      if (received == WEIR_IN_PROGRESS) received = pair.f.test(mine.instance, &recv_op);
      alive = pair.f.peer_alive(mine.instance, 1);
    }
    EXPECT_EQ(alive, WEIR_ERROR_PEER_LOST);
    EXPECT_NE(mine.error.find("rank 1"), std::string::npos) << mine.error;
    // Operations with the dead end, too.
    while (sent == WEIR_IN_PROGRESS && monotonic_ns() < end) {
      sent = pair.f.test(mine.instance, &op);
    }
    EXPECT_EQ(sent, WEIR_ERROR_PEER_LOST);
    pair.close();
    waitpid(peer, nullptr, 0);
  });
  EXPECT_EQ(text, "");
}

TEST_F(Ucx, WhoLeavesInOrderLeavesItsMessagesBehind) {
  Pair pair(ucx());
  pair.join();
  if (HasFatalFailure()) return;
  std::vector<unsigned char> in(1000);
  weir_transport_op_t ops[4] = {};
  for (int i = 0; i < 4; ++i) {
    const std::vector<unsigned char> out(1000, static_cast<unsigned char>(i + 1));
    const weir_result_t sent = pair.send(0, out.data(), out.size(), &ops[i]);
    ASSERT_EQ(sent, WEIR_OK) << "a short message has its sender's buffer free at once";
  }
  pair.f.close(pair.end[0].instance);
  pair.end[0].instance = nullptr;
  const auto receive = [&] {
    weir_transport_op_t op{};
    weir_result_t result = pair.recv(1, in.data(), in.size(), &op);
    const uint64_t end = monotonic_ns() + 5'000'000'000;
    while (result == WEIR_IN_PROGRESS && monotonic_ns() < end) {
      result = pair.f.test(pair.end[1].instance, &op);
      if (result == WEIR_IN_PROGRESS) (void)pair.f.peer_alive(pair.end[1].instance, 0);
    }
    return result;
  };
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(receive(), WEIR_OK) << pair.end[1].error;
    EXPECT_EQ(in[999], i + 1);
  }
  EXPECT_EQ(pair.f.peer_alive(pair.end[1].instance, 0), WEIR_OK) << "leaving is not dying";
  EXPECT_EQ(receive(), WEIR_ERROR_PEER_LOST);
  EXPECT_NE(pair.end[1].error.find("rank 0 has closed the communicator"), std::string::npos)
      << pair.end[1].error;
}

TEST_F(Ucx, AForkedChildMayCloseItsCopyButIsToldThatUcxDidNotComeAlong) {
  Pair pair(ucx());
  pair.join();
  if (HasFatalFailure()) return;
  expect_exchange(&pair);
  const std::string text = stderr_of([&] {
    pair.close();
    Pair own(ucx());
    EXPECT_EQ(own.open(0), WEIR_ERROR_UNSUPPORTED);
    EXPECT_NE(own.end[0].error.find("forked"), std::string::npos) << own.end[0].error;
  });
  EXPECT_EQ(text, "");
  expect_exchange(&pair);
  EXPECT_EQ(pair.f.peer_alive(pair.end[0].instance, 1), WEIR_OK) << pair.end[0].error;
}

TEST_F(Ucx, ATransportThatUcxDoesNotHaveIsNamedWithARemedy) {
  const std::string text = stderr_of([] {
    setenv("UCX_TLS", "carrier_pigeon", 1);
    char reason[512] = "";
    weir_host_t host = {sizeof host, nullptr, [](void*, const char*) {},
                        [](void*, int, const char*) {},
                        [](void*, const char*) -> const char* { return nullptr; }};
    EXPECT_EQ(ucx()->viable(ucx()->context, &host, reason, sizeof reason), WEIR_ERROR_UNSUPPORTED);
    const std::string told = reason;
    EXPECT_NE(told.find("UCX_TLS"), std::string::npos) << told;
    Pair pair(ucx());
    EXPECT_EQ(pair.open(0), WEIR_ERROR_UNSUPPORTED);
    EXPECT_NE(pair.end[0].error.find("UCX_TLS"), std::string::npos) << pair.end[0].error;
  });
  EXPECT_EQ(text, "");
}

// UCX opens nothing whose tcp takes shorter segments than it sends copies of, and takes 64 KiB if
// nobody asks otherwise.
TEST_F(Ucx, TcpTakesLongSegmentsUnlessTheEnvironmentSaysHowLong) {
  if (!only_tcp()) GTEST_SKIP() << "asked where UCX_TLS=tcp";
  const std::string text = stderr_of([] {
    setenv("UCX_TCP_TX_SEG_SIZE", "128k", 1);
    Pair ours(ucx());
    ours.join();
    if (HasFatalFailure()) return;
    expect_exchange(&ours);
    setenv("UCX_TCP_RX_SEG_SIZE", "64k", 1);
    Pair theirs(ucx());
    EXPECT_EQ(theirs.open(0), WEIR_ERROR_UNSUPPORTED);
    EXPECT_NE(theirs.end[0].error.find("RX segment size"), std::string::npos)
        << theirs.end[0].error;
  });
  EXPECT_EQ(text, "");
}

TEST_F(Ucx, RanksWhoseTcpSegmentsDifferAreToldSoAndSendNothing) {
  if (!only_tcp()) GTEST_SKIP() << "asked where UCX_TLS=tcp";
  const std::string text = stderr_of([] {
    Pair pair(ucx());
    ASSERT_EQ(pair.open(0), WEIR_OK) << pair.end[0].error;
    setenv("UCX_TCP_RX_SEG_SIZE", "64k", 1);
    ASSERT_EQ(pair.open(1), WEIR_OK) << pair.end[1].error;
    weir_result_t results[2] = {};
    std::thread helper([&] { results[1] = pair.connect(1); });
    results[0] = pair.connect(0);
    helper.join();
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(results[i], WEIR_ERROR_UNSUPPORTED);
      const std::string& error = pair.end[i].error;
      EXPECT_NE(error.find("UCX_TCP_RX_SEG_SIZE"), std::string::npos) << error;
      EXPECT_NE(error.find("64k"), std::string::npos) << error;
    }
    pair.close();
    Pair alike(ucx());
    alike.join();
    if (!HasFatalFailure()) expect_exchange(&alike);
  });
  EXPECT_EQ(text, "");
}

TEST_F(Ucx, PutsAndGetsOfMemoryThatIsNoLongerRegisteredAreRefusedWhateverTheirSize) {
  if (!only_tcp()) {
    GTEST_SKIP() << "asked of endpoints that report errors, which UCX_TLS=tcp makes on one host";
  }
  Pair pair(ucx());
  pair.join();
  if (HasFatalFailure()) return;
  constexpr uint64_t kBytes = 5 << 20;
  std::vector<unsigned char> window(kBytes, 7), data(kBytes, 8);
  weir_transport_memory_t* memories[2] = {};
  weir_transport_remote_t* remotes[2] = {};
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(pair.f.memory_register(pair.end[1].instance, window.data(), kBytes, &memories[i]),
              WEIR_OK);
    unsigned char key[WEIR_TRANSPORT_KEY_BYTES_MAX];
    size_t key_bytes = 0;
    ASSERT_EQ(pair.f.memory_key(pair.end[1].instance, memories[i], key, &key_bytes), WEIR_OK);
    ASSERT_EQ(pair.f.remote_open(pair.end[0].instance, 1, key, key_bytes, &remotes[i]), WEIR_OK);
  }
  pair.f.memory_deregister(pair.end[1].instance, memories[0]);
  for (const uint64_t bytes : {uint64_t{100}, uint64_t{5000}, uint64_t{100'000}, kBytes}) {
    weir_transport_op_t refused{}, stored{};
    const weir_result_t first =
        pair.f.put(pair.end[0].instance, remotes[0], 0, data.data(), bytes, &refused);
    EXPECT_EQ(pair.wait(0, &refused, first), WEIR_ERROR_REFUSED) << bytes;
    EXPECT_NE(pair.end[0].error.find("rank 1 has not registered"), std::string::npos)
        << pair.end[0].error;
    EXPECT_EQ(window, std::vector<unsigned char>(kBytes, 7));
    const weir_result_t second =
        pair.f.put(pair.end[0].instance, remotes[1], 0, data.data(), bytes, &stored);
    EXPECT_EQ(pair.wait(0, &stored, second), WEIR_OK) << pair.end[0].error;
    EXPECT_EQ(std::count(window.begin(), window.end(), 8), static_cast<ptrdiff_t>(bytes));
    std::vector<unsigned char> brought(bytes + 1, 9);
    weir_transport_op_t refused_get{}, get{};
    const weir_result_t third =
        pair.f.get(pair.end[0].instance, remotes[0], 0, brought.data(), bytes, &refused_get);
    EXPECT_EQ(pair.wait(0, &refused_get, third), WEIR_ERROR_REFUSED) << bytes;
    EXPECT_EQ(brought, std::vector<unsigned char>(bytes + 1, 9));
    const weir_result_t fourth =
        pair.f.get(pair.end[0].instance, remotes[1], 0, brought.data(), bytes, &get);
    EXPECT_EQ(pair.wait(0, &get, fourth), WEIR_OK) << pair.end[0].error;
    EXPECT_EQ(std::count(brought.begin(), brought.end(), 8), static_cast<ptrdiff_t>(bytes));
    EXPECT_EQ(brought[bytes], 9);
    std::fill(window.begin(), window.end(), 7);
  }
}

}  // namespace
}  // namespace weir::plugins
