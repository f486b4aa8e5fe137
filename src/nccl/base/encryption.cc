// SPDX-License-Identifier: Apache-2.0
#include "nccl/base/encryption.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "api/unique_id.h"
#include "core/base/per_process.h"
#include "core/base/secret.h"
#include "core/base/settings.h"
#include "nccl/base/environment.h"

namespace weir::nccl {

namespace {

constinit InheritedState<std::optional<Secret>> the_key;

// The program sets the key, and the user may have forbidden what it asks for.
Outcome require_tls(const char* function) {
  const char* set = std::getenv("WEIR_TLS");
  if (set != nullptr && std::strcmp(set, "all") == 0) return {};
  if (set != nullptr && *set != '\0') {
    return invalid_usage(
        fmt::format("{}: WEIR_TLS={} contradicts the key: unset the variable, or set it to all",
                    function, set));
  }
  setenv("WEIR_TLS", "all", 1);
  read_settings_again();
  const Result<Settings>& settings = process_settings();
  if (settings.ok()) return {};
  return invalid_usage(fmt::format("{}: {}", function, settings.status().text()));
}

}  // namespace

Outcome set_key(const char* function, const char* key) {
  // A configuration file of NCCL's may hold variables of Weir's.
  Outcome outcome = apply_environment(function);
  if (!outcome.ok()) return outcome;
  if (key == nullptr) {
    *the_key.use() = std::nullopt;
    return {};
  }
  const std::string_view text = key;
  if (text.size() < kKeyCharactersMin) {
    return invalid_argument(fmt::format("{}: config.psk has {} characters, at least {} are needed",
                                        function, text.size(), kKeyCharactersMin));
  }
  outcome = require_tls(function);
  if (outcome.ok()) *the_key.use() = secret_from_text(text);
  return outcome;
}

bool has_key() { return the_key.use()->has_value(); }

weir_unique_id_t with_key(const weir_unique_id_t& id) {
  const auto key = the_key.use();
  if (!key->has_value()) return id;
  std::string label = "ncclSetEncryption ";
  label.append(reinterpret_cast<const char*>(id.bytes) + kIdSecretOffset, sizeof(Secret::bytes));
  const Secret secret = (*key)->derive(label);
  weir_unique_id_t made = id;
  std::memcpy(made.bytes + kIdSecretOffset, secret.bytes.data(), secret.bytes.size());
  return made;
}

}  // namespace weir::nccl
