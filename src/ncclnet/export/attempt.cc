// SPDX-License-Identifier: Apache-2.0
#include "ncclnet/export/attempt.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <system_error>
#include <thread>

#include "core/base/clock.h"
#include "net/little_endian.h"

namespace weir::ncclnet {
namespace {

constexpr char kMagic[4] = {'W', 'N', 'C', 'C'};
constexpr size_t kHeaderBytes = sizeof kMagic + kTransportNameBytes;
// For the transport's connect: both ends are present by then.
constexpr uint64_t kConnectNsMax = 30'000'000'000;

std::string make_message(const char* transport, const std::string& network,
                         std::string_view instance) {
  std::string message(kMagic, sizeof kMagic);
  message.append(transport, strnlen(transport, kTransportNameBytes));
  message.resize(kHeaderBytes);
  unsigned char bytes[2];
  net::put(bytes, static_cast<uint16_t>(network.size()));
  return message.append(reinterpret_cast<const char*>(bytes), sizeof bytes)
      .append(network)
      .append(instance);
}

// Of the network's messages; the transport's go over channel 0.
constexpr uint8_t kFirstMessage = 1;
constexpr uint64_t kPauseNsMin = 100'000;
constexpr uint64_t kPauseNsMax = 20'000'000;
// Error texts of the network name the ends by rank.
constexpr char kWho[] = " (rank 0 listens and receives, rank 1 connects and sends)";

}  // namespace

std::shared_ptr<Attempt> Attempt::listen(const Config& config, control::NetworkAddress* address,
                                         std::string* reason) {
  std::shared_ptr<Attempt> attempt(new Attempt(config, true));
  if (!attempt->open_network(reason)) return nullptr;
  *address = attempt->addresses_[0];
  // The address of the other end is unknown until it connects.
  attempt->addresses_[1].rank = 1;
  attempt->addresses_[1].tls = config.tls;
  return attempt;
}

std::shared_ptr<Attempt> Attempt::connect(const Config& config, const control::NetworkAddress& peer,
                                          std::string* reason) {
  std::shared_ptr<Attempt> attempt(new Attempt(config, false));
  attempt->addresses_[0] = peer;
  if (!attempt->open_network(reason) || !start(attempt)) {
    if (reason->empty()) *reason = "no thread can be started";
    return nullptr;
  }
  return attempt;
}

Attempt::~Attempt() { net::wipe(config_.secret.data(), config_.secret.size()); }

bool Attempt::open_network(std::string* reason) {
  control::NetworkConfig config;
  config.comm_id = connection_id(config_.secret);
  config.rank = listens_ ? 0 : 1;
  config.rank_count = 2;
  config.secret.bytes = config_.secret;
  config.purpose = "nccl net";
  config.tls = config_.tls;
  if (!net::InterfaceFilter::parse(config_.meet_over, &config.filter, reason)) return false;
  auto opened = control::Network::open(config);
  if (!opened.ok()) {
    *reason = opened.status().text();
    return false;
  }
  link_ = std::make_unique<Link>(config_.functions, opened.take(), config.secret, config.comm_id,
                                 listens_, config_.move_over);
  if (control::NetworkAddress::unpack(link_->network().address(), &addresses_[config.rank])) {
    return true;
  }
  *reason = "the address of this process cannot be read";
  return false;
}

bool Attempt::start(const std::shared_ptr<Attempt>& attempt) {
  // Signals are left to the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool good = true;
  try {
    std::thread([attempt] { attempt->run(); }).detach();
  } catch (const std::system_error&) {
    good = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  attempt->started_ = good;
  return good;
}

void Attempt::run() {
  try {
    result_ = result_of(make());
  } catch (const std::bad_alloc&) {
    result_ = kSystemError;
    text_ = "no memory for a connection";
  }
  if (result_ != kSuccess || cancelled_) link_.reset();
  finished_.store(true, std::memory_order_release);
}

weir_result_t Attempt::fail(weir_result_t result, std::string text) {
  text_ = std::move(text);
  return result;
}

weir_result_t Attempt::make() {
  const uint64_t deadline_ns = now_ns() + static_cast<uint64_t>(config_.timeout_ms) * 1'000'000;
  control::Network& network = link_->network();
  weir_result_t result = link_->open();
  if (result != WEIR_OK) return fail(result, link_->text());
  unsigned char own[WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
  size_t own_bytes = 0;
  result = link_->address(own, &own_bytes);
  if (result != WEIR_OK) return fail(result, link_->text());
  const std::string own_message =
      make_message(config_.functions->name, network.address(),
                   std::string_view(reinterpret_cast<const char*>(own), own_bytes));
  const Rank peer = listens_ ? 1 : 0;
  Status met = network.join({addresses_[0].pack(), addresses_[1].pack()}, deadline_ns,
                            [this] { return still_wanted(); });
  if (met.ok()) met = network.send(peer, kFirstMessage, own_message);
  std::string message;
  if (met.ok()) met = receive(&message, deadline_ns);
  if (!met.ok()) return fail(static_cast<weir_result_t>(met.code()), met.text() + kWho);
  if (message.size() < kHeaderBytes + 2 ||
      memcmp(message.data(), own_message.data(), kHeaderBytes) != 0) {
    return fail(WEIR_ERROR_MISMATCH, std::string("the peer does not use the transport ") +
                                         config_.functions->name +
                                         "; WEIR_NCCL_NET_TRANSPORT must be the same everywhere");
  }
  const auto* const bytes = reinterpret_cast<const unsigned char*>(message.data());
  const size_t network_bytes = net::get<uint16_t>(bytes + kHeaderBytes);
  if (message.size() < kHeaderBytes + 2 + network_bytes) {
    return fail(WEIR_ERROR_REFUSED, "the address that the peer sent is damaged");
  }
  met = network.set_address(peer, message.substr(kHeaderBytes + 2, network_bytes));
  if (!met.ok()) return fail(static_cast<weir_result_t>(met.code()), met.text() + kWho);
  const uint64_t end_ns = std::min(deadline_ns, now_ns() + kConnectNsMax);
  const uint32_t self = listens_ ? 0 : 1;
  const unsigned char* addresses[2];
  size_t address_bytes[2];
  addresses[self] = own;
  address_bytes[self] = own_bytes;
  addresses[1 - self] = bytes + kHeaderBytes + 2 + network_bytes;
  address_bytes[1 - self] = message.size() - kHeaderBytes - 2 - network_bytes;
  result = link_->connect(addresses, address_bytes, end_ns);
  if (result != WEIR_OK) return fail(result, link_->text() + kWho);
  return WEIR_OK;
}

Status Attempt::still_wanted() const {
  return cancelled_ ? Status(Code::kTimeout, "the connection attempt was cancelled") : Status();
}

Status Attempt::receive(std::string* message, uint64_t deadline_ns) const {
  control::Network& network = link_->network();
  const Rank peer = listens_ ? 1 : 0;
  for (uint64_t pause_ns = kPauseNsMin;; pause_ns = std::min(2 * pause_ns, kPauseNsMax)) {
    const control::Life life = network.life(peer);
    if (network.receive(peer, kFirstMessage, message)) return Status();
    if (life != control::Life::kHere) {
      return Status(Code::kPeerLost, "the peer ended while the two were connecting");
    }
    WEIR_RETURN_IF_ERROR(still_wanted());
    if (now_ns() >= deadline_ns) {
      return Status(Code::kTimeout, "timed out: the peer did not send its address");
    }
    usleep(static_cast<useconds_t>(pause_ns / 1000));
  }
}

}  // namespace weir::ncclnet
