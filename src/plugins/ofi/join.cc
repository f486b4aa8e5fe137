// SPDX-License-Identifier: Apache-2.0
// How an instance comes to be connected: each rank opens its endpoint at an address that leads to
// the others; all tell their names over the control network; then every two ranks exchange a first
// message through the provider, so that no connection has to be made later, when a rank may make no
// progress.
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>

#include "cuda/driver_table.h"
#include "net/interfaces.h"
#include "net/tls.h"
#include "plugins/common/look.h"
#include "plugins/ofi/instance.h"

namespace weir::plugins::ofi {
namespace {

constexpr uint64_t kFilesBesides = 64;

// Providers of networks may have a socket for each peer.
weir_result_t check_descriptors(const Report& report, const std::string& provider,
                                uint32_t rank_count) {
  const uint64_t needed = rank_count + kFilesBesides;
  rlimit limit = {};
  if (provider == "shm" || getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) {
    return WEIR_OK;
  }
  return report.fail(WEIR_ERROR_SYSTEM,
                     text_of(rank_count) + " ranks need " + text_of(needed) +
                         " file descriptors in each process, and the limit of this process is " +
                         text_of(limit.rlim_cur) + "; raise `ulimit -n`");
}

}  // namespace

weir_result_t Instance::find_providers() {
  std::string reason;
  const uint64_t start_ns = now_ns();
  if (!list_providers(library_, report.setting("WEIR_OFI_PROVIDER"), &own_.providers, &reason)) {
    return report.fail(WEIR_ERROR_UNSUPPORTED, reason);
  }
  list_ns_ = now_ns() - start_ns;
  own_.rank = rank;
  return WEIR_OK;
}

weir_result_t Instance::address(unsigned char* out, size_t* bytes) const {
  if (controls_ != nullptr) {
    return report.fail(WEIR_ERROR_INVALID_USAGE, "address after connect");
  }
  *bytes = encode(own_, out);
  return WEIR_OK;
}

weir_result_t Instance::read_addresses(const unsigned char* const* addresses,
                                       const size_t* address_bytes,
                                       std::vector<RankAddress>* ranks) const {
  ranks->resize(rank_count);
  for (uint32_t i = 0; i < rank_count; ++i) {
    RankAddress& one = (*ranks)[i];
    if (!decode(addresses[i], address_bytes[i], &one) || one.rank != i) {
      return report.fail(
          WEIR_ERROR_INVALID_ARGUMENT,
          "the address of rank " + text_of(i) + " is not an address of rank " + text_of(i) +
              " of this version of the transport; do all ranks run the same version of Weir?");
    }
  }
  return WEIR_OK;
}

// The same on every rank, since all have the same addresses.
weir_result_t Instance::choose_provider(const std::vector<RankAddress>& ranks,
                                        std::string* name) const {
  std::vector<std::vector<std::string>> lists;
  bool one_host = true;
  for (const RankAddress& one : ranks) {
    lists.push_back(one.providers);
    one_host = one_host && control.shares_host(one.rank);
  }
  *name = common_provider(lists, one_host);
  if (!name->empty()) return WEIR_OK;
  // The first two ranks that differ explain the most.
  size_t other = 0;
  while (other + 1 < lists.size() && lists[other] == lists[0]) ++other;
  return report.fail(
      WEIR_ERROR_UNSUPPORTED,
      "no provider is common to all ranks: rank 0 has " + join_names(lists[0]) + ", rank " +
          text_of(other) + " has " + join_names(lists[other]) +
          (one_host ? "" : "; the ranks are on several hosts, where shm cannot be used") +
          "; are WEIR_OFI_PROVIDER and FI_PROVIDER the same everywhere?");
}

std::string Instance::describe(uint32_t peer) const {
  if (!joined || endpoint_ == nullptr || peer >= rank_count || peer == rank) {
    return "";
  }
  const std::string way = control.describe(peer);
  return "rank " + text_of(peer) + " by provider " + endpoint_->provider() +
         (way.empty() ? "" : "; control connection: " + way);
}

// The address over which most of the ranks with which the control network is linked are reached;
// else, on one host, loopback, and among several the fastest.
weir_result_t Instance::source_address(net::IpAddress* address) const {
  std::vector<net::IpAddress> found;
  bool one_host = true;
  for (uint32_t peer = 0; peer < rank_count; ++peer) {
    if (peer == rank) continue;
    one_host = one_host && control.shares_host(peer);
    const net::IpAddress own = control.own_address(peer);
    if (own.valid() && !own.is_loopback()) found.push_back(own);
  }
  const auto count = [&](const net::IpAddress& one) {
    return std::count(found.begin(), found.end(), one);
  };
  if (!found.empty()) {
    *address = *std::max_element(found.begin(), found.end(),
                                 [&](const auto& a, const auto& b) { return count(a) < count(b); });
    return WEIR_OK;
  }
  net::InterfaceFilter filter;
  std::vector<net::Interface> interfaces;
  std::string reason;
  if (!net::filter_from(report.setting("WEIR_IFNAME"), report.setting("NCCL_SOCKET_IFNAME"),
                        &filter, &reason) ||
      !net::list_interfaces(filter, &interfaces, &reason)) {
    return report.fail(WEIR_ERROR_INVALID_ARGUMENT, reason);
  }
  const auto weight = [&](const net::Interface& one) {
    return one.is_loopback ? (one_host ? UINT64_MAX : 0) : uint64_t{one.speed_mbits} + 1;
  };
  const auto best =
      std::max_element(interfaces.begin(), interfaces.end(),
                       [&](const auto& a, const auto& b) { return weight(a) < weight(b); });
  if (best != interfaces.end()) *address = best->address;
  return WEIR_OK;
}

weir_result_t Instance::open_endpoint(const std::string& provider) {
  std::string reason;
  // Support of device memory may slow down host memory: only a process that uses CUDA requests it.
  const uint64_t start_ns = now_ns();
  uses_cuda_ = cuda::find_driver(cuda::Look::kInUse) != nullptr;
  net::IpAddress source;
  const weir_result_t chosen = source_address(&source);
  if (chosen != WEIR_OK) return chosen;
  Info info = find_provider(library_, provider, source, cards_, uses_cuda_, &reason);
  if (info == nullptr) return report.fail(WEIR_ERROR_UNSUPPORTED, reason);
  const weir_result_t checked = check_descriptors(report, provider, rank_count);
  if (checked != WEIR_OK) return checked;
  const std::string domain = info->domain_attr->name != nullptr ? info->domain_attr->name : "";
  endpoint_ = std::make_unique<Endpoint>(library_);
  const char* wanted = report.setting("WEIR_OFI_REGISTER");
  const bool registers = wanted != nullptr && strcmp(wanted, "1") == 0;
  if (!endpoint_->open(std::move(info), rank_count, registers)) {
    return report.fail(WEIR_ERROR_SYSTEM, endpoint_->reason());
  }
  open_ns_ = now_ns() - start_ns;
  one_sided_.attach(this, endpoint_.get(), key_proof_);
  if (!net::fill_random(&own_token_, sizeof own_token_)) {
    return report.fail(WEIR_ERROR_SYSTEM, "getrandom failed");
  }
  report.log(Report::kInformation,
             "rank " + text_of(rank) + " uses provider " + provider + ", domain " + domain);
  return WEIR_OK;
}

weir_result_t Instance::missing(const char* what, const std::vector<uint32_t>& ranks) const {
  return report.fail(WEIR_ERROR_TIMEOUT, "timed out: " + message::names_of(ranks) + " of " +
                                             text_of(rank_count) + " " + what + " (provider " +
                                             endpoint_->provider() + ")" + own_work());
}

std::string Instance::own_work() const {
  const auto text_ms = [](uint64_t ns) { return text_of(ns / 1'000'000) + " ms"; };
  return "; of the time, libfabric took " + text_ms(list_ns_) + " to list its providers on rank " +
         text_of(rank) +
         (open_ns_ != 0 ? " and " + text_ms(open_ns_) + " to open its endpoint" : "") +
         ", and other ranks may have taken longer: raise the timeout (WEIR_TIMEOUT_MS) if the "
         "machine is busy";
}

weir_result_t Instance::gone(uint32_t peer) const {
  return report.fail(WEIR_ERROR_PEER_LOST,
                     "rank " + text_of(peer) + " ended, or gave up, while the ranks were joining");
}

weir_result_t Instance::gathered(const message::Control::Outcome& outcome, const char* what) const {
  if (outcome.ranks.empty()) return outcome.result;
  switch (outcome.result) {
    case WEIR_ERROR_TIMEOUT:
      return missing(what, outcome.ranks);
    case WEIR_ERROR_PEER_LOST:
      return gone(outcome.ranks[0]);
    case WEIR_ERROR_REFUSED:
      return report.fail(WEIR_ERROR_REFUSED,
                         "the data that " + message::names_of(outcome.ranks) +
                             " sent cannot be read; do all ranks run the same version of Weir?");
    default:
      return outcome.result;
  }
}

weir_result_t Instance::gather_cards(uint64_t deadline_ns) {
  std::vector<std::string> cards;
  const weir_result_t result =
      gathered(control.gather(encode({own_token_, endpoint_->name()}), deadline_ns, &cards),
               "did not send the name of its endpoint");
  if (result != WEIR_OK) return result;
  for (uint32_t peer = 0; peer < rank_count; ++peer) {
    Card card;
    if (!decode(cards[peer], &card)) {
      return report.fail(WEIR_ERROR_REFUSED,
                         "the endpoint name that rank " + text_of(peer) +
                             " sent cannot be read; do all ranks run the same version of Weir?");
    }
    peers_[peer].token = card.token;
    if (!endpoint_->insert(peer, card.name)) {
      return report.fail(WEIR_ERROR_SYSTEM,
                         "the endpoint of rank " + text_of(peer) + ": " + endpoint_->reason());
    }
  }
  return WEIR_OK;
}

weir_result_t Instance::exchange_first_messages(uint64_t deadline_ns) {
  const uint32_t n = rank_count;
  FirstMessages messages = {std::vector<Op>(n), std::vector<Op>(n), std::vector<uint64_t>(n), rank};
  weir_result_t result = post_first_messages(&messages);
  if (result == WEIR_OK) result = await_first_messages(messages, deadline_ns);
  // The operations end with this function, however it ends: nothing may refer to them.
  if (result != WEIR_OK) quiesce();
  return result;
}

weir_result_t Instance::post_first_messages(FirstMessages* messages) {
  const uint32_t n = rank_count;
  for (uint32_t peer = 0; peer < n; ++peer) {
    uint64_t* greeting = &messages->greetings[peer];
    const weir_result_t result = recv(peer, 0, greeting, sizeof *greeting, &messages->recvs[peer]);
    if (result != WEIR_IN_PROGRESS && result != WEIR_OK) return result;
  }
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t peer = (rank + i) % n;  // ranks start at different peers
    const uint64_t* mine = &messages->mine;
    const weir_result_t result = send(peer, 0, mine, sizeof *mine, &messages->sends[peer]);
    if (result != WEIR_IN_PROGRESS && result != WEIR_OK) return result;
  }
  return WEIR_OK;
}

weir_result_t Instance::await_first_messages(const FirstMessages& messages, uint64_t deadline_ns) {
  const uint32_t n = rank_count;
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
    const weir_result_t heard = common::look(report.host);
    if (heard != WEIR_OK) return heard;
    for (const uint32_t peer : silent) {
      if (peer == rank) continue;
      controls_[peer].drive();
      if (controls_[peer].left() || controls_[peer].ended()) return gone(peer);
    }
    const timespec pause = {0, 50'000};
    nanosleep(&pause, nullptr);
  }
}

// Every peer's first message has been received by every rank.
weir_result_t Instance::await_ready(uint64_t deadline_ns) {
  std::vector<std::string> cards;
  const auto outcome = control.gather("", deadline_ns, &cards, [this] {
    (void)pump();
    return broken_ ? broken() : WEIR_OK;
  });
  return gathered(outcome, "was not ready");
}

weir_result_t Instance::connect(const unsigned char* const* addresses, const size_t* address_bytes,
                                uint64_t deadline_ns) {
  if (controls_ != nullptr) {
    return report.fail(WEIR_ERROR_INVALID_USAGE, "connect was called twice");
  }
  std::vector<RankAddress> ranks;
  std::string provider;
  weir_result_t result = read_addresses(addresses, address_bytes, &ranks);
  if (result != WEIR_OK) return result;
  controls_ = std::make_unique<Control[]>(rank_count);
  for (uint32_t peer = 0; peer < rank_count; ++peer) {
    if (peer != rank) controls_[peer].attach(&control, peer);
  }
  result = choose_provider(ranks, &provider);
  if (result != WEIR_OK) return result;
  result = open_endpoint(provider);
  if (result != WEIR_OK) return result;
  const uint32_t n = rank_count;
  peers_.resize(n);
  channels_ = std::vector<Channel>(size_t{n} * kLaneCount);
  for (uint32_t i = 0; i < channels_.size(); ++i) {
    channels_[i].peer = i / kLaneCount;
    channels_[i].lane = i % kLaneCount;
  }
  result = gather_cards(deadline_ns);
  if (result != WEIR_OK) return result;
  joined = true;
  result = exchange_first_messages(deadline_ns);
  if (result == WEIR_OK) result = await_ready(deadline_ns);
  if (result != WEIR_OK) joined = false;
  return result;
}

}  // namespace weir::plugins::ofi
