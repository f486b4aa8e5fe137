// SPDX-License-Identifier: Apache-2.0
// Names of hosts, resolved in bounded time. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "net/ip_address.h"

namespace weir::comm {

// Asks the system: addresses of `host`, or the text of the error. May block.
using Lookup =
    std::function<std::vector<net::IpAddress>(const std::string& host, std::string* error)>;

// The addresses of `host`, a name or an address; each once, in the order of the system's answer.
// Errors: kInvalidArgument (no such name), kTimeout when there is no answer by `deadline_ns`.
Result<std::vector<net::IpAddress>> resolve(const std::string& host, uint64_t deadline_ns,
                                            const Lookup& lookup = {});

}  // namespace weir::comm
