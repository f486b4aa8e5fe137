// SPDX-License-Identifier: Apache-2.0
// Handle: what `listen` gives out and `connect` of another process takes, in the bytes that NCCL carries between
// them. It has come over the network: it is decoded with every check. It holds a random key of its own, so that
// who did not get the handle cannot connect; nothing of it is ever logged but the address. Pure functions;
// thread-safe.
//
//   offset  bytes  field (integers little-endian)
//        0      4  magic "WNCH"
//        4      2  version
//        6      1  flags: 1 the job's secret is needed, too
//        7      1  bytes of the address
//        8     32  key, random
//       40      8  name of the transport, padded with zeros
//       48      n  address of the control mesh's rank 0 (net/mesh_wire.h) with one offer
#pragma once

#include <string>

#include "ncclnet/abi.h"
#include "net/auth.h"
#include "net/mesh_wire.h"

namespace weir::ncclnet {

inline constexpr size_t kTransportNameBytes = 8;

struct Handle {
  bool needs_job_secret = false;
  net::Mac key{};
  std::string transport;  // at most kTransportNameBytes
  net::mesh::Address address;
};

// All kHandleBytes of `out` are written.
void encode(const Handle& handle, unsigned char* out);
bool decode(const unsigned char* bytes, Handle* handle);

// The secret of the two ends: of who has the handle, and, where one is set, the job's (else null).
net::Mac connection_secret(const net::Mac& key, const net::Mac* job_secret);
// Names a connection without giving its secret away.
uint64_t connection_id(const net::Mac& secret);

}  // namespace weir::ncclnet
