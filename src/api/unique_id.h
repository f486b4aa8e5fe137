// SPDX-License-Identifier: Apache-2.0
// The bytes of a weir_unique_id_t.
//
//   offset  bytes  field
//        0      8  "weirid02"
//        8     32  secret
//       40     77  the host that made it and its addresses, packed as a Place
//      117     11  zero
#pragma once

#include <cstddef>

#include "core/comm/start/bootstrap_place.h"
#include "weir/weir.h"

inline constexpr char kIdMagic[8] = {'w', 'e', 'i', 'r', 'i', 'd', '0', '2'};
inline constexpr size_t kIdSecretOffset = 8;
inline constexpr size_t kIdPlaceOffset = 40;
static_assert(kIdPlaceOffset + weir::comm::kPlaceBytesMax <= sizeof(weir_unique_id_t::bytes));
