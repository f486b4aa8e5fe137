// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "core/plugin/registry.h"

namespace weir::plugin {
namespace {

// The transport between ranks of one host when other ranks are on other hosts.
constexpr std::string_view kWithinHost = "shm";

std::vector<std::string> names_in(const std::string& list) {
  std::vector<std::string> names;
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    names.push_back(list.substr(at, comma - at));
    at = comma + 1;
  }
  return names;
}

// Adds the hook seal where WEIR_TLS requires it and the transport does not encrypt, unless
// WEIR_HOOKS places that hook itself.
Result<const weir_transport_functions_t*> seal(const weir_transport_functions_t* transport,
                                               const Settings& settings, const std::string& hooks) {
  const std::vector<std::string> names = names_in(hooks);
  if (std::find(names.begin(), names.end(), "seal") != names.end()) return transport;
  return sealed_for(settings.tls.c_str(), transport);
}

// The transports of WEIR_FAILOVER are looked for even where nothing goes over to them: a wrong name
// is told where it is set, and not when ranks are on other hosts.
Status check_failover(const Settings& settings) {
  if (settings.failover.empty()) return Status();
  for (const std::string& name : names_in(settings.failover)) {
    auto found = find_transport(name);
    if (!found.ok()) return found.status().with_context("WEIR_FAILOVER");
  }
  return Status();
}

// Adds the transports that WEIR_FAILOVER names. The hook fault then wraps each transport except the
// last: the next transport must make up for its faults. `hooks` keeps the remaining hooks.
Result<const weir_transport_functions_t*> with_failover(const weir_transport_functions_t* bare,
                                                        const Settings& settings,
                                                        std::string* hooks) {
  auto sealed = seal(bare, settings, *hooks);
  if (!sealed.ok()) return sealed;
  const weir_transport_functions_t* const transport = sealed.value();
  if (settings.failover.empty() || needs_one_host(*transport) ||
      transport->caps.rank_count_max < 2) {
    return transport;
  }
  std::vector<const weir_transport_functions_t*> chain = {transport};
  for (const std::string& name : names_in(settings.failover)) {
    auto found = find_transport(name);
    if (!found.ok()) return found.status().with_context("WEIR_FAILOVER");
    auto next = seal(found.value(), settings, *hooks);
    if (!next.ok()) return next;
    chain.push_back(next.value());
  }
  std::string outside;
  for (const std::string& hook : names_in(*hooks)) {
    if (hook != "fault") {
      outside += (outside.empty() ? "" : ",") + hook;
      continue;
    }
    for (size_t i = 0; i + 1 < chain.size(); ++i) {
      auto faulty = wrap_with_hooks(chain[i], hook);
      if (!faulty.ok()) return faulty;
      chain[i] = faulty.value();
    }
  }
  *hooks = outside;
  return make_failover(chain);
}

// The transport that a communicator uses for `bare`: with the failover transports, with `local`
// between ranks of a host (null: not needed), and with the hooks of WEIR_HOOKS around all.
Result<const weir_transport_functions_t*> dress(const weir_transport_functions_t* bare,
                                                const Settings& settings,
                                                const weir_transport_functions_t* local = nullptr) {
  std::string hooks = settings.hooks;
  auto made = with_failover(bare, settings, &hooks);
  if (made.ok() && local != nullptr) made = make_hosts(made.value(), local);
  if (!made.ok()) return made;
  return wrap_with_hooks(made.value(), hooks);
}

}  // namespace

bool needs_one_host(const weir_transport_functions_t& transport) {
  return (transport.caps.bits & WEIR_CAP_SEGMENT) != 0;
}

bool uses_cards(const weir_transport_functions_t& transport) {
  if (transport.parts == nullptr) {
    const std::string_view name = transport.name;
    return name == "ucx" || name == "ofi";
  }
  for (const weir_transport_part_t* part = transport.parts; part->transport != nullptr; ++part) {
    if (uses_cards(*part->transport)) return true;
  }
  return false;
}

Result<const weir_transport_functions_t*> choose_transport(const Settings& settings,
                                                           const weir_host_t& host, Rank rank_count,
                                                           Spread spread) {
  WEIR_RETURN_IF_ERROR(check_failover(settings));
  const std::vector<std::string> wanted = names_in(settings.transport);
  if (wanted.size() == 1 && !wanted[0].empty()) {
    auto found = find_transport(wanted[0]);
    if (!found.ok()) return found.status().with_context("WEIR_TRANSPORT");
    if ((found.value()->caps.bits & WEIR_CAP_SEND_RECV) == 0) {
      return Status(Code::kUnsupported,
                    fmt::format("transport '{}' sends no messages: leave it out of WEIR_TRANSPORT; "
                                "Weir uses it by itself where it is needed",
                                wanted[0]));
    }
    if (found.value()->caps.rank_count_max < rank_count) {
      return Status(Code::kUnsupported,
                    fmt::format("transport '{}' supports at most {} ranks, not {}", wanted[0],
                                found.value()->caps.rank_count_max, rank_count));
    }
    return dress(found.value(), settings);
  }
  if (settings.transport.empty() && rank_count == 1) {
    auto self = find_transport("self");
    if (!self.ok()) return self.status();
    return wrap_with_hooks(self.value(), settings.hooks);
  }
  if (!settings.transport.empty()) {
    for (const std::string& name : wanted) {
      auto found = find_transport(name);
      if (!found.ok()) return found.status().with_context("WEIR_TRANSPORT");
    }
  }
  std::string reasons;
  const weir_transport_functions_t* local = nullptr;
  const weir_transport_functions_t* chosen = nullptr;
  visit_transports(host, [&](const Viability& entry) {
    const std::string name = entry.transport->name;
    if (!settings.transport.empty() &&
        std::find(wanted.begin(), wanted.end(), name) == wanted.end()) {
      return true;
    }
    std::string reason;
    if (!entry.viable) {
      reason = entry.reason;
    } else if (entry.transport->caps.rank_count_max < rank_count) {
      reason = "too few ranks";
    } else if ((entry.transport->caps.bits & WEIR_CAP_SEND_RECV) == 0) {
      reason = "sends no messages";
    } else if (spread != Spread::kOneHost && needs_one_host(*entry.transport)) {
      reason = "the ranks are on several hosts";
      if (spread == Spread::kHosts && name == kWithinHost) local = entry.transport;
    } else {
      chosen = entry.transport;
      return false;
    }
    reasons += fmt::format("; {}: {}", name, reason);
    return true;
  });
  if (chosen != nullptr) return dress(chosen, settings, local);
  return Status(Code::kUnsupported,
                fmt::format("no transport for {} ranks{}", rank_count, reasons));
}

Result<const weir_transport_functions_t*> choose_before_tcp(const Settings& settings,
                                                            const weir_host_t& host,
                                                            Rank rank_count, Spread spread,
                                                            const std::string& name) {
  // Loads it if it is a module.
  auto found = find_transport(name);
  if (!found.ok()) return found;
  auto tcp = find_transport("tcp");
  if (!tcp.ok()) return tcp;
  char reason[512] = "";
  if (tcp.value()->viable(tcp.value()->context, &host, reason, sizeof reason) != WEIR_OK) {
    return Status(Code::kUnsupported, fmt::format("tcp cannot take over: {}", reason));
  }
  Settings named = settings;
  named.transport = fmt::format("{},{}", kWithinHost, name);
  named.failover = "tcp";
  auto chosen = choose_transport(named, host, rank_count, spread);
  if (chosen.ok()) return chosen;
  for (const Viability& entry : list_transports(host)) {
    if (entry.transport->name == name && !entry.viable) {
      return Status(Code::kUnsupported, entry.reason);
    }
  }
  return chosen;
}

}  // namespace weir::plugin
