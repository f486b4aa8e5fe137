// SPDX-License-Identifier: Apache-2.0
// How an instance comes to be connected: the ranks meet in a control mesh, where they prove themselves;
// each opens its endpoint at the address over which it met the others, and tells its name over the
// proven connections; then every two ranks exchange a first message through the provider, so that
// no connection is left to be made when nobody makes progress.
#include <poll.h>
#include <string.h>
#include <sys/resource.h>

#include <algorithm>

#include "cuda/driver_table.h"
#include "plugins/common/look.h"
#include "plugins/ofi/instance.h"

namespace weir::plugins::ofi {
namespace {

constexpr uint64_t kFilesBesides = 64;
constexpr size_t kNamedRanksMax = 16;
constexpr int kWaitMs = 1;

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

}  // namespace

weir_result_t Instance::listen(const void* secret, size_t secret_bytes) {
  const uint64_t needed = identity_.rank_count + kFilesBesides;
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < needed) {
    return report_.fail(WEIR_ERROR_SYSTEM, text_of(identity_.rank_count) + " ranks need " +
                                               text_of(needed) +
                                               " open files in each, and this process may have " +
                                               text_of(limit.rlim_cur) + "; raise `ulimit -n`");
  }
  std::string reason;
  const uint64_t start_ns = now_ns();
  if (!list_providers(library_, report_.setting("WEIR_OFI_PROVIDER"), &own_.providers, &reason)) {
    return report_.fail(WEIR_ERROR_UNSUPPORTED, reason);
  }
  list_ns_ = now_ns() - start_ns;
  net::InterfaceFilter filter;
  if (!net::filter_from(report_.setting("WEIR_IFNAME"), report_.setting("NCCL_SOCKET_IFNAME"),
                        &filter, &reason)) {
    return report_.fail(WEIR_ERROR_INVALID_ARGUMENT, reason);
  }
  net::MeshConfig config;
  if (!net::tls_mode_of(report_.setting("WEIR_TLS"), net::TlsMode::kControl, &config.tls,
                        &reason)) {
    return report_.fail(WEIR_ERROR_UNSUPPORTED, reason);
  }
  config.stop = [this] {
    told_ = common::look(report_.host);
    return told_ != WEIR_OK;
  };
  config.purpose = "ofi";
  config.comm_id = identity_.comm_id;
  config.rank = identity_.rank;
  config.rank_count = identity_.rank_count;
  config.secret = secret;
  config.secret_bytes = secret_bytes;
  mesh_ = std::make_unique<net::ControlMesh>(config);
  const auto outcome = mesh_->listen(filter);
  if (outcome != net::ControlMesh::Outcome::kOk) {
    return report_.fail(code_of(outcome), mesh_->text());
  }
  own_.rank = identity_.rank;
  own_.place = mesh_->own_address();
  return WEIR_OK;
}

weir_result_t Instance::address(unsigned char* out, size_t* bytes) const {
  if (controls_ != nullptr) {
    return report_.fail(WEIR_ERROR_INVALID_USAGE, "address after connect");
  }
  *bytes = encode(own_, out);
  return WEIR_OK;
}

weir_result_t Instance::read_addresses(const unsigned char* const* addresses,
                                       const size_t* address_bytes,
                                       std::vector<RankAddress>* ranks) const {
  ranks->resize(identity_.rank_count);
  for (uint32_t i = 0; i < identity_.rank_count; ++i) {
    RankAddress& rank = (*ranks)[i];
    if (!decode(addresses[i], address_bytes[i], &rank) || rank.rank != i) {
      return report_.fail(WEIR_ERROR_INVALID_ARGUMENT, "the address given for rank " + text_of(i) +
                                                           " is not that of a rank " + text_of(i) +
                                                           " of this version");
    }
  }
  return WEIR_OK;
}

// The same on every rank, since all have the same addresses.
weir_result_t Instance::choose_provider(const std::vector<RankAddress>& ranks,
                                        std::string* name) const {
  std::vector<std::vector<std::string>> lists;
  const net::HostIdentity& host = ranks[0].place.host;
  bool one_host = host.known();
  for (const RankAddress& rank : ranks) {
    lists.push_back(rank.providers);
    one_host = one_host && rank.place.host == host;
  }
  *name = common_provider(lists, one_host);
  if (!name->empty()) return WEIR_OK;
  // The first two that differ tell the most.
  size_t other = 0;
  while (other + 1 < lists.size() && lists[other] == lists[0]) ++other;
  return report_.fail(WEIR_ERROR_UNSUPPORTED,
                      "no provider is common to all ranks: rank 0 has " + join_names(lists[0]) +
                          ", rank " + text_of(other) + " has " + join_names(lists[other]) +
                          (one_host ? "" : "; the ranks are on several hosts, where shm is none") +
                          "; are WEIR_OFI_PROVIDER and FI_PROVIDER the same everywhere?");
}

weir_result_t Instance::meet(const std::vector<RankAddress>& ranks, uint64_t deadline_ns) {
  std::vector<net::mesh::Bytes> bytes(identity_.rank_count);
  std::vector<const unsigned char*> addresses;
  std::vector<size_t> address_bytes;
  for (const RankAddress& rank : ranks) {
    net::mesh::Bytes& one = bytes[rank.rank];
    one.resize(net::mesh::kAddressBytesMax);
    address_bytes.push_back(net::mesh::encode(rank.place, one.data()));
    addresses.push_back(one.data());
  }
  const auto outcome = mesh_->join(addresses.data(), address_bytes.data(), {}, deadline_ns);
  if (told_ != WEIR_OK) return told_;
  if (outcome != net::ControlMesh::Outcome::kOk) {
    const bool is_late = outcome == net::ControlMesh::Outcome::kTimeout;
    return report_.fail(code_of(outcome), mesh_->text() + (is_late ? own_work() : ""));
  }
  for (uint32_t peer = 0; peer < identity_.rank_count; ++peer) {
    if (peer == identity_.rank) continue;
    controls_[peer].attach(mesh_.get(), peer);
    if (peer < identity_.rank) {
      report_.log(Report::kInformation,
                  "rank " + text_of(identity_.rank) + " uses " + mesh_->route(peer));
    }
  }
  return WEIR_OK;
}

std::string Instance::describe(uint32_t peer) const {
  std::string text = joined_ ? mesh_->describe(peer) : "";
  if (!text.empty() && endpoint_ != nullptr) {
    text += "; its data by provider " + endpoint_->provider();
  }
  return text;
}

// The address over which most peers were met; loopback only when all were.
net::IpAddress Instance::source_address() const {
  std::vector<net::IpAddress> found;
  for (uint32_t peer = 0; peer < identity_.rank_count; ++peer) {
    if (peer == identity_.rank) continue;
    const net::IpAddress address = mesh_->local_address(peer);
    if (address.valid()) found.push_back(address);
  }
  if (found.empty()) return own_.place.offers.back().address;
  const auto weight = [&](const net::IpAddress& address) {
    const auto count = std::count(found.begin(), found.end(), address);
    return address.is_loopback() ? 0 : count;
  };
  return *std::max_element(found.begin(), found.end(),
                           [&](const auto& a, const auto& b) { return weight(a) < weight(b); });
}

weir_result_t Instance::open_endpoint(const std::string& provider) {
  std::string reason;
  // Memory of devices may cost that of the host something: only who uses CUDA asks for it.
  const uint64_t start_ns = now_ns();
  uses_cuda_ = cuda::find_driver(cuda::Look::kInUse) != nullptr;
  Info info = find_provider(library_, provider, source_address(), uses_cuda_, &reason);
  if (info == nullptr) return report_.fail(WEIR_ERROR_UNSUPPORTED, reason);
  endpoint_ = std::make_unique<Endpoint>(library_);
  const char* wanted = report_.setting("WEIR_OFI_REGISTER");
  const bool registers = wanted != nullptr && strcmp(wanted, "1") == 0;
  if (!endpoint_->open(std::move(info), identity_.rank_count, registers)) {
    return report_.fail(WEIR_ERROR_SYSTEM, endpoint_->reason());
  }
  open_ns_ = now_ns() - start_ns;
  one_sided_.attach(this, endpoint_.get(), key_proof_);
  if (!net::fill_random(&own_token_, sizeof own_token_)) {
    return report_.fail(WEIR_ERROR_SYSTEM, "getrandom failed");
  }
  report_.log(Report::kInformation,
              "rank " + text_of(identity_.rank) + " uses provider " + provider);
  return WEIR_OK;
}

weir_result_t Instance::missing(const char* what, const std::vector<uint32_t>& ranks) const {
  std::string list;
  for (size_t i = 0; i < ranks.size() && i < kNamedRanksMax; ++i) {
    list += (i > 0 ? ", " : "") + text_of(ranks[i]);
  }
  if (ranks.size() > kNamedRanksMax)
    list += " and " + text_of(ranks.size() - kNamedRanksMax) + " more";
  return report_.fail(WEIR_ERROR_TIMEOUT,
                      std::string("timed out: ") + (ranks.size() == 1 ? "rank " : "ranks ") + list +
                          " of " + text_of(identity_.rank_count) + " " + what + " (provider " +
                          endpoint_->provider() + ")" + own_work());
}

std::string Instance::own_work() const {
  const auto text_ms = [](uint64_t ns) { return text_of(ns / 1'000'000) + " ms"; };
  return "; of the time, libfabric took " + text_ms(list_ns_) + " to list its providers on rank " +
         text_of(identity_.rank) +
         (open_ns_ != 0 ? " and " + text_ms(open_ns_) + " to open its endpoint" : "") +
         ", and other ranks may have taken longer: raise the timeout (WEIR_TIMEOUT_MS) if the "
         "machine is busy";
}

weir_result_t Instance::gone(uint32_t peer) const {
  return report_.fail(WEIR_ERROR_PEER_LOST,
                      "rank " + text_of(peer) + " ended, or gave up, while the ranks were joining");
}

// Until every peer `has` said something.
weir_result_t Instance::wait_for_control(uint64_t deadline_ns, const char* what,
                                         bool (*has)(const Control&), bool moves_messages) {
  std::vector<pollfd> entries;
  for (;;) {
    std::vector<uint32_t> silent;
    entries.clear();
    for (uint32_t peer = 0; peer < identity_.rank_count; ++peer) {
      if (peer == identity_.rank) continue;
      Control& control = controls_[peer];
      control.drive();
      if (has(control)) continue;
      if (control.left() || control.ended()) return gone(peer);
      silent.push_back(peer);
      entries.push_back(
          {control.fd(), static_cast<short>(control.sending() ? POLLIN | POLLOUT : POLLIN), 0});
    }
    if (silent.empty()) return WEIR_OK;
    if (now_ns() >= deadline_ns) return missing(what, silent);
    const bool moved = moves_messages && pump() > 0;
    if (broken_) return broken();
    (void)poll(entries.data(), entries.size(), moved ? 0 : kWaitMs);
  }
}

weir_result_t Instance::exchange_cards(uint64_t deadline_ns) {
  const Card own = {own_token_, endpoint_->name()};
  for (uint32_t peer = 0; peer < identity_.rank_count; ++peer) {
    if (peer != identity_.rank) controls_[peer].say_card(own);
  }
  const weir_result_t result = wait_for_control(
      deadline_ns, "did not tell the name of its endpoint",
      [](const Control& control) { return control.has_card(); }, false);
  if (result != WEIR_OK) return result;
  for (uint32_t peer = 0; peer < identity_.rank_count; ++peer) {
    const Card& card = peer == identity_.rank ? own : controls_[peer].card();
    peers_[peer].token = card.token;
    if (!endpoint_->insert(peer, card.name)) {
      return report_.fail(WEIR_ERROR_SYSTEM,
                          "the endpoint of rank " + text_of(peer) + ": " + endpoint_->reason());
    }
  }
  return WEIR_OK;
}

weir_result_t Instance::exchange_first_messages(uint64_t deadline_ns) {
  const uint32_t n = identity_.rank_count;
  FirstMessages messages = {std::vector<Op>(n), std::vector<Op>(n), std::vector<uint64_t>(n),
                            identity_.rank};
  weir_result_t result = post_first_messages(&messages);
  if (result == WEIR_OK) result = await_first_messages(messages, deadline_ns);
  // The operations end with this function, however it ends: nothing may refer to them.
  if (result != WEIR_OK) quiesce();
  return result;
}

weir_result_t Instance::post_first_messages(FirstMessages* messages) {
  const uint32_t n = identity_.rank_count;
  for (uint32_t peer = 0; peer < n; ++peer) {
    uint64_t* greeting = &messages->greetings[peer];
    const weir_result_t result = recv(peer, 0, greeting, sizeof *greeting, &messages->recvs[peer]);
    if (result != WEIR_IN_PROGRESS && result != WEIR_OK) return result;
  }
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t peer = (identity_.rank + i) % n;  // not all at the same one
    const uint64_t* mine = &messages->mine;
    const weir_result_t result = send(peer, 0, mine, sizeof *mine, &messages->sends[peer]);
    if (result != WEIR_IN_PROGRESS && result != WEIR_OK) return result;
  }
  return WEIR_OK;
}

weir_result_t Instance::await_first_messages(const FirstMessages& messages, uint64_t deadline_ns) {
  const uint32_t n = identity_.rank_count;
  for (uint32_t idle = 0;;) {
    std::vector<uint32_t> silent;
    for (uint32_t peer = 0; peer < n; ++peer) {
      for (const Op* op : {&messages.sends[peer], &messages.recvs[peer]}) {
        if (op->state == kOpDone) continue;
        if (op->state >= kOpFailed) return tell(*op->channel, *op);
        if (silent.empty() || silent.back() != peer) silent.push_back(peer);
      }
    }
    if (silent.empty()) return WEIR_OK;
    if (now_ns() >= deadline_ns) return missing("cannot be reached through the provider", silent);
    if (broken_) return broken();
    if (pump() > 0) {
      idle = 0;
      continue;
    }
    // Ranks may be more than cores.
    if (++idle < 64) continue;
    for (const uint32_t peer : silent) {
      if (peer == identity_.rank) continue;
      controls_[peer].drive();
      if (controls_[peer].left() || controls_[peer].ended()) return gone(peer);
    }
    const timespec pause = {0, 50'000};
    nanosleep(&pause, nullptr);
  }
}

weir_result_t Instance::exchange_ready(uint64_t deadline_ns) {
  for (uint32_t peer = 0; peer < identity_.rank_count; ++peer) {
    if (peer != identity_.rank) controls_[peer].say(Kind::kReady);
  }
  return wait_for_control(
      deadline_ns, "was not ready", [](const Control& control) { return control.ready(); }, true);
}

weir_result_t Instance::join(const unsigned char* const* addresses, const size_t* address_bytes,
                             uint64_t deadline_ns) {
  if (controls_ != nullptr) {
    return report_.fail(WEIR_ERROR_INVALID_USAGE, "connect was called twice");
  }
  controls_ = std::make_unique<Control[]>(identity_.rank_count);
  std::vector<RankAddress> ranks;
  std::string provider;
  weir_result_t result = read_addresses(addresses, address_bytes, &ranks);
  if (result == WEIR_OK) result = choose_provider(ranks, &provider);
  if (result == WEIR_OK) result = meet(ranks, deadline_ns);
  if (result != WEIR_OK) return result;
  result = open_endpoint(provider);
  if (result != WEIR_OK) return result;
  const uint32_t n = identity_.rank_count;
  peers_.resize(n);
  channels_ = std::vector<Channel>(size_t{n} * kLaneCount);
  for (uint32_t i = 0; i < channels_.size(); ++i) {
    channels_[i].peer = i / kLaneCount;
    channels_[i].lane = i % kLaneCount;
  }
  result = exchange_cards(deadline_ns);
  if (result != WEIR_OK) return result;
  joined_ = true;
  result = exchange_first_messages(deadline_ns);
  if (result == WEIR_OK) result = exchange_ready(deadline_ns);
  if (result != WEIR_OK) joined_ = false;
  return result;
}

}  // namespace weir::plugins::ofi
