// SPDX-License-Identifier: Apache-2.0
#include "nccl/forward/derived_ids.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "api/unique_id.h"

namespace weir::nccl {

PackedAddresses packed_addresses_of_this_host() {
  PackedAddresses packed{};
  const std::string bytes = comm::pack(comm::place_of_this_host());
  std::copy_n(bytes.begin(), std::min(bytes.size(), packed.size()), packed.begin());
  return packed;
}

Secret secret_of(const weir_unique_id_t& id) {
  Secret secret;
  std::memcpy(secret.bytes.data(), id.bytes + kIdSecretOffset, secret.bytes.size());
  return secret;
}

weir_unique_id_t make_id(const Secret& secret, const PackedAddresses& addresses) {
  weir_unique_id_t id{};
  std::memcpy(id.bytes, kIdMagic, sizeof kIdMagic);
  std::memcpy(id.bytes + kIdSecretOffset, secret.bytes.data(), secret.bytes.size());
  std::memcpy(id.bytes + kIdPlaceOffset, addresses.data(), addresses.size());
  return id;
}

weir_unique_id_t DerivedIds::next_id(const std::string& label, int first) {
  uint64_t count = 0;
  {
    std::lock_guard lock(lock_);
    count = ++counts_[label];
  }
  return make_id(secret_.derive(fmt::format("{} number {}", label, count)),
                 addresses_[static_cast<size_t>(first)]);
}

}  // namespace weir::nccl
