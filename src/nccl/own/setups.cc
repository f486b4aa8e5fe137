// SPDX-License-Identifier: Apache-2.0
#include "nccl/own/setups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <optional>
#include <string_view>

#include "api/handles.h"
#include "api/unique_id.h"
#include "core/base/log.h"
#include "core/base/secret.h"
#include "core/comm/start/bootstrap_place.h"
#include "nccl/api/translate.h"
#include "nccl/base/encryption.h"
#include "nccl/base/environment.h"
#include "nccl/cuda/current_device.h"
#include "nccl/forward/derived_ids.h"
#include "nccl/forward/forwarding.h"
#include "nccl/host/one_sided.h"
#include "nccl/stream/agreement.h"

namespace weir::nccl {

namespace {

constexpr int kRankCountMax = 65536;  // Weir's communicators

// Gives `setup` a communicator that is still to be made, and its handle to the caller.
void open(Setup* setup, const char* function, Config config, int rank, int rank_count, int device,
          ncclComm_t* out) {
  setup->function = function;
  setup->made = std::make_shared<Comm>(std::move(config), rank, rank_count, device);
  setup->out = out;
  setup->handle = open_handle(setup->made);
  *out = setup->handle;
}

// Once per process.
void say_what_is_unheard(const Config& config) {
  static std::atomic<bool> said{false};
  if (config.unheard.empty() || said.exchange(true)) return;
  log_warn(
      fmt::format("these fields have no effect on Weir's own transports: {}; set NCCL_NET or "
                  "WEIR_TRANSPORT to choose the network of a process",
                  config.unheard));
}

// Ends a call of Weir's that makes a communicator.
Outcome attach(const char* function, Comm& comm, weir_result_t result, weir_comm_t made) {
  if (result != WEIR_OK) {
    return {to_nccl(result, comm.aborted()),
            fmt::format("{}: {}", function, weir_last_error(nullptr))};
  }
  comm.attach(made);
  Outcome outcome = agree_on_devices(function, comm);
  if (!outcome.ok()) return outcome;
  if (comm.rank() == 0) dump_topology();
  say_what_is_unheard(comm.config());
  return comm.config().opens_signals_at_once() ? OneSided::open(function, comm) : Outcome();
}

Outcome check_ids(const char* function, const std::vector<ncclUniqueId>& ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    comm::Place place;
    const std::string_view packed(ids[i].internal + kIdPlaceOffset, comm::kPlaceBytesMax);
    if (std::memcmp(ids[i].internal, kIdMagic, sizeof kIdMagic) != 0 ||
        !comm::unpack(packed, &place)) {
      return invalid_argument(
          fmt::format("{}: commId{} was not made by ncclGetUniqueId of this library, or is damaged",
                      function, ids.size() > 1 ? fmt::format("s[{}]", i) : std::string()));
    }
    for (size_t j = 0; j < i; ++j) {
      if (std::memcmp(ids[i].internal, ids[j].internal, sizeof ids[i].internal) == 0) {
        return invalid_argument(
            fmt::format("{}: commIds[{}] and commIds[{}] are the same", function, j, i));
      }
    }
  }
  return {};
}

// Whether all ranks were given the same ids.
Outcome compare_ids(const char* function, Comm& comm, weir_comm_t made, int rank_count,
                    const std::vector<weir_unique_id_t>& ids, int rank) {
  // The ids are secrets: ranks exchange only a value derived from them.
  const std::string_view text(reinterpret_cast<const char*>(ids.data()),
                              ids.size() * sizeof ids[0]);
  const Secret mine = secret_from_text(text).derive("the list of ids");
  std::vector<Secret> all(static_cast<size_t>(rank_count));
  const weir_result_t told =
      gather_for_setup(made, mine.bytes.data(), all.data(), sizeof mine.bytes);
  if (told != WEIR_OK) {
    return Outcome(to_nccl(told, comm.aborted()),
                   fmt::format("{}: {}", function, weir_last_error(nullptr)));
  }
  for (int peer = 0; peer < rank_count; ++peer) {
    if (all[static_cast<size_t>(peer)].bytes == mine.bytes) continue;
    return invalid_argument(
        fmt::format("{}, rank {} of {}: rank {} was given other commIds, or in another order: the "
                    "{} ids must be the same on every rank",
                    function, rank, rank_count, peer, ids.size()));
  }
  return {};
}

static_assert(sizeof(Secret) == sizeof(Secret::bytes));

// Tries to let the real NCCL do the work of a communicator whose ranks met at the id.
using Forward = std::function<Outcome(weir_comm_t made, const weir_unique_id_t& id)>;

// Attaches the communicator that was made, unless the real NCCL serves.
Outcome attach_unless_forwarded(const char* function, Comm& comm, weir_comm_t made,
                                const Outcome& forwarded) {
  if (forwarded.ok() && comm.real() == nullptr) return attach(function, comm, WEIR_OK, made);
  weir_comm_destroy(made);
  return forwarded;
}

// The ranks meet at the first id.
Outcome create(const char* function, Comm& comm, int rank_count,
               const std::vector<weir_unique_id_t>& ids, int rank, const Forward& forward) {
  const weir_comm_config_t config = comm.config().weir();
  weir_comm_t made = nullptr;
  const weir_result_t result = weir_comm_create(&made, rank_count, ids.data(), rank, &config);
  // The cause is a wrong call: two ranks have the same number, or ranks differ in the number of
  // ranks or the version.
  if (result == WEIR_ERROR_REFUSED) {
    return invalid_usage(fmt::format("{}: {}", function, weir_last_error(nullptr)));
  }
  if (result != WEIR_OK) return attach(function, comm, result, nullptr);
  Outcome outcome;
  if (ids.size() > 1) outcome = compare_ids(function, comm, made, rank_count, ids, rank);
  if (outcome.ok()) outcome = forward(made, ids[0]);
  return attach_unless_forwarded(function, comm, made, outcome);
}

// The ranks of a communicator that the real NCCL serves meet again, to make another one.
Outcome meet_again(const char* function, const Parent& parent, const weir_unique_id_t& id,
                   weir_comm_t* made) {
  const weir_comm_config_t config = parent.comm->config().weir();
  const weir_result_t result =
      weir_comm_create(made, parent.comm->rank_count(), &id, parent.comm->rank(), &config);
  return parent.comm->outcome(function, result);
}

Outcome split_forwarded(const char* function, const Parent& parent, Comm* comm,
                        const Config& config, int color, int key, const Forwarding& forwarding) {
  const weir_unique_id_t id = parent.comm->derived_ids()->next_id("split", 0);
  weir_comm_t all = nullptr;
  Outcome outcome = meet_again(function, parent, id, &all);
  if (!outcome.ok()) return outcome;
  const weir_comm_config_t weir = config.weir();
  weir_comm_t made = nullptr;
  outcome = parent.comm->outcome(function, weir_comm_split(all, color, key, &weir, &made));
  if (outcome.ok()) {
    outcome = forwarding.split(function, parent, color, key, all, comm, made, id);
  }
  weir_comm_destroy(all);
  return made == nullptr ? outcome : attach_unless_forwarded(function, *comm, made, outcome);
}

Outcome shrink_forwarded(const char* function, const Parent& parent, Comm& comm,
                         std::vector<int> excluded, int flags, const Forwarding& forwarding) {
  std::sort(excluded.begin(), excluded.end());
  excluded.erase(std::unique(excluded.begin(), excluded.end()), excluded.end());
  int first = 0;
  int rank = parent.comm->rank();
  for (const int left_out : excluded) {
    if (left_out == first) ++first;
    if (left_out < parent.comm->rank()) --rank;
  }
  const int rank_count = parent.comm->rank_count() - static_cast<int>(excluded.size());
  const weir_unique_id_t id = parent.comm->derived_ids()->next_id(
      fmt::format("shrink by {}", fmt::join(excluded, " ")), first);
  return create(function, comm, rank_count, {id}, rank,
                [&](weir_comm_t made, const weir_unique_id_t& at) {
                  return forwarding.shrink(function, parent, excluded, flags, comm, made, at);
                });
}

// What a communicator that is made from another one without a configuration inherits. A field that
// a given configuration leaves undefined has its default instead.
Config inherited(const Comm& parent) {
  Config config = parent.config();
  config.name.clear();
  return config;
}

Outcome check_rank(const char* function, int rank, int rank_count) {
  if (rank_count < 1 || rank_count > kRankCountMax) {
    return invalid_argument(
        fmt::format("{}: nranks is {}, at least 1 is needed and at most {} are possible", function,
                    rank_count, kRankCountMax));
  }
  if (rank < 0 || rank >= rank_count) {
    return invalid_argument(fmt::format("{}: rank {} of {} ranks: allowed are 0 to {}", function,
                                        rank, rank_count, rank_count - 1));
  }
  return {};
}

// What the ranks of a communicator tell each other when it grows.
struct GrowEntry {
  unsigned char has_made;
  unsigned char has_passed;
  weir_unique_id_t made;    // by ncclCommGetUniqueId, since the last time
  weir_unique_id_t passed;  // to ncclCommGrow
};

// The id that the new ranks were given, which all old ranks learn.
Outcome spread_id(const char* function, Comm& parent, weir_comm_t weir,
                  const std::optional<weir_unique_id_t>& passed, weir_unique_id_t* id) {
  GrowEntry entry{};
  const std::optional<weir_unique_id_t> own = parent.take_grow_id();
  entry.has_made = own.has_value();
  entry.has_passed = passed.has_value();
  entry.made = own.value_or(weir_unique_id_t{});
  entry.passed = passed.value_or(weir_unique_id_t{});
  std::vector<GrowEntry> all(static_cast<size_t>(parent.rank_count()));
  const weir_result_t result = gather_for_setup(weir, &entry, all.data(), sizeof entry);
  if (result != WEIR_OK) return parent.outcome(function, result);
  std::vector<size_t> made;
  std::vector<size_t> given;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].has_made == 1) made.push_back(rank);
    if (all[rank].has_passed == 1) given.push_back(rank);
  }
  const auto wrong = [&](const std::string& what) {
    return invalid_argument(
        fmt::format("{}, rank {} of {}: {}", function, parent.rank(), parent.rank_count(), what));
  };
  if (made.size() == 1) {
    *id = all[made[0]].made;
    return {};
  }
  if (given.empty()) {
    return wrong(made.empty()
                     ? "no rank of the old communicator has made a unique id: one of them must "
                       "call ncclCommGetUniqueId before each ncclCommGrow"
                     : fmt::format("ranks {} have each made a unique id with ncclCommGetUniqueId: "
                                   "only one of them must make it, and pass it to the new ranks",
                                   fmt::join(made, ", ")));
  }
  for (const size_t rank : given) {
    if (std::memcmp(&all[rank].passed, &all[given[0]].passed, sizeof all[rank].passed) == 0) {
      continue;
    }
    return wrong(fmt::format("ranks {} and {} pass different unique ids", given[0], rank));
  }
  *id = all[given[0]].passed;
  return {};
}

static_assert(sizeof(ncclUniqueId) == sizeof(weir_unique_id_t));

}  // namespace

weir_unique_id_t to_weir_id(const ncclUniqueId& id) {
  weir_unique_id_t weir;
  std::memcpy(weir.bytes, id.internal, sizeof weir.bytes);
  return weir;
}

Outcome make_unique_id(const char* function, ncclUniqueId* id) {
  if (id == nullptr) return invalid_argument(fmt::format("{}: uniqueId is NULL", function));
  Outcome outcome = apply_environment(function);
  if (!outcome.ok()) return outcome;
  bool set = false;
  outcome = id_of_environment(function, &set, id);
  if (set || !outcome.ok()) return outcome;
  weir_unique_id_t made;
  if (const weir_result_t result = weir_get_unique_id(&made); result != WEIR_OK) {
    return {to_nccl(result), fmt::format("{}: {}", function, weir_last_error(nullptr))};
  }
  std::memcpy(id->internal, made.bytes, sizeof made.bytes);
  return {};
}

Outcome make_init(const char* function, ncclComm_t* out, int rank_count,
                  const std::vector<ncclUniqueId>& ids, int rank, int device,
                  const ncclConfig_t* given, Setup* setup) {
  if (out == nullptr) return invalid_argument(fmt::format("{}: comm is NULL", function));
  *out = nullptr;
  Outcome outcome = check_rank(function, rank, rank_count);
  if (outcome.ok()) outcome = apply_environment(function);
  if (outcome.ok()) outcome = check_ids(function, ids);
  if (!outcome.ok()) return outcome;
  Config config = default_config();
  outcome = read_config(function, given, &config);
  if (!outcome.ok()) return outcome;
  open(setup, function, std::move(config), rank, rank_count, device, out);
  std::vector<weir_unique_id_t> places;
  for (const ncclUniqueId& id : ids) places.push_back(with_key(to_weir_id(id)));
  setup->work = [function, comm = setup->made, rank_count, places, rank,
                 forwarding = Forwarding(given, device)] {
    return create(function, *comm, rank_count, places, rank,
                  [&](weir_comm_t made, const weir_unique_id_t& id) {
                    return forwarding.agree(function, *comm, made, id, places.size());
                  });
  };
  return {};
}

Outcome make_split(const char* function, const Parent& from, int color, int key, ncclComm_t* out,
                   const ncclConfig_t* given, Setup* setup) {
  if (out == nullptr) return invalid_argument(fmt::format("{}: newcomm is NULL", function));
  *out = nullptr;
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) {
    return invalid_argument(
        fmt::format("{}: color {} is neither NCCL_SPLIT_NOCOLOR ({}) nor at least 0", function,
                    color, NCCL_SPLIT_NOCOLOR));
  }
  const std::shared_ptr<Comm>& parent = from.comm;
  Config config = given == nullptr ? inherited(*parent) : default_config();
  Outcome outcome = read_config(function, given, &config);
  if (!outcome.ok()) return outcome;
  setup->function = function;
  if (color >= 0) open(setup, function, config, 0, 0, parent->device_for_child(), out);
  if (from.real != nullptr) {
    setup->work = [function, from, comm = setup->made, config, color, key,
                   forwarding = Forwarding(given, parent->device())] {
      return split_forwarded(function, from, comm.get(), config, color, key, forwarding);
    };
    return {};
  }
  setup->work = [function, parent, comm = setup->made, config, color, key]() -> Outcome {
    const weir_comm_config_t weir = config.weir();
    weir_comm_t made = nullptr;
    const weir_result_t result = weir_comm_split(parent->weir(), color, key, &weir, &made);
    if (comm == nullptr) return parent->outcome(function, result);
    return attach(function, *comm, result, made);
  };
  return {};
}

Outcome make_shrink(const char* function, const Parent& from, std::vector<int> excluded, int flags,
                    ncclComm_t* out, const ncclConfig_t* given, Setup* setup) {
  if (out == nullptr) return invalid_argument(fmt::format("{}: newcomm is NULL", function));
  *out = nullptr;
  const std::shared_ptr<Comm>& parent = from.comm;
  for (const int rank : excluded) {
    if (rank < 0 || rank >= parent->rank_count()) {
      return invalid_argument(
          fmt::format("{}: excludeRanksList names rank {}, the communicator has 0 to {}", function,
                      rank, parent->rank_count() - 1));
    }
    if (rank == parent->rank()) {
      return invalid_argument(fmt::format(
          "{}: excludeRanksList names the calling rank {}; a rank that leaves makes no call",
          function, rank));
    }
  }
  Config config = given == nullptr ? inherited(*parent) : default_config();
  Outcome outcome = read_config(function, given, &config);
  if (!outcome.ok()) return outcome;
  open(setup, function, config, 0, 0, parent->device_for_child(), out);
  if (from.real != nullptr) {
    setup->work = [function, from, comm = setup->made, excluded = std::move(excluded), flags,
                   forwarding = Forwarding(given, parent->device())] {
      return shrink_forwarded(function, from, *comm, excluded, flags, forwarding);
    };
    return {};
  }
  setup->work = [function, parent, comm = setup->made, excluded = std::move(excluded)] {
    const weir_comm_config_t weir = comm->config().weir();
    weir_comm_t made = nullptr;
    const weir_result_t result = weir_comm_shrink(parent->weir(), excluded.data(),
                                                  static_cast<int>(excluded.size()), &weir, &made);
    return attach(function, *comm, result, made);
  };
  return {};
}

Outcome make_grow(const char* function, const Parent& from, int rank_count, const ncclUniqueId* id,
                  int rank, ncclComm_t* out, const ncclConfig_t* given, Setup* setup) {
  if (out == nullptr) return invalid_argument(fmt::format("{}: newcomm is NULL", function));
  *out = nullptr;
  const std::shared_ptr<Comm>& parent = from.comm;
  if (parent == nullptr && id == nullptr) {
    return invalid_argument(fmt::format("{}: a new rank must pass the unique id", function));
  }
  if (parent != nullptr && rank != -1) {
    return invalid_argument(
        fmt::format("{}: rank is {}, but a rank of the old communicator keeps its own: pass -1",
                    function, rank));
  }
  if (parent != nullptr && rank_count <= parent->rank_count()) {
    return invalid_argument(fmt::format("{}: nRanks {} is not more than the {} there are", function,
                                        rank_count, parent->rank_count()));
  }
  if (parent != nullptr) rank = parent->rank();
  Outcome outcome = check_rank(function, rank, rank_count);
  if (outcome.ok()) outcome = apply_environment(function);
  // Old ranks may pass anything: documented programs pass NULL, others an uninitialized id.
  std::optional<weir_unique_id_t> passed;
  if (outcome.ok() && id != nullptr) {
    Outcome sound = check_ids(function, {*id});
    if (sound.ok()) passed = to_weir_id(*id);
    if (parent == nullptr) outcome = std::move(sound);
  }
  if (!outcome.ok()) return outcome;
  Config config = given == nullptr && parent != nullptr ? inherited(*parent) : default_config();
  outcome = read_config(function, given, &config);
  if (!outcome.ok()) return outcome;
  open(setup, function, std::move(config), rank, rank_count,
       parent != nullptr ? parent->device_for_child() : current_device(), out);
  setup->work = [function, from, comm = setup->made, rank_count, passed, rank,
                 forwarding = Forwarding(given, setup->made->device())]() -> Outcome {
    weir_unique_id_t agreed{};
    Outcome told;
    if (from.comm == nullptr) {
      agreed = *passed;
    } else {
      weir_comm_t met = nullptr;
      if (from.real != nullptr) {
        told = meet_again(function, from, from.comm->derived_ids()->next_id("grow", 0), &met);
        if (!told.ok()) return told;
      }
      told = spread_id(function, *from.comm, met != nullptr ? met : from.comm->weir(), passed,
                       &agreed);
      if (met != nullptr) weir_comm_destroy(met);
    }
    if (!told.ok()) return told;
    return create(function, *comm, rank_count, {with_key(agreed)}, rank,
                  [&](weir_comm_t made, const weir_unique_id_t& at) {
                    return forwarding.grow(function, from, *comm, made, at);
                  });
  };
  return {};
}

}  // namespace weir::nccl
