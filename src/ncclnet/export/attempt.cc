// SPDX-License-Identifier: Apache-2.0
#include "ncclnet/export/attempt.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

#include <algorithm>
#include <new>
#include <system_error>
#include <thread>

#include "core/base/clock.h"

namespace weir::ncclnet {
namespace {

constexpr unsigned char kMagic[4] = {'W', 'N', 'C', 'C'};
constexpr size_t kCardHeaderBytes = sizeof kMagic + kTransportNameBytes;
// Both ends are there by then.
constexpr uint64_t kConnectNsMax = 30'000'000'000;

net::mesh::Bytes make_card(const char* transport, const unsigned char* address, size_t bytes) {
  net::mesh::Bytes card(kCardHeaderBytes + bytes);
  memcpy(card.data(), kMagic, sizeof kMagic);
  memcpy(card.data() + sizeof kMagic, transport, strnlen(transport, kTransportNameBytes));
  memcpy(card.data() + kCardHeaderBytes, address, bytes);
  return card;
}

weir_result_t code_of(net::ControlMesh::Outcome outcome) {
  switch (outcome) {
    case net::ControlMesh::Outcome::kOk:
      return WEIR_OK;
    case net::ControlMesh::Outcome::kTimeout:
      return WEIR_ERROR_TIMEOUT;
    case net::ControlMesh::Outcome::kRefused:
      return WEIR_ERROR_REFUSED;
    case net::ControlMesh::Outcome::kUnsupported:
      return WEIR_ERROR_UNSUPPORTED;
    case net::ControlMesh::Outcome::kBadAddress:
      return WEIR_ERROR_INVALID_ARGUMENT;
    case net::ControlMesh::Outcome::kSystem:
      break;
  }
  return WEIR_ERROR_SYSTEM;
}

// In the meeting's texts the ends have numbers.
constexpr char kWho[] = " (rank 0 listens and receives, rank 1 connects and sends)";

}  // namespace

std::shared_ptr<Attempt> Attempt::listen(const Config& config, net::mesh::Address* address,
                                         std::string* reason) {
  std::shared_ptr<Attempt> attempt(new Attempt(config, true));
  if (!attempt->open_mesh(reason)) return nullptr;
  *address = attempt->addresses_[0];
  // The other end's place is only known when it comes; the mesh wants a name for it.
  attempt->addresses_[1] = attempt->addresses_[0];
  attempt->addresses_[1].rank = 1;
  return attempt;
}

std::shared_ptr<Attempt> Attempt::connect(const Config& config, const net::mesh::Address& peer,
                                          std::string* reason) {
  std::shared_ptr<Attempt> attempt(new Attempt(config, false));
  attempt->addresses_[0] = peer;
  if (!attempt->open_mesh(reason) || !start(attempt)) {
    if (reason->empty()) *reason = "there can be no further thread";
    return nullptr;
  }
  return attempt;
}

Attempt::~Attempt() { net::wipe(config_.secret.data(), config_.secret.size()); }

bool Attempt::open_mesh(std::string* reason) {
  net::InterfaceFilter filter;
  if (!net::InterfaceFilter::parse(config_.meet_over, &filter, reason)) return false;
  net::MeshConfig mesh;
  mesh.purpose = "nccl net";
  mesh.comm_id = connection_id(config_.secret);
  mesh.rank = listens_ ? 0 : 1;
  mesh.rank_count = 2;
  mesh.secret = config_.secret.data();
  mesh.secret_bytes = config_.secret.size();
  mesh.tls = config_.tls;
  mesh.stop = [this] { return cancelled_.load(); };
  mesh_ = std::make_unique<net::ControlMesh>(mesh);
  if (mesh_->listen(filter) != net::ControlMesh::Outcome::kOk) {
    *reason = mesh_->text();
    return false;
  }
  unsigned char own[net::mesh::kAddressBytesMax];
  net::mesh::Address& address = addresses_[listens_ ? 0 : 1];
  if (!net::mesh::decode(own, mesh_->address(own), &address)) {
    *reason = "the own address does not decode";
    return false;
  }
  return true;
}

bool Attempt::start(const std::shared_ptr<Attempt>& attempt) {
  // The threads of the process keep its signals.
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
  mesh_.reset();
  if (result_ != kSuccess || cancelled_) link_.reset();
  finished_.store(true, std::memory_order_release);
}

weir_result_t Attempt::fail(weir_result_t result, std::string text) {
  text_ = std::move(text);
  return result;
}

weir_result_t Attempt::make() {
  const uint64_t deadline_ns = now_ns() + static_cast<uint64_t>(config_.timeout_ms) * 1'000'000;
  link_ = std::make_unique<Link>(config_.functions, listens_, config_.move_over);
  weir_result_t result = link_->open(connection_id(config_.secret), config_.secret);
  if (result != WEIR_OK) return fail(result, link_->text());
  unsigned char own[WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
  size_t own_bytes = 0;
  result = link_->address(own, &own_bytes);
  if (result != WEIR_OK) return fail(result, link_->text());

  unsigned char encoded[2][net::mesh::kAddressBytesMax];
  const unsigned char* ends[2] = {encoded[0], encoded[1]};
  const size_t end_bytes[2] = {net::mesh::encode(addresses_[0], encoded[0]),
                               net::mesh::encode(addresses_[1], encoded[1])};
  const net::mesh::Bytes own_card = make_card(config_.functions->name, own, own_bytes);
  const auto outcome = mesh_->join(ends, end_bytes, own_card, deadline_ns);
  if (outcome != net::ControlMesh::Outcome::kOk) {
    return fail(code_of(outcome), mesh_->text() + kWho);
  }
  const uint32_t self = listens_ ? 0 : 1;
  const net::mesh::Bytes& card = mesh_->card(1 - self);
  if (card.size() < kCardHeaderBytes ||
      memcmp(card.data(), own_card.data(), kCardHeaderBytes) != 0) {
    return fail(WEIR_ERROR_MISMATCH, std::string("the other end does not use the transport ") +
                                         config_.functions->name +
                                         "; WEIR_NCCL_NET_TRANSPORT must be the same everywhere");
  }
  const unsigned char* addresses[2];
  size_t address_bytes[2];
  addresses[self] = own;
  address_bytes[self] = own_bytes;
  addresses[1 - self] = card.data() + kCardHeaderBytes;
  address_bytes[1 - self] = card.size() - kCardHeaderBytes;
  result =
      link_->connect(addresses, address_bytes, std::min(deadline_ns, now_ns() + kConnectNsMax));
  if (result != WEIR_OK) return fail(result, link_->text() + kWho);
  mesh_->leave(1 - self, {});
  return WEIR_OK;
}

}  // namespace weir::ncclnet
