// SPDX-License-Identifier: Apache-2.0
#include "core/comm/bootstrap_tls.h"

#include <fmt/format.h>

#include <string>

#include "core/base/settings.h"

namespace weir::comm {

Result<bool> is_bootstrap_tls_asked() {
  const Result<Settings>& settings = process_settings();
  if (!settings.ok()) return settings.status();
  return !settings.value().tls.empty() && settings.value().tls != net::name_of(net::TlsMode::kOff);
}

Result<std::shared_ptr<const net::TlsContext>> bootstrap_tls(const Secret& secret) {
  const Secret key = secret.derive("bootstrap tls");
  std::string reason;
  std::shared_ptr<const net::TlsContext> made =
      net::TlsContext::make(key.bytes.data(), key.bytes.size(),
                            fmt::format("bootstrap {:016x}", secret.public_id()), &reason);
  if (made == nullptr) return Status(Code::kSystem, reason);
  return made;
}

}  // namespace weir::comm
