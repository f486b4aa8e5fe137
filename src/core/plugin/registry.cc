// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/registry.h"

#include <dirent.h>
#include <errno.h>
#include <fmt/format.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>

#include "core/base/log.h"
#include "core/base/per_process.h"
#include "core/base/settings.h"
#include "core/plugin/loader.h"
#include "core/plugin/module_folder.h"
#include "plugins/builtin.h"

namespace weir::plugin {
namespace {

struct Entry {
  const weir_transport_functions_t* transport;
  std::string origin;
};

// A file that was refused, listed under its file name as never viable.
struct Failure {
  std::string path;
  std::string reason;
  std::string name;
  weir_transport_functions_t listed{};
};

using Transports = std::vector<const weir_transport_functions_t*>;

struct Composite {
  std::string name;
  Transports parts;
  const weir_transport_functions_t* transport;
};

// Never destroyed: transports outlive everything that may call them.
struct Registry {
  Registry();

  std::deque<Entry> entries;     // built in first, in order of preference
  std::deque<Failure> failures;  // of WEIR_PLUGIN_PATH and of modules
  std::deque<Composite> composites;
};

const Entry* find_entry(const Registry& registry, std::string_view name) {
  for (const Entry& entry : registry.entries) {
    if (entry.transport->name == name) return &entry;
  }
  return nullptr;
}

// `name`: the name that the transport must have; "" for any.
Status add_file(Registry* registry, const std::string& path, std::string_view name = "") {
  for (const Entry& entry : registry->entries) {
    if (entry.origin == path) return Status();
  }
  auto opened = open_plugin(path);
  if (!opened.ok()) return opened.status();
  const weir_transport_functions_t* transport = opened.value();
  if (!name.empty() && name != transport->name) {
    return Status(Code::kRefused, fmt::format("plugin {}: its transport is called '{}', not '{}'",
                                              path, transport->name, name));
  }
  if (const Entry* taken = find_entry(*registry, transport->name)) {
    return Status(Code::kRefused,
                  fmt::format("plugin {}: the name '{}' is taken by the transport of {}", path,
                              transport->name, taken->origin));
  }
  registry->entries.push_back({transport, path});
  return Status();
}

void add_failure(Registry* registry, const std::string& path, const std::string& reason) {
  log_warn(reason);
  Failure& failure = registry->failures.emplace_back();
  failure.path = path;
  failure.reason = reason;
  failure.name = path.substr(path.rfind('/') + 1);
  failure.listed.name = failure.name.c_str();
  failure.listed.summary = "refused";
}

// Plugins are the files *.so in the directory of WEIR_PLUGIN_PATH, in alphabetical order. A refused
// plugin does not affect the others.
void add_directory(Registry* registry, const std::string& directory) {
  const auto failed = [&](const std::string& path, const std::string& reason) {
    add_failure(registry, path, reason);
  };
  if (directory[0] != '/') {
    failed(directory, fmt::format("WEIR_PLUGIN_PATH={}: the path is not absolute", directory));
    return;
  }
  DIR* stream = opendir(directory.c_str());
  if (stream == nullptr) {
    failed(directory, fmt::format("WEIR_PLUGIN_PATH={}: {}", directory, strerror(errno)));
    return;
  }
  std::vector<std::string> files;
  while (const dirent* item = readdir(stream)) {
    const std::string_view name = item->d_name;
    if (name.ends_with(".so")) files.push_back(fmt::format("{}/{}", directory, name));
  }
  closedir(stream);
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) {
    Status added = add_file(registry, file);
    if (!added.ok()) failed(file, added.text());
  }
}

Registry::Registry() {
  for (const plugins::TransportFunction transport : plugins::builtin_transports()) {
    const Status checked = check_functions(transport());
    WEIR_CHECK(checked.ok(), "a built-in transport has a complete function table");
    entries.push_back({transport(), "built in"});
  }
  const Result<Settings>& settings = process_settings();
  if (settings.ok() && !settings.value().plugin_path.empty()) {
    add_directory(this, settings.value().plugin_path);
  }
}

// Locked until the result is destroyed.
InheritedState<Registry>::Access registry() {
  static constinit InheritedState<Registry> it;
  return it.use();
}

// The name in a path that module_path gives.
std::string module_name(const std::string& path) {
  constexpr size_t kPrefixBytes = sizeof "libweir_" - 1;
  constexpr size_t kSuffixBytes = sizeof ".so" - 1;
  const std::string file = path.substr(path.rfind('/') + 1);
  return file.substr(kPrefixBytes, file.size() - kPrefixBytes - kSuffixBytes);
}

// A transport from WEIR_PLUGIN_PATH or the program with the name of a module takes precedence.
Status add_module(Registry* registry, const std::string& path) {
  const std::string name = module_name(path);
  if (find_entry(*registry, name) != nullptr) return Status();
  // A refused file is not tried again at the next request.
  for (const Failure& failure : registry->failures) {
    if (failure.path == path) return Status(Code::kRefused, failure.reason);
  }
  Status added = add_file(registry, path, name);
  if (!added.ok()) add_failure(registry, path, added.text());
  return added;
}

// Modules that nothing has asked for yet are known, too.
std::string known_names(const Registry& known) {
  std::vector<std::string> names;
  for (const Entry& entry : known.entries) names.emplace_back(entry.transport->name);
  for (const std::string& path : module_files()) {
    const std::string name = module_name(path);
    const bool is_refused =
        std::any_of(known.failures.begin(), known.failures.end(),
                    [&](const Failure& failure) { return failure.path == path; });
    if (!is_refused && find_entry(known, name) == nullptr) names.push_back(name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

// ": " and what else to do, where a composite has this name; else "".
std::string remedy_for(std::string_view name) {
  for (const plugins::BuiltinComposite& one : plugins::builtin_composites()) {
    if (one.name == name) return fmt::format(": {}", one.remedy);
  }
  return "";
}

// The composite `name` of these parts, made once.
Result<const weir_transport_functions_t*> compose(Registry* known, std::string_view name,
                                                  const Transports& parts) {
  for (const Composite& made : known->composites) {
    if (made.name == name && made.parts == parts) return made.transport;
  }
  for (const plugins::BuiltinComposite& one : plugins::builtin_composites()) {
    if (one.name != name) continue;
    std::string reason;
    const weir_transport_functions_t* made = one.make(parts, &reason);
    if (made == nullptr) return Status(Code::kUnsupported, reason);
    known->composites.push_back({std::string(name), parts, made});
    return made;
  }
  return Status(Code::kUnsupported, fmt::format("this build has no '{}'", name));
}

Result<const weir_transport_functions_t*> wrap(Registry* known, std::string_view name,
                                               const weir_transport_functions_t* inner) {
  std::string names;
  for (const plugins::BuiltinComposite& one : plugins::builtin_composites()) {
    if (one.is_hook && one.name == name) return compose(known, name, {inner});
    if (one.is_hook) names += fmt::format("{}{}", names.empty() ? "" : ", ", one.name);
  }
  return invalid_argument(fmt::format("WEIR_HOOKS: there is no hook '{}'{}; known are {}", name,
                                      remedy_for(name), names));
}

Result<const weir_transport_functions_t*> seal_once(Registry* known, const char* tls,
                                                    const weir_transport_functions_t* transport) {
  const bool is_all = tls != nullptr && std::string_view(tls) == "all";
  // A transport that carries no messages has none to seal.
  const bool leaves_the_rank =
      transport->caps.rank_count_max > 1 && (transport->caps.bits & WEIR_CAP_SEND_RECV) != 0;
  if (!is_all || !leaves_the_rank || (transport->caps.bits & WEIR_CAP_SEALED) != 0)
    return transport;
  return compose(known, "seal", {transport});
}

}  // namespace

std::vector<Viability> list_transports(const weir_host_t& host) {
  std::vector<Viability> list;
  visit_transports(host, [&](const Viability& one) {
    list.push_back(one);
    return true;
  });
  return list;
}

void visit_transports(const weir_host_t& host, const std::function<bool(const Viability&)>& take) {
  const auto locked = registry();
  Registry& known = *locked;
  const char* tls = host.setting == nullptr ? nullptr : host.setting(host.context, "WEIR_TLS");
  for (const Entry& entry : known.entries) {
    char reason[512] = "";
    const auto asked = seal_once(&known, tls, entry.transport);
    const bool viable = asked.ok() && asked.value()->viable(asked.value()->context, &host, reason,
                                                            sizeof reason) == WEIR_OK;
    if (!asked.ok()) snprintf(reason, sizeof reason, "%s", asked.status().text().c_str());
    reason[sizeof reason - 1] = 0;
    if (!viable && reason[0] == 0) snprintf(reason, sizeof reason, "it gives no reason");
    if (!take({entry.transport, viable, reason, entry.origin})) return;
  }
  for (const Failure& failure : known.failures) {
    if (!take({&failure.listed, false, failure.reason, failure.path})) return;
  }
}

void load_modules() {
  const auto locked = registry();
  Registry& known = *locked;
  // An error of a module is listed with it.
  for (const std::string& path : module_files()) (void)add_module(&known, path);
}

Result<const weir_transport_functions_t*> find_transport(std::string_view name) {
  const auto locked = registry();
  Registry& known = *locked;
  if (const Entry* entry = find_entry(known, name)) return entry->transport;
  const std::string module = module_path(name);
  if (!module.empty() && access(module.c_str(), F_OK) == 0) {
    Status added = add_module(&known, module);
    if (!added.ok()) return added;
    return find_entry(known, name)->transport;
  }
  std::string text = fmt::format("there is no transport '{}'{}; known are {}", name,
                                 remedy_for(name), known_names(known));
  for (const Failure& failure : known.failures) text += fmt::format("; {}", failure.reason);
  if (!module.empty()) text += fmt::format("; there is no module {}", module);
  return Status(Code::kUnsupported, text);
}

Result<const weir_transport_functions_t*> wrap_with_hooks(const weir_transport_functions_t* inner,
                                                          std::string_view hooks) {
  const auto locked = registry();
  Registry& known = *locked;
  // The last name is next to the transport.
  while (!hooks.empty()) {
    const size_t comma = hooks.rfind(',');
    const std::string_view name = comma == std::string_view::npos ? hooks : hooks.substr(comma + 1);
    auto outer = wrap(&known, name, inner);
    if (!outer.ok()) return outer;
    inner = outer.value();
    if (comma == std::string_view::npos) break;
    hooks = hooks.substr(0, comma);
    if (hooks.empty()) return invalid_argument("WEIR_HOOKS: an empty name before a comma");
  }
  return inner;
}

Status check_fault(std::string_view fault, std::string_view hooks) {
  if (fault.empty()) return Status();
  const std::string problem = plugins::fault_problem(fault);
  if (!problem.empty()) return invalid_argument(fmt::format("WEIR_FAULT={}: {}", fault, problem));
  const std::string listed = fmt::format(",{},", hooks);
  static std::atomic<bool> was_told = false;
  if (listed.find(",fault,") != std::string::npos || was_told.exchange(true)) return Status();
  log_warn(
      fmt::format("WEIR_FAULT={} has no effect: the hook `fault` is not in WEIR_HOOKS='{}'; add "
                  "it, or unset WEIR_FAULT",
                  fault, hooks));
  return Status();
}

Result<const weir_transport_functions_t*> sealed_for(const char* tls,
                                                     const weir_transport_functions_t* transport) {
  const auto locked = registry();
  Registry& known = *locked;
  return seal_once(&known, tls, transport);
}

Result<const weir_transport_functions_t*> make_hosts(const weir_transport_functions_t* network,
                                                     const weir_transport_functions_t* local) {
  const auto locked = registry();
  Registry& known = *locked;
  return compose(&known, "hosts", {network, local});
}

Result<const weir_transport_functions_t*> make_failover(
    const std::vector<const weir_transport_functions_t*>& transports) {
  const auto locked = registry();
  Registry& known = *locked;
  auto made = compose(&known, "failover", transports);
  return made.ok() ? made : made.status().with_context("WEIR_FAILOVER");
}

std::string describe_parts(const weir_transport_functions_t& transport) {
  if (transport.parts == nullptr) return "";
  std::string text;
  std::string below;
  for (const weir_transport_part_t* part = transport.parts; part->transport != nullptr; ++part) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", part->transport->name, part->role);
    const std::string inside = describe_parts(*part->transport);
    if (!inside.empty()) below += fmt::format("{}{}", below.empty() ? "" : "; ", inside);
  }
  const bool wraps = transport.parts[1].transport == nullptr;
  if (wraps) return below;
  return fmt::format("{}: {}{}{}", transport.name, text, below.empty() ? "" : "; ", below);
}

Result<const weir_transport_functions_t*> load_transport(const std::string& path) {
  const auto locked = registry();
  Registry& known = *locked;
  WEIR_RETURN_IF_ERROR(add_file(&known, path));
  for (const Entry& entry : known.entries) {
    if (entry.origin == path) return entry.transport;
  }
  WEIR_CHECK(false, "a file that was added is found");
}

}  // namespace weir::plugin
