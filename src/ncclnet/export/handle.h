// SPDX-License-Identifier: Apache-2.0
// Handle: the result of `listen`, which NCCL carries as bytes to `connect` in another process. It
// comes over the network, so decoding checks everything. It holds a random key, so that only a
// process with the handle can connect; only its address is ever logged. Pure functions;
// thread-safe.
//
//   offset  bytes  field (integers little-endian)
//        0      4  magic "WNCH"
//        4      1  version
//        5      1  family of the address: 4 or 6
//        6      1  flags: 1 the job's secret is needed, too; 2 loopback; 4 asked for by name
//        7      1  net::TlsMode
//        8     32  key, random
//       40      8  name of the transport, padded with zeros
//       48     78  where rank 0, which receives, listens (control/network_address.h): its host's
//                  identity (24), nonce (32), port (2), speed in Mbit/s (3),
//                  bits of the network prefix (1), address (16)
//      126      2  zero
#pragma once

#include <string>

#include "core/control/network_address.h"
#include "ncclnet/abi.h"
#include "net/auth.h"

namespace weir::ncclnet {

inline constexpr size_t kTransportNameBytes = 8;

struct Handle {
  bool needs_job_secret = false;
  net::Mac key{};
  std::string transport;            // at most kTransportNameBytes
  control::NetworkAddress address;  // of rank 0; its first offer
};

// Writes all kHandleBytes of `out`.
void encode(const Handle& handle, unsigned char* out);
bool decode(const unsigned char* bytes, Handle* handle);

// The secret of the two ends, derived from the handle's key and the job's secret (null where none
// is set).
net::Mac connection_secret(const net::Mac& key, const net::Mac* job_secret);
// Identifies a connection without revealing its secret.
uint64_t connection_id(const net::Mac& secret);

}  // namespace weir::ncclnet
