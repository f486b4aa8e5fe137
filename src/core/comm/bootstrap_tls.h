// SPDX-License-Identifier: Apache-2.0
// TLS around the bootstrap: with WEIR_TLS=control and all, every connection between hosts is inside it from its first
// byte on, and the frames of bootstrap_wire.h go on inside as they are. On one host nobody else can read a
// connection. Functions; thread-safe.
#pragma once

#include <memory>

#include "core/base/secret.h"
#include "core/base/status.h"
#include "net/tls.h"

namespace weir::comm {

// Whether WEIR_TLS asks for it; an error of the settings is the answer's.
Result<bool> is_bootstrap_tls_asked();

// For the ranks that hold `secret`.
Result<std::shared_ptr<const net::TlsContext>> bootstrap_tls(const Secret& secret);

}  // namespace weir::comm
