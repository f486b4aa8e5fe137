// SPDX-License-Identifier: Apache-2.0
#include "weir_info/report.h"

#include <fmt/format.h>

#include <cstdlib>
#include <iterator>
#include <nlohmann/json.hpp>

#include <weir/weir.h>

#include "core/comm/start/fabric_choice.h"
#include "core/engine/reduce.h"
#include "core/plugin/choice.h"
#include "core/plugin/registry.h"
#include "core/topo/cards.h"
#include "core/topo/hwloc_library.h"
#include "weir_info/build.h"

namespace weir::info {
namespace {

std::vector<VersionLine> versions() {
  const Result<std::string> hwloc = topo::hwloc_version();
  std::vector<VersionLine> lines = {
      {"weir", fmt::format("{}.{}.{}", WEIR_VERSION_MAJOR, WEIR_VERSION_MINOR, WEIR_VERSION_PATCH)},
      {"transport plugin ABI", fmt::format("{}", WEIR_PLUGIN_ABI_VERSION)},
      {"built", fmt::format("{}, {}", kBuildCompiler, kBuildType)},
      {"hwloc API", hwloc.ok() ? hwloc.value() : hwloc.status().text() + "; /sys is read instead"},
      {"reduction kernels", reduce_kernel_target()},
  };
  if (*kBuildSanitizers != '\0') lines.push_back({"sanitizers", kBuildSanitizers});
  return lines;
}

void ignore_error(void*, const char*) {}
void ignore_log(void*, int, const char*) {}
const char* setting_of(void*, const char* name) { return std::getenv(name); }

std::string capabilities_of(const weir_transport_caps_t& caps) {
  static constexpr struct {
    uint64_t bit;
    const char* name;
  } kNames[] = {{WEIR_CAP_SEND_RECV, "send/recv"},
                {WEIR_CAP_SEGMENT, "mapped staging"},
                {WEIR_CAP_WINDOW, "windows"},
                {WEIR_CAP_PEER_FAILURE, "sees dead peers"},
                {WEIR_CAP_SELF, "self"},
                {WEIR_CAP_QUIESCE, "quiesce"},
                {WEIR_CAP_PUT, "put"},
                {WEIR_CAP_GET, "get"},
                {WEIR_CAP_SIGNAL, "put + signal"},
                {WEIR_CAP_COLLECTIVES, "whole collectives"},
                {WEIR_CAP_DEVICE_MEMORY, "device memory (if its library has it)"}};
  std::string text;
  for (const auto& [bit, name] : kNames)
    if (caps.bits & bit) text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
  return text;
}

weir_host_t silent_host() {
  weir_host_t host{};
  host.struct_bytes = sizeof(host);
  host.error = ignore_error;
  host.log = ignore_log;
  host.setting = setting_of;
  return host;
}

std::vector<TransportLine> transports() {
  const weir_host_t host = silent_host();
  std::vector<TransportLine> lines;
  plugin::load_modules();
  for (const plugin::Viability& one : plugin::list_transports(host))
    lines.push_back({one.transport->name, one.transport->summary, one.origin,
                     capabilities_of(one.transport->caps), one.viable, one.reason});
  return lines;
}

std::vector<ChoiceLine> choices(const Settings& settings) {
  static constexpr struct {
    plugin::Spread spread;
    const char* ranks;
    const char* with_cards;
  } kSpreads[] = {
      {plugin::Spread::kOneHost, "on one host", ""},
      {plugin::Spread::kOneRankPerHost, "on hosts of their own",
       "on hosts of their own, with cards"},
      {plugin::Spread::kHosts, "several on each of several hosts", "several on each, with cards"}};
  const weir_host_t host = silent_host();
  std::vector<ChoiceLine> lines;
  const auto add = [&](const char* ranks, const auto& chosen) {
    if (!chosen.ok()) {
      lines.push_back({ranks, "", chosen.status().text()});
    } else {
      lines.push_back({ranks, chosen.value()->name, plugin::describe_parts(*chosen.value())});
    }
  };
  comm::CardsSeen here;
  here.stance = comm::stance_of(settings);
  here.cards = topo::look_for_cards("/sys");
  // Before a module is loaded.
  for (const auto& [spread, ranks, with_cards] : kSpreads) {
    add(ranks, plugin::choose_transport(settings, host, 2, spread));
  }
  if (here.stance != comm::FabricStance::kFree || here.cards.kinds == 0) return lines;
  for (size_t i = 0; i < std::size(kSpreads); ++i) {
    const auto& [spread, ranks, with_cards] = kSpreads[i];
    if (spread == plugin::Spread::kOneHost) continue;
    // As on two ranks that have what this machine has.
    Result<const weir_transport_functions_t*> chosen = Status(Code::kUnsupported, "");
    const auto can_use = [&, spread = spread](const std::string& name) {
      chosen = plugin::choose_before_tcp(settings, host, 2, spread, name);
      return chosen.status();
    };
    const auto fabric = comm::choose_fabric({here, here}, can_use, [](const std::string& answer) {
      return Result<std::vector<std::string>>({answer, answer});
    });
    if (!fabric.ok()) continue;
    if (fabric.value().transport.empty()) {
      lines.push_back({with_cards, lines[i].transport, fabric.value().reason});
    } else {
      add(with_cards, chosen);
    }
  }
  return lines;
}

std::vector<SettingLine> settings() {
  std::vector<SettingLine> lines;
  for (const SettingInfo& info : setting_table()) {
    const char* value = std::getenv(info.name);
    const bool set = value != nullptr && *value != '\0';  // an empty variable counts as unset
    lines.push_back({info.name, set ? value : info.default_text, set});
  }
  return lines;
}

}  // namespace

Status check_transports(const Settings& settings) {
  WEIR_RETURN_IF_ERROR(plugin::check_fault(settings.fault, settings.hooks));
  const weir_host_t host = silent_host();
  return plugin::choose_transport(settings, host, 2, plugin::Spread::kOneHost).status();
}

Report make_report() {
  Report report;
  report.versions = versions();
  report.settings = settings();
  const Result<Settings>& parsed = process_settings();
  if (parsed.ok())
    report.settings_text = describe_settings(parsed.value());
  else
    report.settings_error = parsed.status().text();
  // Before all modules are loaded, as in a program that requests none.
  if (parsed.ok()) report.choices = choices(parsed.value());
  if (parsed.ok()) report.near = near_lines(parsed.value());
  report.transports = transports();
  report.machine = judge_machine(gather_machine("/"));
  return report;
}

std::string text_of(const Report& report) {
  std::string text = "Versions\n";
  for (const auto& line : report.versions)
    text += fmt::format("  {:<28}{}\n", line.name, line.value);

  text += "\nTransports, best first\n";
  for (const auto& line : report.transports) {
    text += fmt::format("  {:<8}{:<12}{}\n", line.name, line.viable ? "viable" : "not viable",
                        line.summary);
    if (!line.viable) text += fmt::format("  {:<20}why: {}\n", "", line.reason);
    if (line.viable && !line.reason.empty()) text += fmt::format("  {:<20}{}\n", "", line.reason);
    text += fmt::format("  {:<20}{}; {}\n", "", line.capabilities, line.origin);
  }

  if (!report.choices.empty()) text += "\nChosen between ranks\n";
  for (const auto& line : report.choices) {
    text +=
        fmt::format("  {:<34}{}\n", line.ranks, line.transport.empty() ? "none" : line.transport);
    if (!line.parts.empty()) text += fmt::format("  {:<34}{}\n", "", line.parts);
  }

  if (!report.near.empty()) text += "\nNearest to a rank (WEIR_CARDS)\n";
  for (const auto& line : report.near) {
    if (!line.cards.empty()) text += fmt::format("  {:<28}cards {}\n", line.rank, line.cards);
    if (!line.interfaces.empty()) {
      text += fmt::format("  {:<28}interfaces {}\n", line.rank, line.interfaces);
    }
  }

  text += "\nMachine, as this process may use it\n";
  for (const auto& line : report.machine) {
    text += fmt::format("  {:<28}{}\n", line.name, line.value);
    if (!line.remedy.empty()) text += fmt::format("  {:<28}-> {}\n", "", line.remedy);
  }

  text += "\nVariables in force\n";
  if (report.settings_error.empty()) {
    text += report.settings_text;
  } else {
    text += fmt::format("  error: {}\n", report.settings_error);
  }
  if (!text.ends_with('\n')) text += '\n';
  return text;
}

std::string json_of(const Report& report) {
  nlohmann::ordered_json json;
  for (const auto& line : report.versions) json["versions"][line.name] = line.value;
  json["transports"] = nlohmann::ordered_json::array();
  for (const auto& line : report.transports)
    json["transports"].push_back({{"name", line.name},
                                  {"viable", line.viable},
                                  {"reason", line.reason},
                                  {"capabilities", line.capabilities},
                                  {"origin", line.origin},
                                  {"summary", line.summary}});
  for (const auto& line : report.choices)
    json["chosen"].push_back(
        {{"ranks", line.ranks}, {"transport", line.transport}, {"parts", line.parts}});
  for (const auto& line : report.near)
    json["near"].push_back(
        {{"rank", line.rank}, {"cards", line.cards}, {"interfaces", line.interfaces}});
  for (const auto& line : report.machine)
    json["machine"].push_back(
        {{"name", line.name}, {"value", line.value}, {"remedy", line.remedy}});
  json["settings"] = nlohmann::ordered_json::array();
  for (const auto& line : report.settings)
    json["settings"].push_back({{"name", line.name}, {"value", line.value}, {"set", line.set}});
  json["settings_error"] = report.settings_error;
  // Environment values may hold any bytes.
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace weir::info
