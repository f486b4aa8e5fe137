// SPDX-License-Identifier: Apache-2.0
#include "nccl/host/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "api/handles.h"
#include "core/plugin/registry.h"
#include "nccl/api/translate.h"
#include "nccl/comm/comm.h"
#include "weir/nccl_options.h"

namespace weir::nccl {

namespace {

// A longer list is assumed to be circular.
constexpr int kOptionsMax = 1024;
constexpr size_t kTransportCharactersMax = 256;

struct Key {
  int number;
  const char* name;
};
constexpr Key kKeys[] = {
    {WEIR_NCCL_TIMEOUT_MS, "WEIR_NCCL_TIMEOUT_MS"},
    {WEIR_NCCL_DETERMINISTIC, "WEIR_NCCL_DETERMINISTIC"},
    {WEIR_NCCL_TRANSPORT, "WEIR_NCCL_TRANSPORT"},
};

const Key& nearest(int number) {
  const Key* best = kKeys;
  for (const Key& key : kKeys) {
    if (std::llabs(int64_t{key.number} - number) < std::llabs(int64_t{best->number} - number)) {
      best = &key;
    }
  }
  return *best;
}

Outcome read_transport(const char* function, const char* text, std::string* transport) {
  if (text == nullptr || *text == '\0' ||
      strnlen(text, kTransportCharactersMax + 1) > kTransportCharactersMax) {
    return invalid_argument(fmt::format(
        "{}: option WEIR_NCCL_TRANSPORT needs 1 to {} characters: names separated by commas",
        function, kTransportCharactersMax));
  }
  const std::string_view names = text;
  for (size_t at = 0; at <= names.size();) {
    const size_t comma = std::min(names.find(',', at), names.size());
    const auto found = plugin::find_transport(names.substr(at, comma - at));
    if (!found.ok()) {
      return invalid_argument(
          fmt::format("{}: option WEIR_NCCL_TRANSPORT: {}", function, found.status().text()));
    }
    at = comma + 1;
  }
  *transport = text;
  return {};
}

}  // namespace

Outcome read_options(const char* function, const ncclConfigExt_t* list, CallOptions* options) {
  bool seen[std::size(kKeys) + 1] = {};
  int count = 0;
  for (; list != nullptr; list = list->next) {
    if (++count > kOptionsMax) {
      return invalid_argument(fmt::format("{}: config.ext has more than {} entries, or is a circle",
                                          function, kOptionsMax));
    }
    if (list->key.vendorId != WEIR_NCCL_VENDOR_ID) continue;
    const int number = list->key.optionId;
    if (number < 1 || number > static_cast<int>(std::size(kKeys))) {
      const Key& like = nearest(number);
      return invalid_argument(
          fmt::format("{}: config.ext: Weir has no option {}; the nearest is {}, {}", function,
                      number, like.number, like.name));
    }
    if (seen[number]) continue;
    seen[number] = true;
    if (number == WEIR_NCCL_TIMEOUT_MS) {
      if (list->val.i < 1) {
        return invalid_argument(
            fmt::format("{}: option WEIR_NCCL_TIMEOUT_MS is {}, at least 1 is "
                        "needed",
                        function, list->val.i));
      }
      options->timeout_ms = list->val.i;
    } else if (number == WEIR_NCCL_DETERMINISTIC) {
      if (list->val.i != 0 && list->val.i != 1) {
        return invalid_argument(fmt::format("{}: option WEIR_NCCL_DETERMINISTIC is {}, not 0 or 1",
                                            function, list->val.i));
      }
      options->deterministic = list->val.i == 1;
    } else {
      Outcome outcome = read_transport(function, list->val.s, &options->transport);
      if (!outcome.ok()) return outcome;
    }
  }
  return {};
}

Outcome make_sibling(const char* function, Comm& comm, const CallOptions& options) {
  const std::string name = options.sibling();
  if (comm.sibling(name) != nullptr) return {};
  weir::comm::CommOptions wanted;
  wanted.timeout_ms = comm.config().timeout_ms();
  wanted.deterministic = options.deterministic;
  wanted.arithmetic = Arithmetic::kNccl;
  wanted.transport = options.transport;
  auto made = comm.weir()->comm->split(0, comm.rank(), wanted);
  if (!made.ok()) {
    return {to_nccl(static_cast<weir_result_t>(made.status().code()), comm.stopped_here()),
            fmt::format("{}, rank {} of {}: connecting for the call's options: {}", function,
                        comm.rank(), comm.rank_count(), made.status().text())};
  }
  auto handle = std::make_unique<weir_comm>();
  handle->comm = made.take();
  comm.add_sibling(name, handle.release());
  return {};
}

}  // namespace weir::nccl
