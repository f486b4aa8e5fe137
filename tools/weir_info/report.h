// SPDX-License-Identifier: Apache-2.0
// The report of weir-info as a value, and its two forms: text for people, JSON for programs.
#pragma once

#include <string>
#include <vector>

#include "core/base/settings.h"
#include "weir_info/machine.h"
#include "weir_info/near_cards.h"

namespace weir::info {

struct VersionLine {
  std::string name;
  std::string value;
};

struct TransportLine {
  std::string name;
  std::string summary;
  std::string origin;
  std::string capabilities;
  bool viable = false;
  std::string reason;  // why not viable; otherwise what it would use, or ""
};

// The transport that communicators of several ranks would use.
struct ChoiceLine {
  std::string ranks;      // "on one host"
  std::string transport;  // "" where there is none
  std::string parts;      // its parts, where it has several; or why there is none
};

struct SettingLine {
  std::string name;
  std::string value;
  bool set = false;  // by the environment; otherwise the default
};

struct Report {
  std::vector<VersionLine> versions;
  std::vector<SettingLine> settings;
  std::string settings_error;  // "" when every variable parsed
  std::string settings_text;   // describe_settings(), "" after an error
  std::vector<TransportLine> transports;
  std::vector<ChoiceLine> choices;
  std::vector<NearLine> near;
  std::vector<Finding> machine;
};

// Examines this process and machine.
Report make_report();

// Why a communicator on one host would not start with the transports, failover and hooks of the
// settings.
Status check_transports(const Settings& settings);

std::string text_of(const Report& report);
std::string json_of(const Report& report);

}  // namespace weir::info
